"""One training step on a batch or on two views of its nodes (batches.py): forward, loss, backward, clipping, optimizer,
moving average of the weights, codebook. On a GPU, a CUDA graph captured once and replayed.

A step of a few milliseconds launches about two hundred kernels, more than Python can launch in that time. Therefore
batches are copied into fixed buffers, a CUDA graph over these buffers is captured after a few steps, and later steps
replay it. The steps before the capture use the same buffers and compile all kernels, since compilation would abort a
capture. A batch of another size (the last of an epoch) runs without the graph. No step waits for the device.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextlib import suppress

import torch
from torch import Tensor
from torch.nn.utils import clip_grad_norm_

from largegt.config.schema import TrainConfig
from largegt.errors import first_line
from largegt.hardware.abilities import usable
from largegt.loader.batch import TokenBatch
from largegt.models.base import NodeOutput
from largegt.runtime.cuda_streams import side_stream

from .checkpoint import TrainingState
from .metrics import TaskHead
from .nan_check import Losses
from .setup import Accelerator

_log = logging.getLogger(__name__)

_STEPS_BEFORE_CAPTURE = 3


class TrainingStep:
    """`step([batch])` trains on a batch, `step([view, view])` on two views of its nodes. Returns True if a loss of
    this epoch is known not to be finite."""

    def __init__(
        self, accelerator: Accelerator, state: TrainingState, head: TaskHead, config: TrainConfig, record: bool,
        num_others: int = 0,
    ) -> None:  # fmt: skip
        """The last `num_others` nodes of a batch have no training label: only the consistency loss uses them."""
        device, self.ranks = accelerator.device, accelerator.ranks
        self.accelerator, self.state, self.config, self.num_others = accelerator, state, config, num_others
        self.network = accelerator.distribute(state.model)
        self.head = head.on(device)
        self.losses = Losses(device, self.ranks)
        self.agreement = torch.zeros((), device=device)
        """Weight of the consistency loss; on the device, where the CUDA graph reads it."""
        can_record = device.type == "cuda" and config.precision != "16-mixed" and self.ranks.size == 1
        self._record = record and can_record and usable("cuda_graphs", "steps are not replayed, since recording fails")
        self._num_steps = 0
        self._stream = side_stream(device, "step") if self._record else None
        self._graph: torch.cuda.CUDAGraph | None = None
        self._buffers: list[TokenBatch] = []

    def __call__(self, views: Sequence[TokenBatch], num_nodes: int | None = None) -> bool:
        """`num_nodes` are the training nodes of the whole batch, of which a rank has only its part."""
        self.ranks.has_empty_batch = num_nodes is not None and self.ranks.shares(num_nodes)[self.ranks.rank] == 0
        if not self._record:
            self._compute(views)
        elif len(views[0]) != self.config.batch_size + self.num_others or views[0].multiplicity is not None:
            self._compute_on_stream(views)
        else:
            self._fill_buffers(views)
            if self._num_steps < _STEPS_BEFORE_CAPTURE:
                self._num_steps += 1
                self._compute_on_stream(self._buffers)
            else:
                self._replay()
        return self.losses.look()

    def _compute(self, views: Sequence[TokenBatch]) -> None:
        optimizer, scaler, average = self.state.optimizer, self.state.scaler, self.state.average
        optimizer.zero_grad()
        outputs = [self._forward(view) for view in views]
        loss, total = self._losses(views, [output.logits for output in outputs])
        scaled: Tensor = scaler.scale(total if self.ranks.size == 1 else total * self.ranks.size)
        scaled.backward()  # type: ignore[no-untyped-call]  # DDP takes the mean over ranks
        if self.config.max_grad_norm is not None:
            scaler.unscale_(optimizer)
            clip_grad_norm_(self.state.model.parameters(), self.config.max_grad_norm)
        scaler.step(optimizer)
        scaler.update()
        if average is not None:
            average.update()
        self.state.model.update_codebook(outputs[0].without_nodes() if self.ranks.has_empty_batch else outputs[0])
        self.losses.add(loss)

    def _forward(self, view: TokenBatch) -> NodeOutput:
        with self.accelerator.autocast():
            output: NodeOutput = self.network(view)
        return output

    def _losses(self, views: Sequence[TokenBatch], logits: list[Tensor]) -> tuple[Tensor, Tensor]:
        """The loss of the training nodes, and the total loss to minimise."""
        if not self.num_others:
            loss = self.head.loss(logits[0], views[0].labels, self.ranks)
            return loss, loss
        own = slice(len(views[0]) - self.num_others)  # the labels of the others are never read
        losses = [self.head.loss(some[own], view.labels[own]) for some, view in zip(logits, views, strict=True)]
        loss = torch.stack(losses).mean()
        others = [some[own.stop :] for some in logits]
        disagreement = self.head.disagreement(others, self.config.consistency_threshold).mean()
        return loss, loss + self.agreement * disagreement

    def _compute_on_stream(self, views: Sequence[TokenBatch]) -> None:
        """Compute on the stream of the capture: gradient accumulation must not be bound to another stream."""
        assert self._stream is not None
        now = torch.cuda.current_stream()
        self._stream.wait_stream(now)
        with torch.cuda.stream(self._stream):
            self._compute(views)
        now.wait_stream(self._stream)

    def _fill_buffers(self, views: Sequence[TokenBatch]) -> None:
        if not self._buffers:
            self._buffers = [view.clone() for view in views]
            return
        for buffers, view in zip(self._buffers, views, strict=True):
            for buffer, tensor in zip(buffers.tensors(), view.tensors(), strict=True):
                buffer.copy_(tensor)

    def _replay(self) -> None:
        """Run the step on the buffers' contents."""
        if self._graph is None:
            try:
                self._graph = self._capture()
            except RuntimeError as error:
                _log.warning(f"steps are not replayed, since recording failed: {first_line(error)}")
                self._record = False
                self._compute(self._buffers)
                self._buffers = []
                return
        self._graph.replay()

    def _capture(self) -> torch.cuda.CUDAGraph:
        graph, pool = torch.cuda.CUDAGraph(), torch.cuda.graph_pool_handle()
        torch.cuda.synchronize()
        now = torch.cuda.current_stream()
        random = torch.cuda.default_generators[torch.cuda.current_device()]
        before = random.clone_state()
        try:
            with torch.cuda.graph(graph, pool, stream=self._stream, capture_error_mode="thread_local"):
                self._compute(self._buffers)
        except BaseException:
            random.graphsafe_set_state(before)  # otherwise it stays in capture mode and every later dropout fails
            torch.cuda.set_stream(now)
            with suppress(RuntimeError):  # before 2.12 PyTorch never releases the pool of a failed capture
                torch._C._cuda_endAllocateToPool(torch.cuda.current_device(), pool)
            raise
        return graph
