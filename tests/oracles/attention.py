"""Attention, encoder layer, LocalModule and GlobalModule written out, one query and one head at a time.

Each function takes the module whose parameters it should use, and reads nothing but its weights.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor


def linear(layer: Any, x: Tensor) -> Tensor:
    """W x + b for one vector."""
    y = torch.stack([(layer.weight[o] * x).sum() for o in range(layer.weight.shape[0])])
    return y if layer.bias is None else y + layer.bias


def layer_norm(layer: Any, x: Tensor) -> Tensor:
    centered = x - x.mean()
    return centered / torch.sqrt((centered**2).mean() + layer.eps) * layer.weight + layer.bias


def gelu(x: Tensor) -> Tensor:
    return x * 0.5 * (1.0 + torch.erf(x / math.sqrt(2.0)))


def softmax(scores: list[Tensor]) -> list[Tensor]:
    largest = max(s.item() for s in scores)
    weights = [torch.exp(s - largest) for s in scores]
    total = torch.stack(weights).sum()
    return [w / total for w in weights]


def attend(q: Tensor, keys: list[Tensor], values: list[Tensor], bias: list[float]) -> Tensor:
    """Σ_j softmax_j(q·k_j / √w + bias_j) v_j."""
    scores = [(q * k).sum() / math.sqrt(len(q)) + b for k, b in zip(keys, bias, strict=True)]
    return torch.stack([w * v for w, v in zip(softmax(scores), values, strict=True)]).sum(dim=0)


def self_attention(module: Any, x: list[Tensor], bias: list[float]) -> list[Tensor]:
    """Multi-head self-attention of one sequence: heads side by side, then the joining matrix."""
    rows = [linear(module.qkv, token) for token in x]
    inner = len(rows[0]) // 3
    width = inner // module.num_heads
    joined = []
    for t in range(len(x)):
        heads = []
        for h in range(module.num_heads):
            q = rows[t][h * width : (h + 1) * width]
            keys = [row[inner + h * width : inner + (h + 1) * width] for row in rows]
            values = [row[2 * inner + h * width : 2 * inner + (h + 1) * width] for row in rows]
            heads.append(attend(q, keys, values, bias))
        joined.append(linear(module.join, torch.cat(heads)))
    return joined


def encoder_layer(layer: Any, x: list[Tensor], bias: list[float]) -> list[Tensor]:
    """x + attention(norm(x)), then x + W₂ gelu(W₁ norm(x)); no dropout."""
    added = self_attention(layer.attention, [layer_norm(layer.attention_norm, token) for token in x], bias)
    x = [token + extra for token, extra in zip(x, added, strict=True)]
    if layer.ffn is None:
        return x
    norm, inner, _, _, outer = layer.ffn
    return [token + linear(outer, gelu(linear(inner, layer_norm(norm, token)))) for token in x]


def readout(weight: Tensor, h: list[Tensor], bias: list[float]) -> Tensor:
    """h₀ + Σ_j softmax_j(w·h_j + bias_j) h_j over the tokens after the first."""
    scores = [(weight * token).sum() + b for token, b in zip(h[1:], bias[1:], strict=True)]
    weights = softmax(scores)
    return h[0] + torch.stack([a * token for a, token in zip(weights, h[1:], strict=True)]).sum(dim=0)


def local_module(module: Any, tokens_tf: Tensor, bias: list[float] | None = None, h: int = 3) -> Tensor:
    """H_local of one node from the h tokens of each of its k local nodes."""
    x = [linear(module.inputs.project, token) for token in tokens_tf]
    if module.inputs.hop_embedding is not None:
        x = [token + module.inputs.hop_embedding[0 if t < h else 1, t % h] for t, token in enumerate(x)]
    bias = bias or [0.0] * len(x)
    for layer in module.local.layers:
        x = encoder_layer(layer, x, bias)
    x = [layer_norm(module.local.norm, token) for token in x]
    return readout(module.local.readout.weight[0], x, bias) if len(x) > 1 else x[0]


def mlp(layers: Any, x: Tensor) -> Tensor:
    """Linear, ReLU, Linear."""
    first, _, second = layers
    return linear(second, torch.relu(linear(first, x)))


def global_module(module: Any, features_f: Tensor, position_p: Tensor, counts: list[int]) -> Tensor:
    """H_global of one node (Algorithm 3): attention over the centroids that have nodes, log(count) in their scores."""
    book = module.codebook
    joined = torch.cat([mlp(module.mlp_a, features_f), position_p])
    q = linear(module.query, (joined - book.mean) / torch.sqrt(book.variance + 1e-5))
    used = [c for c, count in enumerate(counts) if count > 0]
    keys = [linear(module.key, book.centroids[c]) for c in used]
    values = [linear(module.value, book.centroids[c][: module.dim]) for c in used]
    bias = [math.log(counts[c]) for c in used]
    width = len(q) // module.num_heads
    heads = []
    for h in range(module.num_heads):
        part = slice(h * width, (h + 1) * width)
        heads.append(attend(q[part], [k[part] for k in keys], [v[part] for v in values], bias))
    return layer_norm(module.norm, mlp(module.mlp_b, torch.cat(heads)))
