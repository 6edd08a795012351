"""docs/paper-map.md names code that exists."""

from __future__ import annotations

import re
from functools import reduce
from importlib import import_module
from pathlib import Path
from typing import Any

PAGE = Path(__file__).parent.parent.parent / "docs" / "paper-map.md"


def test_code_of_each_line_exists() -> None:
    _, lines = PAGE.read_text(encoding="utf-8").split("## Line by line")
    names = re.findall(r"`((?:model|tokens)\.[\w.]+)`", lines.split("## ")[0])
    assert len(names) > 10
    for name in names:
        package, module, *attributes = name.split(".")
        found: Any = reduce(getattr, attributes, import_module(f"largegt.{package}.{module}"))
        assert callable(found), name
