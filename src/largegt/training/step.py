"""One training step: forward, loss, backward, clipping, optimizer, weight average, codebook. On a GPU, recorded once
and replayed.

A step of a few milliseconds on the GPU is some two hundred launches, and Python cannot make them that fast. So after a
few steps one of them is recorded as a CUDA graph over buffers of its own; later ones copy their batch there and replay
it. A batch of another size (the last of an epoch) is computed as usual. The loss is summed on the device: nothing
inside an epoch waits for it.
"""

from __future__ import annotations

import warnings
from typing import Any

import torch
from lightning.fabric import Fabric
from torch import nn

from ..config import TrainConfig
from ..errors import first_line
from ..model.node_model import NodeModel, NodeOutput
from ..tokens.input_tokens import TokenBatch
from .metrics import TaskHead
from .weight_average import WeightAverage

_STEPS_BEFORE_RECORDING = 3


class TrainingStep:
    """`step(batch)` trains on a batch. `loss_sum` is the sum of the nodes' losses since the last `restart`."""

    def __init__(
        self, fabric: Fabric, model: Any, optimizer: Any, head: TaskHead, config: TrainConfig, record: bool,
        average: WeightAverage | None = None,
    ) -> None:  # fmt: skip
        """`model` is a SealedModel, and it and the optimizer are set up by `fabric`. `average` is kept up with it."""
        self.fabric, self.model, self.optimizer, self.config = fabric, model, optimizer, config
        self.average = average
        self.head = head.on(fabric.device)
        self.loss_sum = torch.zeros((), device=fabric.device)
        self.num_nodes = 0
        self._record = record and fabric.device.type == "cuda" and config.precision != "16-mixed"
        self._num_steps = 0
        self._aside: torch.cuda.Stream | None = None
        self._graph: torch.cuda.CUDAGraph | None = None
        self._buffers: TokenBatch | None = None

    def restart(self) -> None:
        """A new epoch begins."""
        self.loss_sum.zero_()
        self.num_nodes = 0

    def __call__(self, batch: TokenBatch) -> None:
        self.num_nodes += len(batch)
        if not self._record:
            self._compute(batch)
        elif len(batch) != self.config.batch_size or batch.multiplicity is not None:
            self._compute_aside(batch)
        elif self._num_steps < _STEPS_BEFORE_RECORDING:
            self._num_steps += 1
            self._compute_aside(batch)
        else:
            self._replay(batch)

    def _compute(self, batch: TokenBatch) -> None:
        self.optimizer.zero_grad()
        output: NodeOutput = self.model(Sealed(batch)).value
        loss = self.head.loss(output.logits, batch.labels)
        self.fabric.backward(loss)
        if self.config.clip_norm is not None:
            self.fabric.clip_gradients(
                self.model, self.optimizer, max_norm=self.config.clip_norm, error_if_nonfinite=False
            )
        self.optimizer.step()
        if self.average is not None:
            self.average.update()
        self.model.module.model.update_codebook(output)
        self.loss_sum += loss.detach() * len(batch)

    def _compute_aside(self, batch: TokenBatch) -> None:
        """On the stream that is recorded from: gradients must not remember another one."""
        now = torch.cuda.current_stream()
        self._aside = self._aside or torch.cuda.Stream()  # type: ignore[no-untyped-call]
        self._aside.wait_stream(now)
        with torch.cuda.stream(self._aside):
            self._compute(batch)
        now.wait_stream(self._aside)

    def _replay(self, batch: TokenBatch) -> None:
        if self._graph is None:
            self._buffers = batch.clone()
            try:
                self._graph = self._recorded(self._buffers)
            except RuntimeError as error:
                warnings.warn(f"steps are not replayed, since recording failed: {first_line(error)}", stacklevel=3)
                self._record = False
                self._compute(batch)
                return
        assert self._buffers is not None
        for buffer, tensor in zip(self._buffers.tensors(), batch.tensors(), strict=True):
            buffer.copy_(tensor)
        self._graph.replay()

    def _recorded(self, batch: TokenBatch) -> torch.cuda.CUDAGraph:
        graph = torch.cuda.CUDAGraph()
        torch.cuda.synchronize()
        with torch.cuda.graph(graph, stream=self._aside, capture_error_mode="thread_local"):
            self._compute(batch)
        return graph


class Sealed:
    """Carries a batch or an output past Fabric, which would copy and cast the fields of a dataclass."""

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value


class SealedModel(nn.Module):
    """The model behind sealed hand-overs."""

    def __init__(self, model: NodeModel) -> None:
        super().__init__()
        self.model = model

    def forward(self, batch: Sealed) -> Sealed:
        return Sealed(self.model(batch.value))
