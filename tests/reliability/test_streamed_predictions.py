"""Predictions are written as they are made: the same rows for any segment, group, batch or number of ranks, and a file
under its name only when it is whole."""

from __future__ import annotations

import sys
from collections import deque
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest
import torch

from largegt.config.schema import IngestConfig
from largegt.data.ingest import ingest
from largegt.data.sources import arrays
from largegt.errors import DiskError, InputError
from largegt.inference import predictor
from largegt.inference.predictor import PredictOptions, Predictor, predict
from largegt.inference.writers import PredictionFile
from largegt.runtime.distributed import Ranks
from largegt.training.evaluate import Scorer
from largegt.training.run import Run
from largegt.training.trainer import train
from run_helpers import Cli, Killed, homophilous, left_in, one_thread, small, stopped_at, thirds  # noqa: F401

streaming: Any = sys.modules[predict.__module__]
"""The module: its name in the package is the function's."""

NUM_NODES = 150
SMALL_BATCHES = (
    "train.eval_batch_size=8", "train.epochs=1", "train.num_eval_samples=1", "train.resample=never",
    "model.neighbor_label_hops=0", "model.name=largegt-full", "prepare.tokens.precompute_for=reachable",
)  # fmt: skip


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Of a graph with text for ids, longer ones behind shorter ones, and some nodes without a label."""
    folder = tmp_path_factory.mktemp("streamed")
    edges, features, classes = homophilous(NUM_NODES)
    names = np.array([f"node {node}" + "x" * (node // 30) for node in range(NUM_NODES)])
    labels: Any = np.array(["red", "green", "a long blue"])[classes].astype(object)
    labels[::5] = None
    parts = {name: nodes[nodes % 5 != 0] for name, nodes in thirds(NUM_NODES).items()}
    source = arrays(names[edges], features, labels, parts, node_ids=names)
    store = ingest(source, folder / "g", IngestConfig(undirected=True), threads=1)
    return train(store, small(*SMALL_BATCHES), folder / "run")


@pytest.fixture
def whole(run: Run) -> pa.Table:
    """All at once: one segment, one group."""
    return predict(run, all_probabilities=True)


def cut(monkeypatch: pytest.MonkeyPatch, segment: int, group: int) -> None:
    monkeypatch.setattr(streaming, "_SEGMENT_ROWS", segment)
    monkeypatch.setattr(streaming, "_GROUP_ROWS", group)
    monkeypatch.setattr(streaming, "_NUMBERS_AT_ONCE", 20)


def rows_of(file: Path) -> list[dict[str, Any]]:
    if file.suffix == ".npz":
        with np.load(file, allow_pickle=False) as archive:
            columns = {name: archive[name].tolist() for name in archive.files}
        return pa.table(columns).to_pylist()
    return (pq.read_table(file) if file.suffix == ".parquet" else pyarrow.csv.read_csv(file)).to_pylist()


@pytest.mark.parametrize(("segment", "group"), [(8, 7), (50, 40)])
@pytest.mark.parametrize("suffix", [".parquet", ".csv", ".npz"])
def test_the_same_rows_for_any_cut(
    segment: int, group: int, suffix: str, run: Run, whole: pa.Table, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cut(monkeypatch, segment, group)
    written = Predictor(run, PredictOptions(tmp_path / f"p{suffix}", all_probabilities=True)).write()
    assert (written.num_rows, written.columns) == (NUM_NODES, whole.column_names)
    assert written.first.to_pylist() == whole.slice(0, written.first.num_rows).to_pylist()
    got = rows_of(written.out)
    if suffix == ".csv":  # decimals
        expected = whole.to_pylist()
        assert [row["node"] for row in got] == whole["node"].to_pylist()
        assert [row["label"] for row in got] == whole["label"].to_pylist()
        assert [row["probability"] for row in got] == pytest.approx([row["probability"] for row in expected], rel=1e-6)
    else:
        assert got == whole.to_pylist(), "to the bit"
    if suffix == ".parquet":
        assert pq.ParquetFile(written.out).num_row_groups == -(-NUM_NODES // group)
    assert left_in(tmp_path) == [f"p{suffix}"]


@pytest.mark.parametrize(
    "which", [{"split": "test"}, {"num_eval_samples": 3}, {"ids": ["node 149xxxx", "node 2", "node 2"]}]
)
def test_splits_samples_and_named_nodes_too(
    which: dict[str, Any], run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = predict(run, **which)
    cut(monkeypatch, 8, 5)
    assert predict(run, tmp_path / "p.parquet", **which).equals(expected)
    assert pq.read_table(tmp_path / "p.parquet").equals(expected)


def test_another_batch_size_gives_the_same_rows_in_the_same_order(run: Run, whole: pa.Table) -> None:
    settings = run.config.train.model_copy(update={"eval_batch_size": 37})
    other = predict(replace(run, config=run.config.model_copy(update={"train": settings})), all_probabilities=True)
    assert other["node"].equals(whole["node"])
    assert np.allclose(other["probability"], whole["probability"], atol=1e-5)


def test_rows_are_written_before_later_ones_are_made(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whenever a group is written, no more nodes have been predicted than it ends with, but for some that are on their
    way: nothing piles up."""
    cut(monkeypatch, 16, 10)
    made = written = 0
    ahead: list[int] = []
    real = PredictionFile.add

    def watch(stage: str, done: int, total: int | None) -> None:
        nonlocal made
        if stage == "predict":
            assert total == NUM_NODES
            made = done

    def add(self: PredictionFile, table: pa.Table) -> None:
        nonlocal written
        real(self, table)
        written += table.num_rows
        ahead.append(made - written)

    monkeypatch.setattr(PredictionFile, "add", add)
    Predictor(run, PredictOptions(tmp_path / "p.csv", progress=watch)).write()
    assert written == made == NUM_NODES
    assert len(ahead) == 16
    assert max(ahead) <= 32, "a segment, and what is taken together"


