"""The small graph that most tests of training share, and its preparation."""

from __future__ import annotations

import pytest

from largegt.data.store import GraphStore
from largegt.preprocessing.pipeline import prepare
from largegt.preprocessing.prepared import Prepared
from run_helpers import easy_store, one_thread, small  # noqa: F401


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> GraphStore:
    return easy_store(tmp_path_factory.mktemp("shared") / "g")


@pytest.fixture(scope="module")
def prepared(store: GraphStore) -> Prepared:
    return prepare(store, small().prepare)
