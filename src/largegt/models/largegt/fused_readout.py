"""The end of the LocalModule as one kernel on a GPU: residual, dropout, norm, readout scores, softmax, weighted sum.

Axes: b batch, t tokens, d model width.

    z_j = x_j + dropout(y_j),   h_j = LayerNorm(z_j),   p = softmax over j ≥ 1 of w·h_j,   out = h_0 + Σ_j p_j h_j

Enters: the residual stream x and the last layer's update y, both [b, t, d]. Leaves: H_local [b, d], float32. Cost: x
and y are read once in the forward and once in the backward pass, and no other tensor of their size is stored: the
softmax runs online over blocks of tokens; the backward pass recomputes norm and dropout mask. One program per node.

Backward, with g the gradient of out and D = g · Σ_j p_j h_j: the gradient of h_j is p_j g + p_j (g·h_j − D) w, plus g
for j = 0; the rest is the gradient of LayerNorm.
"""

from __future__ import annotations

import logging
from typing import Any

import torch
from torch import Tensor

from largegt.errors import first_line
from largegt.hardware.abilities import usable

_log = logging.getLogger(__name__)

try:
    import triton
    import triton.language as tl
except ImportError:  # a build of torch without CUDA
    triton = None

_NUMBERS, _WARPS = 4096, 4
"""Size of a program's block of tokens, in numbers, and its warps: the fastest choice on an H200."""
_WIDEST = 1024


_works: bool | None = None


def can_fuse(x_btd: Tensor) -> bool:
    """Whether the kernel supports these tokens on this machine."""
    if not x_btd.is_cuda or x_btd.shape[1] < 2 or x_btd.shape[2] > _WIDEST:
        return False
    return _works is True if torch.compiler.is_compiling() else kernels_work()


def kernels_work() -> bool:
    """Whether this machine has a GPU and can compile the kernel for it. Tested once."""
    global _works
    if _works is None:
        _works = torch.cuda.is_available() and usable("triton", "the readout is not fused, since Triton does not work")
        if _works:
            x, d = torch.zeros(1, 2, 16, device="cuda"), torch.zeros(16, device="cuda")
            try:
                _read(x, x, d, d, d, torch.zeros(1, dtype=torch.int64, device="cuda"), 0.0, 1e-5)
            except Exception as error:  # whatever a compiler may raise: the plain way is always there
                _log.warning(f"the readout is not fused, since its kernel failed: {first_line(error)}")
                _works = False
    return _works


def fused_readout(x_btd: Tensor, y_btd: Tensor, norm: torch.nn.LayerNorm, weight_d: Tensor, dropout: float) -> Tensor:
    """H_local [b, d] of x + dropout(y) by the kernel, with a dropout seed from the device's random generator."""
    seed = torch.randint(-(2**31), 2**31, (1,), dtype=torch.int64, device=x_btd.device)
    out_bd: Tensor
    out_bd, _, _ = _read(
        x_btd.contiguous(), y_btd.contiguous(), norm.weight, norm.bias, weight_d, seed, dropout, norm.eps
    )
    return out_bd


