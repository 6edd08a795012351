"""A killed ingest goes on to the same bytes, wherever it was killed and whatever the memory."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.parquet as pq
import pytest
from graph_helpers import left_behind

from largegt.config.schema import IngestConfig
from largegt.data import sources
from largegt.data.ingest import ingest
from largegt.errors import InputError
from largegt.io.array_writer import ArrayWriter
from run_helpers import all_bytes

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
    """Whole numbers as ids; some edges name a node by a text, so that all edges are read again as text."""
    edges, order = _edges(seed) * 1000 - 5, np.random.default_rng(2).permutation(NUM_NODES) * 1000 - 5
    pq.write_table(pa.table({"id": order, "a": order / 7}), folder / "n.parquet", row_group_size=100)
    lines = [f"{u},{v}" for u, v in edges.T] + ["nobody,-5"]
    (folder / "e.csv").write_text("u,v\n" + "\n".join(lines) + "\n")
    return {"edges": folder / "e.csv", "nodes": folder / "n.parquet"}


INPUTS = [rows_in_parquet, strings_in_csv, node_table, integer_table]


def _ingest(files: dict[str, Any], out: Path, memory: int | None = None, undirected: bool = False) -> None:
    ingest(
        sources.files(**files),
        out,
        IngestConfig(undirected=undirected, unknown_ids="drop", name="g"),
        threads=2,
        memory=memory,
    )


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


def _stopped(files: dict[str, Any], out: Path, after: int, memory: int | None, undirected: bool = False) -> bool:
    """Whether the ingest was cut off after so many commits; False: it has fewer, and is done."""
    with pytest.MonkeyPatch.context() as patch:
        Stop(patch, after)
        try:
            _ingest(files, out, memory, undirected)
        except KeyboardInterrupt:
            return True
    return False


@pytest.mark.parametrize("undirected", [False, True], ids=["directed", "undirected"])
@pytest.mark.parametrize("make", INPUTS)
def test_killed_at_every_commit(tmp_path: Path, tiny: pytest.MonkeyPatch, make: Any, undirected: bool) -> None:
    files = make(tmp_path)
    _ingest(files, tmp_path / "whole", None, undirected)
    expected = all_bytes(tmp_path / "whole")
    after = 1
    while _stopped(files, tmp_path / f"g{after}", after, 30_000, undirected):
        assert not (tmp_path / f"g{after}").exists()
        _ingest(files, tmp_path / f"g{after}", 200_000, undirected)
        assert all_bytes(tmp_path / f"g{after}") == expected, after
        assert not (tmp_path / f".g{after}.partial").exists()
        after += 1
    assert after > 20
    assert all_bytes(tmp_path / f"g{after}") == expected


@pytest.mark.parametrize("make", INPUTS)
def test_killed_again_and_again(tmp_path: Path, tiny: pytest.MonkeyPatch, make: Any) -> None:
    """Every run gets some commits further; those that say again what is known already count too."""
    files = make(tmp_path)
    _ingest(files, tmp_path / "whole")
    runs = 1
    while _stopped(files, tmp_path / "g", 8 + runs % 3, 20_000 + 7000 * runs):
        runs += 1
        assert runs < 50
    assert runs > 3
    assert all_bytes(tmp_path / "g") == all_bytes(tmp_path / "whole")


@pytest.mark.parametrize("make", INPUTS)
def test_any_memory_and_threads_give_the_same_bytes(tmp_path: Path, tiny: pytest.MonkeyPatch, make: Any) -> None:
    files = make(tmp_path)
    made = []
    for memory, threads in ((1000, 1), (20_000, 3), (1 << 28, 2)):
        config = IngestConfig(unknown_ids="drop")
        ingest(sources.files(**files), tmp_path / "a" / "g", config, True, memory=memory, threads=threads)
        made.append(all_bytes(tmp_path / "a" / "g"))
    tiny.undo()
    ingest(sources.files(**files), tmp_path / "a" / "g", IngestConfig(unknown_ids="drop"), True, memory="256MiB")
    made.append(all_bytes(tmp_path / "a" / "g"))
    assert made[0] == made[1] == made[2] == made[3]


def test_what_is_done_is_not_done_again(tmp_path: Path, tiny: pytest.MonkeyPatch) -> None:
    files = strings_in_csv(tmp_path)
    whole: list[str] = []
    ingest(sources.files(**files), tmp_path / "whole", progress=lambda stage, *_: whole.append(stage))
    assert {"find nodes", "read edges"} <= set(whole)

    def stop_at(stage: str) -> Any:
        def stop(now: str, *_: Any) -> None:
            if now == stage:
                raise KeyboardInterrupt

        return stop

    stages: list[str] = []
    with pytest.raises(KeyboardInterrupt):
        ingest(sources.files(**files), tmp_path / "g", progress=stop_at("sort edges"))
    ingest(sources.files(**files), tmp_path / "g", progress=lambda stage, *_: stages.append(stage))
    assert not {"find nodes", "read edges"} & set(stages)
    assert left_behind(tmp_path / "g", *all_bytes(tmp_path / "whole")) == []


@pytest.mark.parametrize("make", INPUTS)
def test_changed_input_starts_over(tmp_path: Path, tiny: pytest.MonkeyPatch, make: Any) -> None:
    (tmp_path / "in").mkdir()
    for after in (1, 4, 12):
        files = make(tmp_path / "in")
        assert _stopped(files, tmp_path / f"g{after}", after, None)
        changed = make(tmp_path / "in", seed=9)
        _ingest(changed, tmp_path / f"g{after}")
        _ingest(changed, tmp_path / f"whole{after}")
        assert all_bytes(tmp_path / f"g{after}") == all_bytes(tmp_path / f"whole{after}")


def test_bad_input_found_late_leaves_nothing(tmp_path: Path, tiny: pytest.MonkeyPatch) -> None:
    files = integer_table(tmp_path)
    with pytest.raises(InputError, match=r"node id 'nobody' is not among the 300 ids of .*n.parquet; add it there"):
        ingest(sources.files(**files), tmp_path / "g", memory=20_000)
    assert left_behind(tmp_path, "e.csv", "n.parquet") == []


CHILD = """
import sys
from largegt.data import sources
from largegt.data.ingest import ingest
source = sources.files(sys.argv[1], labels=sys.argv[2])
print("begins", flush=True)
ingest(source, sys.argv[3], memory="256MiB")
"""


def test_killed_by_the_system(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    ends = rng.integers(0, 60_000, (2, 600_000))
    table = pa.table({"source": _names(ends[0] % 9973), "target": _names(ends[1] % 9973)})
    pq.write_table(table, tmp_path / "e.parquet", row_group_size=50_000)
    pacsv.write_csv(pa.table({"id": _names(range(500)), "label": np.arange(500) % 3}), tmp_path / "y.csv")
    arguments = [str(tmp_path / "e.parquet"), str(tmp_path / "y.csv"), str(tmp_path / "g")]
    began = time.monotonic()
    ingest(sources.files(arguments[0], labels=arguments[1]), tmp_path / "whole" / "g")
    elapsed_s = time.monotonic() - began
    for kill in (True, True, True, False):
        child = subprocess.Popen([sys.executable, "-c", CHILD, *arguments], stdout=subprocess.PIPE)
        assert child.stdout is not None
        assert child.stdout.readline() == b"begins\n"
        if kill:
            time.sleep(random.random() * elapsed_s)
            child.send_signal(signal.SIGKILL)
        code = child.wait(timeout=60)
        child.stdout.close()
        if code == 0:
            break
        assert code == -signal.SIGKILL
        if (tmp_path / "g" / "manifest.json").exists():  # killed after the commit
            with pytest.raises(InputError, match="already exists"):
                ingest(sources.files(arguments[0], labels=arguments[1]), tmp_path / "g")
            break
    assert all_bytes(tmp_path / "g") == all_bytes(tmp_path / "whole" / "g")
    assert left_behind(tmp_path, "e.parquet", "y.csv", "g", "whole") == []
