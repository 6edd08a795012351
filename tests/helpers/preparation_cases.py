"""Preparations of every kind, for the tests of what an append or an update makes anew."""

from __future__ import annotations

from typing import Any

from largegt.config.overrides import build
from largegt.config.schema import ResolvedPrepareConfig
from largegt.preprocessing.prepared import Prepared

K: dict[str, Any] = {"k": 5}
RAW: dict[str, Any] = {"normalize": "none"}
NONE: dict[str, Any] = {"method": "none"}
SETTINGS: dict[str, dict[str, Any]] = {
    "raw": {"local_nodes": K, "tokens": RAW, "positional_encoding": {"dim": 3}},
    "normalized": {"local_nodes": K, "positional_encoding": NONE},
    "degrees": {
        "local_nodes": K, "tokens": {**RAW, "add_degrees": True, "precompute_for": "all"}, "positional_encoding": NONE,
    },
    "labels": {
        "local_nodes": {**K, "target_nodes": "all"}, "tokens": RAW,
        "neighbor_label_hops": 2, "positional_encoding": NONE,
    },
    "separate directions": {
        "local_nodes": {**K, "direction": "out"}, "tokens": {**RAW, "separate_directions": True},
        "positional_encoding": NONE,
    },
    "in": {
        "local_nodes": {**K, "direction": "in", "hop1_fraction": 0.5}, "tokens": {**RAW, "dtype": "float16"},
        "neighbor_label_hops": 1, "positional_encoding": NONE,
    },
    "reachable": {
        "local_nodes": K, "tokens": {**RAW, "precompute_for": "reachable", "num_hops": 1}, "positional_encoding": NONE,
    },
    "own features": {
        "local_nodes": {"k": 1}, "tokens": {**RAW, "num_hops": 0, "precompute_for": "all"}, "positional_encoding": NONE,
    },
}  # fmt: skip


def config(name: str) -> ResolvedPrepareConfig:
    return build(ResolvedPrepareConfig, SETTINGS[name])


def assert_same(prepared: Prepared, full: Prepared) -> None:
    assert prepared.fingerprint == full.fingerprint
    assert prepared.folder.meta["stages"] == full.folder.meta["stages"]
    for folder in (full.folder, *full.stages.values()):
        for name in folder.manifest["arrays"]:
            assert prepared.file(name).read_bytes() == folder.file(name).read_bytes(), name