if triton is not None:
    _MASKED = tl.constexpr(-1e30)  # score of a masked token; finite, so that differences are never NaN

    @triton.jit
    def _tokens(x, y, seed, start, dropout, num_tokens: tl.constexpr, width: tl.constexpr,
                BLOCK: tl.constexpr, WIDTH: tl.constexpr):  # fmt: skip
        """A block of tokens of this program's node: x + dropout(y), dropout factor, token numbers, offsets and mask."""
        t = start + tl.arange(0, BLOCK)
        d = tl.arange(0, WIDTH)
        offset = (tl.program_id(0).to(tl.int64) * num_tokens + t)[:, None] * width + d[None, :]
        mask = (t < num_tokens)[:, None] & (d < width)[None, :]
        factor = tl.full((BLOCK, WIDTH), 1.0, tl.float32)
        if dropout > 0:
            bits = offset.to(tl.uint32) * 0x9E3779B1 + seed.to(tl.uint32)
            bits = (bits ^ (bits >> 16)) * 0x7FEB352D
            bits = (bits ^ (bits >> 15)) * 0x846CA68B
            unit = ((bits ^ (bits >> 16)) >> 8).to(tl.float32) * (1.0 / (1 << 24))
            factor = tl.where(unit >= dropout, 1.0 / (1.0 - dropout), 0.0)
        z = tl.load(x + offset, mask=mask, other=0.0).to(tl.float32)
        z += factor * tl.load(y + offset, mask=mask, other=0.0).to(tl.float32)
        return z, factor, t, offset, mask

    @triton.jit
    def _standardized(z, mask, epsilon, width: tl.constexpr):
        """Rows with mean 0 and variance 1, and the reciprocals of their standard deviations."""
        centred = tl.where(mask, z - tl.sum(z, 1)[:, None] / width, 0.0)
        inverse = tl.rsqrt(tl.sum(centred * centred, 1) / width + epsilon)
        return centred * inverse[:, None], inverse

    @triton.jit
    def _forward(
        x, y, gain, shift, weight, seed, out, rest, log_sum, dropout, epsilon,
        num_tokens: tl.constexpr, width: tl.constexpr, BLOCK: tl.constexpr, WIDTH: tl.constexpr,
    ):  # fmt: skip
        node = tl.program_id(0).to(tl.int64)
        d = tl.arange(0, WIDTH)
        inside = d < width
        gain_d = tl.load(gain + d, mask=inside, other=0.0).to(tl.float32)
        shift_d = tl.load(shift + d, mask=inside, other=0.0).to(tl.float32)
        weight_d = tl.load(weight + d, mask=inside, other=0.0).to(tl.float32)
        seed_value = tl.load(seed)
        largest = tl.full((BLOCK,), _MASKED, tl.float32)  # one online softmax per row of the block
        total = tl.zeros((BLOCK,), tl.float32)
        weighted = tl.zeros((BLOCK, WIDTH), tl.float32)
        own = tl.zeros((BLOCK, WIDTH), tl.float32)
        for start in range(0, num_tokens, BLOCK):
            z, _, t, _, mask = _tokens(x, y, seed_value, start, dropout, num_tokens, width, BLOCK, WIDTH)
            unit, _ = _standardized(z, mask, epsilon, width)
            h = unit * gain_d[None, :] + shift_d[None, :]
            score = tl.sum(h * weight_d[None, :], 1)
            score = tl.where((t > 0) & (t < num_tokens), score, _MASKED)
            above = tl.maximum(largest, score)
            share = tl.exp(score - above)
            shrink = tl.exp(largest - above)
            total = total * shrink + share
            weighted = weighted * shrink[:, None] + share[:, None] * h
            if start == 0:
                own = tl.where((t == 0)[:, None], h, 0.0)
            largest = above
        highest = tl.max(largest, 0)
        shrink = tl.where(largest > _MASKED, tl.exp(largest - highest), 0.0)
        whole = tl.sum(total * shrink, 0)
        sum_d = tl.sum(weighted * shrink[:, None], 0) / whole
        tl.store(rest + node * width + d, sum_d, mask=inside)
        tl.store(out + node * width + d, tl.sum(own, 0) + sum_d, mask=inside)
        tl.store(log_sum + node, highest + tl.log(whole))

    @triton.jit
    def _backward(
        x, y, gain, shift, weight, seed, rest, log_sum, grad, grad_x, grad_y, partial, dropout, epsilon,
        num_tokens: tl.constexpr, width: tl.constexpr, BLOCK: tl.constexpr, WIDTH: tl.constexpr,
    ):  # fmt: skip
        node = tl.program_id(0).to(tl.int64)
        d = tl.arange(0, WIDTH)
        inside = d < width
        gain_d = tl.load(gain + d, mask=inside, other=0.0).to(tl.float32)
        shift_d = tl.load(shift + d, mask=inside, other=0.0).to(tl.float32)
        weight_d = tl.load(weight + d, mask=inside, other=0.0).to(tl.float32)
        g_d = tl.load(grad + node * width + d, mask=inside, other=0.0).to(tl.float32)
        dot = tl.sum(g_d * tl.load(rest + node * width + d, mask=inside, other=0.0), 0)
        log_total = tl.load(log_sum + node)
        seed_value = tl.load(seed)
        grad_gain = tl.zeros((BLOCK, WIDTH), tl.float32)
        grad_shift = tl.zeros((BLOCK, WIDTH), tl.float32)
        grad_weight = tl.zeros((BLOCK, WIDTH), tl.float32)
        for start in range(0, num_tokens, BLOCK):
            z, factor, t, offset, mask = _tokens(x, y, seed_value, start, dropout, num_tokens, width, BLOCK, WIDTH)
            unit, inverse = _standardized(z, mask, epsilon, width)
            h = unit * gain_d[None, :] + shift_d[None, :]
            score = tl.sum(h * weight_d[None, :], 1)
            share = tl.where((t > 0) & (t < num_tokens), tl.exp(score - log_total), 0.0)
            grad_score = share * (tl.sum(h * g_d[None, :], 1) - dot)
            share = tl.where(t == 0, 1.0, share)
            grad_h = share[:, None] * g_d[None, :] + grad_score[:, None] * weight_d[None, :]
            grad_gain += grad_h * unit
            grad_shift += grad_h
            grad_weight += grad_score[:, None] * h
            grad_unit = grad_h * gain_d[None, :]
            mean = tl.sum(grad_unit, 1) / width
            along = tl.sum(grad_unit * unit, 1) / width
            grad_z = (grad_unit - mean[:, None] - unit * along[:, None]) * inverse[:, None]
            tl.store(grad_x + offset, grad_z.to(grad_x.dtype.element_ty), mask=mask)
            tl.store(grad_y + offset, (grad_z * factor).to(grad_y.dtype.element_ty), mask=mask)
        tl.store(partial + (node * 3 + 0) * width + d, tl.sum(grad_gain, 0), mask=inside)
        tl.store(partial + (node * 3 + 1) * width + d, tl.sum(grad_shift, 0), mask=inside)
        tl.store(partial + (node * 3 + 2) * width + d, tl.sum(grad_weight, 0), mask=inside)


