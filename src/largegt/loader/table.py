"""TokenTable: where the rows that tokens are gathered from lie during training, and how they are reached there.

Enters: a Prepared, the device that trains, and a place. Leaves: tokens of a batch; the same bytes from every place.

  gpu    every array is copied into the GPU's memory and gathered there
  host   every array is copied into this machine's memory; for a GPU the token rows are pinned, in the precision it
         computes in, and it reads the rows that a batch needs by itself (pinned_gather.py)
  disk   the memory-mapped files, read by several threads. Where they are larger than memory, only the distinct rows
         of a batch are read, in the file's order, and travel to the GPU, which spreads them out

`auto` takes gpu or host, whichever has room first, and disk otherwise; on a CPU it takes disk, where the page cache
is as good as a copy. Cost of a batch on the bus: its b·k rows of h·d numbers, h = hops + 1; on a disk that is read, its
distinct rows.
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

from .batch import computable, input_tokens
from .bf16_gather import take_rounded
from .label_inputs import LocalLabelHistograms
from .pinned_gather import pinned, read_over_bus

_GPU_SHARE, _HOST_SHARE = 0.6, 0.5
_BLOCK_ROWS = 1 << 16
_BUS_NUMBERS = 8
"""Features on the bus come in multiples of this: 16 bytes at a time."""
_COPIERS, _READERS = 8, 32
"""Threads that gather a batch's rows of files that fit into memory (more of them get in each other's way), and of
larger ones: so many requests the disk has in hand at once."""


@dataclass(frozen=True)
class TokenForm:
    """How tokens leave the table."""

    dtype: torch.dtype | None = None
    """Their precision; as stored when None."""
    multiple: int = 1
    """Zeros are put behind the features up to a multiple of this; never for features narrower than it."""

    def width(self, num_features: int) -> int:
        return num_features if num_features < self.multiple else -(-num_features // self.multiple) * self.multiple

    def of(self, rows: Tensor) -> Tensor:
        """These rows in this form."""
        return F.pad(rows.to(self.dtype or rows.dtype), (0, self.width(rows.shape[-1]) - rows.shape[-1]))

    def copied(self, table: Tensor, device: torch.device) -> Tensor:
        """A whole table in this form on another device, block by block."""
        shape = (*table.shape[:-1], self.width(table.shape[-1]))
        out = torch.empty(shape, dtype=self.dtype or table.dtype, device=device)
        for start in range(0, len(table), _BLOCK_ROWS):
            out[start : start + _BLOCK_ROWS] = self.of(table[start : start + _BLOCK_ROWS].to(device))
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
        self.readers, self.rows_per_read = max(1, min(num_threads(None) // self.ahead, _COPIERS)), 1024
        self.is_cold = self.place == "mmap" and num_bytes > _HOST_SHARE * available_bytes()
        if self.is_cold:
            self.readers, self.rows_per_read = _READERS, 32
            arrays |= {name: _without_readahead(prepared, name) for name in read if arrays[name].shape[1]}
        tensors = {name: _tensor(array) for name, array in arrays.items()}
        if self.place != "mmap":
            here, packed = self.target if self.place == "cuda" else torch.device("cpu"), form
            if self.place == "pinned":
                packed = TokenForm(form.dtype, _BUS_NUMBERS) if self.target.type == "cuda" else TokenForm()
            tokens = packed.copied(tensors["tokens"], here)
            tensors = {name: tensor.to(here, copy=True) for name, tensor in tensors.items() if name != "tokens"}
            is_read_by_gpu = self.place == "pinned" and self.target.type == "cuda"
            tensors["tokens"] = pinned(tokens, self.target) if is_read_by_gpu else tokens
        self.nodes, self.labels, self.positions_np = tensors["nodes"], tensors["labels"], tensors["positions"]
        self.local_rows_nk, self.is_neighbor_bits = tensors["local_rows"], tensors["is_neighbor"]
        self.tokens_rhd, self.label_counts = tensors["tokens"], tensors["label_counts"]
        self.neighbor_label_histogram = tensors["neighbor_label_histogram"].flatten(1)
        has_counts = prepared.config.local_label_histograms
        self.local_label_histogram = LocalLabelHistograms.of(prepared, self.device) if has_counts else None
        """What nodes are told of the labels around their local nodes, where those were counted."""
        self._others: tuple[Tensor, Tensor, Tensor] | None = None
        """Rows, rising, that have other local nodes than `local_rows_nk` says, those, and which are neighbours."""

    @property
    def device(self) -> torch.device:
        """Where everything but the token rows is looked up."""
        return self.local_rows_nk.device

    @property
    def ahead(self) -> int:
        """Batches worth gathering ahead: a GPU is done with one soon; on a CPU each takes memory from the step."""
        if self.target.type == "cpu":
            return 1
        return 4 if self.place == "mmap" else 2

    @property
    def num_token_rows(self) -> int:
        return len(self.tokens_rhd)

    @property
    def width(self) -> int:
        """Numbers of a token, with the zeros behind them."""
        return self.form.width(self.num_features)

    def with_local_rows(self, rows: Array, local_rows_nk: Array, is_neighbor_nk: Array) -> TokenTable:
        """The same table with other local nodes at these rows, which rise; everything else is shared."""
        other = copy(self)
        if len(rows):
            at = torch.from_numpy(np.ascontiguousarray(rows, dtype=np.int64)).to(self.device)
            local_rows, is_neighbor = (torch.from_numpy(new).to(self.device) for new in (local_rows_nk, is_neighbor_nk))
            other._others = at, local_rows, is_neighbor
        return other

    def local_rows_of(self, rows: Tensor, k: int | None) -> Tensor:
        """[b, k] local nodes of these rows, as rows of the token table."""
        return self._replaced(rows, self._rows_at(self.local_rows_nk, rows)[:, :k], 1)

    def is_neighbor_of(self, rows: Tensor, k: int | None) -> Tensor:
        """[b, k] boolean: which local nodes of these rows are direct neighbours."""
        bits = self._rows_at(self.is_neighbor_bits, rows)
        is_neighbor_bk = (bits[:, :, None] >> torch.arange(8, dtype=torch.uint8, device=bits.device)) & 1
        return self._replaced(rows, is_neighbor_bk.flatten(1)[:, : self.local_rows_nk.shape[1]].bool()[:, :k], 2)

    def _replaced(self, rows: Tensor, values_bk: Tensor, which: Literal[1, 2]) -> Tensor:
        """[b, k] values of these rows, but those of the rows that have others."""
        if self._others is None:
            return values_bk
        changed, others_nk = self._others[0], self._others[which]
        at = torch.searchsorted(changed, rows).clamp(max=len(changed) - 1)
        return torch.where((changed[at] == rows)[:, None], others_nk[at, : values_bk.shape[1]], values_bk)

    def marked_rows_of(self, rows: Tensor, k: int | None) -> Tensor:
        """[b, k] local nodes of these rows: twice the row of the token table, plus one for a direct neighbour. A local
        node keeps its mark when it is moved."""
        return 2 * self.local_rows_of(rows, k).long() + self.is_neighbor_of(rows, k)

    @staticmethod
    def unmarked(marked_bk: Tensor) -> tuple[Tensor, Tensor]:
        """[b, k] marked local nodes as rows of the token table, and whether they are direct neighbours."""
        return marked_bk >> 1, (marked_bk & 1).bool()

    def local_label_histogram_of(self, rows: Tensor, local_rows_bk: Tensor, is_neighbor_bk: Tensor) -> Tensor | None:
        """[b, k, c + 1] what these rows are told of the labels around their local nodes; None where they were not
        counted."""
        if self.local_label_histogram is None:
            return None
        if self.is_cold:
            distinct_u, which_bk = torch.unique(local_rows_bk, return_inverse=True)
            counts_bkc = self._read(self.label_counts, distinct_u)[which_bk]
        else:
            counts_bkc = self._rows_at(self.label_counts, local_rows_bk.reshape(-1)).view(*local_rows_bk.shape, -1)
        return self.local_label_histogram.seen_from(rows, self.labels[rows], counts_bkc, is_neighbor_bk)

    def tokens_of(self, local_rows_bk: Tensor) -> Tensor:
        """[b, h·k, d] tokens, on the device that trains."""
        if self.place == "cuda":
            return input_tokens(self.tokens_rhd, local_rows_bk)
        if self.tokens_rhd.is_cuda:  # pinned: the GPU reads
            rows = local_rows_bk.reshape(-1).to(self.target, non_blocking=True)
            tokens_nhd = read_over_bus(self.tokens_rhd, rows, self.width)
            return computable(tokens_nhd.view(len(local_rows_bk), -1, self.width))
        if self.target.type == "cpu" and not self.is_cold:
            self._check(self.tokens_rhd, local_rows_bk)
            return self.form.of(input_tokens(self.tokens_rhd, local_rows_bk))
        if self.is_cold:
            rows, which_bk = torch.unique(local_rows_bk, return_inverse=True)
            which_bk = which_bk.to(self.target, non_blocking=True)
        else:  # in memory, or in the page cache after one epoch
            rows = local_rows_bk.reshape(-1)
            which_bk = torch.arange(len(rows), device=self.target).view(local_rows_bk.shape)
        block_uhd = self._read(self.tokens_rhd, rows).to(self.target, non_blocking=True)
        return input_tokens(self.form.of(block_uhd[..., : self.num_features]), which_bk)

    def _rows_at(self, table: Tensor, rows: Tensor) -> Tensor:
        return self._read(table, rows) if self.place == "mmap" else table[rows]

    def _check(self, table: Tensor, rows: Tensor) -> None:
        assert rows.numel() == 0 or (int(rows.min()) >= 0 and int(rows.max()) < len(table)), "a row that is not there"

    def _read(self, table: Tensor, rows: Tensor) -> Tensor:
        """These rows, read by several threads; into pinned memory when they go on to a GPU."""
        is_rounded = table.dtype == torch.float32 and self.form.dtype == torch.bfloat16
        dtype = torch.bfloat16 if is_rounded else table.dtype
        shape = (len(rows), *table.shape[1:])
        out = pinned_buffer(shape, dtype) if self.target.type == "cuda" else torch.empty(shape, dtype=dtype)
        self._check(table, rows)
        rows_per_task = max(self.rows_per_read, -(-len(rows) // (4 * self.readers)))
        take = take_rounded if is_rounded else take_rows
        take(_numpy(table), rows.numpy(), _numpy(out), rows_per_task, self.readers)
        return out


def check_place(place: TablePlace, device: torch.device) -> None:
    """Refuse a place that this device does not have: worth knowing before a long preparation."""
    if place == "cuda" and device.type != "cuda":
        raise ConfigError("train.token_table=cuda, but there is no GPU in use: use `train.token_table=auto`")


def choose_place(place: TablePlace, num_bytes: int, device: torch.device) -> TablePlace:
    """What `auto` stands for here; a place without room is refused."""
    check_place(place, device)
    on_gpu = device.type == "cuda"
    if place == "mmap" or (place == "auto" and not on_gpu):
        return "mmap"
    gpu_free = torch.cuda.mem_get_info(device)[0] if on_gpu else 0
    host_free = available_bytes()
    if place == "auto":
        return (
            "cuda" if num_bytes < _GPU_SHARE * gpu_free else "pinned" if num_bytes < _HOST_SHARE * host_free else "mmap"
        )
    free, other = (gpu_free, "pinned") if place == "cuda" else (host_free, "mmap")
    if num_bytes > free:
        raise ConfigError(
            f"train.token_table={place} needs {format_bytes(num_bytes)}, and {format_bytes(free)} are free there: "
            f"use `train.token_table={other}`"
        )
    return place


def _numpy(tensor: Tensor) -> Array:
    """The same memory as a NumPy array; bfloat16, which that does not know, as its bits."""
    return (tensor.view(torch.uint16) if tensor.dtype == torch.bfloat16 else tensor).numpy()


def _tensor(array: Array) -> Tensor:
    """A tensor over a read-only mapped file, without a copy. Nothing of ours writes to it."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
        return torch.from_numpy(array)


def _without_readahead(prepared: Prepared, name: str) -> Array:
    """A mapped file of which a page is read when it is touched, and not its neighbours."""
    array: Array = np.load(prepared.file(name), mmap_mode="r", allow_pickle=False)
    if isinstance(array.base, mmap.mmap) and hasattr(mmap, "MADV_RANDOM"):
        array.base.madvise(mmap.MADV_RANDOM)
    return array
