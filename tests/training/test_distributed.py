"""Training, scoring and predicting on two processes: the same as one process with the whole batch.

Two processes are started once. They do what stands below "on both ranks" and leave what they found in files, which the
tests compare with one process. The launcher, torchrun and a killed rank are tried by the command line.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.distributed import TCPStore

from largegt.config.models import CodebookConfig, model_names, overrides_read
from largegt.config.schema import Config
from largegt.data.store import GraphStore
from largegt.errors import ConfigError
from largegt.inference.predictor import predict
from largegt.models.largegt.codebook import Codebook
from largegt.models.largegt.model import BatchNorm
from largegt.runtime import distributed as ranks_module
from largegt.runtime.distributed import (
    ALONE,
    LostRank,
    Ranks,
    backend_for,
    check_devices,
    get_distributed,
    is_lost_rank,
)
from largegt.training import trainer
from largegt.training.evaluate import evaluate
from largegt.training.launch import launch, resume_advice
from largegt.training.metrics import Scores, TaskHead
from largegt.training.run_checksums import replacing
from largegt.training.step import TrainingStep
from largegt.training.trainer import train
from run_helpers import Killed, final, history, left_in, logged, small, small_settings

pytestmark = pytest.mark.cluster

STILL = ("model.dropout=0", "model.encoder_dropout=0", "model.attention_dropout=0", "model.input_dropout=0")
"""Nothing random but the codebook's draws: two ranks must do as one."""
ODD = ("train.batch_size=37", "train.eval_batch_size=10")
"""Of 75 training nodes: batches of 37, 37 and 1, which leaves a rank idle; of 37 validation nodes 10, 10, 10 and 7."""

OURS: dict[str, tuple[str, ...]] = {
    "layer": (*STILL, *ODD, "model.norm=layer"),
    "batch": (*STILL, "train.batch_size=33", "model.norm=batch"),
    "balanced": (*STILL, *ODD, "train.class_weights=balanced", "train.label_smoothing=0.1"),
    "fresh": (*STILL, *ODD, "train.ema_decay=0.8", "train.resample=epoch", "train.num_eval_samples=2"),
    "labels": (
        *STILL,
        *ODD,
        "model.label_embeddings=true",
        "model.local_label_histograms=true",
        "model.hop_distance_embedding=true",
        "model.local_node_dropout=0.4",
    ),
}
_BASELINE = (*STILL, *ODD, "model.norm=layer", "train.epochs=2", "model.fanouts=[4,3]")
BASELINES = {
    name: (f"model.name={name}", *overrides_read(_BASELINE, name))
    for name in model_names()
    if not name.startswith("largegt")
}
CASES = OURS | BASELINES
LONG = ("train.epochs=30", "train.batch_size=20")
"""With dropout, which differs between ranks; long enough to be killed."""


def config_of(name: str) -> Config:
    return small(*CASES[name])


# on both ranks ---------------------------------------------------------------------------------------------------


def work(rank: int, folder: Path, store_path: Path, port: int) -> None:
    """All that two ranks are asked to do."""
    os.environ.update({
        "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2",
        "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "TORCHELASTIC_USE_AGENT_STORE": "True",
    })  # fmt: skip
    torch.set_num_threads(1)
    ranks, store = get_distributed("cpu"), GraphStore.open(store_path)
    found = {"sums": _sums(ranks), "norm": _norm(ranks), "books": _books(ranks), "tasks": _tasks(ranks)}
    found["steps"] = {name: _trained(store, folder, name) for name in CASES}
    train(store, small(*LONG), folder / "long")
    train(store, config_of("layer"), folder / "one-then-two", resume=True)
    found["scores"] = {split: evaluate(folder / "one", split) for split in ("train", "valid", "test")}
    table = predict(folder / "one", folder / "two.parquet", all_probabilities=True)
    some = predict(folder / "one", folder / "some.csv", ids=[7, 3, 3, 149])
    found["rows"] = [table.num_rows, some.num_rows, table.column_names]
    torch.save(found, folder / f"rank{rank}.pt")


