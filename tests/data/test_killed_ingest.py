"""Any memory, threads and engine give the same bytes, and so does an ingest that was killed, wherever that was."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.parquet as pq
import pytest
import scipy.sparse
from graph_helpers import left_behind

from largegt.config.schema import IngestConfig
from largegt.data import sources
from largegt.data.ingest import ingest
from largegt.errors import InputError
from largegt.io.array_writer import ArrayWriter
from largegt.runtime.workers import Threads
from run_helpers import all_bytes

pytestmark = pytest.mark.slow

NUM_NODES, NUM_EDGES = 300, 2500


def _edges(seed: int = 0) -> Any:
    return (np.random.default_rng(seed).random((2, NUM_EDGES)) ** 2 * NUM_NODES).astype(np.int64)


def _names(numbers: Any) -> Any:
    return pa.array([f"node-{number * 7919 % 10_007}" for number in numbers])


def rows_in_parquet(folder: Path, seed: int = 0) -> dict[str, Any]:
    """Edges in two files of several row groups, features and labels in .npy."""
    (folder / "edges").mkdir(exist_ok=True)
    edges = _edges(seed)
    for part in range(2):
        half = edges[:, part::2]
        pq.write_table(pa.table({"u": half[0], "v": half[1]}), folder / "edges" / f"{part}.parquet", row_group_size=700)
    rng = np.random.default_rng(1)
    np.save(folder / "x.npy", rng.standard_normal((NUM_NODES, 5)))
    np.save(folder / "y.npy", rng.integers(-1, 4, NUM_NODES))
    return {"edges": folder / "edges", "features": folder / "x.npy", "labels": folder / "y.npy"}


def strings_in_csv(folder: Path, seed: int = 0) -> dict[str, Any]:
    """No node table: ids are found in the edges and in the labels."""
    edges = _edges(seed)
    pacsv.write_csv(pa.table({"source": _names(edges[0]), "target": _names(edges[1])}), folder / "e.csv")
    labelled = np.arange(0, NUM_NODES + 5, 3)
    pacsv.write_csv(pa.table({"id": _names(labelled), "label": labelled % 3}), folder / "y.csv")
    return {"edges": folder / "e.csv", "labels": folder / "y.csv"}


def node_table(folder: Path, seed: int = 0) -> dict[str, Any]:
    """Text ids, features and a label in a table; edges by id."""
    edges, order = _edges(seed), np.random.default_rng(2).permutation(NUM_NODES)
    pq.write_table(pa.table({"u": _names(edges[0]), "v": _names(edges[1])}), folder / "e.parquet", row_group_size=900)
    nodes = pa.table(
        {"id": _names(order), "a": order / 7, "b": order * 1.0, "label": pa.array(order % 3).cast("string")}
    )
    pacsv.write_csv(nodes, folder / "n.csv")
    return {"edges": folder / "e.parquet", "nodes": folder / "n.csv"}


def integer_table(folder: Path, seed: int = 0) -> dict[str, Any]:
    """Whole numbers as ids, vectors as features; some edges name a node by a text, so that all edges are read again as
    text."""
    edges, order = _edges(seed) * 1000 - 5, np.random.default_rng(2).permutation(NUM_NODES) * 1000 - 5
    vectors = pa.FixedSizeListArray.from_arrays(pa.array(np.arange(3 * NUM_NODES) / 3), 3)
    pq.write_table(pa.table({"id": order, "a": order / 7, "v": vectors}), folder / "n.parquet", row_group_size=100)
    lines = [f"{u},{v}" for u, v in edges.T] + ["nobody,-5"]
    (folder / "e.csv").write_text("u,v\n" + "\n".join(lines) + "\n")
    return {"edges": folder / "e.csv", "nodes": folder / "n.parquet"}


def many_files(folder: Path, seed: int = 0) -> dict[str, Any]:
    """Whole numbers in seven CSV files, one of them packed and one without an edge; ids are found in the edges."""
    rng = np.random.default_rng(4 + seed)
    (folder / "edges").mkdir(exist_ok=True)
    for part in range(6):
        ends = (rng.random((2, 400)) ** 2 * 300).astype(np.int64) * 10**9 - 7
        pacsv.write_csv(pa.table({"u": ends[0], "v": ends[1]}), folder / "edges" / f"part-{part}.csv")
    with pa.CompressedOutputStream(str(folder / "edges" / "part-7.csv.gz"), "gzip") as stream:
        stream.write((folder / "edges" / "part-2.csv").read_bytes() + b"-7,999\n")
    (folder / "edges" / "part-8.csv").write_text('"u","v"\n')
    (folder / "edges" / "_SUCCESS").touch()
    return {"edges": folder / "edges" / "part-*.csv*"}


def mapped_arrays(folder: Path, seed: int = 0) -> dict[str, Any]:
    """Rows in two .npy files, one of them [E, 2], and sparse features."""
    ends = (np.random.default_rng(5 + seed).random((2, 1500)) ** 3 * 200).astype(np.int32)
    np.save(folder / "a.npy", ends[:, :900])
    np.save(folder / "b.npy", np.ascontiguousarray(ends[:, 900:].T))
    features = scipy.sparse.random(201, 5, density=0.4, format="csr", random_state=0)
    scipy.sparse.save_npz(folder / "x.npz", features)
    return {"edges": [folder / "a.npy", folder / "b.npy"], "features": folder / "x.npz"}


INPUTS = [rows_in_parquet, strings_in_csv, node_table, integer_table, many_files, mapped_arrays]
CONFIG = IngestConfig(unknown_ids="drop", name="g")


def one_process(files: dict[str, Any], out: Path, undirected: bool = False) -> dict[str, bytes]:
    _ingest(files, out, undirected, threads=1)
    return all_bytes(out)


def _ingest(files: dict[str, Any], out: Path, undirected: bool = False, **means: Any) -> None:
    ingest(sources.files(**files), out, CONFIG.model_copy(update={"undirected": undirected}), **means)


class Stop:
    """The n-th commit is made, and then the run is cut off; so is every later commit of a thread that has not heard."""

    def __init__(self, patch: pytest.MonkeyPatch, after: int) -> None:
        commit = ArrayWriter.commit
        self.made = 0

        def stopping(writer: ArrayWriter, **state: Any) -> None:
            if self.made < after:
                commit(writer, **state)
            self.made += 1
            if self.made >= after:
                raise KeyboardInterrupt

        patch.setattr(ArrayWriter, "commit", stopping)


def _stopped(files: dict[str, Any], out: Path, after: int, undirected: bool = False, **means: Any) -> bool:
    """Whether the ingest was cut off after so many commits; False: it has fewer, and is done."""
    with pytest.MonkeyPatch.context() as patch:
        Stop(patch, after)
        try:
            _ingest(files, out, undirected, **means)
        except KeyboardInterrupt:
            assert not out.exists()
            return True
    return False


@pytest.mark.parametrize("make", INPUTS)
def test_any_memory_threads_and_engine_give_the_same_bytes(
    tmp_path: Path, small: pytest.MonkeyPatch, make: Any
) -> None:
    files, undirected = make(tmp_path), make in (node_table, many_files)
    expected = one_process(files, tmp_path / "whole", undirected)
    every: list[dict[str, Any]] = [
        {"memory": 1000, "threads": 1}, {"memory": 20_000, "threads": 3}, {"memory": 1 << 28, "threads": 2},
        {"engine": Threads(60_000, 2, 3)}, {"engine": Threads(9_000, 2)},
    ]  # fmt: skip
    for number, means in enumerate(every):
        _ingest(files, tmp_path / f"g{number}", undirected, **means)
        assert all_bytes(tmp_path / f"g{number}") == expected, means
        assert not (tmp_path / f".g{number}.partial").exists()
    small.undo()
    _ingest(files, tmp_path / "large", undirected, memory="256MiB")
    assert all_bytes(tmp_path / "large") == expected


@pytest.mark.parametrize(
    ("make", "undirected"),
    [*((make, False) for make in INPUTS if make is not many_files), *((make, True) for make in INPUTS[:4])],
)
def test_killed_at_every_commit(tmp_path: Path, tiny: pytest.MonkeyPatch, make: Any, undirected: bool) -> None:
    files = make(tmp_path)
    expected = one_process(files, tmp_path / "whole", undirected)
    after = 1
    while _stopped(files, tmp_path / f"g{after}", after, undirected, memory=30_000, threads=2):
        _ingest(files, tmp_path / f"g{after}", undirected, memory=200_000, threads=2)
        assert all_bytes(tmp_path / f"g{after}") == expected, after
        assert not (tmp_path / f".g{after}.partial").exists()
        after += 1
    assert after > (10 if make is mapped_arrays else 20)
    assert all_bytes(tmp_path / f"g{after}") == expected


@pytest.mark.parametrize("make", INPUTS)
def test_killed_again_and_again_with_any_engine(tmp_path: Path, small: pytest.MonkeyPatch, make: Any) -> None:
    """Every run gets some commits further; those that say again what is known already count too."""
    files = make(tmp_path)
    expected = one_process(files, tmp_path / "whole")
    every: list[dict[str, Any]] = [
        {"memory": 20_000, "threads": 2}, {"engine": Threads(20_000, 2, 5)}, {"threads": 2},
        {"engine": Threads(5_000, 2)}, {"memory": 90_000, "threads": 2},
    ]  # fmt: skip
    runs = 0
    while _stopped(files, tmp_path / "g", 6 + runs % 4, **every[runs % 5]):
        runs += 1
        assert runs < 400
    assert runs > 3
    assert all_bytes(tmp_path / "g") == expected


def test_what_is_done_is_not_done_again(tmp_path: Path, tiny: pytest.MonkeyPatch) -> None:
    files = strings_in_csv(tmp_path)
    whole: list[str] = []
    ingest(sources.files(**files), tmp_path / "whole", progress=lambda stage, *_: whole.append(stage))
    assert {"find nodes", "read edges"} <= set(whole)

    def stop(now: str, *_: Any) -> None:
        if now == "sort edges":
            raise KeyboardInterrupt

    stages: list[str] = []
    with pytest.raises(KeyboardInterrupt):
        ingest(sources.files(**files), tmp_path / "g", progress=stop)
    ingest(sources.files(**files), tmp_path / "g", progress=lambda stage, *_: stages.append(stage))
    assert not {"find nodes", "read edges"} & set(stages)
    assert left_behind(tmp_path / "g", *all_bytes(tmp_path / "whole")) == []


@pytest.mark.parametrize("make", INPUTS)
def test_changed_input_starts_over(tmp_path: Path, tiny: pytest.MonkeyPatch, make: Any) -> None:
    (tmp_path / "in").mkdir()
    for after in (1, 4, 9):
        assert _stopped(make(tmp_path / "in"), tmp_path / f"g{after}", after)
        changed = make(tmp_path / "in", seed=9)
        _ingest(changed, tmp_path / f"g{after}")
        assert all_bytes(tmp_path / f"g{after}") == one_process(changed, tmp_path / f"whole{after}")


def test_bad_input_found_late_leaves_nothing(tmp_path: Path, tiny: pytest.MonkeyPatch) -> None:
    files = integer_table(tmp_path)
    with pytest.raises(InputError, match=r"node id 'nobody' is not among the 300 ids of .*n.parquet; add it there"):
        ingest(sources.files(**files), tmp_path / "g", memory=20_000)
    assert left_behind(tmp_path, "e.csv", "n.parquet") == []
