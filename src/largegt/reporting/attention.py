"""Where a LargeGT looks: the weights of the LocalModule's readout.

Axes: b nodes, k local nodes, h tokens of each (H and its contexts), t = h·k tokens, d model width.

Enters: a LocalModule and tokens. Leaves: the weight of every token, and their means by hop and by whose token it is:
the node's own, a neighbour's, or that of a node farther away. Cost: one forward of the sampled nodes.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor

from largegt.models.largegt.local_module import LocalModule, LocalNodeInputs
from largegt.types import Array

OWN, NEIGHBOUR, FARTHER = "its own", "of its neighbours", "of farther nodes"


@torch.no_grad()
def attention_use(
    module: LocalModule, batches: Iterator[tuple[Tensor, LocalNodeInputs, Array]], csr: tuple[Array, Array],
    names: list[str],
) -> dict[str, Any] | None:  # fmt: skip
    """Mean weights by hop and whose token, how many tokens share the weight, and how much the heaviest ones have.
    Batches are (tokens [b, t, f], inputs of local nodes, nodes [b, k] they belong to), `names` those of a node's h
    tokens; None where a node has one token and no choice. Every local node stands for itself, repeated ones too."""
    h = module.tokens_per_node
    totals = np.zeros((3, h))
    counts = np.zeros((3, h))
    effective, top = 0.0, np.zeros(3)
    num_nodes = 0
    for tokens_btf, inputs, nodes_bk in batches:
        if tokens_btf.shape[1] < 2:
            return None
        h_btd = module.hidden_states(module.embed(tokens_btf, inputs))
        weight_bt = module.readout_weights(h_btd).double().cpu().numpy()
        weight_bkh = weight_bt.reshape(len(weight_bt), -1, h)
        kind_bk = kinds(csr, nodes_bk)
        for kind in range(3):
            of = kind_bk == kind
            totals[kind] += weight_bkh[of].sum(axis=0)
            counts[kind] += of.sum()
        counts[0, 0] -= len(weight_bt)  # the first token has no weight to get
        with np.errstate(divide="ignore", invalid="ignore"):
            entropy_b = -np.where(weight_bt > 0, weight_bt * np.log(weight_bt), 0.0).sum(axis=1)
        effective += float(np.exp(entropy_b).sum())
        heaviest = np.sort(weight_bt, axis=1)[:, ::-1].cumsum(axis=1)
        top += [float(heaviest[:, min(count, heaviest.shape[1]) - 1].sum()) for count in (1, 5, 20)]
        num_nodes += len(weight_bt)
    if not num_nodes:
        return None
    return {
        "num_nodes": num_nodes,
        "tokens": int(weight_bt.shape[1]),
        "hops": names,
        "kinds": [OWN, NEIGHBOUR, FARTHER],
        "share": (totals / num_nodes).tolist(),
        "tokens_per_node": (counts / num_nodes).tolist(),
        "effective_tokens": effective / num_nodes,
        "top": dict(zip(("1", "5", "20"), (top / num_nodes).tolist(), strict=True)),
    }


def kinds(csr: tuple[Array, Array], nodes_bk: Array) -> Array:
    """[b, k] 0 where a local node is the node itself (column 0), 1 where it is a neighbour, 2 elsewhere."""
    indptr, indices = csr
    kind_bk = np.full(nodes_bk.shape, 2)
    for row, nodes in enumerate(nodes_bk):
        neighbours = np.asarray(indices[indptr[nodes[0]] : indptr[nodes[0] + 1]])
        kind_bk[row][np.isin(nodes, neighbours)] = 1
    kind_bk[:, 0] = 0
    return kind_bk
