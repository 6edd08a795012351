"""Prepared: what is in it, when it is made again, and what a failure leaves behind."""

from __future__ import annotations

import shutil
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from largegt.cli.inspection import inspect
from largegt.config.models import model_config, model_spec, model_specs
from largegt.config.schema import (
    Config,
    IngestConfig,
    LocalNodesConfig,
    PositionalEncodingConfig,
    PrepareConfig,
    TokensConfig,
)
from largegt.data.ingest import ingest
from largegt.data.sources import arrays
from largegt.errors import ConfigError, InputError, LargeGTError
from largegt.inference.predictor import predict
from largegt.io.array_writer import ArrayWriter
from largegt.loader.loader import token_batches
from largegt.models.largegt.model import LargeGT
from largegt.preprocessing import blocks, context, engine
from largegt.preprocessing.cache_key import prepared_path, resolve_config
from largegt.preprocessing.pipeline import prepare
from largegt.preprocessing.prepared import Prepared, sample_rows, stale_note
from largegt.preprocessing.sampling.local_nodes import local_nodes
from largegt.training.trainer import train
from oracles import context as oracle
from oracles.graphs import SIX_NODES
from run_helpers import logged

pytestmark = pytest.mark.slow

HOME = sys.modules["largegt.preprocessing.pipeline"]
STAGES = ("local_nodes", "tokens", "positions")
ARRAYS = (
    "nodes",
    "local_rows",
    "is_neighbor",
    "token_nodes",
    "tokens",
    "positions",
    "labels",
    "split",
    "feature_shift",
    "feature_gain",
)


