"""The probes of abilities.py: each tries one ability and prints the result as a line of JSON.

Run as a child process, `python probes.py NAME [GPU]`: an ability that does not work may crash or hang.
"""

from __future__ import annotations

import json
import resource
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

Result = dict[str, Any]


def bfloat16_cpu() -> Result:
    """A linear layer and an encoder layer in mixed precision, and the encoder layer's speedup over float32."""
    F.linear(torch.ones(64, 48, dtype=torch.bfloat16), torch.ones(32, 48, dtype=torch.bfloat16))
    _encoder_step(64, 8, 48, mixed=True)
    expected, found = (_encoder_step(128, 48, 128, mixed) for mixed in (False, True))
    torch.testing.assert_close(found, expected, atol=0.1, rtol=0.1)
    best_s = {False: float("inf"), True: float("inf")}
    for _ in range(20):
        for mixed in best_s:
            begun = time.perf_counter()
            _encoder_step(128, 48, 128, mixed)
            best_s[mixed] = min(best_s[mixed], time.perf_counter() - begun)
    return {"works": True, "speedup": round(best_s[False] / best_s[True], 2)}


def _encoder_step(batch: int, tokens: int, width: int, mixed: bool) -> Tensor:
    """The weight gradient of a forward and backward pass through attention, norm and a feed-forward layer."""
    torch.manual_seed(0)
    weight = torch.randn(4 * width, width).div_(width**0.5).requires_grad_()
    x = torch.randn(batch, tokens, width)
    with torch.autocast("cpu", torch.bfloat16, enabled=mixed):
        query, key, value, up = F.linear(x, weight).view(batch, tokens, 4, width).unbind(2)
        attended = F.layer_norm(F.scaled_dot_product_attention(query, key, value) + x, (width,))
        out = F.linear(F.gelu(attended + up), weight)
    (grad,) = torch.autograd.grad(out.float().square().mean(), weight)
    return F.normalize(grad.flatten(), dim=0)


def compile_cpu() -> Result:
    return _compile("cpu")


def compile_cuda() -> Result:
    return _compile("cuda")


def _compile(device: str) -> Result:
    def loss(x: Tensor, weight: Tensor) -> Tensor:
        return F.layer_norm(F.gelu(x @ weight), (16,)).square().sum(dim=1).sin().mean()

    x, weight = torch.randn(8, 16, device=device), torch.randn(16, 16, device=device, requires_grad=True)
    found = torch.compile(loss, dynamic=False)(x, weight)
    torch.autograd.grad(found, weight)
    torch.testing.assert_close(found, loss(x, weight), atol=1e-2, rtol=1e-2)
    return {"works": True}


def triton() -> Result:
    """This library's kernels, forward and backward, in the training precision of this GPU."""
    from largegt.loader.pinned_gather import _launch
    from largegt.models.largegt.fused_readout import fused_readout

    dtype = torch.bfloat16 if torch.cuda.is_bf16_supported() else torch.float32
    x = torch.randn(4, 9, 48, dtype=dtype, device="cuda", requires_grad=True)
    norm = torch.nn.LayerNorm(48, device="cuda")
    out = fused_readout(x, x, norm, torch.ones(48, device="cuda"), 0.5)
    (grad,) = torch.autograd.grad(out.sum(), x)
    assert bool(grad.isfinite().all()), "the gradient is not finite"
    rows, gathered = torch.tensor([3, 0], device="cuda"), torch.empty(2, 9, 64, dtype=dtype, device="cuda")
    _launch(x.detach(), rows, gathered, 9, 48, 64)
    assert torch.equal(gathered[..., :48], x.detach()[rows]), "the gathered rows are wrong"
    return {"works": True}


def cuda_graphs() -> Result:
    x, graph = torch.zeros(8, device="cuda"), torch.cuda.CUDAGraph()
    side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.graph(graph, stream=side, capture_error_mode="thread_local"):
        x += 1
    for _ in range(3):
        graph.replay()
    assert x.tolist() == [3.0] * 8, "the replayed graph computed something else"
    return {"works": True}


def pinned_memory() -> Result:
    """Memory that PyTorch allocates as pinned, and memory that is pinned after allocation."""
    host = torch.ones(1 << 16, pin_memory=True)
    assert float(host.to("cuda", non_blocking=True).sum()) == 1 << 16, "the copy is wrong"
    plain, cudart = torch.ones(1 << 16), torch.cuda.cudart()  # type: ignore[no-untyped-call]
    torch.cuda.check_error(int(cudart.cudaHostRegister(plain.data_ptr(), plain.nbytes, 0)))
    torch.cuda.check_error(int(cudart.cudaHostUnregister(plain.data_ptr())))
    return {"works": True}


ON_CPU: dict[str, Callable[[], Result]] = {"bfloat16_cpu": bfloat16_cpu, "compile_cpu": compile_cpu}
ON_GPU: dict[str, Callable[[], Result]] = {
    "triton": triton, "compile_cuda": compile_cuda, "cuda_graphs": cuda_graphs, "pinned_memory": pinned_memory,
}  # fmt: skip


def main(name: str, gpu: str = "0") -> Result:
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if name in ON_GPU:
        try:
            torch.cuda.set_device(int(gpu))
            torch.zeros(1, device="cuda")
        except RuntimeError as error:  # the GPU is full, or takes one process only
            return {"works": None, "reason": f"not tried, because a second process cannot use the GPU: {error}"}
    return (ON_CPU | ON_GPU)[name]()


if __name__ == "__main__":
    sys.stdout.write(json.dumps(main(*sys.argv[1:])))
