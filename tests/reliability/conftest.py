"""Real processes for the tests of reliability: the harness of bench/crash.py, in small; and folders to harm."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[2] / "bench"))

from crash import Field, Zygote

import largegt
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
def field(zygote: Zygote, tmp_path_factory: pytest.TempPathFactory) -> Field:
    """A folder in which every stage can be run, broken off and compared."""
    return Field(tmp_path_factory.mktemp("field") / "f", zygote, pause_s=0.0)


@pytest.fixture
def read_only(request: pytest.FixtureRequest) -> Callable[[Path], AbstractContextManager[Zygote]]:
    """`with read_only(folder) as zygote`: its processes cannot write there."""

    @contextmanager
    def closed(folder: Path) -> Iterator[Zygote]:
        made: Zygote = request.getfixturevalue("mounting" if os.geteuid() == 0 else "zygote")
        make, undo = f"chmod -R a-w {folder}", f"chmod -R u+w {folder}"
        if os.geteuid() == 0:  # who may write everywhere
            make, undo = f"mount --bind {folder} {folder} && mount -o remount,ro,bind {folder}", f"umount {folder}"
        made.shell(make)
        try:
            yield made
        finally:
            made.shell(undo)

    return closed


@pytest.fixture
def python() -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """`python(script, arguments…)`: a process that is ended with the test."""
    started: list[subprocess.Popen[str]] = []

    def start(script: str, *arguments: object) -> subprocess.Popen[str]:
        environment = os.environ | {"PYTHONPATH": str(Path(largegt.__file__).parents[1])}
        command = [sys.executable, "-c", script, *map(str, arguments)]
        pipe = subprocess.PIPE
        started.append(subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, env=environment))
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.communicate()


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
