"""Codebook: B centroids μ of the whole graph, updated by EMA k-means (the paper's Algorithm 3, line 8), without
gradient.

Axes: c centroids, b batch (this rank's part of it), a batch of all ranks, r ranks, w width (features and positions
joined).

`update(z, nodes)` takes one step: normalise the batch, assign each node to its nearest centroid, move the centroids.
Cost: O(b·c·w) time and O(b·c) memory; the counts of nodes per centroid are updated incrementally (subtract at the old
centroid, add at the new one), so no step costs O(N).

The start is from data and consistent (sum = centroid · size): a centroid without assigned nodes keeps its position
instead of diverging; when its size has decayed it moves to a node of the batch.

Several ranks share one codebook. Each passes its part of a batch, and the ranks sum the batch statistics and the sizes
and sums of the clusters. After a step all ranks have identical buffers, close to those of one rank with the whole
batch. The communication per step is O(c·w), independent of the batch size except for the node numbers.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from largegt.config.models import CodebookConfig
from largegt.runtime.distributed import ALONE, Ranks

from .fused import Fused

NORM_MOMENTUM = 0.1
NORM_EPSILON = 1e-5
_START_JITTER = 0.01


class Codebook(nn.Module):
    """The state of the EMA k-means, all in buffers: saved and restored with the model."""

    centroids: Tensor
    ema_sum: Tensor
    ema_size: Tensor
    counts: Tensor
    assignment: Tensor
    mean: Tensor
    variance: Tensor
    started: Tensor
    ranks: Ranks = ALONE

    def __init__(self, num_nodes: int, width: int, config: CodebookConfig) -> None:
        super().__init__()
        self.ema_decay = config.ema_decay
        self.eps = config.eps
        self.dead_code_threshold = config.dead_code_threshold
        size = config.num_centroids
        index = torch.int16 if size < 2**15 else torch.int32
        self.register_buffer("centroids", torch.randn(size, width))
        self.register_buffer("ema_sum", self.centroids.clone())
        self.register_buffer("ema_size", torch.ones(size))
        self.register_buffer("counts", torch.zeros(size, dtype=torch.int64))
        self.register_buffer("assignment", torch.full((num_nodes,), -1, dtype=index))
        self.register_buffer("mean", torch.zeros(width))
        self.register_buffer("variance", torch.ones(width))
        self.register_buffer("started", torch.zeros((), dtype=torch.bool))
        self._is_started = False
        self._step: Callable[[Tensor, Tensor], None] = self._plain_step

    def normalize(self, z_bw: Tensor) -> Tensor:
        """z normalised by the running mean and variance, which have no gradient."""
        return (z_bw - self.mean) * torch.rsqrt(self.variance + NORM_EPSILON)

    def query_space(self, z_bw: Tensor) -> Tensor:
        """z in the space of `attended`, as the input of the query projection."""
        return self.normalize(z_bw)

    def attended(self) -> Tensor:
        """[c, w] the centroids that nodes attend to, as the input of the key and value projections."""
        return self.centroids

    def log_counts(self) -> Tensor:
        """[c] log(1ₙP) of Algorithm 3, line 6: log of the number of nodes assigned to each centroid. -inf for an empty
        centroid; 0 for all before the first assignment."""
        log_c = self.counts.to(self.centroids.dtype).log()
        return torch.where(self.counts.sum() > 0, log_c, torch.zeros_like(log_c))

    @torch.no_grad()
    def update(self, z_bw: Tensor, nodes_b: Tensor) -> None:
        """Take one step of EMA k-means with these distinct nodes and update their assignments. With several ranks, each
        rank calls it with its part of a batch, which may be empty."""
        z_bw = z_bw.detach().to(self.centroids.dtype)
        if self._has_started():
            self._step(z_bw, nodes_b)
        else:
            self._plain_step(z_bw, nodes_b, is_first=True)

    def compile_for(self, batch_sizes: set[int]) -> None:
        """Use `torch.compile` for steps with these numbers of nodes; not with several ranks."""
        if self.ranks.size == 1:
            self._step = Fused(self._plain_step, batch_sizes)

    def _plain_step(self, z_bw: Tensor, nodes_b: Tensor, is_first: bool = False) -> None:
        counts = self.ranks.row_counts(len(nodes_b))
        nodes_a = self.ranks.all_gather(nodes_b, counts)
        sorted_a, order_a = nodes_a.sort(stable=True)
        z_bw = self._normalize_batch(z_bw, counts)
        if is_first:
            self._start(z_bw, order_a, counts)
        nearest_b = self.nearest(z_bw)
        self._move(z_bw, nearest_b, order_a, counts)
        self._count(nodes_a, self.ranks.all_gather(nearest_b, counts), sorted_a, order_a)

    def _move(self, z_bw: Tensor, nearest_b: Tensor, order_a: Tensor, counts: list[int]) -> None:
        self._average(z_bw, nearest_b)
        self._revive(z_bw, order_a, counts)
        self.centroids.copy_(self.ema_sum / self._smoothed_sizes()[:, None])

    def _average(self, z_bw: Tensor, nearest_b: Tensor) -> None:
        """Update the moving averages of cluster sizes and sums with this batch."""
        size_c = torch.zeros_like(self.ema_size).index_add_(0, nearest_b, torch.ones_like(z_bw[:, 0]))
        sum_cw = torch.zeros_like(self.ema_sum).index_add_(0, nearest_b, z_bw)
        self.ema_size.mul_(self.ema_decay).add_(self.ranks.all_reduce_(size_c), alpha=1 - self.ema_decay)
        self.ema_sum.mul_(self.ema_decay).add_(self.ranks.all_reduce_(sum_cw), alpha=1 - self.ema_decay)

    def _smoothed_sizes(self) -> Tensor:
        total = self.ema_size.sum()
        return (self.ema_size + self.eps) / (total + len(self.ema_size) * self.eps) * total

    def nearest(self, z_bw: Tensor) -> Tensor:
        """[b] the nearest centroid of each normalised row."""
        score_bc = (self.centroids * self.centroids).sum(dim=1) - 2.0 * z_bw @ self.centroids.T
        return score_bc.argmin(dim=1)

    def _normalize_batch(self, z_bw: Tensor, counts: list[int]) -> Tensor:
        """Batch normalisation without gain; updates the running statistics, or uses them for a batch of one node."""
        if sum(counts) < 2:
            return self.normalize(z_bw)
        variance, mean = self._moments(z_bw, counts)
        momentum = torch.where(self.started, NORM_MOMENTUM, 1.0)
        self.mean.lerp_(mean, momentum)
        self.variance.lerp_(variance, momentum)
        return (z_bw - mean) * torch.rsqrt(variance + NORM_EPSILON)

    def _moments(self, z_bw: Tensor, counts: list[int]) -> tuple[Tensor, Tensor]:
        """[w] variance and mean over the rows of all ranks: the mean variance plus the variance of the means."""
        if len(counts) == 1:
            return torch.var_mean(z_bw, dim=0, correction=0)
        own_2w = z_bw.new_zeros(2, z_bw.shape[1])
        if len(z_bw):
            own_2w = torch.stack(torch.var_mean(z_bw, dim=0, correction=0))
        variance_rw, mean_rw = self.ranks.all_gather(own_2w[None], [1] * len(counts)).unbind(dim=1)
        share_r1 = z_bw.new_tensor(counts)[:, None] / sum(counts)
        mean = (share_r1 * mean_rw).sum(dim=0)
        return (share_r1 * (variance_rw + (mean_rw - mean).square())).sum(dim=0), mean

    def _start(self, z_bw: Tensor, order_a: Tensor, counts: list[int]) -> None:
        """Before the first step: place each centroid near a random node of the batch, with equal sizes. With a batch of
        one node, the next batch starts again."""
        size = sum(counts) / len(self.ema_size)
        chosen_cw = self._drawn_rows(z_bw, order_a, counts)
        self.centroids.copy_(chosen_cw + _START_JITTER * self.ranks.broadcast(torch.randn_like(chosen_cw)))
        self.ema_size.fill_(size)
        self.ema_sum.copy_(self.centroids * size)
        self.started.fill_(sum(counts) > 1)

    def _has_started(self) -> bool:
        """Whether the centroids have been initialised from data. Reads the device only until this is true."""
        self._is_started = self._is_started or bool(self.started)
        return self._is_started

    def _revive(self, z_bw: Tensor, order_a: Tensor, counts: list[int]) -> None:
        """Move dead centroids, whose size has decayed, to random nodes of the batch."""
        size = sum(counts) / len(self.ema_size)
        dead_c = self.ema_size < self.dead_code_threshold * size
        chosen_cw = self._drawn_rows(z_bw, order_a, counts)
        self.ema_sum.copy_(torch.where(dead_c[:, None], chosen_cw * size, self.ema_sum))
        self.ema_size.copy_(torch.where(dead_c, torch.full_like(self.ema_size, size), self.ema_size))

    def _drawn_rows(self, z_bw: Tensor, order_a: Tensor, counts: list[int]) -> Tensor:
        """[c, w] rows of the whole batch, as the first rank draws them: by the order of node numbers, since the places
        of nodes in a batch differ with the number of ranks."""
        drawn_c = torch.randint(sum(counts), self.ema_size.shape, device=z_bw.device)
        return self.ranks.rows_at(z_bw, order_a[self.ranks.broadcast(drawn_c)], counts)

    def _count(self, nodes_a: Tensor, nearest_a: Tensor, sorted_a: Tensor, order_a: Tensor) -> None:
        """Update assignments and counts: move these nodes from their old centroids to the nearest ones. A node that
        occurs twice counts once."""
        before_a = self.assignment[nodes_a].long()
        self.assignment[nodes_a] = nearest_a.to(self.assignment.dtype)
        first_a = torch.ones_like(nodes_a)
        first_a[order_a[1:]] = (sorted_a[1:] != sorted_a[:-1]).to(nodes_a.dtype)
        known_a = first_a * (before_a >= 0)
        self.counts.index_add_(0, before_a.clamp(min=0), -known_a)
        self.counts.index_add_(0, self.assignment[nodes_a].long(), first_a)
