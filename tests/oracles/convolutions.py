"""The layers of GraphSAGE, GAT, GT-sparse and GOAT written out, one target and one head at a time.

Each function takes the layer whose weights it should use. Neighbours are projected first and summed then, which is what
the layers themselves never do.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from .attention import attend, linear, softmax


def sage(layer: Any, h: Tensor, neighbors: list[list[int]]) -> Tensor:
    """W_self h_i + W_neigh mean_j h_j + b."""
    rows = []
    for i, around in enumerate(neighbors):
        mean = torch.zeros_like(h[0]) if not around else torch.stack([h[j] for j in around]).mean(dim=0)
        rows.append(linear(layer.self_weight, h[i]) + linear(layer.neighbor_weight, mean))
    return torch.stack(rows)


def gat(layer: Any, h: Tensor, neighbors: list[list[int]]) -> Tensor:
    """Σ_j softmax_j(leaky(a_t·W h_i + a_s·W h_j)) W h_j per head, and the skip. Without a skip, the target is the first
    of its own neighbours."""
    rows = []
    for i, others in enumerate(neighbors):
        around = others if layer.skip is not None else [i, *others]
        heads = []
        for weight, source, target in zip(layer.weight_hwd, layer.source_hw, layer.target_hw, strict=True):
            projected = [weight @ h[j] for j in around]
            raw = [(target * (weight @ h[i])).sum() + (source * x).sum() for x in projected]
            weights = softmax([s if s > 0 else 0.2 * s for s in raw]) if around else []
            total = torch.zeros_like(weight[:, 0])
            for a, x in zip(weights, projected, strict=True):
                total = total + a * x
            heads.append(total)
        rows.append(_joined(layer, heads) + (layer.own_bias if layer.skip is None else linear(layer.skip, h[i])))
    return torch.stack(rows)


def transformer(layer: Any, h: Tensor, neighbors: list[list[int]]) -> Tensor:
    """Σ_j softmax_j(q_i·k_j / √w) v_j per head, and the skip."""
    rows = []
    for i, around in enumerate(neighbors):
        q = linear(layer.query, h[i])
        keys, values = ([linear(part, h[j]) for j in around] for part in (layer.key, layer.value))
        width = len(q) // layer.num_heads
        heads = []
        for head in range(layer.num_heads):
            part = slice(head * width, (head + 1) * width)
            found = torch.zeros_like(q[part])
            if around:
                found = attend(q[part], [k[part] for k in keys], [v[part] for v in values], [0.0] * len(around))
            heads.append(found)
        rows.append(_joined(layer, heads) + linear(layer.skip, h[i]))
    return torch.stack(rows)


def _joined(layer: Any, heads: list[Tensor]) -> Tensor:
    return torch.stack(heads).mean(dim=0) if layer.average else torch.cat(heads)


def goat(module: Any, features: Tensor, members: list[tuple[int, int]]) -> Tensor:
    """H_local of one target from its neighbourhood, (row of `features`, distance) each, the target first."""
    x = [linear(module.input, features[row]) for row, _ in members]
    q = linear(module.query, x[0])
    keys, values = ([linear(part, one) for one in x] for part in (module.key, module.value))
    distances = [distance for _, distance in members]
    width = len(q) // module.num_heads
    heads = []
    for head in range(module.num_heads):
        part = slice(head * width, (head + 1) * width)
        bias = [module.distance_bias_hs[head, s] - math.log(distances.count(s)) for s in distances]
        heads.append(attend(q[part], [k[part] for k in keys], [v[part] for v in values], bias))
    return torch.cat(heads)