def _trained(store: GraphStore, folder: Path, name: str) -> list[str]:
    """Train, and the digest of the model's whole state after every step. Keeps the checkpoint of each epoch."""
    digests: list[str] = []
    real_step, real_save = TrainingStep.__call__, trainer.save_checkpoint

    def step(self: TrainingStep, *args: Any) -> None:
        real_step(self, *args)
        state = self.state.model.state_dict().values()
        digests.append(hashlib.sha256(b"".join(value.numpy().tobytes() for value in state)).hexdigest())

    def save(path: Path, state: Any, progress: Any) -> None:
        real_save(path, state, progress)
        shutil.copy(path, folder / name / f"epoch{progress.epoch}.pt")

    TrainingStep.__call__, trainer.save_checkpoint = step, save  # type: ignore[method-assign]
    try:
        train(store, config_of(name), folder / name)
    finally:
        TrainingStep.__call__, trainer.save_checkpoint = real_step, real_save  # type: ignore[method-assign]
    return digests


def _sums(ranks: Ranks) -> list[Any]:
    """Everything that travels, from parts of different lengths, some of them empty."""
    found: list[Any] = []
    for lengths in ([3, 2], [0, 4], [1, 0]):
        rows = torch.arange(2.0 * lengths[ranks.rank]).view(-1, 2) + 100 * ranks.rank
        counts = ranks.row_counts(len(rows))
        at = torch.tensor([sum(lengths) - 1, 0, 0])
        found.append((counts, ranks.all_gather(rows, counts), ranks.rows_at(rows, at, counts)))
    drawn = ranks.broadcast(torch.tensor([ranks.rank + 7]))
    return [*found, drawn, ranks.gather_objects(f"rank {ranks.rank}"), ranks.broadcast_object(ranks.rank)]


def _norm(ranks: Ranks) -> list[Tensor]:
    """Gradients and running statistics of batch norm over 7 rows, one and 5."""
    norm = BatchNorm(4)
    ranks.attach(norm)
    found = []
    for step, count in enumerate((7, 1, 5)):
        x, target = norm_batch(step, count)
        ranks.has_empty_batch = ranks.shares(count)[ranks.rank] == 0
        mine = ranks.part(torch.arange(count))
        loss = ((norm(x[mine]) - target[mine]) ** 2).sum() * (0.0 if ranks.has_empty_batch else 1.0)
        found += [ranks.all_reduce_(part) for part in torch.autograd.grad(loss, [x, *norm.parameters()])]
    ranks.has_empty_batch = False
    return [*found, *norm.state_dict().values()]


def _books(ranks: Ranks) -> list[dict[str, Tensor]]:
    """The codebook after every step, of batches that are cut anywhere."""
    book = fresh_book()
    ranks.attach(book)
    found = []
    for step in range(25):
        z, nodes = book_batch(step)
        mine = slice(0, step % 13) if ranks.is_first else slice(step % 13, 12)
        torch.manual_seed(1000 * ranks.rank + step)  # the second rank would draw otherwise
        book.update(z[mine], nodes[mine])
        found.append({name: value.clone() for name, value in book.state_dict().items()})
    return found


def _tasks(ranks: Ranks) -> list[dict[str, float]]:
    """Scores of every task; the first rank has 5 of 30 nodes in two batches, and of the last task none."""
    found = []
    for head, logits, labels in tasks():
        scores = Scores(head)
        cut = 5 if head.task != "regression" else 0
        mine = slice(0, cut) if ranks.is_first else slice(cut, 30)
        for some, of in zip(logits[mine].split(3), labels[mine].split(3), strict=True):
            if len(of):
                scores.add(some, of)
        found.append(scores.result(ranks))
    return found


# the same for one ------------------------------------------------------------------------------------------------


