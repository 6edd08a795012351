"""Fixtures that several stages share: small stores in a temporary folder."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

os.environ.setdefault("OMP_NUM_THREADS", "1")  # tensors here are tiny, and cores are shared

import largegt
from largegt.config.schema import IngestConfig
from largegt.data.ingest import ingest
from largegt.data.sources import arrays
from largegt.data.store import GraphStore
from largegt.hardware import abilities as hardware
from largegt.runtime.threads import num_threads
from run_helpers import lg  # noqa: F401
from weighted_graph import graph, tinier  # noqa: F401

TESTS = Path(__file__).parent
PACKAGE = Path(largegt.__file__).parent

StoreMaker = Callable[..., GraphStore]


@pytest.fixture(scope="session", autouse=True)
def settings_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The URLs that tests give are not remembered in the settings of whoever runs them."""
    with pytest.MonkeyPatch.context() as patch:
        folder = tmp_path_factory.mktemp("settings")
        patch.setenv("LARGEGT_CONFIG", str(folder))
        yield folder


@pytest.fixture
def make_store(tmp_path: Path) -> StoreMaker:
    """`make_store(edges, num_nodes, ...)`: a small store with random features and labels unless given."""
    made = 0

    def make(
        edges: Any,
        num_nodes: int,
        features: Any = None,
        labels: Any = None,
        splits: Any = None,
        undirected: bool = True,
        width: int = 4,
        seed: int = 0,
        **config: Any,
    ) -> GraphStore:
        nonlocal made
        made += 1
        rng = np.random.default_rng(seed)
        if features is None:
            features = rng.normal(size=(num_nodes, width)).astype(np.float32)
        if labels is None:
            labels = np.arange(num_nodes) % 3
        source = arrays(np.asarray(edges).reshape(-1, 2).T, features, labels, splits, num_nodes=num_nodes)
        return ingest(source, tmp_path / f"store{made}", IngestConfig(undirected=undirected, **config), threads=1)

    return make


@pytest.fixture
def random_edges() -> Callable[[int, int, int], np.ndarray]:
    """`random_edges(num_nodes, num_edges, seed)`: with repetitions and self loops, never to the last two nodes."""

    def make(num_nodes: int, num_edges: int, seed: int = 0) -> np.ndarray:
        return np.random.default_rng(seed).integers(0, num_nodes - 2, size=(num_edges, 2))

    return make


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    """The URL of a bucket, served on this machine."""
    from bucket_helpers import serving

    with serving() as url:
        yield url


@pytest.fixture
def nothing_given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine on which no URL or model was given, with an empty cache; its settings folder."""
    monkeypatch.setenv("LARGEGT_CONFIG", str(tmp_path / "settings"))
    monkeypatch.setenv("LARGEGT_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("LARGEGT_TRUST_REMOTE", raising=False)
    monkeypatch.setattr("largegt.io.urls._given", set())
    return tmp_path / "settings"


@pytest.fixture
def bfloat16_cpu() -> None:
    """Skip where this CPU cannot compute in bfloat16: it would stop the tests."""
    if not (found := hardware.ability("bfloat16_cpu")).works:
        pytest.skip(found.reason)


@pytest.fixture
def use_probe(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Callable[[str], Path]]:
    """`use_probe("…")`: this program tries abilities of the hardware from now on, with a cache of its own."""

    def use(program: str) -> Path:
        file = tmp_path / "probe.py"
        file.write_text(program)
        monkeypatch.setattr(hardware, "_PROBES", file)
        monkeypatch.setenv("LARGEGT_CACHE", str(tmp_path / "cache"))
        hardware.ability.cache_clear()
        return file

    yield use
    hardware.ability.cache_clear()


def tests_a_package(path: Path) -> bool:
    """Whether the folder in tests/ mirrors a package of src/largegt; other tests are of the repository as a whole."""
    return (PACKAGE / path.relative_to(TESTS).parts[0]).is_dir()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """A test of a package is a unit test unless it is marked slow, gpu or cluster."""
    for item in items:
        if tests_a_package(item.path) and not {"slow", "gpu", "cluster"} & {mark.name for mark in item.iter_markers()}:
            item.add_marker("unit")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """`-m unit` does not import tests of the repository as a whole, which takes seconds."""
    outside = collection_path.name.startswith("test_") and not tests_a_package(collection_path)
    return True if outside and config.getoption("markexpr") == "unit" else None


def pytest_xdist_auto_num_workers() -> int:
    """One more than there are cores: many tests wait for processes of their own."""
    return 1 + num_threads(None)
