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


ROOMS = [
    "config", "runtime", "io", "hardware", "data", "datasets", "preprocessing", "loader", "models", "training",
    "inference", "pages", "auto", "explanation", "reporting", "experiments", "integrations", "cli",
]  # fmt: skip
"""A room of the package imports from those before it."""


def test_rooms_import_from_rooms_before_them() -> None:
    package = ROOT / "src" / "largegt"
    assert sorted(ROOMS) == sorted(folder.parent.name for folder in package.glob("*/__init__.py"))
    for file in package.glob("*/**/*.py"):
        room = file.relative_to(package).parts[0]
        if file.name == "probes.py":  # tries, in a process of its own, what later rooms are made of
            continue
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.ImportFrom) and str(node.module).startswith("largegt."):
                other = str(node.module).split(".")[1]
                allowed = other not in ROOMS or ROOMS.index(other) <= ROOMS.index(room)
                assert allowed, f"{file}:{node.lineno} imports {node.module}"
