"""Importing the package is cheap, and its names can be had in every usual way."""

from __future__ import annotations

import subprocess
import sys

import pytest


def run(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_importing_loads_nothing_heavy() -> None:
    heavy = [
        "torch",
        "numba",
        "pyarrow",
        "scipy",
        "pandas",
        "lightning",
        "matplotlib",
        "torchmetrics",
        "tensorboard",
        "numpy",
        "pydantic",
        "typer",
    ]
    assert run(f"import sys, largegt; print([m for m in {heavy} if m in sys.modules])") == "[]"


@pytest.mark.parametrize(
    "line",
    [
        "from largegt.preprocessing.prepared import Prepared",
        "from largegt.prepare import prepared",
        "import largegt.preprocessing.prepared",
        "import importlib; importlib.import_module('largegt.preprocessing.prepared')",
    ],
)
def test_submodules_beside_the_function_of_the_same_name(line: str) -> None:
    """`lg.prepare` is the function; the folder `prepare` can still be imported from."""
    assert run(f"import largegt as lg; lg.prepare; {line}; print(callable(lg.prepare))") == "True"
