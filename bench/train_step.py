"""One training step: through the product's own `train`, as a bare loop, part by part, and written plainly.

    python bench/train_step.py --like ogbn-products --scale 1 --out /tmp/products                       # wants a GPU
    python bench/train_step.py --like ogbn-products --scale 0.01 --batch-size 256 --out /tmp/small      # anywhere

The graph is synthetic, the model is the paper's recipe for that dataset (`--set` changes it, e.g. to standard heads:
--set model.head_dim=128), positions are projections. Reported:

  train    ms per step of `lg.train`: the fastest epoch after the first, which compiles
  bare     the same model, loader and step in a loop of three lines, without schedule, log, progress and budget
  parts    each part alone, by the device's own clock
  plain    eager float32 with a DataLoader of worker processes, explicit softmax and one-hot codebook, as one would
           write it from the paper; `--plain` runs it

Utilisation counts the products of the model as the paper defines it (heads with keys and values of their own), forward
and twice that backward, against --peak.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

import largegt as lg
from largegt.datasets.synthetic import generate
from largegt.loader.loader import TokenLoader
from largegt.preprocessing.prepared import Prepared
from largegt.training.checkpoint import State
from largegt.training.metrics import TaskHead
from largegt.training.setup import build_model, make_accelerator, make_loader
from largegt.training.step import TrainingStep

RECIPES = {
    "ogbn-products": "ogbn-products-largegt-full",
    "snap-patents": "snap-patents-largegt-full",
    "ogbn-papers100M": "ogbn-papers100m-largegt-full",
}


def wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def timed(work: Callable[[], Any], device: torch.device, times: int) -> float:
    """Milliseconds of `work`, on average over `times` after three that do not count."""
    for _ in range(3):
        work()
    wait(device)
    begin = time.perf_counter()
    for _ in range(times):
        work()
    wait(device)
    return 1000 * (time.perf_counter() - begin) / times


def step_flops(model: lg.LargeGTConfig, num_features: int, k: int, batch: int, num_positions: int) -> float:
    """Multiply-adds ×2 of a training step, by the paper's definition."""
    tokens, d, hw = 3 * k, model.hidden_dim, model.num_heads * (model.head_dim or model.hidden_dim // model.num_heads)
    per_token = 2 * num_features * d + 2 * d * 3 * hw + 2 * hw * d + 4 * d * d * model.ffn_ratio
    local = model.num_layers * (tokens * per_token + 4 * tokens * tokens * hw)
    book = model.codebook
    ghw = book.num_heads * (book.head_dim or d // book.num_heads)
    joined = book.dim + num_positions
    shared = 2 * book.num_centroids * (joined + book.dim) * ghw / batch
    globally = 4 * book.num_centroids * ghw + 2 * joined * (ghw + book.num_centroids) + shared
    return 3.0 * batch * (local + globally + 8 * d * d)


def product(prepared: Prepared, config: lg.Config, out: Path) -> dict[str, Any]:
    run = lg.train(prepared, config, out, overwrite=True)
    history = run.history
    steps = math.ceil(len(prepared.split_rows("train")) / config.train.batch_size)
    best_s = min(entry["train_s"] for entry in history[1:])
    return {
        "ms_per_step": 1000 * best_s / steps, "epoch_s": best_s, "first_epoch_s": history[0]["train_s"],
        "peak_gpu_gb": run.metrics["peak_gpu_bytes"] / 1e9, "valid": run.metrics["valid"],
    }  # fmt: skip


class Bare:
    """The product's parts in a loop of a few lines."""

    def __init__(self, prepared: Prepared, config: lg.Config) -> None:
        self.prepared, self.config = prepared, config
        self.accelerator = make_accelerator(config.train)
        self.device = self.accelerator.device
        torch.manual_seed(0)
        self.model = build_model(config.model, prepared).to(self.device).train()
        if config.train.compile == "yes":
            self.model.compile_for({config.train.batch_size, config.train.eval_batch_size})
        self.head = TaskHead.for_training(prepared, config.train)
        state = State.make(self.model, config.train, self.accelerator)
        self.optimizer = state.optimizer
        record = config.train.compile == "yes"
        self.step = TrainingStep(self.accelerator, state, self.head, config.train, record)
        self.loader = make_loader(prepared, self.model, config.train, self.device, config.train.token_table)
        self.rows = prepared.split_rows("train")

    def ms_per_step(self, epoch: int = 0) -> float:
        wait(self.device)
        begin = time.perf_counter()
        count = 0
        for batch in self.loader.batches(self.rows, self.config.train.batch_size, 0, epoch):
            self.step([batch])
            count += 1
        wait(self.device)
        return 1000 * (time.perf_counter() - begin) / count

    @torch.no_grad()
    def nodes_per_s(self, num_rows: int) -> float:
        """Prediction without the product around it."""
        self.model.eval()
        rows = np.arange(min(num_rows, len(self.prepared.nodes)))
        size = self.config.train.eval_batch_size
        for _ in range(2):
            wait(self.device)
            begin = time.perf_counter()
            for batch in self.loader.batches(rows, size):
                with self.accelerator.autocast():
                    self.model(batch)
            wait(self.device)
            elapsed_s = time.perf_counter() - begin
        self.model.train()
        return len(rows) / elapsed_s

    def parts(self, times: int) -> dict[str, float]:
        size = self.config.train.batch_size
        assert isinstance(self.loader, TokenLoader)  # all recipes are LargeGT's
        rows = torch.from_numpy(self.rows[:size]).to(self.loader.table.device)
        gather = self.loader.gather
        batch = gather(rows)
        model, accelerator = self.model, self.accelerator

        def forward() -> Any:
            with accelerator.autocast():
                return model(batch)

        def local(backward: bool) -> None:
            inputs: Any = model.inputs
            with accelerator.autocast():
                bias = inputs.token_bias(batch.multiplicity, batch.tokens.dtype)
                out = model.local_module(inputs(batch.tokens, inputs.local_inputs(batch)), bias)  # type: ignore[union-attr,operator]
            if backward:
                out.float().sum().backward()

        output = forward()
        found = {
            "gather": timed(lambda: gather(rows), self.device, times),
            "forward, compiled": timed(forward, self.device, times),
            "forward and backward, compiled": timed(
                lambda: self.head.loss(forward().logits, batch.labels).backward(), self.device, times
            ),
            "local module, eager, forward": timed(lambda: local(False), self.device, times),
            "local module, eager, both": timed(lambda: local(True), self.device, times),
            "codebook": timed(lambda: model.update_codebook(output), self.device, times),
        }
        found["optimizer"] = timed(self.optimizer.step, self.device, times)
        if self.device.type == "cuda" and model.local_module is not None:  # type: ignore[truthy-function]
            found |= attention_parts(model.local_module.layers[0].attention, batch, times)  # type: ignore
        return found


def tables(prepared: Prepared, config: lg.Config, places: list[str]) -> dict[str, float]:
    """Milliseconds of a bare step, and of gathering its batch alone, with the token table in each place."""
    found: dict[str, float] = {}
    for place in places:
        bare = Bare(prepared, lg.Config.from_recipe(config, [f"train.token_table={place}"]))
        bare.ms_per_step(0)
        found[place] = min(bare.ms_per_step(epoch) for epoch in (1, 2))
        begin = time.perf_counter()
        batches = [len(batch) for batch in bare.loader.batches(bare.rows, config.train.batch_size, 0, 3)]
        wait(bare.device)
        gather_ms = 1000 * (time.perf_counter() - begin) / len(batches)
        print(f"  table on {place}: {found[place]:.2f} ms/step ({found[place] / found[places[0]]:.2f}x), "
              f"gathering alone {gather_ms:.2f} ms", flush=True)  # fmt: skip
        del bare
    return found


def attention_parts(attention: Any, batch: Any, times: int) -> dict[str, float]:
    """The attention product alone, by each kernel that takes it, forward and backward."""
    from torch.nn.attention import SDPBackend, sdpa_kernel

    b, t, d = batch.tokens.shape[0], batch.tokens.shape[1], attention.join.out_features
    device = batch.tokens.device
    wide = attention.head_dim >= d
    shape_q = (b, 1, t * attention.num_heads, d) if wide else (b, attention.num_heads, t, attention.head_dim)
    shape_k = (b, 1, t, d) if wide else shape_q
    q = torch.randn(shape_q, device=device, dtype=torch.bfloat16, requires_grad=True)
    k, v = (torch.randn(shape_k, device=device, dtype=torch.bfloat16, requires_grad=True) for _ in range(2))
    grad = torch.randn_like(q)
    found = {}
    for name, backend in (("cudnn", SDPBackend.CUDNN_ATTENTION), ("flash", SDPBackend.FLASH_ATTENTION),
                          ("efficient", SDPBackend.EFFICIENT_ATTENTION)):  # fmt: skip
        for dropout in (0.0, attention.dropout):

            def both(dropout: float = dropout, backend: Any = backend) -> None:
                with sdpa_kernel(backend):
                    F.scaled_dot_product_attention(q, k, v, dropout_p=dropout).backward(grad)

            def forward(dropout: float = dropout, backend: Any = backend) -> None:
                with sdpa_kernel(backend), torch.no_grad():
                    F.scaled_dot_product_attention(q, k, v, dropout_p=dropout)

            try:
                found[f"attention {name}, dropout {dropout:g}, forward"] = timed(forward, device, times)
                found[f"attention {name}, dropout {dropout:g}, both"] = timed(both, device, times)
            except RuntimeError as error:
                found[f"attention {name}, dropout {dropout:g}"] = math.nan
                print(f"  {name}: {str(error).splitlines()[0][:100]}")
    return found


# written plainly ------------------------------------------------------------------------------------------------


class PlainData(torch.utils.data.Dataset[Any]):
    """A node's tokens, position and label, from arrays in memory."""

    def __init__(self, prepared: Prepared) -> None:
        self.rows = prepared.split_rows("train")
        self.tokens, self.local_rows = np.asarray(prepared.tokens), np.asarray(prepared.local_rows)
        self.positions, self.labels = np.asarray(prepared.positions), np.asarray(prepared.labels)

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, number: int) -> tuple[Any, Any, int, int]:
        row = self.rows[number]
        tokens = self.tokens[self.local_rows[row]].reshape(-1, self.tokens.shape[2])
        return tokens, self.positions[row], int(self.labels[row]), int(row)


class PlainModel(nn.Module):
    """LargeGT-full as the paper has it, without any thought of speed."""

    def __init__(
        self, num_features: int, num_classes: int, num_positions: int, num_rows: int, c: lg.LargeGTConfig
    ) -> None:
        super().__init__()
        d, self.num_heads = c.hidden_dim, c.num_heads
        hw = c.num_heads * (c.head_dim or d // c.num_heads)
        joined = c.codebook.dim + num_positions
        self.project, self.norm1, self.norm2 = nn.Linear(num_features, d), nn.LayerNorm(d), nn.LayerNorm(d)
        self.q, self.k, self.v, self.o = nn.Linear(d, hw), nn.Linear(d, hw), nn.Linear(d, hw), nn.Linear(hw, d)
        self.drop = nn.Dropout(c.encoder_dropout)
        self.score = nn.Linear(2 * d, 1)
        self.mlp_a = nn.Sequential(nn.Linear(num_features, d), nn.ReLU(), nn.Linear(d, c.codebook.dim))
        self.gq, self.gk = nn.Linear(joined, hw), nn.Linear(joined, hw)
        self.gv, self.mlp_b = (
            nn.Linear(c.codebook.dim, hw),
            nn.Sequential(nn.Linear(hw, d), nn.ReLU(), nn.Linear(d, d)),
        )
        self.ffn = nn.Sequential(
            nn.Linear(2 * d, d), nn.BatchNorm1d(d), nn.ReLU(), nn.Dropout(c.dropout), nn.Linear(d, d)
        )
        self.head = nn.Linear(d, num_classes)
        self.dim = c.codebook.dim
        self.register_buffer("book", torch.randn(c.codebook.num_centroids, joined))
        self.register_buffer("size", torch.ones(c.codebook.num_centroids))
        self.register_buffer("where", torch.zeros(num_rows, dtype=torch.long))

    def attend(self, q: Any, k: Any, v: Any, bias: Any = 0.0) -> Any:
        q, k, v = (x.unflatten(-1, (self.num_heads, -1)).transpose(-2, -3) for x in (q, k, v))
        weight = (q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5 + bias).softmax(-1)
        return (self.drop(weight) @ v).transpose(-2, -3).flatten(-2)

    def forward(self, tokens: Any, positions: Any, rows: Any) -> Any:
        x = self.project(tokens)
        y = self.norm1(x)
        x = self.norm2(x + self.drop(self.o(self.attend(self.q(y), self.k(y), self.v(y)))))
        own, rest = x[:, :1], x[:, 1:]
        weight = self.score(torch.cat([own.expand_as(rest), rest], dim=-1)).softmax(1)
        local = own[:, 0] + (weight * rest).sum(1)
        joined = torch.cat([self.mlp_a(tokens[:, 0]), positions], dim=1)
        counts = torch.bincount(self.where, minlength=len(self.book)).clamp(min=1).float().log()
        values = self.gv(self.book[:, : self.dim])
        globally = self.mlp_b(self.attend(self.gq(joined), self.gk(self.book), values, counts))
        with torch.no_grad():
            one_hot = F.one_hot(torch.cdist(joined, self.book).argmin(1), len(self.book)).float()
            self.size.mul_(0.99).add_(one_hot.sum(0), alpha=0.01)
            moved = self.book * 0.99 + 0.01 * (one_hot.T @ joined) / self.size[:, None]
            self.where[rows] = one_hot.argmax(1)
        logits = self.head(self.ffn(torch.cat([local, globally], dim=1)))
        return logits, moved


def plain(prepared: Prepared, config: lg.Config, steps: int, workers: int) -> dict[str, float]:
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    model = PlainModel(
        prepared.num_features, prepared.meta["num_outputs"], prepared.num_positions, len(prepared.nodes), config.model
    ).to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    data = torch.utils.data.DataLoader(
        PlainData(prepared), config.train.batch_size, shuffle=True, num_workers=workers, drop_last=True,
        pin_memory=device.type == "cuda",
    )  # fmt: skip

    def step(batch: Any) -> None:
        tokens, positions, labels, rows = (part.to(device) for part in batch)
        logits, moved = model(tokens, positions, rows)
        optimizer.zero_grad()
        F.cross_entropy(logits, labels).backward()
        optimizer.step()
        model.book.copy_(moved)

    batch = None
    begin, count = 0.0, 0
    for number, batch in enumerate(data):
        if number == 3:
            wait(device)
            begin = time.perf_counter()
        step(batch)
        count = number - 2
        if count == steps:
            break
    wait(device)
    found = {"plain, with its loader": 1000 * (time.perf_counter() - begin) / max(1, count)}
    found["plain, model alone"] = timed(lambda: step(batch), device, steps)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--like", default="ogbn-products", choices=list(RECIPES))
    parser.add_argument("--scale", type=float, default=1.0)
    parser.add_argument("--out", type=Path, required=True, help="kept for the next run")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batch-size", type=int)
    parser.add_argument("--set", nargs="*", default=[], dest="overrides")
    parser.add_argument("--no-compile", action="store_true")
    parser.add_argument("--quick", action="store_true", help="only the product's own train")
    parser.add_argument("--parts", action="store_true")
    parser.add_argument("--plain", action="store_true")
    parser.add_argument(
        "--tables", nargs="*", default=[], help="places of the token table to compare: cuda pinned mmap"
    )
    parser.add_argument("--steps", type=int, default=20, help="steps of the parts and of the plain version")
    parser.add_argument("--workers", type=int, default=8, help="worker processes of the plain version's DataLoader")
    parser.add_argument("--predict", type=int, default=400_000, help="nodes to predict")
    parser.add_argument("--peak", type=float, default=788e12, help="FLOP/s that the device can reach")
    args = parser.parse_args()
    overrides = [
        "prepare.positional_encoding.method=random_projection", f"train.epochs={args.epochs}", "train.max_time=none",
        f"train.compile={'no' if args.no_compile else 'yes'}", *args.overrides,
    ]  # fmt: skip
    if args.batch_size:
        overrides.append(f"train.batch_size={args.batch_size}")
    config = lg.Config.from_recipe(RECIPES[args.like], overrides)
    store_path = args.out / "store"
    if not store_path.exists():
        generate(args.like, store_path, args.scale)
    begin = time.perf_counter()
    prepared = lg.prepare(store_path, config.prepare)
    num_train = len(prepared.split_rows("train"))
    print(f"{num_train:,} training nodes, {len(prepared.token_nodes):,} token rows, "
          f"prepared in {time.perf_counter() - begin:.0f} s")  # fmt: skip
    flops = step_flops(config.model, prepared.num_features, prepared.k, config.train.batch_size, prepared.num_positions)
    result = {"train": product(prepared, config, args.out / "run"), "flops": flops}
    train_ms = result["train"]["ms_per_step"]
    found = result["train"]
    print(f"train {train_ms:.2f} ms/step, epoch {found['epoch_s']:.2f} s (first {found['first_epoch_s']:.1f} s), "
          f"peak {found['peak_gpu_gb']:.2f} GB, valid {found['valid']}")  # fmt: skip
    utilisation = flops / (train_ms / 1000) / args.peak
    print(f"{flops / 1e12:.2f} TFLOP a step: utilisation {100 * utilisation:.0f}%", flush=True)
    if args.quick:
        return
    bare = Bare(prepared, config)
    bare.ms_per_step(0)
    result["bare_ms_per_step"] = min(bare.ms_per_step(epoch) for epoch in (1, 2))
    print(f"bare  {result['bare_ms_per_step']:.2f} ms/step: the framework adds "
          f"{100 * (train_ms / result['bare_ms_per_step'] - 1):.1f}%")  # fmt: skip
    result["nodes_per_s"] = bare.nodes_per_s(args.predict)
    print(f"predicts {result['nodes_per_s'] / 1e3:,.0f} thousand nodes/s, batches of {config.train.eval_batch_size}")
    if args.parts:
        result["parts"] = bare.parts(args.steps)
        for name, ms in result["parts"].items():
            print(f"  {name:<44} {ms:8.3f} ms")
    del bare
    if args.tables:
        result["tables"] = tables(prepared, config, args.tables)
    if args.plain:
        result["plain"] = plain(prepared, config, args.steps, args.workers)
        for name, ms in result["plain"].items():
            print(f"  {name:<44} {ms:8.2f} ms ({ms / train_ms:.1f}x)", flush=True)
    (args.out / "train_step.json").write_text(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
