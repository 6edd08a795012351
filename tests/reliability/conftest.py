"""Real processes for the tests of reliability: the harness of bench/crash.py, in small."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[2] / "bench"))

from crash import Zygote

from largegt.config.schema import Config
from largegt.training.trainer import train
from run_helpers import FULL, easy_store


@pytest.fixture(scope="module")
def zygote(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Zygote]:
    """Runs command lines in processes of their own, without starting Python for each."""
    with Zygote(tmp_path_factory.mktemp("zygote")) as made:
        yield made


@pytest.fixture(scope="module")
def mounting(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Zygote]:
    """The same with mounts of its own, where the system allows that."""
    try:
        made = Zygote(tmp_path_factory.mktemp("mounting"), alone=True)
    except OSError as error:
        pytest.skip(str(error))
    with made:
        yield made


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a store `g`, its preparation, and a run, by the settings FULL."""
    folder = tmp_path_factory.mktemp("original")
    store = easy_store(folder / "g")
    train(store, Config.from_recipe("default", FULL), folder / "run")
    return folder


@pytest.fixture
def copy(original: Path, tmp_path: Path) -> Path:
    shutil.copytree(original, tmp_path / "copy")
    return tmp_path / "copy"
