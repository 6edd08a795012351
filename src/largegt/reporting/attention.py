"""Attention of a LargeGT: the readout weights of the LocalModule by hop and by the token's node: the node itself, a
neighbour, or a node farther away.

Axes: b nodes, k local nodes, h tokens of each (H and its contexts), t = h·k tokens.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy.special import entr

from largegt.preprocessing.sampling.neighbor_lists import NeighborLists
from largegt.types import Array

KINDS = ("its own", "of its neighbours", "of farther nodes")


def attention_use(weight_bt: Array, kind_bk: Array, names: list[str]) -> dict[str, Any] | None:
    """Mean weights by kind of node and hop, the effective number of tokens, and the weight of the largest ones. `names`
    are those of a node's h tokens. None if a node has a single token."""
    b, t = weight_bt.shape
    if t < 2 or not b:
        return None
    is_kind_cbk = kind_bk == np.arange(len(KINDS))[:, None, None]
    share_ch = np.einsum("cbk,bkh->ch", is_kind_cbk, weight_bt.reshape(b, -1, len(names))) / b
    count_ch = np.repeat(is_kind_cbk.sum(axis=(1, 2))[:, None] / b, len(names), axis=1)
    count_ch[0, 0] -= 1  # the first token is added in full, without a weight
    heaviest_bt = np.sort(weight_bt, axis=1)[:, ::-1].cumsum(axis=1)
    return {
        "num_nodes": b,
        "tokens": t,
        "hops": names,
        "kinds": list(KINDS),
        "share": share_ch.tolist(),
        "tokens_per_node": count_ch.tolist(),
        "effective_tokens": float(np.exp(entr(weight_bt).sum(axis=1)).mean()),
        "top": {str(n): float(heaviest_bt[:, min(n, t) - 1].mean()) for n in (1, 5, 20)},
    }


def kinds(lists: NeighborLists, nodes_bk: Array) -> Array:
    """[b, k] 0 for the node itself (column 0), 1 for a neighbour, 2 for any other local node."""
    own_bk = np.broadcast_to(nodes_bk[:, :1], nodes_bk.shape)
    kind_bk = np.where(lists.has(own_bk.ravel(), nodes_bk.ravel()).reshape(nodes_bk.shape), 1, 2)
    kind_bk[:, 0] = 0
    return kind_bk
