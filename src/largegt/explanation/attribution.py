"""Attribution: how much each input contributes to a score, by two methods that check each other.

Axes: v variants, d samples, k local nodes, h tokens of each, t = h·k tokens, o outputs; others as in inputs.py.

Integrated gradients: the gradient of the score, integrated along the straight line from the baseline inputs to the
real ones. The attributions add up to the difference of the two scores, up to the error of the numerical integral: the
interval with the largest error is halved until the total error is small, and the rest is reported as the gap.
Ablation: the score without one input, and the difference. Cost: 32 to 256 forward and backward passes, and one forward
pass per distinct local node and sample.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from largegt.training.metrics import TaskHead

from .inputs import Inputs, OpenModel, by_part

_POINTS, _FIRST_INTERVALS, _MAX_INTERVALS = 8, 4, 32
"""Quadrature points per interval, intervals at the start, and intervals computed at most."""
_TOLERANCE = 1e-2
"""Limit of the sum of absolute errors, relative to the score difference or to 1 if that is larger. Most cancel."""
_MAX_ELEMENTS = 1 << 24


def scores(head: TaskHead, logits_vdo: Tensor, target_v: Tensor) -> Tensor:
    """[v] the explained score of v variants: the log-odds of a class or label, from the probability averaged over
    samples, or the value of a regression. Targets are classes or label columns."""
    if head.task == "regression":
        return logits_vdo[..., 0].mean(dim=1) * head.target_std + head.target_mean
    target_v1 = target_v[:, None]
    if head.task == "multiclass":
        mean_vo = logits_vdo.log_softmax(dim=2).logsumexp(dim=1) - math.log(logits_vdo.shape[1])
        return mean_vo.gather(1, target_v1)[:, 0] - mean_vo.scatter(1, target_v1, -torch.inf).logsumexp(dim=1)
    if head.task == "binary":
        yes_vd, sign_v = logits_vdo[..., 0], 2 * target_v - 1
    else:
        yes_vd, sign_v = logits_vdo.take_along_dim(target_v[:, None, None], dim=2)[..., 0], torch.ones_like(target_v)
    return sign_v * (F.logsigmoid(yes_vd).logsumexp(dim=1) - F.logsigmoid(-yes_vd).logsumexp(dim=1))


@dataclass(frozen=True)
class _Interval:
    """A part of the path from the baseline to the real inputs."""

    low: float
    high: float
    carried: Inputs
    gap: float
    """The error of the integral: the change of the score minus the sum of `carried`."""


class Attribution:
    """Attributions of one node's score over its samples. `score` maps logits [v, d, o] to [v]."""

    def __init__(self, model: OpenModel, score: Callable[[Tensor], Tensor], inputs: Inputs, baseline: Inputs) -> None:
        self.model, self.score, self.inputs, self.baseline = model, score, inputs, baseline
        self.num_samples = len(next(iter(inputs.values())))
        with torch.no_grad():
            self.logits_do = model.logits(inputs)
        self.full, self.base = self.score_of(inputs), self.score_of(baseline)
        self.carried, self.gap = self.integrated()

    @torch.no_grad()
    def score_of(self, inputs: Inputs) -> float:
        return float(self.score(self.model.logits(inputs)[None])[0])

    def integrated(self) -> tuple[Inputs, float]:
        """The attributions, in the shape of the inputs, and the error of the integral."""
        allowed = _TOLERANCE * max(1.0, abs(self.full - self.base))
        bounds = np.linspace(0.0, 1.0, _FIRST_INTERVALS + 1).tolist()
        intervals = [self._integrate_interval(low, high) for low, high in pairwise(bounds)]
        num_computed = len(intervals)
        while sum(abs(one.gap) for one in intervals) > allowed and num_computed < _MAX_INTERVALS:
            worst = max(intervals, key=lambda one: abs(one.gap))
            intervals.remove(worst)
            middle = (worst.low + worst.high) / 2
            intervals += [self._integrate_interval(worst.low, middle), self._integrate_interval(middle, worst.high)]
            num_computed += 2
        return _sum([one.carried for one in intervals]), sum(one.gap for one in intervals)

    def _integrate_interval(self, low: float, high: float) -> _Interval:
        """One interval by the Gauss-Legendre rule. The scores at both ends give its error."""
        points, weights = (
            torch.from_numpy(part).to(self.logits_do) for part in np.polynomial.legendre.leggauss(_POINTS)
        )
        points, weights = low + (high - low) * (points + 1) / 2, (high - low) * weights / 2
        difference = by_part(torch.sub, self.inputs, self.baseline)
        chunk_size = self._max_rows() // self.num_samples or 1
        chunks = zip(torch.split(points, chunk_size), torch.split(weights, chunk_size), strict=True)
        carried = by_part(torch.mul, _sum([self._gradient(*chunk, difference) for chunk in chunks]), difference)
        ends = (by_part(partial(torch.add, alpha=at), self.baseline, difference) for at in (low, high))
        before, after = map(self.score_of, ends)
        return _Interval(low, high, carried, after - before - float(sum(part.sum() for part in carried.values())))

    def _gradient(self, point_s: Tensor, weight_s: Tensor, difference: Inputs) -> Inputs:
        """The weighted sum of the gradients at these points of the path."""
        steps = len(point_s)

        def interpolated(base: Tensor, step: Tensor) -> Tensor:
            return (base + point_s.view(steps, *(1 for _ in base.shape)) * step).flatten(0, 1).requires_grad_()

        inputs = by_part(interpolated, self.baseline, difference)
        logits = self.model.logits(inputs).view(steps, self.num_samples, -1)
        gradients = torch.autograd.grad((self.score(logits) * weight_s).sum(), list(inputs.values()))
        by_name = dict(zip(inputs, gradients, strict=True))
        return by_part(lambda part: part.view(steps, self.num_samples, *part.shape[1:]).sum(dim=0), by_name)

    def _max_rows(self) -> int:
        if self.model.encoder is None:
            return _MAX_ELEMENTS
        t, width = self.inputs["tokens"].shape[1], int(self.model.model.ffn[-1].out_features)  # type: ignore[arg-type]
        return max(1, _MAX_ELEMENTS // (t * max(8 * width, t)))

    def without(self, **changed: Tensor) -> float:
        """How much the score falls when these parts of the inputs are replaced."""
        return self.full - self.score_of(self.inputs | changed)

    @torch.no_grad()
    def without_nodes(self, slots_ndk: Tensor) -> Tensor:
        """[n] how much the score falls without each of n local nodes. `slots_ndk` is True at a node's slots."""
        assert self.model.encoder is not None
        h = self.model.encoder.tokens_per_node
        logits_vdo = self.logits_do.repeat(len(slots_ndk), 1, 1)
        for chunk in torch.split(slots_ndk.any(dim=2).nonzero(), self._max_rows()):
            nodes, samples = chunk.unbind(dim=1)
            is_masked_pt = slots_ndk[nodes, samples].repeat_interleave(h, dim=1)
            bias_pt = torch.zeros_like(is_masked_pt, dtype=logits_vdo.dtype).masked_fill(is_masked_pt, -torch.inf)
            logits_vdo[nodes, samples] = self.model.logits(
                {name: part[samples] for name, part in self.inputs.items()}, bias_pt
            )
        return self.full - self.score(logits_vdo)

    def without_centroid(self, number: int) -> float:
        """How much the score falls without one centroid, with the weights of the others renormalized."""
        weights_dac = self.inputs["weights"].clone()
        weights_dac[..., number] = 0.0
        total_da1 = weights_dac.sum(dim=2, keepdim=True)
        return self.without(weights=weights_dac / total_da1.clamp(min=torch.finfo(total_da1.dtype).tiny))


def _sum(parts: list[Inputs]) -> Inputs:
    return by_part(lambda *same: torch.stack(same).sum(dim=0), *parts)
