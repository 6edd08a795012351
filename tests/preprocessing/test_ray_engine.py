"""The Ray engine on a cluster of three simulated machines: the bytes of the local engine, whatever happens to them."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import largegt
from bucket_helpers import content, local_content, serving
from largegt.config.schema import (
    LocalNodesConfig,
    PositionalEncodingConfig,
    ResolvedPrepareConfig,
    TokensConfig,
)
from largegt.errors import ConfigError
from largegt.io import remote
from largegt.preprocessing.engine import Engine
from largegt.preprocessing.prepared import Prepared
from largegt.preprocessing.sampling.local_nodes import local_nodes
from largegt.preprocessing.sampling.neighbor_lists import MappedCSR
from list_helpers import answers_alike
from ray_tasks import die_once, refuse

pytestmark = pytest.mark.cluster

ray = pytest.importorskip("ray", reason="Ray is not installed: pip install 'largegt[ray]'")

from ray.cluster_utils import Cluster  # noqa: E402

from largegt.preprocessing import engine as engines  # noqa: E402
from largegt.preprocessing import ray_engine as home  # noqa: E402
from largegt.preprocessing.ray_engine import RayEngine, RayShards, start_shards  # noqa: E402

MACHINE = {"num_cpus": 1, "object_store_memory": 80 << 20}
SOON = {"health_check_period_ms": 1_000, "health_check_timeout_ms": 3_000, "health_check_failure_threshold": 3}
"""How soon a lost machine is noticed; Ray's own patience is some 15 seconds."""


