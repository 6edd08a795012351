"""The library's messages name Python arguments; the command line names flags."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from largegt.cli.flags import as_typed

SOURCE = Path(__file__).parents[2] / "src" / "largegt"
SHELL_ONLY = re.compile(r"largegt (inspect|datasets|redis-load) |ray start ")
"""Commands that have no function of the same kind."""
PAGES = ("output.py", "settings.py", "template.py")
"""They show a command to type, or hold a style sheet."""


@pytest.mark.parametrize(
    ("message", "typed"),
    [
        ("choose another `out`, or `overwrite=True`", "choose another --out, or --overwrite"),
        ("give a smaller `memory`", "give a smaller --memory-limit"),
        ("leave `edge_feature_columns` out", "leave --edge-feature-columns out"),
        ("use `layer='output'`", "use --layer output"),
        ("`wait=False` stops", "--no-wait stops"),
        ("use `train.device=cpu`", "use --set train.device=cpu"),
        ("`lg.train('data/g', 'auto')`", "largegt train data/g --recipe auto"),
        ("`lg.train(resume=True, out='runs/a b')` goes on", "largegt train --resume --out 'runs/a b' goes on"),
        ("`lg.append(..., update=True)`", "largegt append --update"),
        ("`lg.ingest(lg.sources.files('e.csv'), out='g')`", "largegt ingest e.csv --out g"),
        ("`lg.GraphStore.open('s3://b/g')`", "largegt inspect s3://b/g"),
        ("`lg.report(['runs/a', 'runs/b'])`", "largegt report runs/a runs/b"),
        # what is no Python stays
        ("`largegt clean` and `train.epochs`", "`largegt clean` and `train.epochs`"),
        ("`lg.train('runs/a` it's", "`lg.train('runs/a` it's"),
    ],
)
def test_python_in_backticks_becomes_what_one_types(message: str, typed: str) -> None:
    assert as_typed(message) == typed


def _strings(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """The line and the text of each string that is no docstring, whose parts are put together."""
    docstrings = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    parts = {id(part) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in node.values}
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            texts = [part.value if isinstance(part, ast.Constant) else "…" for part in node.values]
            yield node.lineno, "".join(map(str, texts))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and not {id(node)} & (docstrings | parts):
            yield node.lineno, node.value


def test_no_message_of_the_library_names_a_flag() -> None:
    files = [file for file in SOURCE.rglob("*.py") if "cli" not in file.parts and file.name not in PAGES]
    assert len(files) > 100
    for file in files:
        for line, text in _strings(ast.parse(file.read_text(encoding="utf-8"))):
            if not SHELL_ONLY.search(text):
                assert not re.search(r"(?<![\w-])--[a-z]", text), f"{file}:{line}: {text}"
