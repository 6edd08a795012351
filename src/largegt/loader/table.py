"""TokenTable: where the rows that tokens are gathered from lie during training, and how they are reached there.

Enters: a Prepared, the device that trains, and a place. Leaves: tokens of a batch; the same bytes from every place.

  gpu    every array is copied into the GPU's memory and gathered there
  host   every array is copied into this machine's memory; for a GPU the token rows are pinned, in the precision it
         computes in, and it reads the rows that a batch needs by itself (bus.py)
  disk   the memory-mapped files, read by several threads. Where they are larger than memory, only the distinct rows
         of a batch are read, in the file's order, and travel to the GPU, which spreads them out

`auto` takes gpu or host, whichever has room first, and disk otherwise; on a CPU it takes disk, where the page cache
is as good as a copy. Cost of a batch on the bus: its b·k rows of h·d numbers, h = hops + 1; on a disk that is read, its
distinct rows.
"""

from __future__ import annotations

import mmap
import warnings
import weakref
from contextlib import suppress
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
from largegt.types import Array

from .batch import computable, input_tokens
from .bf16_gather import take_rounded
from .local_contexts import LocalContexts
from .pinned_gather import read_over_bus

Place = Literal["auto", "gpu", "host", "disk"]

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
        place: Place = "auto",
        form: TokenForm = TokenForm(),
    ) -> None:
        prepared.check()
        names = ("nodes", "local_rows", "near", "tokens", "label_counts", "positions", "labels", "label_contexts")
        arrays: dict[str, Array] = {name: getattr(prepared, name) for name in names}
        num_bytes = sum(array.nbytes for array in arrays.values())
        self.target, self.form = torch.device(device), form
        self.place = choose_place(place, num_bytes, self.target)
        self.readers, self.rows_per_read = max(1, min(num_threads(None) // self.ahead, _COPIERS)), 1024
        self.is_cold = self.place == "disk" and num_bytes > _HOST_SHARE * available_bytes()
        if self.is_cold:
            self.readers, self.rows_per_read = _READERS, 32
            for name in [name for name in ("local_rows", "near", "tokens", "label_counts") if arrays[name].shape[1]]:
                file = prepared.file(name)
                arrays[name] = _without_readahead(np.load(file, mmap_mode="r", allow_pickle=False))
        tensors = {name: _tensor(array) for name, array in arrays.items()}
        self.num_features = prepared.num_features
        if self.place == "gpu":
            tokens = form.copied(tensors.pop("tokens"), self.target)
            tensors = {name: tensor.to(self.target) for name, tensor in tensors.items()} | {"tokens": tokens}
        elif self.place == "host":
            packed = TokenForm(form.dtype, _BUS_NUMBERS) if self.target.type == "cuda" else TokenForm()
            tokens = packed.copied(tensors.pop("tokens"), torch.device("cpu"))
            tensors = {name: tensor.clone() for name, tensor in tensors.items()}
            tensors["tokens"] = _pinned(tokens, self.target) if self.target.type == "cuda" else tokens
        self.nodes: Tensor = tensors["nodes"]
        self.local_rows_nk: Tensor = tensors["local_rows"]
        self.tokens_rhd: Tensor = tensors["tokens"]
        self.positions_np: Tensor = tensors["positions"]
        self.label_contexts: Tensor = tensors["label_contexts"].flatten(1)
        self.labels: Tensor = tensors["labels"]
        self.near_bits: Tensor = tensors["near"]
        self.label_counts: Tensor = tensors["label_counts"]
        self.local_contexts: LocalContexts | None = None
        """What nodes are told of the labels around their local nodes, where those were counted."""
        if prepared.config.labels.local:
            self.local_contexts = LocalContexts.of(prepared, self.device)
        self._others: tuple[Tensor, Tensor, Tensor | None] | None = None
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
        return 4 if self.place == "disk" else 2

    @property
    def num_token_rows(self) -> int:
        return len(self.tokens_rhd)

    @property
    def width(self) -> int:
        """Numbers of a token, with the zeros behind them."""
        return self.form.width(self.num_features)

    @property
    def knows_distances(self) -> bool:
        """Whether it is known which local nodes are neighbours."""
        return bool(self.near_bits.shape[1])

    def with_local_rows(self, rows: Array, local_rows_nk: Array, near_nk: Array | None = None) -> TokenTable:
        """The same table with other local nodes at these rows, which rise; everything else is shared."""
        assert (near_nk is not None) == self.knows_distances, "other local nodes, and which of them are neighbours"
        other = copy(self)
        if len(rows):
            at = torch.from_numpy(np.ascontiguousarray(rows, dtype=np.int64)).to(self.device)
            near = None if near_nk is None else torch.from_numpy(near_nk).to(self.device)
            other._others = at, torch.from_numpy(local_rows_nk).to(self.device), near
        return other

    def local_rows_of(self, rows: Tensor, k: int | None) -> Tensor:
        """[b, k] local nodes of these rows, as rows of the token table."""
        is_read = self.place == "disk"
        local_rows_bk = self._read(self.local_rows_nk, rows)[:, :k] if is_read else self.local_rows_nk[rows, :k]
        return local_rows_bk if self._others is None else self._replaced(rows, local_rows_bk, self._others[1])

    def near_of(self, rows: Tensor, k: int | None) -> Tensor:
        """[b, k] boolean: which local nodes of these rows are neighbours, where that is known."""
        bits = self._rows_at(self.near_bits, rows)
        near_bk = (bits[:, :, None] >> torch.arange(8, dtype=torch.uint8, device=bits.device)) & 1
        near_bk = near_bk.flatten(1)[:, : self.local_rows_nk.shape[1]].bool()[:, :k]
        if self._others is None:
            return near_bk
        assert self._others[2] is not None
        return self._replaced(rows, near_bk, self._others[2])

    def _replaced(self, rows: Tensor, values_bk: Tensor, others_nk: Tensor) -> Tensor:
        """[b, k] values of these rows, but those of the rows that have others."""
        assert self._others is not None
        changed = self._others[0]
        at = torch.searchsorted(changed, rows).clamp(max=len(changed) - 1)
        return torch.where((changed[at] == rows)[:, None], others_nk[at, : values_bk.shape[1]], values_bk)

    def _rows_at(self, table: Tensor, rows: Tensor) -> Tensor:
        return self._read(table, rows) if self.place == "disk" else table[rows]

    def marked_rows_of(self, rows: Tensor, k: int | None) -> Tensor:
        """[b, k] local nodes of these rows, marked: where it is known which are neighbours, a row of the token table
        times two, and one more for a neighbour. So a local node keeps its mark wherever it is put."""
        local_rows_bk = self.local_rows_of(rows, k)
        return 2 * local_rows_bk.long() + self.near_of(rows, k) if self.knows_distances else local_rows_bk

    def unmarked(self, marked_bk: Tensor) -> tuple[Tensor, Tensor | None]:
        """[b, k] marked local nodes as rows of the token table, and which are neighbours where that is known."""
        return (marked_bk >> 1, (marked_bk & 1).bool()) if self.knows_distances else (marked_bk, None)

    def local_contexts_of(self, rows: Tensor, local_rows_bk: Tensor, near_bk: Tensor | None) -> Tensor | None:
        """[b, k, c + 1] what these rows are told of the labels around their local nodes; None where they were not
        counted."""
        if self.local_contexts is None or near_bk is None:
            return None
        flat = local_rows_bk.reshape(-1)
        if self.is_cold:
            distinct_u, which = torch.unique(flat, return_inverse=True)
            counts = self._read(self.label_counts, distinct_u)[which]
        else:
            counts = self._rows_at(self.label_counts, flat)
        return self.local_contexts.told_to(rows, self.labels[rows], counts.view(*local_rows_bk.shape, -1), near_bk)

    def tokens_of(self, local_rows_bk: Tensor) -> Tensor:
        """[b, h·k, d] tokens, on the device that trains."""
        if self.place == "gpu":
            return input_tokens(self.tokens_rhd, local_rows_bk)
        if self.tokens_rhd.is_cuda:  # pinned: the GPU reads
            rows = local_rows_bk.reshape(-1).to(self.target, non_blocking=True)
            tokens_nhd = read_over_bus(self.tokens_rhd, rows, self.width)
            return computable(tokens_nhd.view(len(local_rows_bk), -1, self.width))
        if not self.is_cold:  # in memory, or in the page cache after one epoch
            if self.target.type == "cpu":
                self._check(self.tokens_rhd, local_rows_bk)
                return self.form.of(input_tokens(self.tokens_rhd, local_rows_bk))
            block_nhd = self._read(self.tokens_rhd, local_rows_bk.reshape(-1)).to(self.target, non_blocking=True)
            in_order = torch.arange(len(block_nhd), device=self.target).view(local_rows_bk.shape)
            return input_tokens(self.form.of(block_nhd[..., : self.num_features]), in_order)
        distinct_u, which_bk = torch.unique(local_rows_bk, return_inverse=True)
        block_uhd = self._read(self.tokens_rhd, distinct_u).to(self.target, non_blocking=True)
        return input_tokens(self.form.of(block_uhd), which_bk.to(self.target, non_blocking=True))

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


def check_place(place: Place, device: torch.device) -> None:
    """Refuse a place that this device does not have: worth knowing before a long preparation."""
    if place == "gpu" and device.type != "cuda":
        raise ConfigError("tokens.table=gpu, but there is no GPU in use: use --set tokens.table=auto")


def choose_place(place: Place, num_bytes: int, device: torch.device) -> Place:
    """What `auto` stands for here; a place without room is refused."""
    check_place(place, device)
    on_gpu = device.type == "cuda"
    if place == "disk" or (place == "auto" and not on_gpu):
        return "disk"
    gpu_free = torch.cuda.mem_get_info(device)[0] if on_gpu else 0
    host_free = available_bytes()
    if place == "auto":
        return "gpu" if num_bytes < _GPU_SHARE * gpu_free else "host" if num_bytes < _HOST_SHARE * host_free else "disk"
    free, other = (gpu_free, "host") if place == "gpu" else (host_free, "disk")
    if num_bytes > free:
        raise ConfigError(
            f"tokens.table={place} needs {format_bytes(num_bytes)}, and {format_bytes(free)} are free there: "
            f"use --set tokens.table={other}"
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


def _without_readahead(array: Array) -> Array:
    """A mapped file of which a page is read when it is touched, and not its neighbours."""
    if isinstance(array.base, mmap.mmap) and hasattr(mmap, "MADV_RANDOM"):
        array.base.madvise(mmap.MADV_RANDOM)
    return array


class _Pinned:
    """Host memory that a GPU reads over the bus, for as long as a tensor made of this lives."""

    def __init__(self, host: Tensor) -> None:
        cudart = torch.cuda.cudart()  # type: ignore[no-untyped-call]
        torch.cuda.check_error(int(cudart.cudaHostRegister(host.data_ptr(), host.nbytes, 0)))
        weakref.finalize(self, _unpin, host)
        self.__cuda_array_interface__ = {
            "version": 2, "data": (host.data_ptr(), False), "shape": tuple(host.shape),
            "typestr": host[:0].numpy().dtype.str,
        }  # fmt: skip


def _unpin(host: Tensor) -> None:
    torch.cuda.synchronize()
    torch.cuda.cudart().cudaHostUnregister(host.data_ptr())  # type: ignore[no-untyped-call]


def _pinned(host: Tensor, device: torch.device) -> Tensor:
    """`host` as a tensor of the GPU, without a copy; `host` itself where the system pins no memory for us."""
    bits = host.view(torch.int16) if host.dtype == torch.bfloat16 else host  # NumPy's formats have no bfloat16
    try:
        return torch.as_tensor(_Pinned(bits), device=device).view(host.dtype)
    except RuntimeError as error:
        with suppress(RuntimeError):
            torch.zeros(1, device=device)  # CUDA tells the failure once more, to the next call
        warnings.warn(
            f"{format_bytes(host.nbytes)} of token rows could not be pinned ({str(error).splitlines()[0]}): "
            "they stay in ordinary memory, and batches come more slowly",
            stacklevel=3,
        )
        return host