def config_of(
    k: int = 4,
    nodes: Any = "labelled",
    direction: Any = "both",
    seed: int = 0,
    normalize: Any = "none",
    hops: int = 2,
    rows: Any = "sampled",
    hop1_fraction: float | None = None,
    separate: bool = False,
    degrees: bool = False,
    **positions: Any,
) -> PrepareConfig:
    return PrepareConfig(
        local_nodes=LocalNodesConfig(
            k=k, target_nodes=nodes, direction=direction, seed=seed, hop1_fraction=hop1_fraction
        ),
        tokens=TokensConfig(
            normalize=normalize, num_hops=hops, precompute_for=rows, separate_directions=separate, add_degrees=degrees
        ),
        positional_encoding=PositionalEncodingConfig(dim=3, **positions),
    )


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often each stage ran."""
    seen: Counter[str] = Counter()

    def watch(name: str) -> None:
        real = HOME.WRITE[name]

        def counted(*args: Any, **kwargs: Any) -> Any:
            seen[name] += 1
            return real(*args, **kwargs)

        monkeypatch.setitem(HOME.WRITE, name, counted)

    for name in STAGES:
        watch(name)
    return seen


@pytest.fixture
def half_labelled(make_store: Any, random_edges: Any) -> Any:
    labels = np.arange(60) % 3
    labels[::2] = -1
    return make_store(random_edges(60, 90), 60, labels=labels, undirected=False)


# the arrays ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("direction", ["out", "both"])
@pytest.mark.parametrize("nodes", ["labelled", "all"])
def test_arrays_agree_with_the_stages_and_the_store(half_labelled: Any, nodes: Any, direction: Any) -> None:
    store = half_labelled
    prepared = prepare(store, config_of(nodes=nodes, direction=direction))
    expected_nodes = np.arange(60) if nodes == "all" else np.arange(1, 60, 2)
    assert prepared.nodes.tolist() == expected_nodes.tolist()
    sampled = local_nodes(store, expected_nodes, k=4, direction=direction)
    assert np.array_equal(prepared.token_nodes[prepared.local_rows], sampled)
    assert prepared.token_nodes.tolist() == sorted(set(sampled.ravel().tolist()))
    dense = oracle.token_rows(edges_of(store), np.asarray(store.features), direction, False)
    np.testing.assert_allclose(prepared.tokens, dense[prepared.token_nodes], rtol=2e-5, atol=2e-5)
    assert np.array_equal(prepared.labels, store.labels[expected_nodes])
    assert np.array_equal(prepared.array("split"), store.split[expected_nodes])
    assert prepared.positions.shape == (len(expected_nodes), 3)
    assert (prepared.k, prepared.num_features, prepared.num_positions) == (4, 4, 3)
    assert prepared.meta["num_nodes"] == 60
    assert prepared.meta["num_outputs"] == store.num_outputs


@pytest.mark.parametrize("nodes", ["labelled", "all"])
@pytest.mark.parametrize("k", [1, 4])
@pytest.mark.parametrize("hops", [0, 1, 3])
def test_a_token_row_for_every_node(half_labelled: Any, nodes: Any, k: int, hops: int) -> None:
    prepared = prepare(half_labelled, config_of(nodes=nodes, k=k, hops=hops, rows="all"))
    assert prepared.token_nodes.tolist() == list(range(60))
    assert np.array_equal(prepared.local_rows, local_nodes(half_labelled, prepared.nodes, k=k))
    assert prepared.tokens.shape == (60, hops + 1, 4)
    assert prepared.hops == hops
    assert np.array_equal(prepared.tokens[:, 0], half_labelled.features)


def edges_of(store: Any) -> list[tuple[int, int]]:
    return [(i, j) for i in range(store.num_nodes) for j in store.indices[store.indptr[i] : store.indptr[i + 1]]]


@pytest.mark.parametrize("normalize", ["none", "per_feature"])
@pytest.mark.parametrize("direction", ["in", "both"])
@pytest.mark.parametrize("separate", [False, True])
@pytest.mark.parametrize("rows", ["sampled", "all"])
def test_separate_directions_and_degrees(
    half_labelled: Any, rows: Any, separate: bool, direction: Any, normalize: Any
) -> None:  # fmt: skip
    """Sampling follows the direction either way."""
    store, edges = half_labelled, edges_of(half_labelled)
    config = config_of(separate=separate, degrees=True, direction=direction, normalize=normalize, rows=rows)
    prepared = prepare(store, config)
    entered = oracle.with_degrees(edges, np.asarray(store.features), directed=True)
    way = "apart" if separate else direction
    expected = oracle.token_rows(edges, entered, way, normalize == "per_feature")
    np.testing.assert_allclose(prepared.tokens, expected[prepared.token_nodes], rtol=3e-5, atol=3e-5)
    sampled = local_nodes(store, prepared.nodes, k=4, direction=direction)
    assert np.array_equal(prepared.token_nodes[prepared.local_rows], sampled)
    assert prepared.num_features == 6
    assert prepared.hops == (4 if separate else 2)
    shift, gain = (prepared.array(name) for name in ("feature_shift", "feature_gain"))
    scaled = (entered - shift) * gain
    np.testing.assert_allclose(scaled, expected[:, 0], rtol=3e-5, atol=3e-5)


def test_names_of_a_token_row(half_labelled: Any) -> None:
    assert prepare(half_labelled, config_of()).token_names == ["H", "C0", "C1"]
    assert prepare(half_labelled, config_of(hops=0)).token_names == ["H"]
    separate = prepare(half_labelled, config_of(separate=True))
    assert separate.token_names == ["H", "out 1 hop", "in 1 hop", "out 2 hops", "in 2 hops"]
    assert len(separate.token_names) == separate.tokens.shape[1]
    facts = inspect(separate.path)
    assert (facts["hops"], facts["contexts"]) == (2, separate.token_names[1:])


@pytest.mark.parametrize("model", ["largegt-full", "largegt-local", "sign", "nagphormer", "mlp", "graphsage", "linkx"])
def test_models_take_the_shapes_of_separate_directions_and_degrees(
    half_labelled: Any, model: Any, tmp_path: Path
) -> None:
    """Trained on labelled nodes, asked for all: the nodes prepared later have the same columns, on the same scale."""
    overrides = [
        "prepare.tokens.separate_directions=true", "prepare.tokens.add_degrees=true", "prepare.local_nodes.k=4",
        "model.hidden_dim=8", "train.epochs=1", f"model.name={model}", "train.device=cpu",
        "prepare.positional_encoding.dim=3",
    ]  # fmt: skip
    run = train(half_labelled, Config.from_recipe("base", overrides), tmp_path / "run")
    hops = {"mlp": 0, "graphsage": 0, "linkx": 0}.get(model, 4)
    prepared = run.prepared()
    assert prepared.tokens.shape[1:] == (1 + hops, 6)
    assert prepared.config.tokens.separate_directions == bool(hops)
    some, every = predict(run, split="valid", all_probabilities=True), predict(run, all_probabilities=True)
    nodes = np.array(some["node"])
    for name in some.column_names:
        if name.startswith("probability"):
            np.testing.assert_allclose(np.array(some[name]), np.array(every[name])[nodes], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("rows", ["sampled", "reachable", "all"])
@pytest.mark.parametrize("nodes", ["labelled", "all"])
def test_one_local_node_is_the_node_and_nothing_is_sampled(
    half_labelled: Any, nodes: Any, rows: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    sampled = prepare(half_labelled, config_of(nodes=nodes, k=4))
    monkeypatch.setattr(engine.Engine, "local_nodes", interrupted)
    prepared = prepare(half_labelled, config_of(nodes=nodes, k=1, rows=rows))
    assert prepared.k == 1
    assert prepared.token_nodes[prepared.local_rows[:, 0]].tolist() == prepared.nodes.tolist()
    if rows == "sampled":
        assert prepared.token_nodes.tolist() == prepared.nodes.tolist()
        assert prepared.local_rows[:, 0].tolist() == list(range(len(prepared.nodes)))
    assert np.array_equal(prepared.tokens[prepared.local_rows[:, 0]], sampled.tokens[sampled.local_rows[:, 0]])
    assert np.array_equal(prepared.positions, sampled.positions)


@pytest.mark.parametrize("rows", ["reachable", "all"])
def test_other_samples_find_their_rows(half_labelled: Any, rows: Any) -> None:
    prepared = prepare(half_labelled, config_of(rows=rows))
    drawn = sample_rows(half_labelled, prepared, np.arange(7), sample_index=5).local_rows
    assert np.array_equal(prepared.token_nodes[drawn], local_nodes(half_labelled, prepared.nodes[:7], k=4, epoch=5))


def test_where_nothing_is_sampled_another_sample_is_the_same(half_labelled: Any) -> None:
    prepared = prepare(half_labelled, config_of(k=1))
    assert np.array_equal(
        sample_rows(half_labelled, prepared, np.arange(9), sample_index=5).local_rows, prepared.local_rows[:9]
    )
    with pytest.raises(ConfigError, match=r"prepare\.tokens\.precompute_for=reachable"):
        sample_rows(half_labelled, prepare(half_labelled, config_of()), np.arange(9), sample_index=5)


def test_a_model_that_reads_every_node_is_refused_rows_of_some(half_labelled: Any) -> None:
    some, every = prepare(half_labelled, config_of()), prepare(half_labelled, config_of(rows="all"))
    for spec in model_specs():
        every.check_model(spec)
    for name in ("largegt-full", "mlp", "nagphormer", "linkx", "goat-global"):
        some.check_model(model_spec(name))
    for name in ("graphsage", "gat", "gt-sparse", "goat-local", "goat-full"):
        with pytest.raises(ConfigError, match=rf"sampled nodes, and {name} .*tokens\.precompute_for=all"):
            some.check_model(model_spec(name))


def test_sgc_reads_one_context_and_is_refused_two(half_labelled: Any, make_store: Any, random_edges: Any) -> None:
    separate = prepare(half_labelled, config_of(separate=True, rows="all"))
    sgc = model_spec("sgc")
    for spec in model_specs():
        if spec != sgc:
            separate.check_model(spec)
    with pytest.raises(ConfigError, match=r"sgc reads one.*separate_directions=false"):
        separate.check_model(sgc)
    undirected = make_store(random_edges(60, 90), 60)
    prepare(undirected, config_of(separate=True)).check_model(sgc)


def test_labelled_and_all_agree_on_the_nodes_they_share(half_labelled: Any) -> None:
    some, every = prepare(half_labelled, config_of()), prepare(half_labelled, config_of(nodes="all"))
    rows = every.rows_of(some.nodes)
    assert np.array_equal(some.token_nodes[some.local_rows], every.token_nodes[every.local_rows[rows]])
    assert np.array_equal(some.tokens[some.local_rows], every.tokens[every.local_rows[rows]])
    assert np.array_equal(some.positions, every.positions[rows])


def test_rows_of(half_labelled: Any) -> None:
    prepared = prepare(half_labelled, config_of())
    assert prepared.rows_of(np.array([1, 59, 3, 3])).tolist() == [0, 29, 1, 1]
    assert prepared.rows_of([0, 2, -1, 60, 10**9, 5]).tolist() == [-1, -1, -1, -1, -1, 2]
    assert prepared.rows_of(np.array([], dtype=np.int64)).tolist() == []


def test_split_rows(half_labelled: Any) -> None:
    prepared = prepare(half_labelled, config_of())
    for split, nodes in half_labelled.splits.items():
        assert prepared.nodes[prepared.split_rows(split)].tolist() == nodes.tolist()
    assert np.array_equal(prepared.split_rows("val"), prepared.split_rows("valid"))
    with pytest.raises(InputError, match="train"):
        prepared.split_rows("trainset")


def test_it_needs_nothing_of_the_store(half_labelled: Any, tmp_path: Path) -> None:
    prepared = prepare(half_labelled, config_of())
    before = [batch.tokens for batch in token_batches(prepared, batch_size=7)]
    shutil.move(prepared.path.parent, tmp_path / "moved")
    shutil.rmtree(half_labelled.path)
    moved = tmp_path / "moved" / prepared.path.name
    after = [batch.tokens for batch in token_batches(Prepared.open(moved), batch_size=7)]
    assert all(torch.equal(a, b) for a, b in zip(before, after, strict=True))
    Prepared.open(moved).verify()


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_token_precision(half_labelled: Any, dtype: Any) -> None:
    config = config_of().model_copy(update={"tokens": TokensConfig(dtype=dtype, normalize="none")})
    prepared = prepare(half_labelled, config)
    assert prepared.tokens.dtype == dtype
    exact = prepare(half_labelled, config_of()).tokens
    np.testing.assert_allclose(prepared.tokens, exact, rtol=1e-3, atol=1e-3)


def test_overflow_of_float16_is_refused_wherever_it_is(make_store: Any) -> None:
    """One value beyond float16 in the last row, behind more rows than are looked at in one go."""
    num_nodes = (1 << 16) + 10
    features = np.zeros((num_nodes, 1), dtype=np.float32)
    features[-1] = 1e6
    store = make_store([(0, 1)], num_nodes, features)
    config = PrepareConfig(
        local_nodes=LocalNodesConfig(k=2),
        tokens=TokensConfig(dtype="float16", normalize="none"),
        positional_encoding=PositionalEncodingConfig(method="none"),
    )
    with pytest.raises(LargeGTError, match="float16"):
        prepare(store, config)
    assert {path.name for path in (store.path / "prepared").iterdir()} == {"nodes", "local_nodes"}, "no tokens"


# when stages run -------------------------------------------------------------------------------------------------


def test_unchanged_config_runs_nothing_again(half_labelled: Any, calls: Counter[str]) -> None:
    first = prepare(half_labelled, config_of())
    assert calls == Counter(STAGES)
    again = prepare(half_labelled.path, config_of())
    assert calls == Counter(STAGES)
    assert again.path == first.path == prepared_path(half_labelled, config_of())
    assert again.fingerprint == first.fingerprint


@pytest.mark.parametrize(
    ("change", "runs"),
    [
        ({"method": "none"}, {"positions"}),
        ({"normalize": "per_feature"}, {"tokens"}),
        ({"k": 5}, {"local_nodes", "tokens"}),
        ({"seed": 1}, {"local_nodes", "tokens"}),
        ({"hops": 3}, {"tokens"}),
        ({"separate": True}, {"tokens"}),
        ({"degrees": True}, {"tokens"}),
        ({"rows": "all"}, {"local_nodes", "tokens"}),
        ({"k": 1}, {"local_nodes", "tokens"}),
        ({"direction": "out"}, set(STAGES)),
        ({"nodes": "all"}, set(STAGES)),
    ],
)
def test_a_changed_setting_runs_its_stages_and_no_others(
    half_labelled: Any, calls: Counter[str], change: dict[str, Any], runs: set[str]
) -> None:
    first = prepare(half_labelled, config_of())
    calls.clear()
    second = prepare(half_labelled, config_of(**change))
    assert set(calls) == runs
    assert second.path != first.path
    assert second.fingerprint != first.fingerprint
    second.verify()
    kept = {
        "local_nodes": ["local_rows", "token_nodes"], "tokens": ["tokens"],
        "positions": ["positions"],
    }  # fmt: skip
    for stage in set(STAGES) - runs:
        for array in kept[stage]:
            assert np.array_equal(first.array(array), second.array(array))


@pytest.mark.parametrize(
    ("first", "change", "runs"),
    [
        ({"rows": "all"}, {"nodes": "all"}, {"local_nodes", "positions"}),
        ({"rows": "all"}, {"k": 1}, {"local_nodes"}),
        ({"rows": "all"}, {"seed": 1}, {"local_nodes"}),
        ({"rows": "all"}, {"direction": "out"}, set(STAGES)),
        ({"rows": "all", "separate": True}, {"direction": "out"}, {"local_nodes", "positions"}),
        ({"rows": "all", "separate": True}, {"separate": False, "direction": "out"}, set(STAGES)),
        ({"hops": 0}, {"separate": True}, set()),
        ({"k": 1}, {"seed": 1, "hop1_fraction": 0.5}, set()),
        ({"k": 1, "method": "laplacian"}, {"seed": 1}, set()),
    ],
)
def test_stages_run_for_what_they_read_alone(
    half_labelled: Any, calls: Counter[str], first: dict[str, Any], change: dict[str, Any], runs: set[str]
) -> None:
    prepare(half_labelled, config_of(**first))
    calls.clear()
    prepare(half_labelled, config_of(**(first | change))).verify()
    assert set(calls) == runs


def test_directions_are_not_separated_where_there_are_none(
    make_store: Any, random_edges: Any, calls: Counter[str]
) -> None:
    """An undirected graph, and one whose edges all have their inverse in the file: one preparation, under one name."""
    edges = random_edges(60, 90)
    for store in (make_store(edges, 60), make_store([*edges, *edges[:, ::-1]], 60, undirected=False)):
        joined = prepare(store, config_of())
        calls.clear()
        assert prepared_path(store, config_of(separate=True)) == joined.path
        again = prepare(store, config_of(separate=True))
        assert (again.path, again.fingerprint, again.hops) == (joined.path, joined.fingerprint, 2)
        assert not again.config.tokens.separate_directions
        assert not calls
        shutil.rmtree(joined.path)
        fresh = prepare(store, config_of(separate=True))
        assert (fresh.path, fresh.config) == (joined.path, resolve_config(store, config_of()))
        assert fresh.token_names == ["H", "C0", "C1"]
        note = stale_note(store, config_of(separate=True, k=5))
        assert note is not None
        assert note.endswith("was prepared with local_nodes.k=4 (now 5)")
        assert prepare(store, config_of(degrees=True)).num_features == 5


def test_removing_the_first_leaves_the_second_whole(half_labelled: Any) -> None:
    first, second = prepare(half_labelled, config_of()), prepare(half_labelled, config_of(method="none"))
    shutil.rmtree(first.path)
    second.verify()


def test_a_damaged_earlier_folder_is_not_used(half_labelled: Any, calls: Counter[str]) -> None:
    first = prepare(half_labelled, config_of())
    first.file("tokens").unlink()
    calls.clear()
    with logged(r"is made again: .*tokens-.* is missing"):
        second = prepare(half_labelled, config_of(method="none"))
    second.verify()
    assert calls["tokens"] == 1


def test_other_labels_in_another_store_give_another_place(make_store: Any, random_edges: Any) -> None:
    edges = random_edges(30, 40)
    one, two = make_store(edges, 30), make_store(edges, 30, labels=np.arange(30) % 2)
    assert prepare(one, config_of()).fingerprint != prepare(two, config_of()).fingerprint


def test_stale_note_names_what_changed(half_labelled: Any) -> None:
    assert stale_note(half_labelled, config_of()) is None
    prepare(half_labelled, config_of(k=4))
    note = stale_note(half_labelled, config_of(k=9))
    assert note is not None
    assert "local_nodes.k=4 (now 9)" in note


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt, InputError])
def test_a_failed_stage_is_no_preparation(
    half_labelled: Any, monkeypatch: pytest.MonkeyPatch, stage: str, error: type[BaseException]
) -> None:
    def fail(*args: Any, **kwargs: Any) -> None:
        raise error("stop")

    with monkeypatch.context() as patch:
        patch.setitem(HOME.WRITE, stage, fail)
        with pytest.raises(error):
            prepare(half_labelled, config_of())
    assert not prepared_path(half_labelled, config_of()).exists()
    if error is InputError:
        assert not list((half_labelled.path / "prepared").glob("**/.*")), "nothing half-made"
    prepare(half_labelled, config_of()).verify()


# memory and going on ---------------------------------------------------------------------------------------------


@pytest.fixture
def small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that a small graph is prepared in many segments and blocks."""
    for home in (HOME, engine):
        monkeypatch.setattr(home, "SEGMENT_NODES", 7)
    monkeypatch.setattr(HOME, "memory_budget", lambda memory, *_: memory or 1 << 30)
    monkeypatch.setattr(blocks, "_SMALL_CHUNK", 16)


