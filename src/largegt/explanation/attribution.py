"""Attribution: how much of a score each input carried, in two ways that check each other.

Axes: v variants, d samples, k local nodes, h tokens of each, t = h·k tokens, o outputs; others as in inputs.py.

Integrated gradients: from inputs that say nothing to the real ones along a straight line, the gradient of the score
times the way gone. The parts add up to the difference of the two scores, but for what the numeric integral misses: the
stretch of the way that misses most is halved until that is small, and what is left is told. Leaving out: the score
computed again without one thing, and the difference. Cost: 32 to 256 forwards and backwards, and a forward per distinct
local node, of each sample.
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

_POINTS, _FIRST_STRETCHES, _MOST_STRETCHES = 8, 4, 32
"""Points of each stretch of the way, stretches at first, and computed in all."""
_TOLERANCE = 1e-2
"""Of the difference, or of 1 if that is larger, so much may be missed over all stretches, of either sign: most of it
cancels."""
_NUMBERS_AT_ONCE = 1 << 24


def scores(head: TaskHead, logits_vdo: Tensor, target_v: Tensor) -> Tensor:
    """[v] what is explained, of v variants: log-odds of a class or label, of the probability averaged over samples; a
    value, for regression. Targets are classes, or columns of labels."""
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
class _Stretch:
    """A part of the way from inputs that say nothing to the real ones."""

    low: float
    high: float
    carried: Inputs
    gap: float
    """What `carried` misses of the score gained here."""


class Attribution:
    """What carried one node's score, over its samples; the score is that of logits [v, d, o]."""

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
        """What each input carries, in the shape of the inputs, and what the integral misses of the difference."""
        allowed = _TOLERANCE * max(1.0, abs(self.full - self.base))
        bounds = np.linspace(0.0, 1.0, _FIRST_STRETCHES + 1).tolist()
        stretches = [self._stretch(low, high) for low, high in pairwise(bounds)]
        num_made = len(stretches)
        while sum(abs(one.gap) for one in stretches) > allowed and num_made < _MOST_STRETCHES:
            worst = max(stretches, key=lambda one: abs(one.gap))
            stretches.remove(worst)
            middle = (worst.low + worst.high) / 2
            stretches += [self._stretch(worst.low, middle), self._stretch(middle, worst.high)]
            num_made += 2
        return _sum([one.carried for one in stretches]), sum(one.gap for one in stretches)

    def _stretch(self, low: float, high: float) -> _Stretch:
        """A part of the way by the Gauss-Legendre rule. What it misses is known: the scores at both ends are."""
        places, shares = (
            torch.from_numpy(part).to(self.logits_do) for part in np.polynomial.legendre.leggauss(_POINTS)
        )
        places, shares = low + (high - low) * (places + 1) / 2, (high - low) * shares / 2
        way = by_part(torch.sub, self.inputs, self.baseline)
        at_once = self._rows_at_once() // self.num_samples or 1
        some = zip(torch.split(places, at_once), torch.split(shares, at_once), strict=True)
        carried = by_part(torch.mul, _sum([self._slope(*one, way) for one in some]), way)
        ends = (by_part(partial(torch.add, alpha=at), self.baseline, way) for at in (low, high))
        before, after = map(self.score_of, ends)
        return _Stretch(low, high, carried, after - before - float(sum(part.sum() for part in carried.values())))

    def _slope(self, place_s: Tensor, share_s: Tensor, way: Inputs) -> Inputs:
        """The weighted sum of gradients at these places of the way."""
        steps = len(place_s)

        def at_places(base: Tensor, step: Tensor) -> Tensor:
            return (base + place_s.view(steps, *(1 for _ in base.shape)) * step).flatten(0, 1).requires_grad_()

        points = by_part(at_places, self.baseline, way)
        logits = self.model.logits(points).view(steps, self.num_samples, -1)
        slopes = torch.autograd.grad((self.score(logits) * share_s).sum(), list(points.values()))
        by_name = dict(zip(points, slopes, strict=True))
        return by_part(lambda slope: slope.view(steps, self.num_samples, *slope.shape[1:]).sum(dim=0), by_name)

    def _rows_at_once(self) -> int:
        if self.model.encoder is None:
            return _NUMBERS_AT_ONCE
        t, width = self.inputs["tokens"].shape[1], int(self.model.model.ffn[-1].out_features)  # type: ignore[arg-type]
        return max(1, _NUMBERS_AT_ONCE // (t * max(8 * width, t)))

    def without(self, **changed: Tensor) -> float:
        """How much the score falls when these parts of the inputs are others."""
        return self.full - self.score_of(self.inputs | changed)

    @torch.no_grad()
    def without_nodes(self, slots_ndk: Tensor) -> Tensor:
        """[n] how much the score falls without each of some local nodes, as if it had not been drawn: True where it
        stands."""
        assert self.model.encoder is not None
        h = self.model.encoder.tokens_per_node
        logits_vdo = self.logits_do.repeat(len(slots_ndk), 1, 1)
        for some in torch.split(slots_ndk.any(dim=2).nonzero(), self._rows_at_once()):
            numbers, samples = some.unbind(dim=1)
            left_out_pt = slots_ndk[numbers, samples].repeat_interleave(h, dim=1)
            bias_pt = torch.zeros_like(left_out_pt, dtype=logits_vdo.dtype).masked_fill(left_out_pt, -torch.inf)
            logits_vdo[numbers, samples] = self.model.logits(
                {name: part[samples] for name, part in self.inputs.items()}, bias_pt
            )
        return self.full - self.score(logits_vdo)

    def without_centroid(self, number: int) -> float:
        """How much the score falls without one centroid, the others taking its share by what they have."""
        weights_dac = self.inputs["weights"].clone()
        weights_dac[..., number] = 0.0
        left_da1 = weights_dac.sum(dim=2, keepdim=True)
        return self.without(weights=weights_dac / left_da1.clamp(min=torch.finfo(left_da1.dtype).tiny))


def _sum(parts: list[Inputs]) -> Inputs:
    return by_part(lambda *same: torch.stack(same).sum(dim=0), *parts)
