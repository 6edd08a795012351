"""The inputs of a LargeGT, each apart: tokens, labels of local nodes and around them, weights of centroids, labels
around, and the node's own features as Eqn 6 adds them.

Axes: d draws of one node's local nodes (or variants of them), k local nodes, h tokens of each, t = h·k tokens, f input
features, w model width, a heads, c centroids, o outputs.

Enters: a model and batches, in which every local node stands for itself, repeated ones too. Leaves: `Inputs`, and from
those the logits that the model gives, in double precision. Cost: that of the model's forward.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
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

    def map(self, change: Callable[..., Tensor], *others: Inputs) -> Inputs:
        """Each part by itself, together with the same part of others."""
        every = (one.tensors() for one in (self, *others))
        return self.filled(change(*parts) for parts in zip(*every, strict=True))

    def filled(self, tensors: Iterable[Tensor]) -> Inputs:
        """These parts in place of its own."""
        left = iter(tensors)
        return Inputs(*(None if getattr(self, one.name) is None else next(left) for one in fields(self)))

    def tensors(self) -> list[Tensor]:
        return [value for value in vars(self).values() if value is not None]


class OpenModel:
    """A LargeGT in double precision, by its parts."""

    def __init__(self, model: LargeGT) -> None:
        self.model = model.double().eval()
        self.local: LocalModule | None = model.local_module
        for parameter in self.model.parameters():
            parameter.requires_grad_(False)

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
        made: dict[str, Tensor] = {}
        if inputs.tokens is not None:
            made["tokens"] = mean_hf.repeat(inputs.tokens.shape[1] // len(mean_hf), 1)
        if self.local is not None:
            made["told"] = self.local.no_label_vector()
        if self.model.global_module is not None:
            made["weights"] = self.model.global_module.codebook.log_counts().softmax(dim=0)
        made |= {"around": mean_hf.new_zeros(()), "own": mean_hf[0]}
        here = {name: part for name, part in vars(inputs).items() if part is not None}
        return replace(inputs, **{name: made[name].expand_as(part) for name, part in here.items() if name in made})

    def logits(self, inputs: Inputs, bias_dt: Tensor | None = None) -> Tensor:
        """[d, o] what the model says. -inf in `bias_dt` leaves a token out."""
        tokens = None if inputs.tokens is None else self._embedded_tokens(inputs)
        if bias_dt is None and tokens is not None:
            bias_dt = tokens.new_zeros(tokens.shape[:2])
        weights_adc = None if inputs.weights is None else inputs.weights.transpose(0, 1)
        return self.model.encode(Embedded(tokens, bias_dt, weights_adc, inputs.around, inputs.own))[0]

    @torch.no_grad()
    def readout(self, inputs: Inputs) -> Tensor:
        """[d, t] the weights of the LocalModule's readout; 0 for the first token, which is added in full."""
        assert self.local is not None
        return self.local.readout_weights(self.local.hidden_states(self._embedded_tokens(inputs)))

    def _embedded_tokens(self, inputs: Inputs) -> Tensor:
        assert self.local is not None
        assert inputs.tokens is not None
        return self.local.join(inputs.tokens, inputs.told, inputs.near)
