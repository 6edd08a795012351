"""ruff, mypy --strict and bandit are part of the tests, and so is who may import whom."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PLACES = ["src", "tests", "bench", "examples", "docs/hooks.py", "docs/docstrings.py", "docs/pictures"]


@pytest.mark.parametrize(
    "command",
    [
        ["ruff", "check", *PLACES],
        ["ruff", "format", "--check", *PLACES],
        ["mypy"],
        ["bandit", "-q", "-c", "pyproject.toml", "-r", "src"],
    ],
    ids=["ruff", "ruff-format", "mypy", "bandit"],
)
def test_clean(command: list[str]) -> None:
    done = subprocess.run([sys.executable, "-m", *command], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


LAYERS = (
    "config", "runtime io", "data", "datasets", "preprocessing", "loader", "models", "training", "inference", "pages",
    "auto explanation reporting", "experiments integrations", "cli",
)  # fmt: skip
"""The rooms of the package. A room imports from those before it; two of one layer may import each other."""


def test_rooms_import_from_rooms_before_them() -> None:
    layer_of = {room: number for number, rooms in enumerate(LAYERS) for room in rooms.split()}
    package = ROOT / "src" / "largegt"
    assert {file.parent.name for file in package.glob("*/__init__.py")} == set(layer_of)
    for file in package.glob("*/**/*.py"):
        room = file.relative_to(package).parts[0]
        if file.name == "probes.py":  # tries, in a process of its own, what later rooms are made of
            continue
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.ImportFrom) and str(node.module).startswith("largegt."):
                other = str(node.module).split(".")[1]
                assert layer_of.get(other, 0) <= layer_of[room], f"{file}:{node.lineno} imports {node.module}"
