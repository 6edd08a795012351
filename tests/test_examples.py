"""The examples as a reader runs them: each script in a process of its own, each notebook in a kernel."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

import largegt

EXAMPLES = Path(__file__).parent.parent / "examples"
NOTEBOOKS = sorted(file.stem for file in EXAMPLES.glob("*.ipynb"))
ELSEWHERE = {"sklearn_style": "integrations/test_sklearn.py", "pyg_script": "integrations/test_pyg.py"}
"""Examples that are run there, with the pages that they belong to."""


@pytest.fixture(autouse=True)
def _this_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(Path(largegt.__file__).parents[1]))


def script(name: str, folder: Path) -> str:
    command = [sys.executable, str(EXAMPLES / f"{name}.py")]
    done = subprocess.run(command, cwd=folder, env=os.environ, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_train_and_predict(tmp_path: Path) -> None:
    said = script("train_and_predict", tmp_path)
    assert float(re.findall(r"'accuracy': ([\d.]+)", said)[0]) > 0.8


def test_from_parquet_finds_mules_and_says_why(tmp_path: Path) -> None:
    said = script("from_parquet", tmp_path)
    suspects, rightly = map(int, re.findall(r"(\d+) suspects among \d+ others, (\d+) of them rightly", said)[0])
    assert suspects > 40
    assert rightly > 0.8 * suspects
    assert "<svg" in (tmp_path / "why.html").read_text()
    assert {"transfers.parquet", "accounts.parquet", "verdicts.parquet"} <= {file.name for file in tmp_path.iterdir()}


def test_an_own_loop_learns(tmp_path: Path) -> None:
    said = script("own_loop", tmp_path)
    losses = [float(loss) for loss in re.findall(r"loss ([\d.]+)", said)]
    assert losses[-1] < 0.6 * losses[0]
    assert float(said.split("test: ")[1]) > 0.8


def executed(name: str, folder: Path) -> str:
    """All that a notebook prints; a cell that raises ends the test."""
    notebook = nbformat.read(EXAMPLES / f"{name}.ipynb", as_version=4)
    NotebookClient(
        notebook, timeout=300, kernel_name="python3", resources={"metadata": {"path": str(folder)}}
    ).execute()
    outputs = [output for cell in notebook.cells if cell.cell_type == "code" for output in cell.outputs]
    assert not [output.text for output in outputs if output.get("name") == "stderr"], "a notebook warns of nothing"
    kinds = {kind for output in outputs for kind in output.get("data", {})}
    assert "image/png" in kinds, "it has pictures"
    return "".join(output.get("text", "") for output in outputs)


def test_the_quickstart_notebook(tmp_path: Path) -> None:
    said = executed("quickstart", tmp_path)
    assert float(re.findall(r"'accuracy': ([\d.]+)", said)[0]) > 0.85


def test_the_notebook_that_compares(tmp_path: Path) -> None:
    said = executed("compare_and_explain", tmp_path)
    assert said.count("'similarity'") == 5
    assert "carried" in said


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_notebooks_are_kept_without_outputs(name: str) -> None:
    notebook = nbformat.read(EXAMPLES / f"{name}.ipynb", as_version=4)
    nbformat.validate(notebook)
    for cell in notebook.cells:
        if cell.cell_type == "code":
            assert cell.outputs == []
            assert cell.execution_count is None


def test_every_example_is_run_and_short() -> None:
    here = Path(__file__).read_text(encoding="utf-8")
    for file in EXAMPLES.glob("*.py"):
        where = ELSEWHERE.get(file.stem)
        tests = here if where is None else (Path(__file__).parent / where).read_text(encoding="utf-8")
        assert f'"{file.stem}"' in tests or f'"{file.name}"' in tests, f"{file.name} is never run"
        assert len(file.read_text(encoding="utf-8").splitlines()) < 60
    assert all(f'executed("{name}"' in here for name in NOTEBOOKS)
