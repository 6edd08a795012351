"""`--recipe auto`: what it measures, and what it makes of it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import largegt
from largegt.errors import ConfigError
from largegt.preprocessing.auto_config import Facts, auto_config, choose, label_information, share_of_zeros


def ring_of_pairs(num_pairs: int) -> np.ndarray:
    """Nodes 2i and 2i + 1 joined, and nothing else."""
    return np.stack([np.arange(0, 2 * num_pairs, 2), np.arange(1, 2 * num_pairs, 2)])


def information(labels: np.ndarray, edges: np.ndarray, tmp_path: Path) -> float:
    splits = {"train": np.arange(len(labels)), "valid": np.arange(0), "test": np.arange(0)}
    source = largegt.sources.arrays(edges, np.ones((len(labels), 2), dtype=np.float32), labels, splits)
    store = largegt.ingest(source, tmp_path / "g", largegt.IngestConfig(undirected=True))
    return label_information(store, store.splits["train"])


@pytest.mark.parametrize("labels", [np.repeat(np.arange(300) % 3, 2), np.arange(600) % 2])
def test_labels_that_are_always_alike_or_never_tell_all(labels: np.ndarray, tmp_path: Path) -> None:
    """Of two classes, where a neighbour is always of the other: no homophily, and all is known."""
    assert information(labels, ring_of_pairs(300), tmp_path) == pytest.approx(1.0)


def test_labels_by_chance_tell_nothing(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    edges = rng.integers(2000, size=(2, 20_000))
    assert information(rng.integers(3, size=2000), edges, tmp_path) < 0.01


def test_some_of_the_information_against_its_formula(tmp_path: Path) -> None:
    """Of pairs of two even classes a share p is alike: 1 - H(p) / log 2."""
    labels = np.arange(4000) // 2 % 2
    labels[np.arange(1, 4000, 10)] ^= 1
    alike = (labels[::2] == labels[1::2]).mean()
    expected = 1 + (alike * np.log2(alike) + (1 - alike) * np.log2(1 - alike))
    assert information(labels, ring_of_pairs(2000), tmp_path) == pytest.approx(expected, abs=1e-9)


def test_only_training_labels_are_read(make_store: Any, random_edges: Any) -> None:
    edges, labels = random_edges(300, 900), np.arange(300) % 4
    store = make_store(edges, 300, labels=labels, undirected=False)
    train = store.splits["train"]
    changed = labels.copy()
    changed[np.setdiff1d(np.arange(300), train)] = 3
    splits = {name: np.asarray(nodes) for name, nodes in store.splits.items()}
    other = largegt.ingest(
        largegt.sources.arrays(edges.T, np.ones((300, 2), dtype=np.float32), changed, splits),
        store.path.parent / "other",
    )
    assert np.array_equal(other.splits["train"], train)
    assert Facts.of(other) == Facts.of(store)


def named(facts: Facts, gpu: bool = False) -> dict[str, str]:
    return {choice.name: choice.value for choice in choose(facts, gpu)}


def test_rules() -> None:
    """Facts are training nodes, mean degree, and label information over both hops and over one."""
    small = Facts(2000, 4.0, 0.5, 0.55)
    large = Facts(200_000, 4.0, 0.5, 0.55)
    assert named(small)["model.label_embeddings"] == "false", "few labels are learned by heart"
    assert named(large)["model.label_embeddings"] == "true"
    assert named(Facts(200_000, 4.0, 0.0, 0.0))["model.label_embeddings"] == "false"
    assert "model.label_embeddings" not in named(Facts(200_000, 4.0)), "no classes, no choice"
    assert named(small)["prepare.local_nodes.hop1_fraction"] == "0.5"
    assert named(Facts(2000, 40.0))["prepare.local_nodes.hop1_fraction"] == "0.75"
    assert named(Facts(2000, 4.0, 0.2, 0.4))["prepare.local_nodes.hop1_fraction"] == "0.75"
    assert int(named(large, gpu=True)["model.hidden_dim"]) > int(named(large)["model.hidden_dim"])
    assert float(named(small)["model.dropout"]) > float(named(large)["model.dropout"])
    steps = 200_000 / int(named(large)["train.batch_size"]) * int(named(large)["train.epochs"])
    assert 2000 < steps < 3000
    assert int(named(small)["train.epochs"]) == 40, "few nodes are not gone over forever"
    assert "model.input_dropout" not in named(small), "features that are all there are kept"
    assert named(Facts(2000, 4.0, 0.3, 0.3, zeros=0.6))["model.input_dropout"] == "0.5"
    assert "model.input_dropout" not in named(Facts(2000, 4.0, 0.0, 0.0, zeros=0.9)), "its own is all it has"
    assert all(choice.reason for choice in choose(small, False))


def test_rules_for_few_labels() -> None:
    scarce = Facts(
        141, 4.0, label_information=0.5, label_information_one_hop=0.5, zeros=0.9, num_classes=7, num_others=2568
    )
    found = named(scarce)
    assert found["train.consistency_weight"] == "1"
    assert found["prepare.local_nodes.target_nodes"] == "all", "nodes without a label are not prepared by themselves"
    assert (found["train.batch_size"], found["train.epochs"]) == ("36", "60"), "four steps an epoch"
    together = {choice.name: choice.value for choice in choose(scarce, False, alone=False)}
    assert "train.consistency_weight" not in together, "which several processes refuse"
    assert "prepare.local_nodes.target_nodes" not in together
    assert together["train.batch_size"] == "36"
    for enough in (
        replace(scarce, num_train=350), replace(scarce, num_others=100), replace(scarce, num_others=2_000_000),
        replace(scarce, num_classes=0),
    ):  # fmt: skip
        assert "train.consistency_weight" not in named(enough)
    for alike in (replace(scarce, label_information=0.0), replace(scarce, zeros=0.2)):
        assert "train.consistency_weight" not in named(alike), "it is for words, which neighbours make up for"


def test_few_nodes_are_gone_over_in_steps_enough() -> None:
    """Whatever the task, and however large the graph."""
    for num_train, batch, epochs in ((9, 8, 60), (141, 36, 60), (999, 250, 60), (1000, 256, 40), (2000, 256, 40)):
        found = named(Facts(num_train, 4.0, num_others=10**8))
        assert (int(found["train.batch_size"]), int(found["train.epochs"])) == (batch, epochs)


def test_bags_of_words_are_told_by_their_zeros(make_store: Any) -> None:
    """A node without any feature, as the authors among papers are, does not count."""
    features = np.zeros((6, 10), dtype=np.float32)
    features[:4, 0] = 1
    features[0, 1:3] = 2
    store = make_store([(0, 1), (2, 3), (4, 5)], 6, features=features)
    assert share_of_zeros(store, np.arange(6)) == pytest.approx(1 - 6 / 40)
    assert share_of_zeros(store, np.array([4, 5])) == 0.0


def test_overrides_are_the_last_word(make_store: Any, random_edges: Any) -> None:
    store = make_store(random_edges(300, 900), 300, labels=np.arange(300) % 4)
    config, chosen = auto_config(store, ["model.hidden_dim=48", "train.epochs=2"], gpu=False)
    assert config.model.hidden_dim == 48
    assert not {"model.hidden_dim", "train.epochs"} & {choice.name for choice in chosen}
    assert config.prepare.local_nodes.k == 32
    with pytest.raises(ConfigError, match="has a recipe of its own"):
        auto_config(store, ["model.name=gat"])
    config, chosen = auto_config(store, ["model.name=largegt-global"], gpu=False)
    assert config.model.name == "largegt-global"
    assert "model.num_layers" not in {choice.name for choice in chosen}, "which it does not read"


def test_auto_without_a_store_says_what_to_do() -> None:
    with pytest.raises(ConfigError, match=r"lg\.train\(.*auto"):
        largegt.Config.from_recipe("auto")


def chain(make_store: Any) -> Any:
    """300 nodes in a row, neighbours alike; three words each."""
    features = np.zeros((300, 12), dtype=np.float32)
    features[np.arange(300)[:, None], np.arange(300)[:, None] // 75 * 3 + np.arange(3)] = 1
    return make_store([(node, node + 1) for node in range(299)], 300, features, np.arange(300) // 75)


def test_auto_from_the_command_line(lg: Any, make_store: Any, tmp_path: Path) -> None:
    store = chain(make_store)
    few = ["--set", "train.epochs=1", "--set", "model.hidden_dim=8", "--set", "prepare.local_nodes.k=4"]
    result = lg("train", store.path, "--recipe", "auto", *few, "--out", tmp_path / "run")
    assert result.code == 0, result.err
    said = [line for line in result.err.splitlines() if line.startswith("auto: ")]
    size = -(-len(store.splits["train"]) // 4)
    assert any(f"train.batch_size={size}" in line and "training nodes" in line for line in said)
    assert any("train.consistency_weight=1" in line and "labels a class" in line for line in said)
    assert not any("hidden" in line for line in said), "what was set is not chosen"
    assert f"batch_size = {size}" in (tmp_path / "run" / "config.toml").read_text()


@pytest.mark.slow
def test_auto_of_several_processes_from_the_command_line(lg: Any, make_store: Any, tmp_path: Path) -> None:
    """Few labels, and what auto has for them is for one process: it is not chosen."""
    store = chain(make_store)
    few = [
        "--set",
        "train.epochs=1",
        "--set",
        "model.hidden_dim=8",
        "--set",
        "prepare.local_nodes.k=4",
        "--device",
        "cpu",
    ]
    result = lg("train", store.path, "--recipe", "auto", *few, "--out", tmp_path / "run", "--devices", "2")
    assert result.code == 0, result.err
    assert "auto: " in result.err
    assert "consistency" not in result.err
    assert (tmp_path / "run" / "metrics.json").is_file()
