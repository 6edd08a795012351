"""Ids: the user's own names for nodes, as whole numbers or as text.

Enters: columns in NumPy or Arrow form. Leaves: `Ids`, which are one of two things everywhere in this stage: a NumPy
int64 array, or an Arrow large_string array. Cost: a column at a time; whole numbers of 64 bits are not copied.

Where to look: `nodes` says which nodes there are; `id_file` leads from ids to node numbers, `sorted_ids` finds the
distinct ids of a stream, both on disk in bounded memory; `id_tasks` does either on a cluster; `id_sorting`,
`id_columns` and `id_kernels` are their parts.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ..errors import InputError, first_line
from ..types import Array

Ids = Any


class MixedIdsError(InputError):
    """Some ids are whole numbers and others are text: read all of them as text."""


def is_text(ids: Ids) -> bool:
    return isinstance(ids, pa.Array)


def as_ids(values: Any, where: str, first_row: int = 0) -> Ids:
    """Ids from an Arrow or NumPy column; `where` is named when they are neither whole numbers nor text, and so is the
    row of an id that is missing (the column begins at `first_row`)."""
    if isinstance(values, pa.ChunkedArray):
        values = values.combine_chunks()
    if not isinstance(values, pa.Array):
        array = native(np.asarray(values))
        if array.dtype.kind in "iu" and array.dtype != np.uint64:
            return np.ascontiguousarray(array, dtype=np.int64)
        values = _arrow(array, where)
    if pa.types.is_dictionary(values.type):
        values = values.dictionary_decode()
    if values.null_count:
        row = first_row + int(np.flatnonzero(values.is_null().to_numpy(zero_copy_only=False))[0])
        raise InputError(f"{where}: an id is missing (row {row}, counted from 0): every row needs one")
    if pa.types.is_integer(values.type):
        try:
            return np.ascontiguousarray(values.cast(pa.int64()).to_numpy(zero_copy_only=False))
        except pa.ArrowInvalid:
            raise InputError(f"{where}: an id does not fit 64 bits with sign; give such ids as text") from None
    if pa.types.is_string(values.type) or pa.types.is_large_string(values.type):
        _check_text(values, where, first_row)
        return values.cast(pa.large_string())
    raise InputError(f"{where}: ids must be whole numbers or text, found {values.type}")


def native(array: Array) -> Array:
    """The same numbers in this machine's byte order."""
    return array if array.dtype.isnative else array.astype(array.dtype.newbyteorder("="))


def _check_text(text: Any, where: str, first_row: int) -> None:
    """Refuse ids that say nothing."""
    empty = pc.equal(text, "")
    if pc.any(empty).as_py():
        row = first_row + int(np.flatnonzero(empty.to_numpy(zero_copy_only=False))[0])
        raise InputError(f"{where}: an id is missing (row {row}, counted from 0): every row needs one")


def as_text(ids: Ids) -> Ids:
    """The same ids as text."""
    return ids if is_text(ids) else pa.array(ids).cast(pa.large_string())


def as_numbers(text: Ids) -> tuple[Array, Array]:
    """(int64, which are meant): text that is a plain whole number stands for that number, other text for none."""
    meant = pc.match_substring_regex(text, r"^(0|-?[1-9][0-9]{0,17})$")
    numbers = pc.if_else(meant, text, pa.scalar("0", pa.large_string())).cast(pa.int64())
    return np.ascontiguousarray(numbers.to_numpy(zero_copy_only=False)), meant.to_numpy(zero_copy_only=False)


def id_at(ids: Ids, row: int) -> Any:
    """One id as a Python value."""
    return ids[row].as_py() if is_text(ids) else int(ids[row])


def join_ids(parts: list[Ids]) -> list[Ids]:
    """The parts as one column where all are whole numbers or all are text; otherwise as they are."""
    if len({is_text(part) for part in parts}) > 1:
        return parts
    return [pa.concat_arrays(parts) if is_text(parts[0]) else np.concatenate(parts)]


def _arrow(array: Array, where: str) -> Any:
    """Arrow form of a NumPy array of text or Python objects."""
    if array.dtype.kind == "S":
        array = array.astype(str)
    try:
        values = pa.array(array.tolist() if array.dtype.kind in "UO" else array)
        values.validate(full=True)  # NumPy's text may hold numbers that are no letters
        return values
    except (pa.ArrowException, ValueError, TypeError, OverflowError, SystemError) as error:
        raise InputError(f"{where}: cannot be read as one kind of value ({first_line(error)})") from None
