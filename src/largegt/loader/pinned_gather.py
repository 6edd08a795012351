"""Token rows in pinned host memory, read by the GPU over the bus while it trains.

Axes: r rows of the table, n rows wanted, h = hops + 1, d features, w their width in a batch.

A plain gather fills the GPU with threads that wait for the bus and blocks the training step. Here a few thread blocks
with many outstanding loads saturate the bus and leave the rest of the GPU free. Cost: n·h·d numbers on the bus, no CPU
time.
"""

from __future__ import annotations

import logging
import weakref
from contextlib import suppress

import torch
from torch import Tensor
from torch.nn import functional as F

from largegt.errors import first_line
from largegt.hardware.abilities import usable
from largegt.runtime.memory import format_bytes

_log = logging.getLogger(__name__)

try:
    import triton
    import triton.language as tl
except ImportError:  # a build of torch without CUDA
    triton = None

_BLOCKS, _WARPS, _NUMBERS = 24, 16, 8192
"""Thread blocks, warps per block, and numbers that a block loads at once."""

_works: bool | None = None


class _Pinned:
    """Host memory that stays pinned while a tensor made from it exists."""

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


def pinned(host: Tensor, device: torch.device) -> Tensor:
    """`host` as a CUDA tensor, without a copy; `host` itself if pinning fails."""
    bits = host.view(torch.int16) if host.dtype == torch.bfloat16 else host  # NumPy has no bfloat16
    try:
        return torch.as_tensor(_Pinned(bits), device=device).view(host.dtype)
    except RuntimeError as error:
        with suppress(RuntimeError):
            torch.zeros(1, device=device)  # CUDA tells the failure once more, to the next call
        _log.warning(
            f"{format_bytes(host.nbytes)} of token rows could not be pinned ({first_line(error)}): "
            "they stay in ordinary memory, and batches come more slowly"
        )
        return host


def gather_pinned(table_rhd: Tensor, rows_n: Tensor, width: int) -> Tensor:
    """[n, h, w] rows of pinned memory, with features zero-padded to `width`."""
    global _works
    num, (h, d) = len(rows_n), table_rhd.shape[1:]
    if _works is None and rows_n.is_cuda:
        _works = usable("triton", "rows are gathered plainly, since Triton does not work")
    if _works and num and rows_n.is_cuda:
        out_nhw = torch.empty(num, h, width, dtype=table_rhd.dtype, device=rows_n.device)
        try:
            _launch(table_rhd, rows_n, out_nhw, h, d, width)
            return out_nhw
        except Exception as error:  # whatever a compiler may raise: the plain way is always there
            _log.warning(f"rows are gathered plainly, since the kernel failed: {first_line(error)}")
            _works = False
    return F.pad(table_rhd.index_select(0, rows_n), (0, width - d))


if triton is not None:

    def _launch(table_rhd: Tensor, rows_n: Tensor, out_nhw: Tensor, h: int, d: int, width: int) -> None:
        h_block, w_block = triton.next_power_of_2(h), triton.next_power_of_2(width)
        n_block = max(1, _NUMBERS // (h_block * w_block))
        grid = (min(_BLOCKS, triton.cdiv(len(rows_n), n_block)),)
        _read[grid](
            table_rhd, rows_n, out_nhw, len(rows_n), h, d, width, n_block, h_block, w_block, num_warps=_WARPS
        )  # fmt: skip

    @triton.jit
    def _read(table, rows, out, num, h: tl.constexpr, d: tl.constexpr, width: tl.constexpr,
              N: tl.constexpr, H: tl.constexpr, W: tl.constexpr):  # fmt: skip
        hop = tl.arange(0, H)[None, :, None]
        column = tl.arange(0, W)[None, None, :]
        start = tl.program_id(0) * N
        while start < num:
            n = start + tl.arange(0, N)
            row = tl.load(rows + n, mask=n < num, other=0).to(tl.int64)[:, None, None]
            n = n.to(tl.int64)[:, None, None]
            here = (n < num) & (hop < h)
            token = tl.load(table + (row * h + hop) * d + column, mask=here & (column < d), other=0.0)
            tl.store(out + (n * h + hop) * width + column, token, mask=here & (column < width))
            start += tl.num_programs(0) * N
