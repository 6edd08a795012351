"""docs/paper-map.md names code that exists, and the two halves of the forward are the forward."""

from __future__ import annotations

import re
from functools import reduce
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch
from model_batches import make_batch

import largegt as lg

PAGE = Path(__file__).parent.parent.parent / "docs" / "paper-map.md"


def test_code_of_each_line_exists() -> None:
    _, lines = PAGE.read_text(encoding="utf-8").split("## Line by line")
    names = re.findall(r"`((?:model|tokens)\.[\w.]+)`", lines.split("## ")[0])
    assert len(names) > 10
    for name in names:
        package, module, *attributes = name.split(".")
        found: Any = reduce(getattr, attributes, import_module(f"largegt.{package}.{module}"))
        assert callable(found), name


@pytest.mark.parametrize("name", ["largegt-full", "largegt-local", "largegt-global"])
def test_forward_is_encode_of_embed(name: Any) -> None:
    model = lg.LargeGT(5, 3, 50, 3, lg.ModelConfig(name=name, hidden=8)).double().eval()
    batch = make_batch()
    logits, hidden = model.encode(model.embed(batch))
    output = model(batch)
    assert torch.equal(logits, output.logits)
    assert torch.equal(hidden, output.hidden)
