"""ruff, mypy --strict and bandit are part of the tests."""

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
