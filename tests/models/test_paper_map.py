"""docs/paper-map.md names code that exists."""

from __future__ import annotations

import re
from pathlib import Path
from pkgutil import resolve_name

ROOT = Path(__file__).parent.parent.parent
PAGE = ROOT / "docs" / "paper-map.md"


def test_code_of_each_line_exists() -> None:
    _, lines = PAGE.read_text(encoding="utf-8").split("## Line by line")
    names = re.findall(r"`((?:models|loader)\.[\w.]+)`", lines.split("\n## ")[0])
    assert len(names) > 10
    for name in names:
        assert callable(resolve_name(f"largegt.{name}")), name


def test_each_file_exists() -> None:
    paths = re.findall(r"`((?:\w+/)+[\w.]*)`", PAGE.read_text(encoding="utf-8"))
    assert len(paths) > 20
    missing = [path for path in paths if not (ROOT / "src" / "largegt" / path).exists() and not (ROOT / path).exists()]
    assert not missing
