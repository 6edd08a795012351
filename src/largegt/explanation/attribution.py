"""Attribution: how much of a score each input carried, in two ways that check each other.

Axes: v variants, d draws, k local nodes, h tokens of each, t = h·k tokens, o outputs; others as in inputs.py.

Score: log-odds of a class or label, of the probability averaged over the draws; a value, for regression.

Integrated gradients: from inputs that say nothing to the real ones along a straight line, the gradient of the score
times the way gone. The parts add up to the difference of the two scores, but for what the numeric integral misses: the
stretch of the way that misses most is halved until that is small, and what is left is told. Leaving out: the score
computed again without one thing, and the difference. Cost: 32 to 256 forwards and backwards, and a forward per distinct
local node, of each draw.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from largegt.training.metrics import TaskHead

from .inputs import Inputs, OpenModel

_POINTS, _FIRST_STRETCHES, _MOST_STRETCHES = 8, 4, 32
"""Points of each stretch of the way, stretches at first, and computed in all."""
_TOLERANCE = 1e-2
"""Of the difference, or of 1 if that is larger, so much may be missed over all stretches, of either sign: most of it
cancels."""
_NUMBERS_AT_ONCE = 1 << 24


@dataclass(frozen=True)
class Score:
    """What is explained: one number of a node, from the logits of its draws."""

    head: TaskHead
    target: int
    """A class, or a column of labels; 0 for regression."""

    def __call__(self, logits_vdo: Tensor) -> Tensor:
        """[v] scores of v variants."""
        task = self.head.task
        if task == "regression":
            return logits_vdo[..., 0].mean(dim=1) * self.head.target_std + self.head.target_mean
        if task == "multiclass":
            mean_vo = logits_vdo.log_softmax(dim=2).logsumexp(dim=1) - math.log(logits_vdo.shape[1])
            others = torch.arange(mean_vo.shape[1], device=mean_vo.device) != self.target
            return mean_vo[:, self.target] - mean_vo[:, others].logsumexp(dim=1)
        column = 0 if task == "binary" else self.target
        yes_vd = logits_vdo[..., column]
        odds_v = F.logsigmoid(yes_vd).logsumexp(dim=1) - F.logsigmoid(-yes_vd).logsumexp(dim=1)
        return -odds_v if task == "binary" and self.target == 0 else odds_v


@dataclass(frozen=True)
class _Stretch:
    """A part of the way from inputs that say nothing to the real ones."""

    low: float
    high: float
    carried: Inputs
    gap: float
    """What `carried` misses of the score gained here."""


class Attribution:
    """One node's draws, ready to be asked."""

    def __init__(
        self, model: OpenModel, score: Callable[[Tensor], Tensor], inputs: Inputs, baseline: Inputs, bias_dt: Tensor
    ) -> None:
        self.model, self.score, self.inputs, self.baseline, self.bias_dt = model, score, inputs, baseline, bias_dt
        self.num_draws = len(bias_dt)
        with torch.no_grad():
            self.logits_do = model.logits(inputs, bias_dt)
            self.full = self._score_of(inputs)
            self.base = self._score_of(baseline)

    @torch.no_grad()
    def _score_of(self, inputs: Inputs) -> float:
        return float(self.score(self.model.logits(inputs, self.bias_dt)[None])[0])

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
        first, *others = (one.carried for one in stretches)
        for other in others:
            first = first.map(torch.add, other)
        return first, sum(one.gap for one in stretches)

    def _stretch(self, low: float, high: float) -> _Stretch:
        """A part of the way by the Gauss-Legendre rule. What it misses is known: the scores at both ends are."""
        places, shares = np.polynomial.legendre.leggauss(_POINTS)
        places, shares = low + (high - low) * (places + 1) / 2, (high - low) * shares / 2
        way = self.inputs.map(torch.sub, self.baseline)
        total = way.map(torch.zeros_like)
        at_once = self._rows_at_once() // self.num_draws or 1
        for start in range(0, _POINTS, at_once):
            some = slice(start, start + at_once)
            place_s, share_s = (torch.from_numpy(part[some]).to(self.bias_dt) for part in (places, shares))
            total = total.map(torch.add, self._slope(place_s, share_s, way))
        carried = total.map(torch.mul, way)
        before, after = (self._score_of(self.baseline.map(torch.lerp, self.inputs, weight=at)) for at in (low, high))
        return _Stretch(low, high, carried, after - before - float(sum(part.sum() for part in carried.tensors())))

    def _slope(self, place_s: Tensor, share_s: Tensor, way: Inputs) -> Inputs:
        """The weighted sum of gradients at these places of the way."""
        steps = len(place_s)

        def at_places(base: Tensor, step: Tensor) -> Tensor:
            shape = (steps,) + (1,) * base.ndim
            return (base + place_s.view(shape) * step).flatten(0, 1).requires_grad_()

        points = self.baseline.map(at_places, way)
        logits = self.model.logits(points, self.bias_dt.repeat(steps, 1)).view(steps, self.num_draws, -1)
        slopes = torch.autograd.grad((self.score(logits) * share_s).sum(), points.tensors())
        found = dict(zip((id(point) for point in points.tensors()), slopes, strict=True))
        return points.map(lambda point: found[id(point)].view(steps, self.num_draws, *point.shape[1:]).sum(dim=0))

    def _rows_at_once(self) -> int:
        t, width = self.bias_dt.shape[1], self.model.width
        per_token = max(8 * width, t)
        return max(1, _NUMBERS_AT_ONCE // (t * per_token))

    def without(self, **changed: Tensor) -> float:
        """How much the score falls when these parts of the inputs are others."""
        return self.full - self._score_of(Inputs(**{**vars(self.inputs), **changed}))

    @torch.no_grad()
    def without_nodes(self, slots: list[list[tuple[int, int]]]) -> list[float]:
        """How much the score falls without each of some local nodes, as if it had not been drawn: each is given by
        the (draw, slot) pairs that it stands at."""
        pairs = [(number, draw, slot) for number, places in enumerate(slots) for draw, slot in places]
        logits_vdo = self.logits_do.repeat(len(slots), 1, 1)
        at_once = self._rows_at_once()
        h = self._tokens_per_node()
        for low in range(0, len(pairs), at_once):
            some = pairs[low : low + at_once]
            draws = torch.tensor([draw for _, draw, _ in some], device=self.bias_dt.device)
            bias_pt = self.bias_dt[draws].clone()
            for row, (_, _, slot) in enumerate(some):
                bias_pt[row, h * slot : h * (slot + 1)] = -torch.inf
            inputs = self.inputs.map(self._picked(draws))
            numbers = torch.tensor([number for number, _, _ in some], device=self.bias_dt.device)
            logits_vdo[numbers, draws] = self.model.logits(inputs, bias_pt)
        return (self.full - self.score(logits_vdo)).tolist() if slots else []

    @staticmethod
    def _picked(draws: Tensor) -> Callable[[Tensor], Tensor]:
        return lambda part: part[draws]

    def _tokens_per_node(self) -> int:
        assert self.model.local is not None
        return self.model.local.tokens_per_node

    def without_centroid(self, number: int) -> float:
        """How much the score falls without one centroid, the others taking its share by what they have."""
        assert self.inputs.weights is not None
        weights_dac = self.inputs.weights.clone()
        weights_dac[..., number] = 0.0
        left_da1 = weights_dac.sum(dim=2, keepdim=True)
        return self.without(weights=weights_dac / left_da1.clamp(min=torch.finfo(left_da1.dtype).tiny))
