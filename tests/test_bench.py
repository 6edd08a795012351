"""Programs in bench/ and examples/ name what the package has."""

from __future__ import annotations

import ast
from importlib import import_module
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PROGRAMS = sorted([*(ROOT / "bench").rglob("*.py"), *(ROOT / "examples").rglob("*.py"), *(ROOT / "docs").rglob("*.py")])


@pytest.mark.parametrize("file", PROGRAMS, ids=lambda file: str(file.relative_to(ROOT)))
def test_what_a_program_imports_is_there(file: Path) -> None:
    """Also inside functions, which no other test may reach."""
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            for name in (alias.name for alias in node.names if alias.name.startswith("largegt")):
                import_module(name)
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "largegt":
            module = import_module(str(node.module))
            for alias in node.names:
                if not hasattr(module, alias.name):
                    import_module(f"{node.module}.{alias.name}")
