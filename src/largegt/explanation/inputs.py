"""The inputs of a LargeGT as separate tensors, and the model's logits for them in double precision.

Axes: d samples of one node's local nodes (or variants of them), k local nodes, h tokens of each, t = h·k tokens, f
input features, w model width, a heads, c centroids, o outputs.

Enters: a model and batches without deduplication of local nodes. Leaves: `Inputs`, the parts that the model reads, by
name:

tokens    [d, t, f]
labels    [d, k, 1, w] vectors of the labels of local nodes and around them
is_neighbor [d, k] 1 where a local node is a direct neighbour; it gets no attribution
weights   [d, a, c] attention weights of the centroids
around    [d, ·] training labels around the node
own       [d, f] the node's own features, past both modules (Eqn 6)

and the model's logits from them. Cost: that of the model's forward pass.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from largegt.loader.batch import TokenBatch
from largegt.models.input_encoder import InputEncoder, LocalInputs
from largegt.models.largegt.model import Embedded, LargeGT

Inputs = dict[str, Tensor]


def by_part(change: Callable[..., Tensor], *inputs: Inputs) -> Inputs:
    """Apply a function to each part, together with the same part of the other inputs."""
    return {name: change(*(one[name] for one in inputs)) for name in inputs[0]}


class OpenModel:
    """A LargeGT in double precision that takes its inputs as separate parts."""

    def __init__(self, model: LargeGT) -> None:
        self.model = model.double().eval()
        self.encoder: InputEncoder | None = model.inputs
        for parameter in self.model.parameters():
            parameter.requires_grad_(False)

    @torch.no_grad()
    def inputs(self, batch: TokenBatch) -> Inputs:
        """The parts of a batch."""
        batch = replace(batch, tokens=batch.tokens.double(), positions=batch.positions.double())
        embedded, encoder = self.model.embed(batch), self.encoder
        of_local = LocalInputs() if encoder is None else encoder.local_inputs(batch)
        parts = {
            "tokens": None if encoder is None else batch.tokens,
            "labels": encoder.label_vectors(of_local) if encoder is not None and encoder.reads_labels else None,
            "is_neighbor": None if of_local.is_neighbor is None else of_local.is_neighbor.double(),
            "weights": None if embedded.centroid_weights is None else embedded.centroid_weights.transpose(0, 1),
            "around": embedded.label_shares,
            "own": embedded.features,
        }
        return {name: part for name, part in parts.items() if part is not None}

    @torch.no_grad()
    def baseline(self, inputs: Inputs, mean_hf: Tensor) -> Inputs:
        """The baseline of integrated gradients: the average node's tokens, no labels, centroids weighted by size."""
        made = {"around": mean_hf.new_zeros(()), "own": mean_hf[0]}
        if self.encoder is not None:
            made["tokens"] = mean_hf.repeat(inputs["tokens"].shape[1] // len(mean_hf), 1)
            made["labels"] = self.encoder.no_label_vector()
        if self.model.global_module is not None:
            made["weights"] = self.model.global_module.codebook.log_counts().softmax(dim=0)
        return {name: made.get(name, part).expand_as(part) for name, part in inputs.items()}

    def logits(self, inputs: Inputs, bias_dt: Tensor | None = None) -> Tensor:
        """[d, o] the logits. -inf in `bias_dt` masks a token."""
        tokens_dtw = None if self.encoder is None else self._embedded_tokens(inputs)
        if bias_dt is None and tokens_dtw is not None:
            bias_dt = tokens_dtw.new_zeros(tokens_dtw.shape[:2])
        weights_adc = inputs["weights"].transpose(0, 1) if "weights" in inputs else None
        return self.model.encode(Embedded(tokens_dtw, bias_dt, weights_adc, inputs.get("around"), inputs.get("own")))[0]

    @torch.no_grad()
    def readout(self, inputs: Inputs) -> Tensor:
        """[d, t] the weights of the LocalModule's readout; 0 for the first token, which is added in full."""
        local = self.model.local_module
        assert local is not None
        return local.readout_weights(local.hidden_states(self._embedded_tokens(inputs)))

    def _embedded_tokens(self, inputs: Inputs) -> Tensor:
        assert self.encoder is not None
        return self.encoder.join(inputs["tokens"], inputs.get("labels"), inputs.get("is_neighbor"))
