"""The same code on CUDA. Skipped where there is none."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

import largegt as lg
from largegt.errors import ConfigError
from largegt.loader import loader, table
from largegt.loader.pinned_gather import pinned
from largegt.runtime.distributed import ALONE
from largegt.training.evaluate import Scorer
from largegt.training.nan_check import Losses
from largegt.training.step import TrainingStep
from largegt.types import TablePlace
from run_helpers import history, logged, stopped_at
from training_steps import recorded_step

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


@pytest.fixture(autouse=True)
def exact_products() -> Iterator[None]:
    """A run in mixed precision lets float32 products be less exact from then on."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    yield
    torch.set_float32_matmul_precision(before)


@pytest.fixture
def prepared(tmp_path: Path) -> lg.Prepared:
    rng = np.random.default_rng(0)
    label = rng.integers(4, size=500)
    ends = rng.integers(500, size=(2, 8000))
    ends = ends[:, label[ends[0]] == label[ends[1]]]
    features = (rng.normal(size=(500, 8)) + label[:, None]).astype(np.float32)
    store = lg.ingest(lg.sources.arrays(ends, features, label), tmp_path / "g")
    return lg.prepare(store, lg.Config.from_recipe("base", ["prepare.local_nodes.k=12"]).prepare)


def config_of(*settings: str, recipe: str = "base") -> lg.Config:
    common = ["model.hidden_dim=32", "train.batch_size=64", "train.learning_rate=5e-3", "train.device=cuda"]
    return lg.Config.from_recipe(recipe, [*common, *settings])


