"""Checksums detect files that changed after they were written.

A checksum is `xxh3:` and 32 hex digits: XXH3-128 over the XXH3-128 digests of a file's blocks of 64 MiB. All cores
can hash one file, and a writer need not read it again. A check costs one read of the file. It detects accidents, not
attacks; untrusted folders have further checks (`array_folder.py`: names, sizes; `data/store.py`,
`preprocessing/prepared.py`: numbers that index other arrays).

What is checked when:
  on opening     the manifest; for each array: existence, size, dtype and shape, and every byte of files up to 1 MiB
  on first use   every byte of an array up to 64 MiB
  before a stage (prepare, train, evaluate, predict, report) reads a larger array: every byte, once per process
  with --verify  every byte of all files
LARGEGT_CHECK=open in the environment disables the third check, for slow disks.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO, Any

import numpy as np
import xxhash

from largegt.errors import FormatError, first_line
from largegt.runtime.threads import run_ranges
from largegt.types import Array, PathLike

from . import remote

BLOCK_BYTES = 1 << 26
SMALL_BYTES = 1 << 20
"""Files up to this size are checked when their folder is opened."""
USED_BYTES = 1 << 26
"""Files up to this size are checked when they are first used."""
_MAX_JSON_BYTES = 1 << 28
_READ_BYTES = 1 << 20
_RANGE_ROWS = 1 << 22
_MAX_HEADER_BYTES = 10_000

_checked: set[tuple[Any, ...]] = set()


@dataclass(frozen=True)
class Damage:
    """A damaged file, and a description of the damage."""

    file: PathLike
    reason: str

    def __str__(self) -> str:
        return f"{self.file} {self.reason}"


# whole files


class BlockDigests:
    """Digests of the blocks of a file that is being appended to; `known` has the blocks that were seen completely."""

    def __init__(self, at: int) -> None:
        self.known: dict[int, bytes] = {}
        self._position = at
        self._hasher = xxhash.xxh3_128()
        self._is_whole_block = at % BLOCK_BYTES == 0

    def add(self, piece: memoryview) -> None:
        while len(piece):
            part = piece[: BLOCK_BYTES - self._position % BLOCK_BYTES]
            self._hasher.update(part)
            self._position += len(part)
            piece = piece[len(part) :]
            if self._position % BLOCK_BYTES == 0:
                if self._is_whole_block:
                    self.known[self._position // BLOCK_BYTES - 1] = self._hasher.digest()
                self._hasher, self._is_whole_block = xxhash.xxh3_128(), True


def file_checksum(path: PathLike, known: Mapping[int, bytes] | None = None) -> str:
    """The checksum of a file, computed on all cores; blocks with `known` digests are not read."""

    def pieces(low: int, high: int) -> Iterator[bytes]:
        with open(path, "rb", buffering=0) as stream:
            stream.seek(low)
            while low < high and (piece := stream.read(min(_READ_BYTES, high - low))):
                yield piece
                low += len(piece)

    return _xxh3(pieces, os.path.getsize(path), known)


def is_checksum(value: Any) -> bool:
    """Whether `value` has the form of a checksum."""
    return isinstance(value, str) and re.fullmatch("xxh3:[0-9a-f]{32}", value) is not None


def _xxh3(pieces: Callable[[int, int], Iterable[bytes]], size: int, known: Mapping[int, bytes] | None = None) -> str:
    """The checksum of `size` bytes from the digests of their blocks; `pieces(low, high)` reads a range of bytes."""

    def digest_of(low: int, high: int) -> bytes:
        if known and (digest := known.get(low // BLOCK_BYTES)) is not None:
            return digest
        hasher = xxhash.xxh3_128()
        for piece in pieces(low, high):
            hasher.update(piece)
        return hasher.digest()

    whole = xxhash.xxh3_128()
    for digest in run_ranges(digest_of, [*range(0, size, BLOCK_BYTES), size]):
        whole.update(digest)
    return f"xxh3:{whole.hexdigest()}"


def bytes_checksum(text: bytes) -> str:
    """XXH3-128 of some bytes, as one block."""
    return f"xxh3:{xxhash.xxh3_128(text).hexdigest()}"


def mismatch(file: Path, num_bytes: int, checksum: str) -> str | None:
    """How a file differs from its recorded size and checksum, or None. This process does not read a correct file again
    unless the file was written to."""
    try:
        stat = file.stat()
        if stat.st_size != num_bytes:
            return f"has {stat.st_size} bytes, {num_bytes} were written"
        key = (str(file), stat.st_dev, stat.st_ino, stat.st_size, stat.st_mtime_ns, checksum)
        if key not in _checked and file_checksum(file) != checksum:
            return "does not match its checksum"
    except FileNotFoundError:
        return "is missing"
    _checked.add(key)
    return None


def url_mismatch(url: str, num_bytes: int, checksum: str) -> str | None:
    """How a file at a URL differs from its recorded size and checksum, or None. Reads every byte."""
    if (size := remote.size(url)) != num_bytes:
        return "is missing" if size is None else f"has {size} bytes, {num_bytes} were written"
    return None if _xxh3(partial(remote.read, url), num_bytes) == checksum else "does not match its checksum"


def outside(array: Array, below: int, checksum: str) -> str | None:
    """An error text unless all numbers of an array are at least 0 and less than `below`, else None. Checked once per
    process for each checksum."""
    if (checksum, below) in _checked:
        return None

    def extremes(low: int, high: int) -> tuple[int, int]:
        return int(array[low:high].min()), int(array[low:high].max())

    for low, high in run_ranges(extremes, [*range(0, len(array), _RANGE_ROWS), len(array)] if array.size else []):
        if low < 0 or high >= below:
            return f"holds numbers from {low} to {high}, 0 to {below - 1} are possible"
    _checked.add((checksum, below))
    return None


def is_checker() -> bool:
    """Whether this process checks large arrays before use: the first rank of a machine does."""
    return os.environ.get("LARGEGT_CHECK") != "open" and os.environ.get("LOCAL_RANK", "0") == "0"


# small JSON files that carry their own checksum


def canonical(tree: Any) -> bytes:
    """Canonical JSON text: equal values have equal texts on every machine."""
    return json.dumps(tree, sort_keys=True, separators=(",", ":"), ensure_ascii=True).encode()


def fingerprint(value: Any) -> str:
    """Hash of a JSON value: 16 hex digits."""
    return hashlib.sha256(canonical(value)).hexdigest()[:16]


def sealed(tree: Mapping[str, Any]) -> str:
    """The JSON text of an object, with an added entry `checksum` of the other entries."""
    return json.dumps({**tree, "checksum": bytes_checksum(canonical(tree))}, indent=1, ensure_ascii=False) + "\n"


def read_sealed(file: Path, advice: str) -> dict[str, Any]:
    """The object in a file that `sealed` wrote. `advice` ends each error message."""
    tree = read_object(file, advice)
    check_seal(tree, file, advice)
    return tree


def read_object(file: Path, advice: str, opened: IO[bytes] | None = None) -> dict[str, Any]:
    """The object in a JSON file; `opened` is the file if it is already open."""
    try:
        with nullcontext(opened) if opened is not None else open(file, "rb") as stream:
            raw = stream.read(_MAX_JSON_BYTES + 1)
        if len(raw) > _MAX_JSON_BYTES:
            raise FormatError(f"{file} has more than {_MAX_JSON_BYTES} bytes, too many for what it is; {advice}")
        tree = json.loads(raw)
    except (OSError, ValueError, RecursionError) as error:
        raise FormatError(f"{file} cannot be read ({first_line(error)}); {advice}") from error
    if not isinstance(tree, dict):
        raise FormatError(f"{file} is damaged: expected an object, found {type(tree).__name__}; {advice}")
    return tree


def check_seal(tree: dict[str, Any], file: Path, advice: str) -> None:
    """Remove the entry `checksum` from an object, and refuse the object if the checksum does not match."""
    if tree.pop("checksum", None) != bytes_checksum(canonical(tree)):
        raise FormatError(f"{file} does not match its checksum: it was damaged or changed; {advice}")


# headers of .npy files


def npy_header(stream: Any) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    """(shape, Fortran order, dtype) of a `.npy` file at the current position; ValueError for other data."""
    version = np.lib.format.read_magic(stream)
    if version not in ((1, 0), (2, 0)):
        raise ValueError(f"its .npy format {version} is not known")
    read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, fortran, dtype = read(stream, max_header_size=_MAX_HEADER_BYTES)
    if any(side < 0 for side in shape):
        raise ValueError(f"its shape {shape} is impossible")
    return tuple(shape), bool(fortran), dtype
