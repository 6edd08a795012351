"""A LargeGT cut open where its inputs can be told apart: tokens, labels that local nodes tell of (their own, or those
around them), weights of centroids, labels around, and the node's own features as Eqn 6 adds them.

Axes: d draws of one node's local nodes (or variants of them), k local nodes, h tokens of each, t = h·k tokens, f input
features, w model width, a heads, c centroids, o outputs.

Enters: a model and batches. Leaves: `Inputs`, and from those the logits that the model gives, in double precision.
Repeated local nodes stand once, with the logarithm of their count in `bias_dt`; -inf there leaves a token out. Cost:
that of the model's forward.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields

import torch
from torch import Tensor

from ..model.global_module import GlobalModule
from ..model.largegt import LargeGT
from ..model.local_module import LocalModule
from ..tokens.input_tokens import TokenBatch


@dataclass(frozen=True)
class Inputs:
    """What the model reads of a node, draw by draw. None where the model has no such part."""

    tokens: Tensor | None
    """[d, t, f]"""
    told: Tensor | None
    """[d, k, 1, w] what is learned of the labels that local nodes tell of."""
    placed: Tensor | None
    """[d, k, h, w] what is learned of which local nodes are neighbours. That is as it is: nothing is carried by it."""
    weights: Tensor | None
    """[d, a, c] how much each head takes of each centroid."""
    around: Tensor | None
    """[d, ·] training labels around the node."""
    own: Tensor | None
    """[d, f] the node's own features, past both modules."""

    def map(self, change: Callable[..., Tensor], *others: Inputs, **rest: float) -> Inputs:
        """Each part by itself, together with the same part of others."""
        made: dict[str, Tensor | None] = {}
        for field in fields(self):
            every = [getattr(one, field.name) for one in (self, *others)]
            made[field.name] = None if every[0] is None else change(*every, **rest)
        return Inputs(**made)

    def tensors(self) -> list[Tensor]:
        return [value for value in vars(self).values() if value is not None]


