"""Short names for the types that every stage passes around."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import numpy.typing as npt

Array = npt.NDArray[Any]
PathLike = str | Path
Direction = Literal["out", "in", "both"]
OPPOSITE: dict[Direction, Direction] = {"out": "in", "in": "out", "both": "both"}
Task = Literal["multiclass", "binary", "multilabel", "regression"]
Normalization = Literal["per_feature", "global", "none", "auto"]
TablePlace = Literal["auto", "cuda", "pinned", "mmap"]
SplitName = Literal["train", "valid", "test"]


def sides_of(directed: bool) -> tuple[Direction, ...]:
    """The directions that a store has lists for: without directions they are all one."""
    return ("out", "in", "both") if directed else ("out",)


MISSING_MARKERS = (
    "NA", "N/A", "n/a", "#N/A", "<NA>", "NaN", "nan", "NaT", "NULL", "null", "None", "none", "nil", "\\N", "?", "-",
)  # fmt: skip
"""Cells of a table that stand for a missing feature or label, beside empty ones."""