@pytest.fixture(scope="module")
def bucket(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A bucket that every machine of the cluster can read, and a cache apart."""
    with serving() as url, pytest.MonkeyPatch.context() as patch:
        patch.setenv("LARGEGT_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield url


@pytest.fixture(scope="module")
def cluster(bucket: str) -> Iterator[Any]:
    helpers = Path(__file__).parents[1] / "helpers"
    seen = [str(Path(largegt.__file__).parents[1]), str(helpers), os.environ.get("PYTHONPATH", "")]
    with pytest.MonkeyPatch.context() as patch:  # workers see the modules that this process sees
        patch.setenv("PYTHONPATH", os.pathsep.join(seen))
        head = {**MACHINE, "num_cpus": 0, "include_dashboard": False, "_system_config": SOON}
        made = Cluster(initialize_head=True, head_node_args=head)
        for _ in range(2):
            made.add_node(**MACHINE)
        ray.init(address=made.address, log_to_driver=False, logging_level="ERROR")
        made.wait_for_nodes()
        yield made
        ray.shutdown()
        made.shutdown()


@pytest.fixture(autouse=True)
def small_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that a small graph is many tasks."""
    for module in (home, engines):
        monkeypatch.setattr(module, "MIN_TASK_NODES", 90)


@pytest.fixture
def store(make_store: Any) -> Any:
    """Hubs, isolated nodes, and labels on a few nodes."""
    ends = (np.random.default_rng(3).random((2_500, 2)) ** 3 * 600).astype(np.int64)
    labels = np.where(np.arange(602) % 3 > 0, np.arange(602) % 5, -1)
    return make_store(ends, 602, undirected=False, labels=labels, width=5)


def made_by(engine: Engine, store: Any, config: ResolvedPrepareConfig) -> dict[str, bytes]:
    """Every file of a preparation and its stages, manifests included; nothing of it stays."""
    folder = largegt.prepare(store, config, engine=engine).path.parent
    files = local_content(folder)
    shutil.rmtree(folder)
    return files


CONFIGS = {
    "default": ResolvedPrepareConfig(local_nodes=LocalNodesConfig(k=6)),
    "out, apart, degrees": ResolvedPrepareConfig(
        local_nodes=LocalNodesConfig(k=6, direction="out", hop1_fraction=0.5),
        tokens=TokensConfig(
            separate_directions=True, add_degrees=True, num_hops=3, precompute_for="sampled", normalize="per_feature"
        ),
    ),
    "in, reachable": ResolvedPrepareConfig(
        local_nodes=LocalNodesConfig(k=3, direction="in"),
        tokens=TokensConfig(precompute_for="reachable", dtype="float32"),
    ),
    "all, no positions": ResolvedPrepareConfig(
        local_nodes=LocalNodesConfig(k=70, target_nodes="all"),
        positional_encoding=PositionalEncodingConfig(method="none"),
        neighbor_label_hops=2,
        local_label_histograms=True,
    ),
}


@pytest.mark.parametrize("name", CONFIGS)
def test_the_bytes_of_the_local_engine(cluster: Any, store: Any, name: str) -> None:
    expected = made_by(Engine(1 << 28, 1), store, CONFIGS[name])
    shards = 1 + list(CONFIGS).index(name) % 3
    assert made_by(RayEngine(shards=shards, memory=8_000 * shards), store, CONFIGS[name]) == expected


def test_a_store_in_a_bucket(cluster: Any, bucket: str, store: Any) -> None:
    config = ResolvedPrepareConfig(
        local_nodes=LocalNodesConfig(k=6),
        tokens=TokensConfig(add_degrees=True, precompute_for="sampled", normalize="per_feature"),
        neighbor_label_hops=2,
        local_label_histograms=True,
    )
    url = f"{bucket}/{store.name}"
    for file in store.path.iterdir():
        remote.put(file, f"{url}/{file.name}")
    expected = made_by(Engine(1 << 28, 1), store, config)
    prepared = largegt.prepare(url, config, engine=RayEngine(shards=2, memory=40_000))
    assert content(prepared.place.rpartition("/")[0]) == expected
    everything = {name.split("/")[0] for name in content(url)}
    assert everything == {file.name for file in store.path.iterdir()} | {"prepared"}, "scratch is gone"
    held = {file.stem.rpartition("-")[0] for file in remote.local_path(url).glob("*.npy")}
    assert held <= {"labels", "split"}, "edges and features stay where they are"


def test_shards_answer_as_the_store_does(cluster: Any, store: Any) -> None:
    lists, mapped = start_shards(store, "out", 3), MappedCSR.of_store(store, "out")
    answers_alike(lists, mapped)
    bounds = [*lists.bounds, 602]
    indptrs = [store.csr(side)[0] for side in ("out", "in")]
    held = [sum(4 * int(p[b] - p[a]) + 8 * (b - a) for p in indptrs) for a, b in pairwise(bounds)]
    assert max(held) - min(held) <= 2 * sum(4 * int(np.diff(p).max()) + 8 for p in indptrs)  # about the same each
    for shard in lists.shards:  # one that dies is started again, and asked again
        ray.kill(shard, no_restart=False)
    everyone = np.arange(602)
    assert np.array_equal(lists.degrees(everyone), mapped.degrees(everyone))


class Counting(RayShards):
    """Counts calls to shards."""

    calls = 0

    def _request(self, what: str, nodes: Any, *more: Any) -> Any:
        Counting.calls += 1
        return super()._request(what, nodes, *more)

    @property
    def reverse(self) -> Any:
        return Counting(self.shards, self.bounds, self.opposite, self.direction, self.num_nodes)


def test_one_request_per_shard_and_hop_not_per_node(cluster: Any, store: Any) -> None:
    lists = start_shards(store, "both", 2)
    counting = Counting(lists.shards, lists.bounds, lists.direction, lists.opposite, lists.num_nodes)
    rows = local_nodes(counting, k=6, threads=1)
    assert np.array_equal(rows, local_nodes(store, k=6))
    assert Counting.calls <= 20


def test_machines_lost_in_the_middle_change_nothing(cluster: Any, store: Any) -> None:
    config = CONFIGS["default"]
    expected = made_by(Engine(1 << 28, 1), store, config)
    spare = {stage: cluster.add_node(**MACHINE) for stage in ("local nodes", "context C1")}
    cluster.wait_for_nodes()
    lost = []

    def lose(stage: str, done: int, total: int | None) -> None:
        if done and stage in spare:
            machine = spare.pop(stage)
            cluster.remove_node(machine, allow_graceful=False)
            lost.append(machine)

    assert made_by(RayEngine(shards=4, memory=20_000, progress=lose), store, config) == expected
    assert len(lost) == 2
    assert not any(machine.any_processes_alive() for machine in lost)


def test_a_task_whose_worker_dies_runs_again(cluster: Any, tmp_path: Path) -> None:
    calls = [(number,) for number in range(12)]
    task = partial(die_once, str(tmp_path / "died"))
    assert list(RayEngine().run(task, calls)) == [number * number for number in range(12)]
    assert (tmp_path / "died").exists()


def test_a_stopped_run_goes_on_with_any_engine(cluster: Any, store: Any) -> None:
    config = CONFIGS["default"]
    expected = made_by(Engine(1 << 28, 1), store, config)

    def stop(name: str, done: int, total: int | None) -> None:
        if name == "context C1" and done:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        made_by(RayEngine(memory=20_000, progress=stop), store, config)
    seen: list[str] = []
    engine = Engine(1 << 28, 1, lambda name, done, total: seen.append(name))
    assert made_by(engine, store, config) == expected
    assert "local nodes" not in seen


def test_an_error_of_the_users_comes_back_as_it_was(cluster: Any) -> None:
    with pytest.raises(ConfigError) as caught:
        list(RayEngine().run(refuse, [(7,)]))
    assert str(caught.value) == "number 7 is wrong"


@pytest.mark.parametrize("method", ["node2vec", "laplacian"])
def test_encodings_that_need_the_whole_graph_are_refused(cluster: Any, store: Any, method: Any) -> None:
    config = ResolvedPrepareConfig(positional_encoding=PositionalEncodingConfig(method=method))
    with pytest.raises(ConfigError, match=f"{method} needs the whole graph in one process"):
        largegt.prepare(store, config, engine=RayEngine())


def test_a_task_that_fits_no_machine_is_refused(cluster: Any) -> None:
    with pytest.raises(ConfigError, match=r"a task may hold 1024.0 GiB, but no machine .* give a smaller `memory`"):
        RayEngine(memory=1 << 40)


def test_views_of_files_travel_by_name(cluster: Any, tmp_path: Path) -> None:
    RayEngine()
    np.save(tmp_path / "a.npy", np.arange(3 << 18).reshape(-1, 4))
    whole = np.load(tmp_path / "a.npy", mmap_mode="r")
    for view in (whole, whole[70_001:70_005], whole[-1], whole[2:2]):
        packed = ray.cloudpickle.dumps(view)
        assert len(packed) < 1_000
        assert np.array_equal(ray.cloudpickle.loads(packed), view)
    column = ray.cloudpickle.loads(ray.cloudpickle.dumps(whole[:, 1]))
    assert np.array_equal(column, whole[:, 1])


def test_the_command_line(cluster: Any, store: Any, lg: Any) -> None:
    sets = ["--set", "prepare.local_nodes.k=5", "--set", "prepare.local_nodes.hop1_fraction=none"]
    found = lg("prepare", store.path, "--engine", "ray", "--shards", "2", *sets, "--json")
    assert found.code == 0, found.err
    path = Path(found.json["path"])
    prepared = Prepared.open(path)
    assert np.array_equal(prepared.token_nodes[prepared.local_rows], local_nodes(store, prepared.nodes, k=5))
    for wrong, message in (
        (["--engine", "rya"], "did you mean 'ray'"),
        (["--shards", "2"], "are for --engine ray"),
        (["--engine", "ray", "--threads", "2"], "one task per core"),
    ):
        refused = lg("prepare", store.path, *wrong)
        assert refused.code == 2
        assert message in refused.err


@pytest.mark.parametrize("address", ["127.0.0.1:1", "ray://127.0.0.1:1"])
def test_an_address_where_nobody_is_is_one_line(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    with pytest.raises(
        ConfigError, match=rf"no Ray cluster answers at {address} \(.*refused\): start one with ray start"
    ):
        RayEngine(address)


def test_without_ray_the_extra_is_named(store: Any, lg: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    monkeypatch.delitem(sys.modules, "largegt.preprocessing.ray_engine")
    refused = lg("prepare", store.path, "--engine", "ray")
    assert refused.code == 2
    assert "pip install 'largegt[ray]'" in refused.err