@pytest.fixture
def directed_store(make_store: Any, random_edges: Any) -> Any:
    """Labels on some nodes, whose neighbourhoods do not cover the graph."""
    labels = np.full(60, -1)
    labels[[3, 9, 11, 12, 30, 31]] = [0, 1, 0, 1, 0, 1]
    edges = [(a, b) for a, b in random_edges(50, 70) if a < 25 or b > 40]
    return make_store(edges, 60, width=5, labels=labels, undirected=False)


def sums_of(prepared: Prepared) -> dict[str, str]:
    return {name: prepared.checksum(name) for name in ARRAYS}


@pytest.mark.parametrize("direction", ["out", "in", "both", "apart"])
@pytest.mark.parametrize("nodes", ["labelled", "all"])
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_any_amount_of_memory_gives_the_same_bytes(
    make_store: Any, random_edges: Any, small_steps: None, direction: Any, nodes: Any, dtype: str
) -> None:
    labels = np.where(np.arange(60) % 9, -1, np.arange(60) % 2)
    store = make_store(random_edges(60, 130), 60, width=5, labels=labels, undirected=False, feature_dtype=dtype)
    way = {"separate": True, "degrees": True} if direction == "apart" else {"direction": direction}
    config = config_of(nodes=nodes, normalize="per_feature", **way)
    expected = None
    for memory, threads in ((1 << 30, 1), (3000, 4), (700, 1), (100, 3), (1, 1)):
        prepared = prepare(store, config, memory=memory, threads=threads)
        expected = expected or sums_of(prepared)
        assert sums_of(prepared) == expected, memory
        shutil.rmtree(prepared.path)