def _blocks(num_tokens: int, width: int) -> dict[str, int]:
    wide: int = triton.next_power_of_2(width)
    return {"BLOCK": max(1, min(triton.next_power_of_2(num_tokens), _NUMBERS // wide)), "WIDTH": wide}


@torch.library.custom_op("largegt::fused_readout", mutates_args=())
def _read(
    x: Tensor, y: Tensor, gain: Tensor, shift: Tensor, weight: Tensor, seed: Tensor, dropout: float, epsilon: float
) -> tuple[Tensor, Tensor, Tensor]:
    b, t, d = x.shape
    out, rest = (torch.empty(b, d, dtype=torch.float32, device=x.device) for _ in range(2))
    log_sum = torch.empty(b, dtype=torch.float32, device=x.device)
    _forward[(b,)](
        x, y, gain, shift, weight, seed, out, rest, log_sum, dropout, epsilon, t, d,
        **_blocks(t, d), num_warps=_WARPS,
    )  # fmt: skip
    return out, rest, log_sum


@_read.register_fake
def _(
    x: Tensor, y: Tensor, gain: Tensor, shift: Tensor, weight: Tensor, seed: Tensor, dropout: float, epsilon: float
) -> tuple[Tensor, Tensor, Tensor]:
    b, _, d = x.shape
    wide = x.new_empty(b, d, dtype=torch.float32)
    return wide, torch.empty_like(wide), x.new_empty(b, dtype=torch.float32)


@torch.library.custom_op("largegt::fused_readout_backward", mutates_args=())
def _read_backward(
    x: Tensor, y: Tensor, gain: Tensor, shift: Tensor, weight: Tensor, seed: Tensor, rest: Tensor, log_sum: Tensor,
    grad: Tensor, dropout: float, epsilon: float,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    b, t, d = x.shape
    grad_x, grad_y = torch.empty_like(x), torch.empty_like(y)
    partial = torch.empty(b, 3, d, dtype=torch.float32, device=x.device)
    _backward[(b,)](
        x, y, gain, shift, weight, seed, rest, log_sum, grad.contiguous(), grad_x, grad_y, partial, dropout,
        epsilon, t, d, **_blocks(t, d), num_warps=_WARPS,
    )  # fmt: skip
    return grad_x, grad_y, partial


@_read_backward.register_fake
def _(
    x: Tensor, y: Tensor, gain: Tensor, shift: Tensor, weight: Tensor, seed: Tensor, rest: Tensor, log_sum: Tensor,
    grad: Tensor, dropout: float, epsilon: float,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    b, _, d = x.shape
    return torch.empty_like(x), torch.empty_like(y), x.new_empty(b, 3, d, dtype=torch.float32)


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor, Tensor]) -> None:
    *tensors, ctx.dropout, ctx.epsilon = inputs
    ctx.save_for_backward(*tensors, output[1], output[2])


def _grads(ctx: Any, grad: Tensor, *_: Any) -> tuple[Any, ...]:
    x, y, gain, shift, weight, seed, rest, log_sum = ctx.saved_tensors
    grad_x, grad_y, partial = _read_backward(
        x, y, gain, shift, weight, seed, rest, log_sum, grad, ctx.dropout, ctx.epsilon
    )
    grad_gain, grad_shift, grad_weight = partial.sum(dim=0).unbind(0)
    return (
        grad_x, grad_y, grad_gain.to(gain.dtype), grad_shift.to(shift.dtype), grad_weight.to(weight.dtype), None, None,
        None,
    )  # fmt: skip


_read.register_autograd(_grads, setup_context=_keep)
