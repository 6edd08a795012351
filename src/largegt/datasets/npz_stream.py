"""Stream arrays of an `.npz` file, which cannot be memory-mapped and may be larger than memory.

Edges and feature rows are read in chunks for `ingest`. Cost: a chunk and some megabytes per open reader; skipped data
is decompressed and discarded. Nothing is unpickled.
"""

from __future__ import annotations

import math
import zipfile
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from largegt.data import parts
from largegt.data.duckdb_connection import reading
from largegt.data.ids import as_ids
from largegt.data.limits import check_member
from largegt.errors import InputError
from largegt.io.checksums import npy_header
from largegt.types import Array, PathLike

_PIECE_BYTES = 1 << 20
_ENCRYPTED = 1


class NpzMember:
    """One array of an `.npz` file: its header, and its values in file order."""

    def __init__(self, path: PathLike, name: str) -> None:
        self.path, self.name = path, name
        self.where = f"{path}: array {name!r}"
        with reading(path), zipfile.ZipFile(path) as archive:
            names = [member.removesuffix(".npy") for member in archive.namelist()]
            if name not in names:
                raise InputError(f"{path} has no array {name!r}; it has: {', '.join(names) or 'none'}")
            info = archive.getinfo(f"{name}.npy")
            if info.flag_bits & _ENCRYPTED:
                raise ValueError("it is encrypted")
            with archive.open(f"{name}.npy") as stream:
                self.shape, fortran, self.dtype = npy_header(stream)
                self._header_bytes = stream.tell()
            if not self.dtype.hasobject:
                check_member(info, self._header_bytes + self.size * self.dtype.itemsize)
        # both orders are the same for an array with one dimension, row or column
        self.fortran = fortran and sum(side != 1 for side in self.shape) > 1
        if self.dtype.hasobject or self.dtype.names:
            raise InputError(f"{self.where} holds {self.dtype}, plain numbers are wanted (nothing is unpickled)")

    @property
    def size(self) -> int:
        """Number of values."""
        return math.prod(self.shape)

    def values(self, start: int, stop: int, most: int) -> Iterator[Array]:
        """Blocks of at most `most` values from `start` to `stop` - 1, in file order. Blocks do not share memory."""
        width = self.dtype.itemsize
        with reading(self.path), zipfile.ZipFile(self.path) as archive, archive.open(f"{self.name}.npy") as stream:
            _skip(stream, self._header_bytes + start * width)
            while start < stop:
                block = np.empty(min(most, stop - start), dtype=self.dtype)
                _fill(stream, memoryview(block.view(np.uint8)))  # type: ignore[arg-type]
                start += len(block)
                yield block

    def read(self) -> Array:
        """The whole array, for small arrays."""
        blocks = list(self.values(0, self.size, max(1, self.size)))
        flat = blocks[0] if blocks else np.empty(0, dtype=self.dtype)
        return flat.reshape(self.shape, order="F" if self.fortran else "C")


def _skip(stream: Any, num_bytes: int) -> None:
    """Skip bytes. zipfile's `seek` uses 16 MB of memory, or skips the checksum."""
    while num_bytes and (piece := stream.read1(min(_PIECE_BYTES, num_bytes))):
        num_bytes -= len(piece)


def _fill(stream: Any, view: memoryview) -> None:
    """Fill `view` from the stream in pieces: zipfile's `read` would copy its buffer for each piece."""
    at = 0
    while at < len(view):
        piece = stream.read1(min(_PIECE_BYTES, len(view) - at))
        if not piece:
            raise EOFError("it is shorter than its header says: it was cut off, get it again")
        view[at : at + len(piece)] = piece
        at += len(piece)


class NpzEdges:
    """Edges in an array [2, E]: all sources, then all targets (two readers), or interleaved in Fortran order."""

    def __init__(self, member: NpzMember) -> None:
        if len(member.shape) != 2 or member.shape[0] != 2:
            raise InputError(f"{member.where} has shape {list(member.shape)}, expected [2, E]")
        if member.dtype.kind not in "iu":
            raise InputError(f"{member.where} holds {member.dtype}, node numbers must be whole numbers")
        self.where = member.where
        self.total: int | None = member.shape[1]
        self._member = member

    has_integers, is_weighted = True, False
    feature_names: Sequence[str] = ()

    def chunks(self, skip: int = 0, features: bool = False) -> Iterator[parts.EdgeChunk]:
        member, total, rows = self._member, self._member.shape[1], parts.EDGE_CHUNK_ROWS
        pairs: Iterator[tuple[Array, Array]]
        if member.fortran:
            pairs = ((block[0::2], block[1::2]) for block in member.values(2 * skip, 2 * total, 2 * rows))
        else:
            ends = member.values(skip, total, rows), member.values(total + skip, 2 * total, rows)
            pairs = zip(*ends, strict=True)
        for sources, targets in pairs:
            yield parts.EdgeChunk(as_ids(sources, self.where), as_ids(targets, self.where))


class NpzFeatures:
    """Feature rows in a numeric array [N, d], converted to float32."""

    names: list[str] | None = None

    def __init__(self, member: NpzMember) -> None:
        if len(member.shape) != 2:
            raise InputError(f"{member.where} has shape {list(member.shape)}, features are [N, d]: a row per node")
        if member.dtype.kind not in "fiub":
            raise InputError(f"{member.where} holds {member.dtype}, features must be numbers")
        if member.fortran:
            raise InputError(
                f"{member.where} lies column by column (Fortran order), so its rows cannot be streamed: "
                "save it again from np.ascontiguousarray(...)"
            )
        self.where = member.where
        self.num_rows: int | None = member.shape[0]
        self.width = member.shape[1]
        self._member = member

    def chunks(self, skip: int = 0) -> Iterator[Array]:
        most = parts.chunk_rows(self.width) * self.width
        for block in self._member.values(skip * self.width, self._member.size, max(1, most)):
            with np.errstate(over="ignore"):
                yield block.astype(np.float32, copy=False).reshape(-1, self.width)


def npz_labels(member: NpzMember) -> Array:
    """int16 [N] from an array of N class numbers; NaN (no label) becomes -1."""
    if member.dtype.kind not in "fiu":
        raise InputError(f"{member.where} holds {member.dtype}, labels must be numbers")
    if member.size != (member.shape[0] if member.shape else 0):
        raise InputError(f"{member.where} has shape {list(member.shape)}, expected [N] or [N, 1]: one class per node")
    labels = np.empty(member.size, dtype=np.int16)
    at = 0
    for block in member.values(0, member.size, parts.EDGE_CHUNK_ROWS):
        known = np.where(np.isnan(block), -1, block)
        part = labels[at : at + len(block)]
        with np.errstate(invalid="ignore"):
            part[:] = known.astype(np.int16)
        if (wrong := (part != known) | (part < -1)).any():
            largest = np.iinfo(np.int16).max
            raise InputError(f"{member.where}: label {known[wrong][0]} is no class number from 0 to {largest}")
        at += len(block)
    return labels
