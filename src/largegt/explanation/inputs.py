"""The inputs of a LargeGT, each apart: tokens, labels of local nodes and around them, weights of centroids, labels
around, and the node's own features as Eqn 6 adds them.

Axes: d draws of one node's local nodes (or variants of them), k local nodes, h tokens of each, t = h·k tokens, f input
features, w model width, a heads, c centroids, o outputs.

Enters: a model and batches. Leaves: `Inputs`, and from those the logits that the model gives, in double precision.
Repeated local nodes stand once, with the logarithm of their count in `bias_dt`; -inf there leaves a token out. Cost:
that of the model's forward.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, replace

import torch
from torch import Tensor

from largegt.loader.batch import TokenBatch
from largegt.models.largegt.local_module import LocalModule
from largegt.models.largegt.model import Embedded, LargeGT


@dataclass(frozen=True)
class Inputs:
    """What the model reads of a node, draw by draw. None where the model has no such part."""

    tokens: Tensor | None
    """[d, t, f]"""
    told: Tensor | None
    """[d, k, 1, w] vectors of the labels that local nodes tell of."""
    near: Tensor | None
    """[d, k] 1 where a local node is a neighbour. That is as it is: nothing is carried by it."""
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
        batch = replace(batch, tokens=batch.tokens.double(), positions=batch.positions.double())
        embedded, of_local = self.model.embed(batch), self.model.local_node_inputs(batch)
        weights_adc = embedded.centroid_weights
        return Inputs(
            tokens=None if self.local is None else batch.tokens,
            told=self.local.label_vectors(of_local) if self.local is not None and self.local.reads_labels else None,
            near=None if of_local.near is None else of_local.near.double(),
            weights=None if weights_adc is None else weights_adc.transpose(0, 1),
            around=embedded.label_shares,
            own=embedded.features,
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
            made["told"] = self.local.no_label_vector().expand_as(inputs.told)
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
        logits_do, _ = self.model.encode(
            Embedded(
                tokens=None if inputs.tokens is None else self._embedded_tokens(inputs),
                token_bias=bias_dt,
                centroid_weights=None if inputs.weights is None else inputs.weights.transpose(0, 1),
                label_shares=inputs.around,
                features=inputs.own,
            )
        )
        return logits_do

    @torch.no_grad()
    def readout(self, inputs: Inputs, bias_dt: Tensor) -> Tensor:
        """[d, t] the weights of the LocalModule's readout; 0 for the first token, which is added in full."""
        assert self.local is not None
        h_dtw = self.local.hidden_states(self._embedded_tokens(inputs), bias_dt)
        return self.local.readout_weights(h_dtw, bias_dt)

    def _embedded_tokens(self, inputs: Inputs) -> Tensor:
        assert self.local is not None
        assert inputs.tokens is not None
        return self.local.join(inputs.tokens, inputs.told, inputs.near)