@pytest.mark.parametrize(
    ("memory", "change"),
    [
        (1 << 30, {}),
        (300, {}),
        (1 << 30, {"hops": 4, "method": "none"}),
        (1 << 30, {"hops": 1, "k": 1, "method": "none"}),
        (1 << 30, {"separate": True, "degrees": True, "hops": 3, "method": "none"}),
        (300, {"separate": True, "degrees": True, "method": "none"}),
        (1 << 30, {"hops": 0, "rows": "all", "method": "none"}),
    ],
)
def test_killed_at_any_commit_it_goes_on_to_the_same_bytes(
    directed_store: Any, small_steps: None, monkeypatch: pytest.MonkeyPatch, memory: int, change: dict[str, Any]
) -> None:
    if change.get("hops") == 0:  # rows that are not summed come by the chunk
        monkeypatch.setattr(context, "_CHUNK_ROWS", 16)
    config = config_of(normalize="per_feature", **change)
    whole = prepare(directed_store, config, memory=memory)
    expected = sums_of(whole)
    shutil.rmtree(whole.path.parent)
    commits = 0
    while True:
        commits += 4 if memory == 300 else 1  # with so little memory there are very many, much alike
        with stopped_after(commits, monkeypatch) as was_stopped, suppress(KeyboardInterrupt):
            prepare(directed_store, config, memory=memory)
        if not was_stopped():
            break
        again = prepare(directed_store, config, memory=77)  # with other means: that changes nothing either
        assert sums_of(again) == expected, commits
        assert not list(again.path.parent.glob("**/.*")), "nothing half-made is left"
        shutil.rmtree(again.path.parent)
    assert commits > (20 if not change else 5)


