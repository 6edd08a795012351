"""TokenTable: the memory that holds token rows during training, and the gathers from it.

Enters: a Prepared, the training device, and a place. Leaves: tokens of a batch; the same bytes from every place.

  cuda    every array is copied to GPU memory and gathered there
  pinned  every array is copied to host memory; for a GPU the token rows are pinned, in its compute precision, and the
          GPU reads the rows of a batch over the bus (pinned_gather.py)
  mmap    memory-mapped files, read by several threads. If they exceed memory, only the distinct rows of a batch are
          read, in file order, and expanded on the GPU

`auto` is the first of cuda and pinned that fits, else mmap; on a CPU it is mmap, where the page cache is as fast as a
copy. Cost of a batch on the bus: its b·k rows of h·d numbers, h = hops + 1; for files that exceed memory, its distinct
rows.
"""

from __future__ import annotations

import mmap
import warnings
from copy import copy
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from largegt.errors import ConfigError
from largegt.preprocessing.prepared import Prepared
from largegt.runtime.cuda_streams import pinned_buffer
from largegt.runtime.memory import available_bytes, format_bytes
from largegt.runtime.threads import num_threads, take_rows
from largegt.types import Array, TablePlace

from .batch import input_tokens, to_compute_dtype
from .bf16_gather import gather_bf16
from .label_inputs import LocalLabelHistograms
from .pinned_gather import gather_pinned, pinned

_MAX_GPU_FRACTION, _MAX_HOST_FRACTION = 0.6, 0.5
_BLOCK_ROWS = 1 << 16
_BUS_MULTIPLE = 8
"""The feature dimension is padded to a multiple of this on the bus: loads of 16 bytes."""
_COPY_THREADS, _READ_THREADS = 8, 32
"""Threads that gather the rows of a batch: from files that fit into memory (more threads are slower), and from larger
files (the number of concurrent disk reads)."""