def fresh_book() -> Codebook:
    torch.manual_seed(0)
    return Codebook(40, 3, CodebookConfig(num_centroids=9, dead_code_threshold=0.5, ema_decay=0.8))


def book_batch(step: int) -> tuple[Tensor, Tensor]:
    rng = np.random.default_rng([7, step])
    places = np.random.default_rng(0).normal(scale=3.0, size=(3, 3))
    z = 2.5 * (places[rng.integers(0, 3, 12)] + rng.normal(size=(12, 3))) + 4.0
    return torch.from_numpy(z.astype(np.float32)), torch.from_numpy(rng.permutation(40)[:12])


def norm_batch(step: int, count: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(step)
    x, target = 3.0 * torch.randn(2, count, 4, generator=generator) + 5.0
    return x.requires_grad_(), target


def tasks() -> list[tuple[TaskHead, Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(3)
    classes, yes = (torch.randint(top, (30,), generator=generator) for top in (3, 2))
    many = torch.randint(2, (30, 3), generator=generator).float()
    many[torch.rand(30, 3, generator=generator) < 0.3] = torch.nan
    many[:5] = torch.nan  # the first rank knows nothing
    values = torch.randn(30, generator=generator)
    labels = {"multiclass": classes, "binary": yes, "multilabel": many, "regression": values}
    outputs = {"multiclass": 3, "binary": 1, "multilabel": 3, "regression": 1}
    return [
        (TaskHead(task, outputs[task], None, 0.1, 0.5, 2.0), torch.randn(30, outputs[task], generator=generator), of)  # type: ignore[arg-type]
        for task, of in labels.items()
    ]


@pytest.fixture(scope="module")
def ones(store: GraphStore, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Runs of one process; they prepare the store, too."""
    folder = tmp_path_factory.mktemp("one")
    for name in CASES:
        train(store, config_of(name), folder / name)
    return folder


def kill(_model: Any, epoch: int, _elapsed_s: float) -> None:
    if epoch == 2:
        raise Killed


@pytest.fixture(scope="module")
def twos(store: GraphStore, ones: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What two ranks left."""
    folder = tmp_path_factory.mktemp("two")
    shutil.copytree(ones / "layer", folder / "one")
    with pytest.raises(Killed):
        train(store, config_of("layer"), folder / "one-then-two", watch=kill)
    meeting = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    context = get_context("spawn")
    both = [context.Process(target=work, args=(rank, folder, store.path, meeting.port)) for rank in range(2)]
    for process in both:
        process.start()
    for process in both:
        process.join(150)
    assert [process.exitcode for process in both] == [0, 0]
    return folder


@pytest.fixture(scope="module")
def found(twos: Path) -> list[dict[str, Any]]:
    return [torch.load(twos / f"rank{rank}.pt", weights_only=False) for rank in range(2)]


def close(one: list[dict[str, Any]], other: list[dict[str, Any]], part: str, rel: float) -> None:
    assert len(one) == len(other)
    for mine, theirs in zip(one, other, strict=True):
        assert theirs[part] == pytest.approx(mine[part], rel=rel, abs=1e-6), mine["epoch"]


# tests -----------------------------------------------------------------------------------------------------------


def test_what_travels(found: list[dict[str, Any]]) -> None:
    for rank, sums in enumerate(each["sums"] for each in found):
        for (counts, joined, at), (first, second) in zip(sums[:3], ([3, 2], [0, 4], [1, 0]), strict=True):
            assert counts == [first, second]
            expected = torch.cat([torch.arange(2.0 * first), 100 + torch.arange(2.0 * second)]).view(-1, 2)
            assert torch.equal(joined, expected)
            assert torch.equal(at, expected[[-1, 0, 0]])
        assert sums[3].tolist() == [7]
        assert sums[4] == (["rank 0", "rank 1"] if rank == 0 else [])
        assert sums[5] == 0


def test_batch_norm_over_ranks(found: list[dict[str, Any]]) -> None:
    """Against torch's own over the whole batch; a batch of one takes the running statistics."""
    norm = torch.nn.BatchNorm1d(4)
    expected = []
    for step, count in enumerate((7, 1, 5)):
        x, target = norm_batch(step, count)
        norm.train(count > 1)
        loss = ((norm(x) - target) ** 2).sum()
        expected += torch.autograd.grad(loss, [x, *norm.parameters()])
    for each in found:
        for mine, theirs in zip(each["norm"], [*expected, *norm.state_dict().values()], strict=True):
            torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-5)


def test_the_codebook_is_the_same_on_both_ranks_after_every_step_and_that_of_one(found: list[dict[str, Any]]) -> None:
    book = fresh_book()
    revived = 0
    for step in range(25):
        torch.manual_seed(step)
        book.update(*book_batch(step))
        revived += int((book.ema_size == 12 / 9).sum()) if step else 0
        for name, value in book.state_dict().items():
            ours, theirs = (each["books"][step][name] for each in found)
            assert torch.equal(ours, theirs), (step, name)
            torch.testing.assert_close(ours, value, rtol=1e-4, atol=1e-5)
    assert float(book.counts.sum()) == 40
    assert revived > 3, "some have to be revived for this to test it"


def test_scores_of_every_task_are_those_of_all_nodes(found: list[dict[str, Any]]) -> None:
    for number, (head, logits, labels) in enumerate(tasks()):
        whole = Scores(head)
        whole.add(logits, labels)
        assert len(whole.result()) > 2
        for each in found:
            assert each["tasks"][number] == pytest.approx(whole.result(), rel=1e-6), head.task


@pytest.mark.parametrize("name", CASES)
def test_both_ranks_have_the_same_model_after_every_step(name: str, found: list[dict[str, Any]]) -> None:
    ours, theirs = (each["steps"][name] for each in found)
    assert ours == theirs
    assert len(set(ours)) == len(ours) >= 6


@pytest.mark.parametrize("name", CASES)
def test_losses_are_those_of_one_process(name: str, ones: Path, twos: Path) -> None:
    one, two = history(ones / name), history(twos / name)
    close(one, two, "train", 2e-5)
    close(one, two, "learning_rate", 0.0)
    if name != "batch":  # a bias before batch norm has no gradient; Adam makes steps of its rounding errors
        close(one, two, "valid", 2e-4)
        for split in ("valid", "test"):
            assert final(twos / name)[split] == pytest.approx(final(ones / name)[split], rel=2e-4)
    assert final(twos / name)["devices"] == 2


def test_only_the_first_rank_writes(ones: Path, twos: Path) -> None:
    kept = [name for name in left_in(twos / "layer") if not re.search(r"epoch\d.pt|events.out", name)]
    assert kept == [name for name in left_in(ones / "layer") if "events.out" not in name]


def test_scores_of_one_run_on_two_ranks(twos: Path, found: list[dict[str, Any]]) -> None:
    """Batches are composed as for one process, so they are the same to the bit."""
    for split in ("train", "valid", "test"):
        assert found[0]["scores"][split] == found[1]["scores"][split] == evaluate(twos / "one", split)


def test_predictions_of_two_ranks_are_the_same_bytes(twos: Path, found: list[dict[str, Any]], tmp_path: Path) -> None:
    table = predict(twos / "one", tmp_path / "two.parquet", all_probabilities=True)
    predict(twos / "one", tmp_path / "some.csv", ids=[7, 3, 3, 149])
    for name in ("two.parquet", "some.csv"):
        assert (twos / name).read_bytes() == (tmp_path / name).read_bytes()
    assert found[0]["rows"] == [150, 4, table.column_names]
    assert found[1]["rows"] == [0, 0, table.column_names]


def test_a_checkpoint_of_one_goes_on_on_two(ones: Path, twos: Path) -> None:
    close(history(ones / "layer"), history(twos / "one-then-two"), "train", 2e-5)


def test_a_checkpoint_of_two_goes_on_on_one(store: GraphStore, ones: Path, twos: Path, tmp_path: Path) -> None:
    shutil.copytree(twos / "layer", tmp_path / "run")
    with replacing(tmp_path / "run") as folder:
        (folder / "checkpoints").mkdir()
        shutil.move(tmp_path / "run" / "epoch1.pt", folder / "checkpoints" / "last.pt")
    train(store, config_of("layer"), tmp_path / "run", resume=True)
    close(history(ones / "layer"), history(tmp_path / "run"), "train", 2e-5)
    assert final(tmp_path / "run")["devices"] == 1


# the command line ------------------------------------------------------------------------------------------------


def start(*arguments: str) -> subprocess.Popen[str]:
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(Path(trainer.__file__).parents[2])}
    command = [sys.executable, "-m", *arguments]
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def rank_of(parent: int, rank: int) -> int:
    """The process of a launcher's rank."""
    for child in Path(f"/proc/{parent}/task/{parent}/children").read_text().split():
        if f"RANK={rank}".encode() in Path(f"/proc/{child}/environ").read_bytes().split(b"\0"):
            return int(child)
    raise AssertionError(f"no rank {rank}")


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="finds processes by /proc")
def test_a_killed_rank_ends_the_job_and_resume_goes_on(store: GraphStore, twos: Path, tmp_path: Path) -> None:
    """Launched by --devices, killed in the middle, resumed under torchrun: the same as left alone, to the bit."""
    out, settings = (
        tmp_path / "run",
        [part for item in (*small_settings("largegt-full"), *LONG) for part in ("--set", item)],
    )
    recipe = ("--recipe", "base", "--devices", "2")
    process = start("largegt", "train", str(store.path), "--out", str(out), *recipe, *settings)
    log, deadline = out / "metrics.jsonl", time.monotonic() + 120
    while not (log.exists() and log.read_text().count("\n") >= 2):
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline, "no second epoch in two minutes"
        time.sleep(0.005)
    os.kill(rank_of(process.pid, 1), signal.SIGKILL)
    killed = time.monotonic()
    printed, errors = process.communicate(timeout=90)
    assert time.monotonic() - killed < 60
    assert process.returncode == 2
    assert not printed
    message = re.fullmatch(
        r"error: rank 1 died \(signal 9\): the last checkpoint is epoch (\d+); "
        rf"go on with: largegt train --resume --out {out} --devices 2\n", errors,
    )  # fmt: skip
    assert message, errors
    assert 1 <= int(message[1]) < 30
    assert not (out / "metrics.json").exists()
    torchrun = ("torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "largegt")
    process = start(*torchrun, "train", "--resume", "--out", str(out), "--json")
    printed, errors = process.communicate(timeout=120)
    assert process.returncode == 0, errors
    assert json.loads(printed)["devices"] == 2
    assert history(out) == history(twos / "long")
    assert (out / "model.safetensors").read_bytes() == (twos / "long" / "model.safetensors").read_bytes()


def test_the_launcher_passes_a_commands_end_on(capfd: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert launch(2, ["--version"], lambda: "") == 0
    assert capfd.readouterr().out.count("largegt") == 1, "only the first rank prints"
    assert launch(2, ["inspect", str(tmp_path / "nothing")], lambda: "") == 2
    assert capfd.readouterr().err.count("error: ") == 1


def test_a_rank_that_fails_alone_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A stand-in for the command, in which the second rank fails in several ways."""
    module = tmp_path / "largegt.py"
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    ways = {
        "sys.exit(3)": r"rank 1 died \(exit code 3\): try again",
        "os.kill(os.getpid(), 15)": r"rank 1 died \(signal 15\): try again",
        "print('error: no disk', file=sys.stderr); sys.exit(2)": "rank 1: no disk",
    }
    for way, message in ways.items():
        module.write_text(f"import os, sys, time\nif os.environ['RANK'] == '1': {way}\ntime.sleep(0.2)\nsys.exit(75)")
        with pytest.raises(LostRank, match=message):
            launch(2, [], lambda: "try again")
    monkeypatch.setattr("largegt.training.launch._GRACE_S", 0.3)
    module.write_text("import os, sys, time\nif os.environ['RANK'] == '1': sys.exit(3)\ntime.sleep(60)")
    begun = time.monotonic()
    with pytest.raises(LostRank):
        launch(2, [], lambda: "")
    assert time.monotonic() - begun < 30, "one that hangs is ended"


# without another process -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [1, 2, 3, 7])
@pytest.mark.parametrize("count", [1, 2, 5, 6, 40])
def test_parts_are_even_and_make_the_whole(size: int, count: int) -> None:
    ranks, rows = [Ranks(rank, size) for rank in range(size)], np.arange(count)
    shares = ranks[0].shares(count)
    assert sum(shares) == count
    assert max(shares) - min(shares) <= 1
    parts = [each.part(rows) for each in ranks]
    assert [len(part) for part in parts] == [max(1, share) for share in shares]
    assert np.concatenate([part for part, share in zip(parts, shares, strict=True) if share]).tolist() == rows.tolist()
    batches = [each.batches_of(rows, 4) for each in ranks]
    assert np.concatenate(batches).tolist() == rows.tolist()
    assert all(not len(batch) or batch[0] % 4 == 0 for batch in batches), "whole batches but for the last"


def test_alone_nothing_happens() -> None:
    rows = torch.randn(3, 2)
    assert ALONE.all_gather(rows, [3]) is ALONE.broadcast(rows) is rows
    assert ALONE.all_reduce(rows) is ALONE.all_reduce_(rows) is rows
    assert ALONE.row_counts(3) == [3]
    assert ALONE.gather_objects(5) == [5]
    assert ALONE.broadcast_object(5) == 5
    with ALONE.rank_zero_first():
        ALONE.barrier()
    assert get_distributed() is ALONE


def test_which_backend(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    assert backend_for("auto", 2) == "gloo"
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert backend_for("cpu", 2) == "gloo"
    assert backend_for("auto", 2) == "cpu:gloo,cuda:nccl"
    with logged("3 ranks share 2 GPUs: they talk by gloo"):
        assert backend_for("cuda", 3) == "gloo"


def test_when_to_launch(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not check_devices(1)
    assert check_devices(2)
    for name, value in (("RANK", "1"), ("WORLD_SIZE", "4"), ("MASTER_ADDR", "here"), ("MASTER_PORT", "1")):
        monkeypatch.setenv(name, value)
    assert not check_devices(1)
    assert not check_devices(4)
    with pytest.raises(ConfigError, match="one of 4 processes already"):
        check_devices(2)


def test_what_says_that_a_rank_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    gone = RuntimeError("[gloo/transport/tcp/pair.cc:534] Connection closed by peer [127.0.0.1]:31337")
    assert not is_lost_rank(gone)
    monkeypatch.setattr(ranks_module, "_current", Ranks(0, 2))
    assert is_lost_rank(gone)
    assert not is_lost_rank(RuntimeError("mat1 and mat2 shapes cannot be multiplied"))


def test_advice_without_a_checkpoint(tmp_path: Path) -> None:
    assert "no checkpoint yet; begin again with: `lg.train(resume=True" in resume_advice(tmp_path, 2)


def test_an_idle_rank_weighs_nothing() -> None:
    idle = Ranks()
    idle.has_empty_batch = True
    for head, logits, labels in tasks():
        logits = logits.requires_grad_()
        loss = head.loss(logits, labels, idle)
        loss.backward()
        assert float(loss.detach()) == 0
        assert logits.grad is not None
        assert not logits.grad.any()
        assert float(head.loss(logits, labels).detach()) > 0