@pytest.fixture(params=["cuda", "pinned", "mmap", "unpinned"])
def place(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> TablePlace:
    """Where token rows lie."""
    if request.param == "unpinned":
        monkeypatch.setattr(table, "pinned", lambda host, _: host)
    return "pinned" if request.param == "unpinned" else request.param


def train_in_two_parts(prepared: lg.Prepared, config: lg.Config, folder: Path) -> lg.Run:
    """Interrupted in the seventh epoch, and resumed."""

    def stop(stage: str, done: int, total: int | None) -> None:
        if "epoch 7/" in stage:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        lg.train(prepared, config, folder, progress=stop)
    return lg.train(prepared, config, folder, resume=True)


def test_logits_agree_with_the_cpu(prepared: lg.Prepared) -> None:
    torch.manual_seed(0)
    model = lg.LargeGT.for_prepared(prepared, lg.LargeGTConfig(hidden_dim=32)).eval()
    batch = next(lg.token_batches(prepared, batch_size=64))
    with torch.no_grad():
        model.update_codebook(model(batch))
        here = model(batch).logits
        there = model.cuda()(batch.to("cuda")).logits.cpu()
    torch.testing.assert_close(here, there, atol=2e-4, rtol=2e-3)


@pytest.mark.parametrize("precision", ["32-true", "bf16-mixed"])
@pytest.mark.parametrize("deduplicates", ["true", "false"])
def test_training_learns(prepared: lg.Prepared, tmp_path: Path, precision: str, deduplicates: str) -> None:
    config = config_of("train.epochs=15", f"train.precision={precision}", f"train.deduplicate_tokens={deduplicates}")
    metrics = lg.train(prepared, config, tmp_path / "run").metrics
    assert metrics["test"]["accuracy"] > 0.8
    assert metrics["peak_gpu_bytes"] > 0
    assert lg.predict(tmp_path / "run", device="cuda").num_rows == 500
    on_cpu = lg.evaluate(tmp_path / "run", device="cpu")
    assert on_cpu["accuracy"] == pytest.approx(metrics["test"]["accuracy"], abs=0.05)


@pytest.mark.parametrize("distinct", [False, True])
def test_every_table_gives_the_same_batches(prepared: lg.Prepared, place: TablePlace, distinct: bool) -> None:
    expected = list(lg.token_batches(prepared, batch_size=30, seed=1, distinct=distinct))
    batches = lg.token_batches(prepared, batch_size=30, seed=1, distinct=distinct, device="cuda", table=place)
    for found, there in zip(batches, expected, strict=True):
        torch.randn(2000, 2000, device="cuda") @ torch.randn(2000, 2000, device="cuda")  # a step to overlap with
        assert all(a.is_cuda and torch.equal(a.cpu(), b) for a, b in zip(found.tensors(), there.tensors(), strict=True))


def test_every_table_rounds_and_pads_alike(prepared: lg.Prepared, place: TablePlace) -> None:
    rows = torch.randint(len(prepared.token_nodes), (40, 12))
    for form in (table.TokenForm(torch.bfloat16, 64), table.TokenForm(torch.bfloat16, 4), table.TokenForm()):
        expected = table.TokenTable(prepared, "cuda", "cuda", form).tokens_of(rows.cuda())
        found = table.TokenTable(prepared, "cuda", place, form).tokens_of(rows.cuda() if place == "cuda" else rows)
        assert found.dtype == expected.dtype
        assert torch.equal(found, expected)


def test_fresh_neighbourhoods_from_every_table(prepared: lg.Prepared, tmp_path: Path, place: TablePlace) -> None:
    store = lg.GraphStore.open(prepared.path.parent.parent)
    config = config_of(
        "prepare.local_nodes.k=12", "train.epochs=6", "train.resample=epoch", f"train.token_table={place}"
    )
    assert lg.train(store, config, tmp_path / "run").metrics["test"]["accuracy"] > 0.6


def test_batches_do_not_pile_up_before_a_slow_gpu(prepared: lg.Prepared, monkeypatch: pytest.MonkeyPatch) -> None:
    """The CPU has told the GPU of every step long before the first is done. Without a bound every batch is there."""

    def most_bytes(bytes_ahead: int) -> int:
        monkeypatch.setattr(loader, "_MAX_BYTES_AHEAD", bytes_ahead)
        monkeypatch.setattr(loader, "_MAX_STEPS_AHEAD", 1 << 20)
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_stats()["active_bytes.all.current"]
        for batch in lg.token_batches(prepared, batch_size=5, seed=0, device="cuda", table="cuda"):
            torch.cuda._sleep(5_000_000)
            batch.tokens.sum()
        return int(torch.cuda.memory_stats()["active_bytes.all.peak"]) - before

    batch = next(lg.token_batches(prepared, batch_size=5, seed=0, device="cuda"))
    num_bytes = sum(tensor.nbytes for tensor in batch.tensors())
    bounded, unbounded = most_bytes(3 * num_bytes), most_bytes(1 << 60)
    assert bounded < unbounded / 2


def test_epochs_share_the_memory_of_their_batches(prepared: lg.Prepared, place: TablePlace) -> None:
    """As much memory is taken for many epochs as for few: what is freed in one serves the next."""

    def taken_by(num_epochs: int) -> int:
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        before = torch.cuda.memory_reserved()
        for epoch in range(num_epochs):
            for batch in lg.token_batches(prepared, batch_size=64, seed=0, epoch=epoch, device="cuda", table=place):
                batch.tokens.sum()
            torch.cuda.synchronize()
        return torch.cuda.memory_reserved() - before

    few, many = taken_by(3), taken_by(40)
    assert 0 < many <= 2 * few


def test_memory_that_cannot_be_pinned_does_no_harm(prepared: lg.Prepared) -> None:
    host = torch.ones(1000, 3, 8)
    view = pinned(host, torch.device("cuda"))
    assert view.is_cuda
    assert float(view.sum()) == host.numel()
    with logged("could not be pinned"):
        assert pinned(host, torch.device("cuda")) is host  # a second time is refused by CUDA
    assert float(torch.ones(5, device="cuda").sum()) == 5
    del view
    assert pinned(host, torch.device("cuda")).is_cuda, "given back with the last tensor"


def test_node2vec_on_the_gpu_separates_classes(prepared: lg.Prepared, tmp_path: Path) -> None:
    from largegt.config.schema import PositionalEncodingConfig
    from largegt.preprocessing.positional_encoding import node2vec

    store = lg.GraphStore.open(prepared.path.parent.parent)
    rows = node2vec(store, PositionalEncodingConfig(method="node2vec", dim=16, epochs=10, batch_size=16))
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    same = store.labels[:, None] == store.labels[None, :]
    alike = rows @ rows.T
    assert alike[same].mean() > alike[~same].mean() + 0.2


@pytest.mark.parametrize("settings", [(), ("model.head_dim=32",), ("train.ema_decay=0.9",)])
def test_recorded_steps_learn_and_resume(prepared: lg.Prepared, tmp_path: Path, settings: tuple[str, ...]) -> None:
    """Compiled, recorded and replayed: as good as step by step, also when it is interrupted and goes on. What is scored
    while training is what is kept."""
    config = config_of(
        "train.compile=true", "train.lr_scheduler=constant", "train.epochs=12", "train.precision=32-true", *settings
    )
    run = train_in_two_parts(prepared, config, tmp_path / "run")
    assert [entry["epoch"] for entry in run.history] == list(range(1, 13))
    assert run.metrics["test"]["accuracy"] > 0.8
    best = run.history[run.metrics["best_epoch"] - 1]["valid"]
    assert lg.evaluate(run.path, "valid")["loss"] == pytest.approx(best["loss"], rel=1e-2)


def test_a_recorded_step_is_a_step(prepared: lg.Prepared) -> None:
    """The same weights after ten steps, recorded or not, without dropout and in float32."""
    config = config_of("model.dropout=0", "model.encoder_dropout=0", "train.batch_size=25", "train.precision=32-true",
                       "train.learning_rate=1e-3", "model.codebook.dead_code_threshold=0")  # fmt: skip
    found = []
    for record in (False, True):
        step, model, batches = recorded_step(prepared, config, record)
        torch.manual_seed(1)
        for batch in batches.batches(prepared.split_rows("train"), 25, 0):
            step([batch])
        assert (step._graph is not None) == record
        found.append(
            [float(step.losses.finish().sum()), *(parameter.detach().cpu() for parameter in model.parameters())]
        )
    for a, b in zip(*found, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("compiles", ["false", "true"])
def test_two_views_learn(prepared: lg.Prepared, tmp_path: Path, compiles: str) -> None:
    """One by one, and compiled, recorded and replayed."""
    settings = ("train.consistency_weight=1", "train.consistency_batch_size=40", f"train.compile={compiles}")
    config = config_of("train.epochs=10", *settings)
    assert lg.train(prepared, config, tmp_path / "run").metrics["test"]["accuracy"] > 0.8


def _held_back() -> list[int]:
    """Sizes of blocks that were freed and are not to be had again, when nothing is under way any more."""
    torch.cuda.synchronize()
    torch.ones(1, device="cuda")  # then it is looked what is done
    blocks = [block for segment in torch.cuda.memory_snapshot() for block in segment["blocks"]]
    return [block["size"] for block in blocks if block["state"] == "active_pending_free"]


@pytest.mark.parametrize("recipe", ["default", "base"])
def test_steps_of_a_whole_training_are_replayed(
    prepared: lg.Prepared, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, recipe: str
) -> None:
    """With all that a batch has: nothing is left to compile while a step is recorded."""
    replayed = []
    replay = torch.cuda.CUDAGraph.replay

    def count(graph: torch.cuda.CUDAGraph) -> None:
        replayed.append(graph)
        replay(graph)

    monkeypatch.setattr(torch.cuda.CUDAGraph, "replay", count)
    config = config_of("train.batch_size=32", "train.epochs=3", "train.compile=true", recipe=recipe)
    store = prepared.path.parent.parent
    with logged(None):
        lg.train(store, config, tmp_path / "run")
    num_whole = len(prepared.split_rows("train")) // 32
    assert len(replayed) == 3 * num_whole - 3
    assert len(set(replayed)) == 1
    assert not _held_back()


@pytest.mark.parametrize("breaks", [False, True])
def test_training_goes_on_where_a_step_cannot_be_recorded(
    prepared: lg.Prepared, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, breaks: bool
) -> None:
    """Out of memory while recording, or something that no recording may hold: later steps, which draw dropout, are
    computed one by one, and the next run records again."""
    compute = TrainingStep._compute

    def fail(self: TrainingStep, views: list[lg.TokenBatch]) -> None:
        compute(self, views)
        if torch.cuda.is_current_stream_capturing():
            if breaks:
                self.agreement.item()
            raise torch.cuda.OutOfMemoryError("no room")

    config = config_of("model.dropout=0.3", "train.batch_size=32", "train.epochs=3", "train.compile=true")
    with monkeypatch.context() as patch:
        patch.setattr(TrainingStep, "_compute", fail)
        with logged("recording failed"):
            run = lg.train(prepared, config, tmp_path / "run")
    assert len(run.history) == 3
    assert torch.cuda.current_stream() == torch.cuda.default_stream()
    assert not _held_back(), "memory that was freed is kept for the recording"
    with logged(None):
        lg.train(prepared, config, tmp_path / "again")


@pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype:UserWarning")
def test_a_recorded_step_keeps_the_weight_average(prepared: lg.Prepared) -> None:
    """Against float64 on the host, over steps before the recording, replayed ones and a last batch that is smaller."""
    decay = 0.5
    config = config_of("train.batch_size=12", "train.learning_rate=1e-3", "train.ema_decay=0.5")
    step, model, batches = recorded_step(prepared, config, True, {12, 100})
    state = step.state
    expected = [parameter.detach().cpu().double() for parameter in model.parameters()]
    steps = 0
    for epoch in range(2):
        for batch in batches.batches(prepared.split_rows("train"), 12, 0, epoch):
            step([batch])
            d = min(decay, (1 + steps) / (10 + steps))
            now = [parameter.detach().cpu().double() for parameter in model.parameters()]
            expected = [d * mean + (1 - d) * new for mean, new in zip(expected, now, strict=True)]
            steps += 1
        model.eval()
        own = [parameter.detach().clone() for parameter in model.parameters()]
        assert state.average is not None
        with state.average.in_place(), torch.no_grad():
            for found, mean in zip(model.parameters(), expected, strict=True):
                torch.testing.assert_close(found.cpu().double(), mean, rtol=1e-4, atol=1e-6)
            for batch in batches.batches(prepared.split_rows("valid")[:100], 100):
                with step.accelerator.autocast():
                    model(batch)
        assert all(torch.equal(a, b) for a, b in zip(own, model.parameters(), strict=True))
        model.train()
    assert step._graph is not None
    assert steps > 20
    torch.cuda.set_sync_debug_mode("error")
    try:
        state.average.update()
    finally:
        torch.cuda.set_sync_debug_mode("default")


def dropout_factors(seed: int, shape: tuple[int, ...], dropout: float) -> torch.Tensor:
    """The kernel's mask, written out."""
    low = 0xFFFFFFFF
    bits = (torch.arange(int(np.prod(shape)), dtype=torch.int64) * 0x9E3779B1 + seed) & low
    bits = ((bits ^ (bits >> 16)) * 0x7FEB352D) & low
    bits = ((bits ^ (bits >> 15)) * 0x846CA68B) & low
    unit = ((bits ^ (bits >> 16)) >> 8) / (1 << 24)
    return torch.where(unit >= dropout, 1 / (1 - dropout), 0.0).view(shape).cuda()


@pytest.mark.parametrize("shape", [(3, 2, 16), (5, 150, 100), (4, 300, 256), (2, 37, 513)])
@pytest.mark.parametrize("dropout", [0.0, 0.3])
def test_the_fused_readout_against_the_plain_one(shape: tuple[int, int, int], dropout: float) -> None:
    from largegt.models.largegt.fused_readout import _read, kernels_work

    assert kernels_work()
    torch.manual_seed(1)
    norm = torch.nn.LayerNorm(shape[2]).cuda()
    torch.nn.init.normal_(norm.weight)
    torch.nn.init.normal_(norm.bias)
    x, y = (torch.randn(shape, device="cuda", requires_grad=True) for _ in range(2))
    weight = (0.1 * torch.randn(shape[2], device="cuda")).requires_grad_()
    leaves = [x, y, norm.weight, norm.bias, weight]
    found, _, _ = _read(
        x, y, norm.weight, norm.bias, weight, torch.tensor([987654321], device="cuda"), dropout, norm.eps
    )
    h = norm(x + y * dropout_factors(987654321, shape, dropout))
    share = (h @ weight)[:, 1:].softmax(dim=1)
    expected = h[:, 0] + torch.einsum("bt,btd->bd", share, h[:, 1:])
    torch.testing.assert_close(found, expected, atol=2e-4, rtol=1e-3)
    grad = torch.randn_like(expected)
    for one, other in zip(*(torch.autograd.grad(out, leaves, grad) for out in (found, expected)), strict=True):
        torch.testing.assert_close(one, other, atol=1e-4 * float(other.abs().max()) + 1e-6, rtol=1e-3)


@pytest.mark.parametrize("head_dim", [16, 32, 300])
@pytest.mark.parametrize("compiles", [False, True])
def test_fused_ways_agree_with_the_plain_model(prepared: lg.Prepared, head_dim: int, compiles: bool) -> None:
    """Logits and gradients in float32, with the fused readout and heads of every kind, against the CPU."""
    torch.manual_seed(0)
    config = lg.LargeGTConfig(
        hidden_dim=32 if head_dim < 300 else 300, head_dim=head_dim, num_heads=2, dropout=0, encoder_dropout=0
    )
    model = lg.LargeGT.for_prepared(prepared, config)
    batch = next(lg.token_batches(prepared, batch_size=50))
    model.update_codebook(model(batch))

    def outcome(batch: lg.TokenBatch) -> list[torch.Tensor]:
        model.zero_grad()
        logits = model(batch).logits
        logits.square().sum().backward()
        return [logits.detach().cpu(), *(p.grad.cpu().clone() for p in model.parameters() if p.grad is not None)]

    plain = outcome(batch)
    model.cuda()
    if compiles:
        model.compile_for({50})
    for one, other in zip(outcome(batch.to("cuda")), plain, strict=True):
        torch.testing.assert_close(one, other, atol=2e-3 * float(other.abs().max()) + 1e-6, rtol=1e-2)


@pytest.mark.parametrize("name", ["largegt-local", "largegt-full"])
def test_predictions_vectors_and_explanations_as_on_the_cpu(prepared: lg.Prepared, tmp_path: Path, name: str) -> None:
    store = lg.GraphStore.open(prepared.path.parent.parent)
    config = config_of(
        "prepare.local_nodes.k=12", "train.epochs=6", "model.label_embeddings=true",
        "model.local_label_histograms=true", "model.hop_distance_embedding=true", "model.input_dropout=0.1",
        f"model.name={name}", recipe="default",
    )  # fmt: skip
    run = lg.train(store, config, tmp_path / "run")
    assert run.metrics["test"]["accuracy"] > 0.6
    nodes = np.arange(0, 500, 7)
    probability, vector = (
        {device: np.stack(table.column(column).to_numpy(zero_copy_only=False)) for device, table in found.items()}
        for column, found in (
            ("probability", {device: lg.predict(run.path, ids=nodes, device=device) for device in ("cpu", "cuda")}),
            ("embedding", {device: lg.embed(run.path, ids=nodes, device=device) for device in ("cpu", "cuda")}),
        )
    )
    np.testing.assert_allclose(probability["cuda"], probability["cpu"], atol=2e-3)
    np.testing.assert_allclose(vector["cuda"], vector["cpu"], atol=2e-2, rtol=2e-2)
    here, there = (lg.explain(run.path, 7, device=device) for device in ("cpu", "cuda"))
    carried = [{piece.name: piece.carried for piece in found.pieces} for found in (here, there)]
    assert carried[1] == pytest.approx(carried[0], abs=2e-2)  # by name: two that carry as much may change places
    np.testing.assert_allclose(there.score, here.score, atol=2e-2)


def test_a_run_in_float16_that_was_resumed_equals_one_left_alone(prepared: lg.Prepared, tmp_path: Path) -> None:
    config = config_of("train.epochs=4", "train.precision=16-mixed")
    alone = lg.train(prepared, config, tmp_path / "alone")
    with stopped_at(Scorer, "scores", 3):
        lg.train(prepared, config, tmp_path / "run")
    lg.train(prepared, config, tmp_path / "run", resume=True)
    assert history(tmp_path / "run") == history(alone.path)
    scale = torch.load(tmp_path / "run" / "checkpoints" / "last.pt", weights_only=True)["scaler"]
    assert scale == torch.load(alone.path / "checkpoints" / "last.pt", weights_only=True)["scaler"]
    assert scale["_growth_tracker"] > 0


# losses that are no numbers, where steps are recorded and nobody waits for them


@pytest.mark.parametrize("num_steps", [1, 63, 64, 65, 200])
@pytest.mark.parametrize("bad", [None, 0, 62, 150])
def test_losses_of_a_replayed_graph_come_in_order(num_steps: int, bad: int | None) -> None:
    losses, loss = Losses(torch.device("cuda"), ALONE), torch.zeros((), device="cuda")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        losses.add(loss)
    losses.restart()
    given = torch.rand(num_steps)
    if bad is not None and bad < num_steps:
        given[bad] = torch.nan
    for number, value in enumerate(given.tolist()):
        loss.fill_(value)
        graph.replay()
        found = losses.look()
        assert not found or (bad is not None and number >= bad)
        if found:
            break
        assert bad is None or number < bad + 128
    np.testing.assert_array_equal(losses.finish(), given.double()[: number + 1])


def store_with(folder: Path, scale: float, huge: int | None = None) -> lg.GraphStore:
    """Pairs of nodes, of which one may have features that no float32 network takes."""
    rng = np.random.default_rng(0)
    features = (scale * rng.normal(size=(800, 8))).astype(np.float32)
    if huge is not None:
        features[huge] = 1e30
    pairs = np.stack([np.arange(0, 800, 2), np.arange(1, 800, 2)])
    source = lg.sources.arrays(
        pairs, features, np.arange(800) % 3, {"train": np.arange(700), "valid": np.arange(700, 800)}
    )
    return lg.ingest(source, folder / "g", lg.IngestConfig(undirected=True))


AS_GIVEN = (
    "prepare.local_nodes.k=8", "prepare.tokens.normalize=none", "prepare.tokens.add_degrees=false", "train.epochs=2",
    "train.batch_size=4", "train.learning_rate=1e-3",
)  # fmt: skip


@pytest.mark.parametrize("compiles", ["false", "true"])
def test_the_first_bad_step_is_named(compiles: str, tmp_path: Path) -> None:
    """Recorded steps (`true`) and steps as they come. Compiled norms make zeros of what is too large: the weights are
    spoilt by that step all the same, and a loss within the next ones is."""
    store = store_with(tmp_path, 1.0, huge=300)
    config = config_of(*AS_GIVEN, f"train.compile={compiles}", "train.precision=32-true")
    order = np.random.default_rng([0, 0]).permutation(700)
    step = 1 + int(np.flatnonzero(order // 2 == 150)[0]) // 4
    with pytest.raises(ConfigError, match=r"the loss of step \d+ in epoch 1 .* as large as") as caught:
        lg.train(store, config, tmp_path / "run")
    told = int(str(caught.value).split("step ")[1].split()[0])
    assert step <= told <= step + (3 if compiles == "true" else 0)


def test_float16_overflow_says_so(tmp_path: Path) -> None:
    config = config_of(*AS_GIVEN, "train.precision=16-mixed")
    with pytest.raises(ConfigError, match=r"float16 ends at 65504 .* `train.precision=bf16-mixed`"):
        lg.train(store_with(tmp_path, 1e6), config, tmp_path / "run")
