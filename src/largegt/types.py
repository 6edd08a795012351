"""Type aliases of all stages."""

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
    """The directions of a store's neighbour lists; an undirected store has one list for all."""
    return ("out", "in", "both") if directed else ("out",)


MISSING_MARKERS = (
    "NA", "N/A", "n/a", "#N/A", "<NA>", "NaN", "nan", "NaT", "NULL", "null", "None", "none", "nil", "\\N", "?", "-",
)  # fmt: skip
"""Table cells that mean a missing feature or label, in addition to empty cells."""