def test_work_that_was_done_is_not_done_again(
    directed_store: Any, small_steps: None, monkeypatch: pytest.MonkeyPatch, calls: Counter[str]
) -> None:
    with stopped_after(10**9, monkeypatch), monkeypatch.context() as patch, suppress(KeyboardInterrupt):
        patch.setitem(HOME.WRITE, "positions", interrupted)
        prepare(directed_store, config_of())
    calls.clear()
    prepare(directed_store, config_of())
    assert set(calls) == {"positions"}


def interrupted(*args: Any, **kwargs: Any) -> None:
    raise KeyboardInterrupt


@contextmanager
def stopped_after(commits: int, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], bool]]:
    """Every writer's commit with this number ends in an interrupt, after it was made."""
    made = 0
    real = ArrayWriter.commit

    def commit(self: ArrayWriter, **state: Any) -> None:
        nonlocal made
        real(self, **state)
        made += 1
        if made == commits:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(ArrayWriter, "commit", commit)
        yield lambda: made >= commits


@pytest.mark.parametrize("method", ["node2vec", "laplacian"])
def test_encodings_that_do_not_fit_are_refused(
    half_labelled: Any, monkeypatch: pytest.MonkeyPatch, method: Any
) -> None:
    monkeypatch.setattr(HOME, "memory_budget", lambda *_: 10_000)
    with pytest.raises(
        ConfigError, match=rf"{method} holds .* for 60 nodes.*method=random_projection`, or a larger `memory`"
    ):
        prepare(half_labelled, config_of(method=method))


