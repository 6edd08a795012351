"""Rows computed beforehand: what a model makes of each token alone, once per row of the token table.

Everything before attention (projection, norm, q, k, v) is a function of the (node, hop) row, and a prediction of all
nodes looks each row up about K times; only the projection is, where nodes are told of their local nodes. Enters: a
loader and a model. Leaves: a loader whose batches carry the results. Cost: one pass over the table; r·h·(d + w) numbers
on the device, for r rows of h tokens, model width d and w numbers that the attention takes of a token.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import replace

import torch

from ..memory import available_bytes
from ..model.node_model import NodeModel
from .loader import TokenLoader

_BLOCK_ROWS = 1 << 14
_TIMES_WORTH_IT = 4
_SHARE = 0.4
"""Of the memory that is free, so much may be used."""
_LIMIT_BYTES = 2 << 30
"""And no more than this, unless more is allowed: what a prediction takes does not grow with the graph for ever."""


def is_worth_reusing(loader: TokenLoader, num_nodes: int) -> bool:
    """Whether predicting so many nodes looks every row up several times, on a CPU: a GPU of today multiplies as fast
    as it could look up (on an H200, gathering rows is a tenth to a third slower)."""
    if loader.device.type != "cpu":
        return False
    k = loader.table.local_rows_nk.shape[1] if loader.k is None else loader.k
    return num_nodes * k >= _TIMES_WORTH_IT * loader.table.num_token_rows


@torch.no_grad()
def with_rows(
    loader: TokenLoader, model: NodeModel, autocast: AbstractContextManager[None], limit_bytes: int = _LIMIT_BYTES
) -> TokenLoader:
    """The same loader with rows computed by the model; the loader as it is where the model has none or they do not
    fit."""
    table = loader.table
    with autocast:
        first = model.rows(table.block(0, 1))
        per_row = sum(row.nbytes for row in first)
        if not first or per_row * table.num_token_rows > min(limit_bytes, _SHARE * _free_bytes(loader.device)):
            return loader
        whole = tuple(torch.empty((table.num_token_rows, *row.shape[1:]), dtype=row.dtype, device=row.device)
                      for row in first)  # fmt: skip
        for start in range(0, table.num_token_rows, _BLOCK_ROWS):
            stop = min(start + _BLOCK_ROWS, table.num_token_rows)
            for out, rows in zip(whole, model.rows(table.block(start, stop)), strict=True):
                out[start:stop] = rows
    return replace(loader, rows=whole)


def _free_bytes(device: torch.device) -> int:
    return torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else available_bytes()
