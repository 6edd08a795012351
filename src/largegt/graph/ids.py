"""Node ids: the user's own names for nodes, and the way from them to node numbers 0..N-1.

Enters: ids as whole numbers or text, in NumPy or Arrow form. Leaves: int64 node numbers, -1 for unknown ids.
Cost: O(N) memory for a hash table; a lookup is O(1) and runs on all threads.

`Ids` is one of two things everywhere in this stage: a NumPy int64 array, or an Arrow large_string array.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ..errors import InputError, first_line
from ..threads import run_ranges
from ..types import Array
from . import kernels

Ids = Any


class MixedIdsError(InputError):
    """Some ids are whole numbers and others are text: read all of them as text."""


def is_text(ids: Ids) -> bool:
    return isinstance(ids, pa.Array)


def as_ids(values: Any, where: str) -> Ids:
    """Ids from an Arrow or NumPy column; `where` is named when they are neither whole numbers nor text."""
    if isinstance(values, pa.ChunkedArray):
        values = values.combine_chunks()
    if not isinstance(values, pa.Array):
        array = np.asarray(values)
        if array.dtype.kind in "iu" and array.dtype != np.uint64:
            return np.ascontiguousarray(array, dtype=np.int64)
        values = _arrow(array, where)
    if pa.types.is_dictionary(values.type):
        values = values.dictionary_decode()
    if values.null_count:
        row = int(np.flatnonzero(values.is_null().to_numpy(zero_copy_only=False))[0])
        raise InputError(f"{where}: an id is missing (row {row} of its block): every row needs one")
    if pa.types.is_integer(values.type):
        try:
            return np.ascontiguousarray(values.cast(pa.int64()).to_numpy(zero_copy_only=False))
        except pa.ArrowInvalid:
            raise InputError(f"{where}: an id does not fit 64 bits with sign; give such ids as text") from None
    if pa.types.is_string(values.type) or pa.types.is_large_string(values.type):
        return values.cast(pa.large_string())
    raise InputError(f"{where}: ids must be whole numbers or text, found {values.type}")


def as_text(ids: Ids) -> Ids:
    """The same ids as text."""
    return ids if is_text(ids) else pa.array(ids).cast(pa.large_string())


def id_at(ids: Ids | None, row: int) -> Any:
    """One id as a Python value; without ids, the row's own number."""
    if ids is None:
        return row
    return ids[row].as_py() if is_text(ids) else int(ids[row])


def text_buffers(ids: Ids) -> tuple[Array, Array]:
    """(offsets int64 [n+1], bytes uint8) of a text array; offsets start at 0."""
    _, offset_buffer, byte_buffer = ids.buffers()
    if len(ids) == 0 or offset_buffer is None:
        return np.zeros(1, dtype=np.int64), np.zeros(0, dtype=np.uint8)
    offsets = np.frombuffer(offset_buffer, dtype=np.int64)[ids.offset : ids.offset + len(ids) + 1]
    text = np.frombuffer(byte_buffer, dtype=np.uint8) if byte_buffer is not None else np.zeros(0, dtype=np.uint8)
    return offsets - offsets[0], np.array(text[offsets[0] : offsets[-1]])


class IdMap:
    """From ids to node numbers. `ids=None`: ids are the rows 0..num_nodes-1."""

    def __init__(self, num_nodes: int, ids: Ids | None, where: str, threads: int) -> None:
        self.num_nodes, self.ids, self.where, self.threads = num_nodes, ids, where, threads
        if ids is None:
            return
        slots = 1 << max(4, (2 * num_nodes - 1).bit_length())
        self._table = np.full(slots, -1, dtype=np.int32 if num_nodes < 2**31 else np.int64)
        if is_text(ids):
            self._offsets, self._text = text_buffers(ids)
            twice = kernels.hash_strings(self._offsets, self._text, self._table)
        else:
            twice = kernels.hash_integers(ids, self._table)
        if twice >= 0:
            raise InputError(
                f"{where}: id {id_at(ids, twice)!r} occurs twice (again in row {twice}): "
                "each node may have one row only"
            )

    @property
    def kind(self) -> str:
        return "row" if self.ids is None else "string" if is_text(self.ids) else "integer"

    def find(self, wanted: Ids) -> Array:
        """Node numbers int64 of these ids, -1 where there is no such node."""
        if self.kind == "string":
            return self._find_text(as_text(wanted))
        if is_text(wanted):
            return self._find_parsed(wanted)
        if self.ids is None:
            return np.where((wanted >= 0) & (wanted < self.num_nodes), wanted, -1)
        found = np.empty(len(wanted), dtype=np.int64)
        self._on_threads(
            lambda low, high: kernels.find_integers(wanted, self.ids, self._table, found, low, high), found
        )
        return found

    def _find_text(self, wanted: Ids) -> Array:
        offsets, text = text_buffers(wanted)
        found = np.empty(len(wanted), dtype=np.int64)
        self._on_threads(
            lambda low, high: kernels.find_strings(
                offsets, text, self._offsets, self._text, self._table, found, low, high
            ),
            found,
        )
        return found

    def _find_parsed(self, wanted: Ids) -> Array:
        """Text that is a plain whole number is looked up as that number."""
        numeric = pc.match_substring_regex(wanted, r"^-?[0-9]{1,18}$")
        numbers = pc.if_else(numeric, wanted, pa.scalar("0", pa.large_string())).cast(pa.int64())
        found = self.find(np.ascontiguousarray(numbers.to_numpy(zero_copy_only=False)))
        return np.where(numeric.to_numpy(zero_copy_only=False), found, -1)

    def _on_threads(self, task: Callable[[int, int], Any], found: Array) -> None:
        parts = self.threads if len(found) > 1 << 16 else 1
        for _ in run_ranges(task, np.linspace(0, len(found), parts + 1).astype(np.int64), self.threads):
            pass


def sorted_unique(chunks: Iterable[Ids]) -> Ids:
    """The distinct ids of all chunks, sorted (text by its UTF-8 bytes). Memory: O(distinct) + a chunk."""
    known: Ids | None = None
    waiting: list[Ids] = []
    num_waiting = 0
    for chunk in chunks:
        if waiting or known is not None:
            before = known if known is not None else waiting[0]
            if is_text(before) != is_text(chunk):
                raise MixedIdsError("ids are partly whole numbers and partly text")
        waiting.append(_distinct([chunk]))
        num_waiting += len(waiting[-1])
        if num_waiting > (0 if known is None else len(known)):
            known = _distinct(waiting if known is None else [known, *waiting])
            waiting, num_waiting = [], 0
    if waiting:
        known = _distinct(waiting if known is None else [known, *waiting])
    if known is None:
        return np.zeros(0, dtype=np.int64)
    return known.take(pc.sort_indices(known)) if is_text(known) else np.sort(known)


def _distinct(parts: list[Ids]) -> Ids:
    """The distinct ids, in the order they are met: Arrow's hash is far faster than the sort of np.unique."""
    if is_text(parts[0]):
        return pc.unique(pa.concat_arrays(parts))
    return pc.unique(pa.concat_arrays([pa.array(part) for part in parts])).to_numpy()


def _arrow(array: Array, where: str) -> Any:
    """Arrow form of a NumPy array of text or Python objects."""
    if array.dtype.kind == "S":
        array = array.astype(str)
    try:
        return pa.array(array.tolist() if array.dtype.kind in "UO" else array)
    except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError, UnicodeDecodeError) as error:
        raise InputError(f"{where}: cannot be read as one kind of value ({first_line(error)})") from None
