"""Ingest by workers, threads or a Ray cluster: the bytes of one process, whatever happens to the workers."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.parquet as pq
import pytest
from dying_tasks import Dying
from graph_helpers import left_behind
from test_killed_ingest import CONFIG, many_files, mapped_arrays, node_table, one_process, strings_in_csv

import largegt
from largegt.config.schema import IngestConfig
from largegt.data import sources
from largegt.data.ingest import ingest
from largegt.errors import ConfigError, InputError
from largegt.runtime.workers import Threads
from run_helpers import all_bytes

pytestmark = pytest.mark.cluster


def test_errors_are_those_of_one_process(tmp_path: Path, small: None) -> None:
    """Which one is said does not depend on who reads what first."""
    pq.write_table(pa.table({"id": [f"n{i}" for i in [*range(400), 7, 3]]}), tmp_path / "n.parquet")
    pq.write_table(pa.table({"id": [f"n{i}" for i in range(400)]}), tmp_path / "good.parquet")
    ends = [f"n{i}" for i in range(390, 420)] * 20
    pq.write_table(pa.table({"u": ends, "v": ends[::-1]}), tmp_path / "e.parquet", row_group_size=100)
    pq.write_table(pa.table({"u": [*ends[:500], None], "v": ends[:501]}), tmp_path / "h.parquet", row_group_size=100)
    for nodes, edges, message in (
        ("n.parquet", "e.parquet", r"id 'n7' occurs twice \(again in row 400\)"),
        ("good.parquet", "e.parquet", "node id 'n419' is not among the 400 ids"),
        ("good.parquet", "h.parquet", r"column 'u': an id is missing \(row 500, counted from 0\)"),
    ):
        config = IngestConfig(unknown_ids="drop" if edges == "h.parquet" else "error")
        said = []
        for means in ({"threads": 1}, {"engine": Threads(4_000, 3, 6)}):
            given = sources.files(tmp_path / edges, nodes=tmp_path / nodes)
            with pytest.raises(InputError, match=message) as caught:
                ingest(given, tmp_path / "g", config, **means)  # type: ignore[arg-type]
            said.append(str(caught.value))
        assert said[0] == said[1]
    assert left_behind(tmp_path, "n.parquet", "good.parquet", "e.parquet", "h.parquet") == []


@pytest.mark.parametrize("form", ["csv", "parquet"])
def test_the_last_of_parallel_edges_counts(tmp_path: Path, form: str) -> None:
    edges = pa.table({"source": [0, 1, 0, 2], "target": [1, 2, 1, 0], "w": [1.0, 2.0, 5.0, 3.0]})
    (pq.write_table if form == "parquet" else pacsv.write_csv)(edges, tmp_path / f"e.{form}")
    stores = [
        ingest(
            sources.files(tmp_path / f"e.{form}", num_nodes=3, weight_column="w"), tmp_path / name,
            IngestConfig(parallel_edges="last"), **means,
        )
        for name, means in (("one", {"threads": 1}), ("several", {"engine": Threads(1 << 20, 2, 2)}))
    ]  # fmt: skip
    assert [store.weights.tolist() for store in stores] == [[5.0, 2.0, 3.0]] * 2


def test_what_an_engine_refuses(tmp_path: Path) -> None:
    source = sources.arrays(np.array([[0], [1]]))
    with pytest.raises(ConfigError, match="cannot lie at a URL, and s3://bucket/g is one"):
        ingest(source, "s3://bucket/g", engine=Threads(1 << 20, 1))
    with pytest.raises(ConfigError, match="threads and memory are the engine's"):
        ingest(source, tmp_path / "g", engine=Threads(1 << 20, 1), memory="1GiB")


# on Ray

ray = pytest.importorskip("ray", reason="Ray is not installed: pip install 'largegt[ray]'")

from largegt.preprocessing.ray_engine import RayEngine  # noqa: E402


@pytest.fixture(scope="module")
def cluster() -> Iterator[str]:
    """Two cores of this machine; its address."""
    seen = [str(Path(largegt.__file__).parents[1]), str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")]
    with pytest.MonkeyPatch.context() as patch:  # workers see the modules that this process sees
        patch.setenv("PYTHONPATH", os.pathsep.join(seen))
        found = ray.init(
            address="local", num_cpus=2, object_store_memory=80 << 20, include_dashboard=False,
            log_to_driver=False, logging_level="ERROR",
        )  # fmt: skip
        yield found.address_info["address"]
        ray.shutdown()


@pytest.mark.parametrize(
    ("make", "undirected", "shards"),
    [(strings_in_csv, False, 3), (node_table, True, 1), (many_files, False, 3), (mapped_arrays, True, 3)],
)
def test_ray_gives_the_bytes_of_one_process(
    cluster: str, tmp_path: Path, small: None, make: Any, undirected: bool, shards: int, monkeypatch: Any
) -> None:
    monkeypatch.chdir(tmp_path)  # relative paths are ours, not the workers'
    files = {key: _relative(value, tmp_path) for key, value in make(tmp_path).items()}
    config = CONFIG.model_copy(update={"undirected": undirected})
    expected = one_process(files, Path("whole"), undirected)
    ingest(sources.files(**files), "g", config, engine=RayEngine(shards=shards, memory=20_000))
    assert all_bytes(tmp_path / "g") == expected


def _relative(value: Any, folder: Path) -> Any:
    if isinstance(value, list):
        return [_relative(path, folder) for path in value]
    return value.relative_to(folder) if isinstance(value, Path) else value


LONG = bool(os.environ.get("LARGEGT_LONG_TESTS"))
EVERY_STAGE = {"_DistinctIds", "ReadPart", "_Turn", "sorted"}
STAGES = EVERY_STAGE if LONG else {"ReadPart"}
"""Where workers die: a new one takes seconds."""


class DyingEngine(RayEngine):
    """Two workers die in each of these stages."""

    def __init__(self, marks: Path) -> None:
        super().__init__(shards=3, memory=1 << 20)
        self.marks = marks
        marks.mkdir()

    def run(self, task: Any, calls: Any, memory: int = 0) -> Any:
        stage = getattr(task, "__name__", type(task).__name__)
        if stage in STAGES:
            (self.marks / stage).mkdir(exist_ok=True)
            task = Dying(task, self.marks / stage)
        return super().run(task, calls, memory)


def test_workers_that_die_change_nothing(cluster: str, tmp_path: Path) -> None:
    files = strings_in_csv(tmp_path)
    expected = one_process(files, tmp_path / "whole")
    ingest(sources.files(**files), tmp_path / "g", CONFIG, engine=DyingEngine(tmp_path / "marks"))
    assert all_bytes(tmp_path / "g") == expected
    found = {stage.name: left_behind(stage) for stage in (tmp_path / "marks").iterdir()}
    assert found == {stage: ["first", "second"] for stage in STAGES}


DRIVER = """
import os, signal, sys
from largegt.config.schema import IngestConfig
from largegt.data import sources
from largegt.data.ingest import ingest
from largegt.preprocessing.ray_engine import RayEngine

