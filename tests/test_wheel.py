"""The wheel: what is in it, and that it works alone, in an environment where the repository is not to be seen.

The new environment borrows the dependencies of this one, largegt not among them. LARGEGT_WHOLE_WHEEL=1 runs the
self-check and a shortened demo there too, which takes a minute, since numba compiles for a new folder.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest

import largegt

ROOT = Path(__file__).parent.parent


def done(command: list[str | Path], folder: Path, **variables: str) -> str:
    """What a command prints; neither the repository nor this package is on its path."""
    env = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "NUMBA"))} | variables
    result = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    build = ["-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation", "--no-index", "--wheel-dir", folder]
    done([sys.executable, *build, ROOT], folder)
    (found,) = folder.glob("*.whl")
    return found


@pytest.fixture(scope="module")
def python(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Python that has the wheel, and our dependencies from where they are now."""
    folder = tmp_path_factory.mktemp("clean") / "venv"
    venv.create(folder, symlinks=True)
    here = folder / "bin" / "python"
    places = [place for place in sys.path if place.endswith(("site-packages", "dist-packages"))]
    own = Path(done([here, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"], folder).strip())
    (own / "borrowed.pth").write_text("\n".join(places) + "\n")  # an editable install's own .pth is not read from there
    install = ["install", "-q", "--no-deps", "--no-index", "--ignore-installed", wheel]
    done([sys.executable, "-m", "pip", "--python", here, *install], folder)
    return here


def test_the_wheel_holds_what_is_needed_and_nothing_else(wheel: Path) -> None:
    assert wheel.name == f"largegt-{largegt.__version__}-py3-none-any.whl"
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        metadata = archive.read(next(name for name in names if name.endswith("METADATA"))).decode()
        scripts = archive.read(next(name for name in names if name.endswith("entry_points.txt"))).decode()
    source = ROOT / "src" / "largegt"
    wanted = {str(file.relative_to(source.parent)) for file in source.rglob("*.py")}
    wanted |= {str(file.relative_to(source.parent)) for file in source.rglob("recipes/*.toml")}
    wanted |= {"largegt/py.typed", "largegt/datasets/wordnet31-lite.npz", "largegt/datasets/WORDNET-LICENSE.txt"}
    assert wanted <= names
    about = [name for name in names if not name.startswith("largegt/")]
    assert all(name.startswith(f"largegt-{largegt.__version__}.dist-info/") for name in about), about
    assert not [name for name in names if "__pycache__" in name or name.endswith((".nbc", ".nbi", ".pyc"))]
    assert "largegt = largegt.cli:main" in scripts
    assert "Requires-Dist: torch>=" in metadata
    assert "Provides-Extra: tune" in metadata
    assert wheel.stat().st_size < 6 << 20


def test_it_works_where_the_repository_is_not(python: Path, tmp_path: Path) -> None:
    command = python.parent / "largegt"
    where = done([python, "-c", "import largegt; print(largegt.__file__)"], tmp_path).strip()
    assert Path(where).is_relative_to(python.parents[1]), "this is not the wheel's"
    assert done([command, "--version"], tmp_path).split() == ["largegt", largegt.__version__]
    assert json.loads(done([command, "doctor", "--quick", "--json"], tmp_path))["works"] is True
    assert "ogbn-products-largegt-full" in json.loads(done([command, "config", "--recipes", "--json"], tmp_path))
    name = "from largegt.datasets.demo import demo_source; print(demo_source().name)"
    assert done([python, "-c", name], tmp_path).strip() == "wordnet31-lite"


@pytest.mark.skipif(os.environ.get("LARGEGT_WHOLE_WHEEL") != "1", reason="LARGEGT_WHOLE_WHEEL=1 runs it: a minute")
def test_the_whole_walk_where_the_repository_is_not(python: Path, tmp_path: Path) -> None:
    command = python.parent / "largegt"
    checked = json.loads(done([command, "doctor", "--json"], tmp_path))
    assert list(checked["self_check_s"]) == ["ingest", "prepare", "train", "predict"]
    assert Path(checked["numba_cache"]["folder"]).is_relative_to(python.parents[1])
    found = json.loads(done([command, "demo", "--epochs", "1", "--json"], tmp_path))
    assert found["metrics"]["epochs"] == 1
    assert found["scores"]["largegt-full"]["test"] > 0.5
    assert "<svg" in (tmp_path / "largegt-demo" / "report.html").read_text(encoding="utf-8")