@dataclass(frozen=True)
class TokenForm:
    """The precision and padding of tokens."""

    dtype: torch.dtype | None = None
    """The precision; as stored if None."""
    multiple: int = 1
    """The feature dimension is zero-padded to a multiple of this, unless it is smaller."""

    def width(self, num_features: int) -> int:
        return num_features if num_features < self.multiple else -(-num_features // self.multiple) * self.multiple

    def cast(self, rows: Tensor) -> Tensor:
        """Cast to `dtype` and zero-pad the feature dimension."""
        return F.pad(rows.to(self.dtype or rows.dtype), (0, self.width(rows.shape[-1]) - rows.shape[-1]))

    def cast_table(self, table: Tensor, device: torch.device) -> Tensor:
        """`cast` a whole table block by block, onto another device."""
        shape = (*table.shape[:-1], self.width(table.shape[-1]))
        out = torch.empty(shape, dtype=self.dtype or table.dtype, device=device)
        for start in range(0, len(table), _BLOCK_ROWS):
            out[start : start + _BLOCK_ROWS] = self.cast(table[start : start + _BLOCK_ROWS].to(device))
        return out


class TokenTable:
    """The arrays of a Prepared as tensors, indexed by row."""

    def __init__(
        self,
        prepared: Prepared,
        device: torch.device | str = "cpu",
        place: TablePlace = "auto",
        form: TokenForm = TokenForm(),
    ) -> None:
        prepared.check()
        read = ("local_rows", "is_neighbor", "tokens", "label_counts")
        names = (*read, "nodes", "positions", "labels", "neighbor_label_histogram")
        arrays: dict[str, Array] = {name: getattr(prepared, name) for name in names}
        num_bytes = sum(array.nbytes for array in arrays.values())
        self.target, self.form, self.num_features = torch.device(device), form, prepared.num_features
        self.place = choose_place(place, num_bytes, self.target)
        self.readers, self.rows_per_read = max(1, min(num_threads(None) // self.ahead, _COPY_THREADS)), 1024
        self.exceeds_memory = self.place == "mmap" and num_bytes > _MAX_HOST_FRACTION * available_bytes()
        if self.exceeds_memory:
            self.readers, self.rows_per_read = _READ_THREADS, 32
            arrays |= {name: _without_readahead(prepared, name) for name in read if arrays[name].shape[1]}
        tensors = {name: _tensor(array) for name, array in arrays.items()}
        if self.place != "mmap":
            storage, packed = self.target if self.place == "cuda" else torch.device("cpu"), form
            if self.place == "pinned":
                packed = TokenForm(form.dtype, _BUS_MULTIPLE) if self.target.type == "cuda" else TokenForm()
            tokens = packed.cast_table(tensors["tokens"], storage)
            tensors = {name: tensor.to(storage, copy=True) for name, tensor in tensors.items() if name != "tokens"}
            is_read_by_gpu = self.place == "pinned" and self.target.type == "cuda"
            tensors["tokens"] = pinned(tokens, self.target) if is_read_by_gpu else tokens
        self.nodes, self.labels, self.positions_np = tensors["nodes"], tensors["labels"], tensors["positions"]
        self.local_rows_nk, self.is_neighbor_bits = tensors["local_rows"], tensors["is_neighbor"]
        self.tokens_rhd, self.label_counts = tensors["tokens"], tensors["label_counts"]
        self.neighbor_label_histogram = tensors["neighbor_label_histogram"].flatten(1)
        has_counts = prepared.config.local_label_histograms
        self.local_label_histogram = LocalLabelHistograms.from_prepared(prepared, self.device) if has_counts else None
        """Label distributions around local nodes, if their counts were prepared."""
        self._resampled: tuple[Tensor, Tensor, Tensor] | None = None
        """Sorted rows with resampled local nodes, these local nodes, and whether each is a neighbour."""

    @property
    def device(self) -> torch.device:
        """The device of all tensors except the token rows."""
        return self.local_rows_nk.device

    @property
    def ahead(self) -> int:
        """The number of batches to prefetch: a GPU consumes them quickly; on a CPU each takes memory from the step."""
        if self.target.type == "cpu":
            return 1
        return 4 if self.place == "mmap" else 2

    @property
    def num_token_rows(self) -> int:
        return len(self.tokens_rhd)

    @property
    def width(self) -> int:
        """The feature dimension of a token, with padding."""
        return self.form.width(self.num_features)

    def with_local_rows(self, rows: Array, local_rows_nk: Array, is_neighbor_nk: Array) -> TokenTable:
        """This table with other local nodes at these sorted rows; everything else is shared."""
        other = copy(self)
        if len(rows):
            at = torch.from_numpy(np.ascontiguousarray(rows, dtype=np.int64)).to(self.device)
            local_rows, is_neighbor = (torch.from_numpy(new).to(self.device) for new in (local_rows_nk, is_neighbor_nk))
            other._resampled = at, local_rows, is_neighbor
        return other

    def local_rows_of(self, rows: Tensor, k: int | None) -> Tensor:
        """[b, k] local nodes of these rows, as rows of the token table."""
        return self._with_resampled(rows, self._rows_at(self.local_rows_nk, rows)[:, :k], 1)

    def is_neighbor_of(self, rows: Tensor, k: int | None) -> Tensor:
        """[b, k] boolean: whether each local node of these rows is a neighbour."""
        bits = self._rows_at(self.is_neighbor_bits, rows)
        is_neighbor_bk = (bits[:, :, None] >> torch.arange(8, dtype=torch.uint8, device=bits.device)) & 1
        return self._with_resampled(rows, is_neighbor_bk.flatten(1)[:, : self.local_rows_nk.shape[1]].bool()[:, :k], 2)

    def _with_resampled(self, rows: Tensor, values_bk: Tensor, which: Literal[1, 2]) -> Tensor:
        """[b, k] values of these rows, replaced for resampled rows."""
        if self._resampled is None:
            return values_bk
        changed, resampled_nk = self._resampled[0], self._resampled[which]
        at = torch.searchsorted(changed, rows).clamp(max=len(changed) - 1)
        return torch.where((changed[at] == rows)[:, None], resampled_nk[at, : values_bk.shape[1]], values_bk)

    def marked_rows_of(self, rows: Tensor, k: int | None) -> Tensor:
        """[b, k] local nodes of these rows: twice the row of the token table, plus one for a neighbour. The mark moves
        with the local node."""
        return 2 * self.local_rows_of(rows, k).long() + self.is_neighbor_of(rows, k)

    @staticmethod
    def unmarked(marked_bk: Tensor) -> tuple[Tensor, Tensor]:
        """[b, k] marked local nodes as rows of the token table, and whether they are neighbours."""
        return marked_bk >> 1, (marked_bk & 1).bool()

    def local_label_histogram_of(self, rows: Tensor, local_rows_bk: Tensor, is_neighbor_bk: Tensor) -> Tensor | None:
        """[b, k, c + 1] label distributions around the local nodes of these rows; None if not prepared."""
        if self.local_label_histogram is None:
            return None
        if self.exceeds_memory:
            distinct_u, which_bk = torch.unique(local_rows_bk, return_inverse=True)
            counts_bkc = self._read(self.label_counts, distinct_u)[which_bk]
        else:
            counts_bkc = self._rows_at(self.label_counts, local_rows_bk.reshape(-1)).view(*local_rows_bk.shape, -1)
        return self.local_label_histogram.histograms_for(rows, self.labels[rows], counts_bkc, is_neighbor_bk)

    def tokens_of(self, local_rows_bk: Tensor) -> Tensor:
        """[b, h·k, d] tokens, on the training device."""
        if self.place == "cuda":
            return input_tokens(self.tokens_rhd, local_rows_bk)
        if self.tokens_rhd.is_cuda:  # pinned: the GPU reads
            rows = local_rows_bk.reshape(-1).to(self.target, non_blocking=True)
            tokens_nhd = gather_pinned(self.tokens_rhd, rows, self.width)
            return to_compute_dtype(tokens_nhd.view(len(local_rows_bk), -1, self.width))
        if self.target.type == "cpu" and not self.exceeds_memory:
            self._check(self.tokens_rhd, local_rows_bk)
            return self.form.cast(input_tokens(self.tokens_rhd, local_rows_bk))
        if self.exceeds_memory:
            rows, which_bk = torch.unique(local_rows_bk, return_inverse=True)
            which_bk = which_bk.to(self.target, non_blocking=True)
        else:  # fits into the page cache
            rows = local_rows_bk.reshape(-1)
            which_bk = torch.arange(len(rows), device=self.target).view(local_rows_bk.shape)
        block_uhd = self._read(self.tokens_rhd, rows).to(self.target, non_blocking=True)
        return input_tokens(self.form.cast(block_uhd[..., : self.num_features]), which_bk)

    def _rows_at(self, table: Tensor, rows: Tensor) -> Tensor:
        return self._read(table, rows) if self.place == "mmap" else table[rows]

    def _check(self, table: Tensor, rows: Tensor) -> None:
        assert rows.numel() == 0 or (int(rows.min()) >= 0 and int(rows.max()) < len(table)), "row out of range"

    def _read(self, table: Tensor, rows: Tensor) -> Tensor:
        """These rows, read by several threads; into pinned memory for a GPU."""
        is_rounded = table.dtype == torch.float32 and self.form.dtype == torch.bfloat16
        dtype = torch.bfloat16 if is_rounded else table.dtype
        shape = (len(rows), *table.shape[1:])
        out = pinned_buffer(shape, dtype) if self.target.type == "cuda" else torch.empty(shape, dtype=dtype)
        self._check(table, rows)
        rows_per_task = max(self.rows_per_read, -(-len(rows) // (4 * self.readers)))
        take = gather_bf16 if is_rounded else take_rows
        take(_numpy(table), rows.numpy(), _numpy(out), rows_per_task, self.readers)
        return out


def check_place(place: TablePlace, device: torch.device) -> None:
    """Refuse a place that this device does not have. Called before a long preparation."""
    if place == "cuda" and device.type != "cuda":
        raise ConfigError("train.token_table=cuda, but there is no GPU in use: use `train.token_table=auto`")


def choose_place(place: TablePlace, num_bytes: int, device: torch.device) -> TablePlace:
    """Resolve `auto`; refuse a place that is too small."""
    check_place(place, device)
    on_gpu = device.type == "cuda"
    if place == "mmap" or (place == "auto" and not on_gpu):
        return "mmap"
    gpu_free = torch.cuda.mem_get_info(device)[0] if on_gpu else 0
    host_free = available_bytes()
    if place == "auto" and num_bytes < _MAX_GPU_FRACTION * gpu_free:
        return "cuda"
    if place == "auto":
        return "pinned" if num_bytes < _MAX_HOST_FRACTION * host_free else "mmap"
    free, other = (gpu_free, "pinned") if place == "cuda" else (host_free, "mmap")
    if num_bytes > free:
        raise ConfigError(
            f"train.token_table={place} needs {format_bytes(num_bytes)}, and {format_bytes(free)} are free there: "
            f"use `train.token_table={other}`"
        )
    return place


def _numpy(tensor: Tensor) -> Array:
    """The same memory as a NumPy array; bfloat16 as its bits (uint16)."""
    return (tensor.view(torch.uint16) if tensor.dtype == torch.bfloat16 else tensor).numpy()


def _tensor(array: Array) -> Tensor:
    """A tensor over a read-only mapped file, without a copy. Nothing writes to it."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
        return torch.from_numpy(array)


def _without_readahead(prepared: Prepared, name: str) -> Array:
    """A mapped file without readahead."""
    array: Array = np.load(prepared.file(name), mmap_mode="r", allow_pickle=False)
    if isinstance(array.base, mmap.mmap) and hasattr(mmap, "MADV_RANDOM"):
        array.base.madvise(mmap.MADV_RANDOM)
    return array
