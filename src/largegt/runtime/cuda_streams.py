"""CUDA side streams, one per purpose for the life of the process, and pinned staging buffers.

PyTorch's caching allocator reuses freed memory only on the stream it was allocated on, and new streams come from a pool
of thirty-two. A new stream per epoch would keep the memory of up to thirty-two batches.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import lru_cache
from typing import Literal

import torch

from largegt.errors import first_line

_log = logging.getLogger(__name__)

_can_pin = True


def side_stream(device: torch.device, purpose: Literal["gather", "step"]) -> torch.cuda.Stream:
    """The stream of this device that gathers batches (`gather`) or captures training steps (`step`)."""
    return _stream(torch.cuda.current_device() if device.index is None else device.index, purpose)


@lru_cache
def _stream(index: int, purpose: str) -> torch.cuda.Stream:
    return torch.cuda.Stream(index)  # type: ignore[no-untyped-call]


def pinned_buffer(shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
    """An empty tensor in pinned memory, or in pageable memory after the first failure to pin."""
    global _can_pin
    if _can_pin:
        try:
            return torch.empty(shape, dtype=dtype, pin_memory=True)
        except RuntimeError as error:
            _log.warning(f"batches are copied more slowly, since no memory is pinned: {first_line(error)}")
            _can_pin = False
    return torch.empty(shape, dtype=dtype)
