"""What a preparation will take, against what it took."""

from __future__ import annotations

import shutil
from typing import Any

import numpy as np
import pytest

from largegt.config.schema import LocalNodesConfig, PositionalEncodingConfig, PrepareConfig, TokensConfig
from largegt.io.array_writer import ArrayWriter
from largegt.preprocessing import estimate as home
from largegt.preprocessing.estimate import estimate, extrapolated_union
from largegt.preprocessing.laplacian import laplacian_bytes
from largegt.preprocessing.pipeline import prepare


def config_of(
    nodes: Any, dtype: Any, method: Any, k: int = 6, hops: int = 2, rows: Any = "sampled", **tokens: Any
) -> PrepareConfig:  # fmt: skip
    return PrepareConfig(
        local_nodes=LocalNodesConfig(k=k, target_nodes=nodes),
        tokens=TokensConfig(dtype=dtype, num_hops=hops, precompute_for=rows, **tokens),
        positional_encoding=PositionalEncodingConfig(
            method=method, dim=5, walk_length=4, context_size=2, walks_per_node=1
        ),
    )


@pytest.fixture
def store(make_store: Any, random_edges: Any) -> Any:
    labels = np.where(np.arange(3000) % 5, -1, np.arange(3000) % 4)
    return make_store(random_edges(3000, 9000), 3000, width=7, labels=labels, undirected=False)


@pytest.mark.slow
@pytest.mark.parametrize("nodes", ["labelled", "all"])
@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("method", ["random_projection", "node2vec", "laplacian", "none"])
def test_bytes_on_disk_are_as_said(
    store: Any, monkeypatch: pytest.MonkeyPatch, nodes: Any, dtype: Any, method: Any
) -> None:
    check_bytes(store, monkeypatch, config_of(nodes, dtype, method))


@pytest.mark.parametrize("k", [1, 6])
@pytest.mark.parametrize("hops", [0, 1, 4])
@pytest.mark.parametrize("rows", ["sampled", "all"])
def test_bytes_of_any_number_of_hops(
    store: Any, monkeypatch: pytest.MonkeyPatch, k: int, hops: int, rows: Any
) -> None:  # fmt: skip
    check_bytes(store, monkeypatch, config_of("labelled", "float32", "none", k, hops, rows))


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("hops", [0, 1, 2, 3])
@pytest.mark.parametrize("add_degrees", [False, True])
def test_bytes_of_separate_directions_and_degrees(
    store: Any, monkeypatch: pytest.MonkeyPatch, dtype: Any, hops: int, add_degrees: bool
) -> None:
    config = config_of("labelled", dtype, "none", 6, hops, "all", separate_directions=True, add_degrees=add_degrees)
    check_bytes(store, monkeypatch, config)


def test_separate_directions_take_more_and_on_an_undirected_graph_the_same(
    store: Any, make_store: Any, random_edges: Any
) -> None:
    def said(of: Any, separate: bool) -> Any:
        return estimate(of, config_of("all", "float32", "none", separate_directions=separate)).stages[1]

    joined, separate = said(store, False), said(store, True)
    assert separate.disk_bytes == 3000 * 5 * 7 * 4
    assert joined.disk_bytes == 3000 * 3 * 7 * 4
    assert (joined.scratch_bytes, separate.scratch_bytes) == (3000 * 7 * 4, 3 * 3000 * 7 * 4)
    undirected = make_store(random_edges(3000, 9000), 3000, width=7)
    assert said(undirected, True).disk_bytes == said(undirected, False).disk_bytes == joined.disk_bytes


def check_bytes(store: Any, monkeypatch: pytest.MonkeyPatch, config: PrepareConfig) -> None:
    said = estimate(store, config)
    most = 0
    real = ArrayWriter.commit

    def watched(self: ArrayWriter, **state: Any) -> None:
        nonlocal most
        files = [file for file in (store.path / "prepared").rglob("*") if file.is_file()]
        most = max(most, sum(file.stat().st_size for file in files))
        real(self, **state)

    monkeypatch.setattr(ArrayWriter, "commit", watched)
    prepared = prepare(store, config)
    assert said.num_nodes == len(prepared.nodes)
    assert said.token_rows == len(prepared.token_nodes)
    small = 40 * len(prepared.nodes) + 20_000  # nodes, labels, split, headers
    assert said.disk_bytes <= prepared.num_bytes <= said.disk_bytes + small
    assert 0.8 * most - small <= said.peak_disk_bytes <= 1.2 * most + small
    assert said.elapsed_s > 0
    assert not said.already_prepared
    assert estimate(store, config).already_prepared
    shutil.rmtree(prepared.path.parent)


def test_less_memory_is_said_to_hold_less(store: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(home, "held_bytes", lambda: 0)
    monkeypatch.setattr(home, "memory_budget", lambda memory, least: memory)
    config = config_of("all", "float32", "random_projection")
    rich, poor = estimate(store, config, 1 << 30), estimate(store, config, 20_000)
    assert poor.memory_bytes < rich.memory_bytes
    tokens = poor.stages[1]
    assert tokens.memory_bytes <= 20_000 + 5 * store.num_nodes


def test_laplacian_is_said_to_hold_what_it_is_refused_for(store: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(home, "held_bytes", lambda: 0)
    positions = estimate(store, config_of("all", "float32", "laplacian")).stages[2]
    assert positions.memory_bytes == laplacian_bytes(store, 5)
    assert positions.disk_bytes == 3000 * 5 * 4
    assert positions.elapsed_s > 0


def test_union_of_samples_extrapolated() -> None:
    """Against simulated samples, with nodes that are drawn often and nodes that are drawn seldom."""
    rng = np.random.default_rng(0)
    weight = rng.pareto(1.5, 20_000) + 0.2
    weight /= weight.sum()
    draws = rng.choice(20_000, size=(8000, 10), p=weight)
    half, whole = len(np.unique(draws[:500])), len(np.unique(draws[:1000]))
    truth = len(np.unique(draws))
    assert extrapolated_union(half, whole, 1000, 8000, 20_000) == pytest.approx(truth, rel=0.35)
    assert extrapolated_union(100, 200, 10, 1000, 5000) == 5000
    assert extrapolated_union(50, 50, 10, 1000, 5000) == 50