def die(stage, done, total):
    if stage == sys.argv[4] and done:
        os.kill(os.getpid(), signal.SIGKILL)

source = sources.files(sys.argv[1], labels=sys.argv[2])
config = IngestConfig(unknown_ids="drop", name="g")
ingest(source, sys.argv[3], config, progress=die, engine=RayEngine(sys.argv[5], shards=3, memory=1 << 20))
"""


@pytest.mark.skipif(not LONG, reason="starts another driver and its workers: set LARGEGT_LONG_TESTS=1")
def test_a_killed_driver_goes_on(cluster: str, tmp_path: Path) -> None:
    files = strings_in_csv(tmp_path)
    expected = one_process(files, tmp_path / "whole")
    arguments = [str(files["edges"]), str(files["labels"]), str(tmp_path / "g"), "read edges", cluster]
    child = subprocess.run([sys.executable, "-c", DRIVER, *arguments], capture_output=True, timeout=120)
    assert child.returncode == -signal.SIGKILL, child.stderr
    assert not (tmp_path / "g").exists()
    stages: list[str] = []
    source = sources.files(**files)
    ingest(
        source, tmp_path / "g", CONFIG, progress=lambda stage, *_: stages.append(stage),
        engine=RayEngine(shards=2, memory=1 << 20),
    )  # fmt: skip
    assert all_bytes(tmp_path / "g") == expected
    assert "find nodes" not in stages
    assert "sort edges" in stages


def test_the_command_line(cluster: str, tmp_path: Path, lg: Any) -> None:
    files = node_table(tmp_path)
    common = [files["edges"], "--nodes", files["nodes"], "--set", "unknown_ids=drop"]
    found = lg(
        "ingest", *common, "--out", tmp_path / "g", "--engine", "ray", "--shards", "2", "--memory-limit", "256MiB"
    )
    assert found.code == 0, found.err
    found = lg("ingest", "--edges", *common, "--out", tmp_path / "whole" / "g", "--json")
    assert Path(found.json["path"]) == tmp_path / "whole" / "g"  # and nothing else is said
    assert all_bytes(tmp_path / "g") == all_bytes(tmp_path / "whole" / "g")
    for wrong, message in (
        (["--engine", "rya"], "did you mean 'ray'"),
        (["--shards", "2"], "are for --engine ray"),
    ):
        refused = lg("ingest", *common, "--out", tmp_path / "h", *wrong)
        assert refused.code == 2
        assert message in refused.err
    refused = lg("ingest", "--out", tmp_path / "h")
    assert refused.code == 2
    assert "which edges?" in refused.err
