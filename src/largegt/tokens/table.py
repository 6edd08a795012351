"""TokenTable: where the rows that tokens are gathered from live during training.

Enters: a Prepared and a device. Leaves: tensors to index. On the CPU they are the memory-mapped files themselves; on
a GPU they are copied there when they fit into the share of its memory that we allow, and stay on the host otherwise.
"""

from __future__ import annotations

import warnings
from copy import copy

import numpy as np
import torch
from torch import Tensor

from ..prepare.prepared import Prepared
from ..types import Array

_GPU_SHARE = 0.6


class TokenTable:
    """The arrays of a Prepared as tensors, indexed by row."""

    def __init__(self, prepared: Prepared, device: torch.device | str = "cpu") -> None:
        device = torch.device(device)
        tensors = {
            name: _tensor(getattr(prepared, name)) for name in ("nodes", "local_rows", "tokens", "positions", "labels")
        }
        if device.type == "cuda":
            free, _ = torch.cuda.mem_get_info(device)
            if sum(tensor.nbytes for tensor in tensors.values()) < _GPU_SHARE * free:
                tensors = {name: tensor.to(device) for name, tensor in tensors.items()}
        self.nodes: Tensor = tensors["nodes"]
        self.local_rows_nk: Tensor = tensors["local_rows"]
        self.tokens_r3d: Tensor = tensors["tokens"]
        self.positions_np: Tensor = tensors["positions"]
        self.labels: Tensor = tensors["labels"]

    def with_local_rows(self, rows: Array, local_rows_nk: Array) -> TokenTable:
        """The same table with other local nodes at these rows; everything else is shared."""
        other = copy(self)
        other.local_rows_nk = self.local_rows_nk.clone()
        at = torch.from_numpy(np.ascontiguousarray(rows)).to(self.local_rows_nk.device)
        other.local_rows_nk[at] = torch.from_numpy(local_rows_nk).to(self.local_rows_nk.device)
        return other

    @property
    def device(self) -> torch.device:
        return self.tokens_r3d.device


def _tensor(array: Array) -> Tensor:
    """A tensor over a read-only mapped file, without a copy. Nothing of ours writes to it."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
        return torch.from_numpy(array)
