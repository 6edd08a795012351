"""Side streams of a GPU, one for each purpose, for the life of the process; and pinned memory to copy through.

Memory that PyTorch frees is kept for the stream it was made on, and a new stream is one of thirty-two in turn. A stream
for every epoch would thus keep the batches of thirty-two of them, each on its own.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import lru_cache
from typing import Literal

import torch

from largegt.errors import first_line

_log = logging.getLogger(__name__)

_pins = True


def side_stream(device: torch.device, purpose: Literal["gather", "step"]) -> torch.cuda.Stream:
    """The stream of this device on which batches are gathered, or that training steps are recorded from."""
    return _stream(torch.cuda.current_device() if device.index is None else device.index, purpose)


@lru_cache
def _stream(index: int, purpose: str) -> torch.cuda.Stream:
    return torch.cuda.Stream(index)  # type: ignore[no-untyped-call]


def pinned_buffer(shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
    """An empty tensor in pinned memory; from the first failure on in ordinary memory, which is copied more slowly."""
    global _pins
    if _pins:
        try:
            return torch.empty(shape, dtype=dtype, pin_memory=True)
        except RuntimeError as error:
            _log.warning(f"batches are copied more slowly, since no memory is pinned: {first_line(error)}")
            _pins = False
    return torch.empty(shape, dtype=dtype)
