"""Limits: check the sizes that a file declares before memory is allocated.

Enters: a user file that may be damaged or malicious. Leaves: nothing, or a one-line error. Cost: reading the headers.
A small file can declare a huge size: a `.npy` header 10^15 rows, a zip or Parquet file terabytes of one value.
"""

from __future__ import annotations

import math
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from largegt.errors import InputError
from largegt.io.checksums import npy_header
from largegt.runtime.memory import available_bytes, format_bytes
from largegt.types import PathLike

_MAX_EXPANSION = 1032
"""Maximum expansion of a deflated byte."""
_MAX_VALUES_PER_BYTE = 10_000
"""Maximum values per byte of a Parquet file; constant columns have about 250."""
_FEW_VALUES = 1 << 24
_BYTES_PER_NODE = 6
"""Memory of ingest for labels and splits."""


def check_member(info: zipfile.ZipInfo, held: int) -> None:
    """Refuse a zip member unless its header size (`held` bytes) and its compressed size are consistent."""
    if held != info.file_size:
        raise ValueError(f"{info.filename} has a header for {held} bytes and holds {info.file_size}")
    most = info.compress_size * (1 if info.compress_type == zipfile.ZIP_STORED else _MAX_EXPANSION)
    if info.compress_type in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED) and info.file_size > most:
        raise ValueError(f"{info.filename} says that {info.compress_size} bytes hold {info.file_size}")


def check_npz(path: PathLike) -> None:
    """Refuse an `.npz` file with impossible sizes, or with arrays that do not fit into memory together."""
    total = 0
    with zipfile.ZipFile(path) as archive:
        if sum(info.compress_size for info in archive.infolist()) > Path(path).stat().st_size:
            raise ValueError("its parts are larger than the whole")
        for info in archive.infolist():
            with archive.open(info) as stream:
                shape, _, dtype = npy_header(stream)
                held = stream.tell() + math.prod(shape) * dtype.itemsize
            if not dtype.hasobject:  # object arrays are refused when read
                check_member(info, held)
            total += info.file_size
    if total > (free := available_bytes()):
        raise ValueError(f"its arrays take {format_bytes(total)} of memory, and {format_bytes(free)} are free")


def checked_sparse(matrix: Any) -> Any:
    """Check that the indices of a SciPy matrix are in bounds: SciPy does not check them when it reads."""
    if hasattr(matrix, "check_format"):
        matrix.check_format(full_check=True)
    return matrix


def check_parquet(groups: Sequence[tuple[int, int]], num_bytes: int) -> None:
    """Refuse a Parquet file that declares more values than its size allows. `groups` has (rows, values) per row
    group."""
    if any(rows < 0 or values < 0 for rows, values in groups):
        raise ValueError("it says that it has less than no rows")
    values = sum(max(rows, values) for rows, values in groups)
    if values > max(_FEW_VALUES, _MAX_VALUES_PER_BYTE * num_bytes):
        raise ValueError(f"its {num_bytes} bytes say that they hold {values} values, which no table does")


def check_num_nodes(num_nodes: int, where: str) -> None:
    """Refuse a number of nodes if their labels and splits do not fit into memory."""
    if _BYTES_PER_NODE * num_nodes > (free := available_bytes()):
        raise InputError(
            f"{where} says {num_nodes} nodes: their labels and splits alone take "
            f"{format_bytes(_BYTES_PER_NODE * num_nodes)} of memory, and {format_bytes(free)} are free"
        )