class OpenModel:
    """A LargeGT in double precision, by its parts."""

    def __init__(self, model: LargeGT) -> None:
        self.model = model.double().eval()
        for parameter in self.model.parameters():
            parameter.requires_grad_(False)

    @property
    def width(self) -> int:
        return int(self.model.ffn[0].out_features)  # type: ignore[arg-type]

    @property
    def local(self) -> LocalModule | None:
        return self.model.local_module

    @torch.no_grad()
    def inputs(self, batch: TokenBatch) -> Inputs:
        """The parts of a batch."""
        tokens_dtf = batch.tokens.double()
        told = placed = None
        if self.local is not None:
            of_local = self.model.told_by(batch)
            told = self.local.told_vectors(of_local) if self.local.tells_labels else None
            if self.local.near_embedding is not None:
                assert of_local.near is not None
                placed = of_local.near[:, :, None, None] * self.local.near_embedding
        weights = None
        if self.model.global_module is not None:
            weights = centroid_weights(self.model.global_module, tokens_dtf[:, 0], batch.positions.double())
        around = None
        if self.model.labels is not None:
            assert batch.label_contexts is not None
            around = batch.label_contexts[:, : self.model.label_width].double()
        return Inputs(
            tokens=tokens_dtf if self.local is not None else None,
            told=told,
            placed=placed,
            weights=weights,
            around=around,
            own=tokens_dtf[:, 0] if self.model.input is not None else None,
        )

    @torch.no_grad()
    def nothing_known(self, inputs: Inputs, mean_hf: Tensor) -> Inputs:
        """What explanations start from: tokens of an average node, no label told, centroids by their sizes alone, no
        label around."""
        made: dict[str, Tensor | None] = dict(vars(inputs))
        if inputs.tokens is not None:
            made["tokens"] = mean_hf.repeat(inputs.tokens.shape[1] // len(mean_hf), 1).expand_as(inputs.tokens)
        if inputs.told is not None:
            assert self.local is not None
            made["told"] = self.local.nothing_told().expand_as(inputs.told)
        if inputs.weights is not None:
            assert self.model.global_module is not None
            sizes_c = self.model.global_module.codebook.log_counts().softmax(dim=0)
            made["weights"] = sizes_c.expand_as(inputs.weights)
        if inputs.around is not None:
            made["around"] = torch.zeros_like(inputs.around)
        if inputs.own is not None:
            made["own"] = mean_hf[0].expand_as(inputs.own)
        return Inputs(**made)

    def logits(self, inputs: Inputs, bias_dt: Tensor) -> Tensor:
        """[d, o] what the model says."""
        parts = []
        if inputs.tokens is not None:
            assert self.local is not None
            h_dtw = self._encoded(inputs, bias_dt)
            parts.append(h_dtw[:, 0] + torch.einsum("dt,dtw->dw", self._read(h_dtw, bias_dt), h_dtw))
        if inputs.weights is not None:
            parts.append(self._global(inputs.weights))
        if self.model.labels is not None:
            parts.append(self.model.labels(inputs.around))
        h_dw = self.model.norm(self.model.ffn(torch.cat(parts, dim=1)))
        if self.model.input is not None:
            h_dw = self.model.input(inputs.own) + h_dw
        logits_do: Tensor = self.model.head(h_dw)
        return logits_do

    @torch.no_grad()
    def readout(self, inputs: Inputs, bias_dt: Tensor) -> Tensor:
        """[d, t] the weights of the LocalModule's readout; 0 for the first token, which is added in full."""
        assert inputs.tokens is not None
        return self._read(self._encoded(inputs, bias_dt), bias_dt)

    def _encoded(self, inputs: Inputs, bias_dt: Tensor) -> Tensor:
        module, tokens_dtf, told = self.local, inputs.tokens, inputs.told
        assert module is not None
        assert tokens_dtf is not None
        d, t, _ = tokens_dtf.shape
        x_dtw: Tensor = module.project(tokens_dtf)
        if module.hop_embedding is not None:
            x_dtw = x_dtw + module.hop_vectors(t // module.tokens_per_node)
        if told is not None:
            zeros = told.new_zeros(d, t // module.tokens_per_node, module.tokens_per_node - 1, told.shape[-1])
            x_dtw = x_dtw + torch.cat([told, zeros], dim=2).flatten(1, 2)
        if inputs.placed is not None:
            x_dtw = x_dtw + inputs.placed.flatten(1, 2)
        for layer in module.layers:
            x_dtw = layer(x_dtw, bias_dt)
        h_dtw: Tensor = module.norm(x_dtw)
        return h_dtw

    def _read(self, h_dtw: Tensor, bias_dt: Tensor) -> Tensor:
        assert self.local is not None
        score_dt: Tensor = self.local.readout(h_dtw).squeeze(-1) + bias_dt
        first = torch.arange(score_dt.shape[1], device=score_dt.device) == 0
        weight_dt = score_dt.masked_fill(first, -torch.inf)
        nobody = weight_dt.isneginf().all(dim=1, keepdim=True)  # nothing after the first: it is read alone
        weight_dt = weight_dt.masked_fill(nobody, 0.0).softmax(dim=1)
        return weight_dt.masked_fill(nobody, 0.0)

    def _global(self, weights_dac: Tensor) -> Tensor:
        module = self.model.global_module
        assert module is not None
        values_cav = _split(module.value(module.codebook.centroids[:, : module.width]), module.heads)
        y = torch.einsum("dac,cav->dav", weights_dac, values_cav)
        h_dw: Tensor = module.norm(module.mlp_b(y.flatten(1)))
        return h_dw


def centroid_weights(module: GlobalModule, features_df: Tensor, positions_dp: Tensor) -> Tensor:
    """[d, a, c] the GlobalModule's attention."""
    joined = torch.cat([module.mlp_a(features_df), positions_dp], dim=1)
    q_dav = _split(module.query(module.codebook.normalize(joined)), module.heads)
    k_cav = _split(module.key(module.codebook.centroids), module.heads)
    score_dac = torch.einsum("dav,cav->dac", q_dav, k_cav) * q_dav.shape[-1] ** -0.5
    weight_dac: Tensor = (score_dac + module.codebook.log_counts()).softmax(dim=-1)
    return weight_dac


def _split(rows: Tensor, heads: int) -> Tensor:
    """[rows, a·v] → [rows, a, v]."""
    return rows.view(len(rows), heads, -1)