# several ranks: how their parts meet; real processes are in tests/training/test_distributed.py


class _Hand(Ranks):
    """One of several ranks that are played one after the other: what they give lies in `given` until it is taken."""

    given: dict[int, deque[torch.Tensor]]

    def barrier(self) -> None:
        pass

    def send_rows(self, rows_nw: torch.Tensor) -> None:
        self.given.setdefault(self.rank, deque()).append(rows_nw.clone())

    def receive_rows(self, rank: int, width: int) -> torch.Tensor | None:
        rows = self.given[rank].popleft()
        assert rows.shape[1] == width
        return rows if len(rows) else None


@pytest.mark.parametrize(
    ("size", "which"),
    [(2, {}), (3, {"split": "train"}), (3, {"ids": ["node 33x", "node 1", "node 140xxxx", "node 1"]}), (21, {})],
)
def test_any_number_of_ranks_writes_the_same_bytes(
    size: int, which: dict[str, Any], run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of 21 ranks and 19 batches, some have nothing to say."""
    cut(monkeypatch, 16, 11)
    expected = predict(run, tmp_path / "one.csv", **which)
    given: dict[int, deque[torch.Tensor]] = {}
    for rank in (*range(1, size), 0):
        hand = _Hand(rank, size)
        hand.given = given
        monkeypatch.setattr(predictor, "get_distributed", lambda _device, hand=hand: hand)
        table = predict(run, tmp_path / "many.csv", **which)
        if rank:
            assert table.num_rows == 0
            assert table.schema == expected.schema
            assert left_in(tmp_path) == ["one.csv"], "only the first one writes, and nothing has a name before"
    assert (tmp_path / "many.csv").read_bytes() == (tmp_path / "one.csv").read_bytes()
    assert table.equals(expected)
    assert not any(given.values()), "all was taken"


# whole or not at all


@pytest.fixture(params=[".parquet", ".csv", ".npz"])
def out(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    return tmp_path / f"p{request.param}"


def test_a_prediction_that_ends_early_leaves_nothing(out: Path, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    cut(monkeypatch, 16, 20)
    for call in (1, 4):
        with stopped_at(PredictionFile, "add", call, Killed):
            Predictor(run, PredictOptions(out)).write()
        assert left_in(out.parent) == []
    with stopped_at(Scorer, "logits", 3, ZeroDivisionError):
        Predictor(run, PredictOptions(out)).write()
    assert left_in(out.parent) == []


def test_what_is_there_stays_until_the_new_one_is_whole(
    out: Path, run: Run, lg: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    cut(monkeypatch, 16, 20)
    out.write_text("old")
    for devices in ([], ["--devices", 2]):  # before ranks are started
        code, printed, errors = lg("predict", run.path, "--out", out, *devices)
        assert (code, printed) == (2, "")
        assert errors == f"error: {out} already exists: choose another --out, or say --overwrite to replace it\n"
    with stopped_at(PredictionFile, "add", 4, Killed):
        Predictor(run, PredictOptions(out, overwrite=True)).write()
    assert out.read_text() == "old"
    assert left_in(out.parent) == [out.name]
    out.with_name(f".{out.name}.partial").write_text("of a killed process")
    assert lg("predict", run.path, "--out", out, "--overwrite", "--json").json["rows"] == NUM_NODES
    assert len(rows_of(out)) == NUM_NODES
    assert left_in(out.parent) == [out.name]


def test_a_file_that_appears_meanwhile_is_not_replaced(out: Path, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    real = PredictionFile.add

    def add(self: PredictionFile, table: pa.Table) -> None:
        real(self, table)
        out.write_text("someone else's")

    monkeypatch.setattr(PredictionFile, "add", add)
    with pytest.raises(InputError, match="appeared meanwhile"):
        Predictor(run, PredictOptions(out)).write()
    assert out.read_text() == "someone else's"
    assert left_in(out.parent) == [out.name]


def test_a_folder_in_its_place(run: Run, tmp_path: Path) -> None:
    (tmp_path / "p.csv").mkdir()
    with pytest.raises(InputError, match="is a folder"):
        Predictor(run, PredictOptions(tmp_path / "p.csv", overwrite=True)).write()


def test_a_full_disk(out: Path, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """/dev/full takes the place of the file: the kernel itself says that there is no space."""
    if not Path("/dev/full").exists():
        pytest.skip("no /dev/full here")
    out.with_name(f".{out.name}.partial").symlink_to("/dev/full")
    with pytest.raises(DiskError, match="no space left"):
        Predictor(run, PredictOptions(out)).write()
    assert left_in(out.parent) == []
