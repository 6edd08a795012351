"""Checksums: whether the bytes on disk are those that were written.

A checksum is `xxh3:` and 32 hex digits: XXH3-128 over the XXH3-128 digests of a file's blocks of 64 MiB, so that all
cores can share a file and a writer need not read it again. A check costs what reading costs. It finds accidents, not
attacks: what comes from others is looked at as well (`array_folder.py`: names, sizes; `data/store.py`,
`preprocessing/prepared.py`: numbers that point into other arrays).

What is found when:
  on opening     all of a manifest; of each array that it is there, its size, type and shape, and every byte up to 1 MiB
  on first use   every byte of an array up to 64 MiB
  before a stage (prepare, train, evaluate, predict, report) reads a larger array: every byte of it, once in a process
  by --verify    every byte of everything
With LARGEGT_CHECK=open in the environment the third is left out, for disks that are slow to read through.
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
_MOST_JSON_BYTES = 1 << 28
_READ_BYTES = 1 << 20
_RANGE_ROWS = 1 << 22
_LONGEST_HEADER = 10_000

_checked: set[tuple[Any, ...]] = set()


@dataclass(frozen=True)
class Damage:
    """A file that is not what was written, and how that shows."""

    file: PathLike
    reason: str

    def __str__(self) -> str:
        return f"{self.file} {self.reason}"


# whole files


class BlockDigests:
    """Digests of the blocks of a file that grows at its end, for those seen from their first byte to their last."""

    def __init__(self, at: int) -> None:
        self.known: dict[int, bytes] = {}
        self._at = at
        self._hasher = xxhash.xxh3_128()
        self._whole = at % BLOCK_BYTES == 0

    def add(self, piece: memoryview) -> None:
        while len(piece):
            part = piece[: BLOCK_BYTES - self._at % BLOCK_BYTES]
            self._hasher.update(part)
            self._at += len(part)
            piece = piece[len(part) :]
            if self._at % BLOCK_BYTES == 0:
                if self._whole:
                    self.known[self._at // BLOCK_BYTES - 1] = self._hasher.digest()
                self._hasher, self._whole = xxhash.xxh3_128(), True


def file_checksum(path: PathLike, known: Mapping[int, bytes] | None = None) -> str:
    """The checksum of a file, its blocks read on all cores; those whose digests are `known` are not read."""

    def pieces(low: int, high: int) -> Iterator[bytes]:
        with open(path, "rb", buffering=0) as stream:
            stream.seek(low)
            while low < high and (piece := stream.read(min(_READ_BYTES, high - low))):
                yield piece
                low += len(piece)

    return _joined(pieces, os.path.getsize(path), known)


def is_checksum(value: Any) -> bool:
    """Whether this has the form of a checksum."""
    return isinstance(value, str) and re.fullmatch("xxh3:[0-9a-f]{32}", value) is not None


def _joined(pieces: Callable[[int, int], Iterable[bytes]], size: int, known: Mapping[int, bytes] | None = None) -> str:
    """The checksum of `size` bytes, of which `pieces(low, high)` are some, from the digests of their blocks."""

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
    """How a file differs from what was noted of it, or None. One that was found right is not read again by this
    process unless it was written to since."""
    try:
        facts = file.stat()
        if facts.st_size != num_bytes:
            return f"has {facts.st_size} bytes, {num_bytes} were written"
        key = (str(file), facts.st_dev, facts.st_ino, facts.st_size, facts.st_mtime_ns, checksum)
        if key not in _checked and file_checksum(file) != checksum:
            return "does not match its checksum"
    except FileNotFoundError:
        return "is missing"
    _checked.add(key)
    return None


def url_mismatch(url: str, num_bytes: int, checksum: str) -> str | None:
    """How a file at a URL differs from what was noted of it, or None. Every byte is read."""
    if (size := remote.size(url)) != num_bytes:
        return "is missing" if size is None else f"has {size} bytes, {num_bytes} were written"
    return None if _joined(partial(remote.read, url), num_bytes) == checksum else "does not match its checksum"


def outside(array: Array, below: int, checksum: str) -> str | None:
    """What is wrong if every number of an array must be at least 0 and less than `below`, or None. Looked at once in a
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
    """Whether this process reads large arrays through before they are used: the first of a machine's ranks does."""
    return os.environ.get("LARGEGT_CHECK") != "open" and os.environ.get("LOCAL_RANK", "0") == "0"


# small JSON files that carry their own checksum


def canonical(tree: Any) -> bytes:
    """The JSON text of a value: equal values have equal texts on every machine."""
    return json.dumps(tree, sort_keys=True, separators=(",", ":"), ensure_ascii=True).encode()


def fingerprint(value: Any) -> str:
    """16 hex digits that name a JSON-able value."""
    return hashlib.sha256(canonical(value)).hexdigest()[:16]


def sealed(tree: Mapping[str, Any]) -> str:
    """The JSON text of an object, with an entry `checksum` over the others."""
    return json.dumps({**tree, "checksum": bytes_checksum(canonical(tree))}, indent=1, ensure_ascii=False) + "\n"


def read_sealed(file: Path, advice: str) -> dict[str, Any]:
    """The object in a file that `sealed` wrote. `advice` ends each error message."""
    tree = read_object(file, advice)
    check_seal(tree, file, advice)
    return tree


def read_object(file: Path, advice: str, opened: IO[bytes] | None = None) -> dict[str, Any]:
    """The object in a JSON file, which may be `opened` already."""
    try:
        with nullcontext(opened) if opened is not None else open(file, "rb") as stream:
            raw = stream.read(_MOST_JSON_BYTES + 1)
        if len(raw) > _MOST_JSON_BYTES:
            raise FormatError(f"{file} has more than {_MOST_JSON_BYTES} bytes, too many for what it is; {advice}")
        tree = json.loads(raw)
    except (OSError, ValueError, RecursionError) as error:
        raise FormatError(f"{file} cannot be read ({first_line(error)}); {advice}") from error
    if not isinstance(tree, dict):
        raise FormatError(f"{file} is damaged: expected an object, found {type(tree).__name__}; {advice}")
    return tree


def check_seal(tree: dict[str, Any], file: Path, advice: str) -> None:
    """Take the entry `checksum` out of an object, and refuse the object if it does not fit."""
    if tree.pop("checksum", None) != bytes_checksum(canonical(tree)):
        raise FormatError(f"{file} does not match its checksum: it was damaged or changed; {advice}")


# headers of .npy files


def npy_header(stream: Any) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    """(shape, Fortran order, dtype) of the `.npy` file that begins here. Raises ValueError for what is none."""
    version = np.lib.format.read_magic(stream)
    if version not in ((1, 0), (2, 0)):
        raise ValueError(f"its .npy format {version} is not known")
    read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, fortran, dtype = read(stream, max_header_size=_LONGEST_HEADER)
    if any(side < 0 for side in shape):
        raise ValueError(f"its shape {shape} is impossible")
    return tuple(shape), bool(fortran), dtype