def test_what_a_killed_process_left_is_not_mistaken_for_a_preparation(half_labelled: Any) -> None:
    whole = prepare(half_labelled, config_of())
    left = whole.path.parent / ".0123456789abcdef.partial-999999"
    shutil.copytree(whole.path, left)
    (left / "manifest.json").unlink()
    shutil.rmtree(whole.path)
    prepare(half_labelled, config_of()).verify()
    assert stale_note(half_labelled, config_of(k=9)) is not None


def test_a_graph_without_labels_can_be_prepared_whole(tmp_path: Path) -> None:
    source = arrays(np.array(SIX_NODES).T, np.eye(6, dtype=np.float32), num_nodes=6)
    store = ingest(source, tmp_path / "g", IngestConfig(undirected=True))
    prepared = prepare(store, config_of(nodes="all"))
    assert prepared.nodes.tolist() == list(range(6))
    with pytest.raises(InputError, match="no labelled node"):
        prepare(store, config_of())


# the receptive field ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["largegt-local", "largegt-full"])
def test_the_receptive_field_is_four_hops_and_no_more(make_store: Any, name: Any) -> None:
    """On a path 0-1-…-11 with K = 3, node 0 sees 1 and 2 and, through their contexts, 3 and 4; never 5."""
    edges = [(i, i + 1) for i in range(11)]
    features = np.random.default_rng(0).normal(size=(12, 4)).astype(np.float32)

    def look(features: np.ndarray) -> tuple[torch.Tensor, torch.Tensor]:
        prepared = prepare(make_store(edges, 12, features), config_of(k=3))
        batch = next(iter(token_batches(prepared, nodes=[0])))
        torch.manual_seed(0)
        codebook = {"codebook": {"num_centroids": 4, "dim": 4}} if name == "largegt-full" else {}
        config = model_config(name, hidden_dim=16, ffn_ratio=0, **codebook)
        model = LargeGT.for_prepared(prepared, config).eval()
        with torch.no_grad():
            return batch.tokens, model(batch).logits

    tokens, logits = look(features)
    assert tokens.shape == (1, 9, 4)
    for distance in range(12):
        moved = features.copy()
        moved[distance] += 1.0
        other_tokens, other_logits = look(moved)
        assert torch.equal(tokens, other_tokens) == (distance > 4)
        assert torch.equal(logits, other_logits) == (distance > 4)
