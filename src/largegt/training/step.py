"""One training step: forward, loss, backward, clipping, optimizer, weight average, codebook; of a batch, or of two
views of its nodes (consistency.py). On a GPU, recorded once and replayed.

A step of a few milliseconds on the GPU is some two hundred launches, and Python cannot make them that fast. So batches
are copied into buffers of its own, and after a few steps one of them is recorded as a CUDA graph over those; later ones
replay it. The steps before it have the same buffers: all that is compiled for them is compiled then, and not while a
step is recorded, which would end the recording. A batch of another size (the last of an epoch) is computed as usual.
The loss is summed on the device, and `losses` bring those of single steps to the host by the way: nothing inside an
epoch waits for them.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import torch
from lightning.fabric import Fabric
from torch import Tensor, nn

from ..config import TrainConfig
from ..errors import first_line
from ..model.node_model import NodeModel, NodeOutput
from ..ranks import ALONE, Ranks
from ..runtime.hardware import usable
from ..streams import side_stream
from ..tokens.input_tokens import TokenBatch
from .metrics import TaskHead
from .numerics import Losses
from .weight_average import WeightAverage

_STEPS_BEFORE_RECORDING = 3


class TrainingStep:
    """`step([batch])` trains on a batch, `step([batch, other])` on two views of its nodes. `loss_sum` is the sum of the
    training nodes' losses since the last `restart`: this rank's part of it, where there are several."""

    def __init__(
        self, fabric: Fabric, model: Any, optimizer: Any, head: TaskHead, config: TrainConfig, record: bool,
        average: WeightAverage | None = None, ranks: Ranks = ALONE, num_others: int = 0,
    ) -> None:  # fmt: skip
        """`model` is a SealedModel (`over_ranks`, where there are several), and it and the optimizer are set up by
        `fabric`. `average` is kept up with it. So many nodes at the end of a batch, `num_others`, are not trained on:
        their views are to agree."""
        self.fabric, self.model, self.optimizer, self.config = fabric, model, optimizer, config
        self.average, self.ranks, self.num_others = average, ranks, num_others
        self.own_model: NodeModel = next(part for part in model.modules() if isinstance(part, NodeModel))
        self.head = head.on(fabric.device)
        self.loss_sum = torch.zeros((), device=fabric.device)
        self.losses = Losses(fabric.device, ranks)
        self.num_nodes = 0
        self.agreement = torch.zeros((), device=fabric.device)
        """Weight of the views' agreement; on the device, where a recorded step reads it."""
        can_record = fabric.device.type == "cuda" and config.precision != "16-mixed" and ranks.size == 1
        self._record = record and can_record and usable("cuda_graphs", "steps are not replayed, since recording fails")
        self._num_steps = 0
        self._aside = side_stream(fabric.device, "step") if self._record else None
        self._graph: torch.cuda.CUDAGraph | None = None
        self._buffers: list[TokenBatch] = []

    def restart(self) -> None:
        """A new epoch begins."""
        self.loss_sum.zero_()
        self.losses.restart()
        self.num_nodes = 0

    def __call__(self, views: Sequence[TokenBatch], num_nodes: int | None = None) -> None:
        """`num_nodes` are the training nodes of the whole batch, of which a rank has only its part."""
        size = len(views[0])
        num_nodes = size - self.num_others if num_nodes is None else num_nodes
        self.num_nodes += num_nodes
        self.ranks.idle = self.ranks.shares(num_nodes)[self.ranks.rank] == 0
        if not self._record:
            self._compute(views, num_nodes)
        elif size != self.config.batch_size + self.num_others or views[0].multiplicity is not None:
            self._compute_aside(views, num_nodes)
        else:
            self._fill_buffers(views)
            if self._num_steps < _STEPS_BEFORE_RECORDING:
                self._num_steps += 1
                self._compute_aside(self._buffers, num_nodes)
            else:
                self._replay(num_nodes)

    def _compute(self, views: Sequence[TokenBatch], num_nodes: int) -> None:
        self.optimizer.zero_grad()
        outputs: list[NodeOutput] = [self.model(Sealed(view)).value for view in views]
        loss, total = self._losses(views, [output.logits for output in outputs])
        self.fabric.backward(total if self.ranks.size == 1 else total * self.ranks.size)  # DDP takes the ranks' mean
        if self.config.clip_norm is not None:
            self.fabric.clip_gradients(
                self.model, self.optimizer, max_norm=self.config.clip_norm, error_if_nonfinite=False
            )
        self.optimizer.step()
        if self.average is not None:
            self.average.update()
        self.own_model.update_codebook(outputs[0].without_nodes() if self.ranks.idle else outputs[0])
        self.loss_sum += loss.detach() * num_nodes
        self.losses.add(total)

    def _losses(self, views: Sequence[TokenBatch], logits: list[Tensor]) -> tuple[Tensor, Tensor]:
        """The loss of the training nodes, and what is made smaller."""
        if not self.num_others:
            loss = self.head.loss(logits[0], views[0].labels, self.ranks)
            return loss, loss
        own = slice(len(views[0]) - self.num_others)  # of the others no label is read
        each = [self.head.loss(of[own], view.labels[own]) for of, view in zip(logits, views, strict=True)]
        loss = torch.stack(each).mean()
        others = [of[own.stop :] for of in logits]
        apart = self.head.disagreement(others, self.config.consistency_confidence).mean()
        return loss, loss + self.agreement * apart

    def _compute_aside(self, views: Sequence[TokenBatch], num_nodes: int) -> None:
        """On the stream that is recorded from: gradients must not remember another one."""
        assert self._aside is not None
        now = torch.cuda.current_stream()
        self._aside.wait_stream(now)
        with torch.cuda.stream(self._aside):
            self._compute(views, num_nodes)
        now.wait_stream(self._aside)

    def _fill_buffers(self, views: Sequence[TokenBatch]) -> None:
        if not self._buffers:
            self._buffers = [view.clone() for view in views]
            return
        for buffers, view in zip(self._buffers, views, strict=True):
            for buffer, tensor in zip(buffers.tensors(), view.tensors(), strict=True):
                buffer.copy_(tensor)

    def _replay(self, num_nodes: int) -> None:
        """The step of what is in the buffers."""
        if self._graph is None:
            try:
                self._graph = self._recorded(num_nodes)
            except RuntimeError as error:
                warnings.warn(f"steps are not replayed, since recording failed: {first_line(error)}", stacklevel=3)
                self._record = False
                self._compute(self._buffers, num_nodes)
                self._buffers = []
                return
        self._graph.replay()

    def _recorded(self, num_nodes: int) -> torch.cuda.CUDAGraph:
        graph, pool = torch.cuda.CUDAGraph(), torch.cuda.graph_pool_handle()
        torch.cuda.synchronize()
        now = torch.cuda.current_stream()
        random = torch.cuda.default_generators[torch.cuda.current_device()]
        before = random.clone_state()
        try:
            with torch.cuda.graph(graph, pool, stream=self._aside, capture_error_mode="thread_local"):
                self._compute(self._buffers, num_nodes)
        except BaseException:
            random.graphsafe_set_state(before)  # it would go on as if recorded, and refuse every later dropout
            torch.cuda.set_stream(now)
            with suppress(RuntimeError):  # before 2.12 PyTorch keeps all memory that is freed for a recording to end
                torch._C._cuda_endAllocateToPool(torch.cuda.current_device(), pool)
            raise
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
