"""What metrics.json and metrics.jsonl of a run must hold. A run folder may come from a stranger, so types are checked.

Enters: the text of an object. Leaves: the object, whose numbers are floats or 64-bit integers. Entries that are not
listed here are numbers, text or null.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..errors import FormatError, first_line
from .log import flatten

_NUMBER = int | float
FINAL: Mapping[str, Any] = {
    "model": str, "dataset": str, "seed": int, "num_parameters": int, "best_epoch": int, "epochs": int, "stopped": str,
    "epoch_time_s": _NUMBER, "train_time_s": _NUMBER, "peak_gpu_bytes": _NUMBER, "draws": int, "valid": dict,
    "test": dict,
}  # fmt: skip
EPOCH: Mapping[str, Any] = {
    "epoch": int, "train": dict, "valid": dict, "train_s": _NUMBER, "elapsed_s": _NUMBER,
}  # fmt: skip
_LARGEST = 2**63


def parse_metrics(file: Path, text: str, kinds: Mapping[str, Any]) -> dict[str, Any]:
    """The entry in `text`, with everything that `kinds` lists."""
    try:
        entry = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise FormatError(f"{file} is damaged ({first_line(error)}); train again") from error
    if not isinstance(entry, dict):
        raise FormatError(f"{file} is damaged: expected an object, found {type(entry).__name__}; train again")
    wrong = [name for name, kind in kinds.items() if not _is(entry.get(name), kind)]
    tables = [name for name, kind in kinds.items() if kind is dict and name not in wrong]
    wrong += [f"{name}.{one}" for name in tables for one, value in entry[name].items() if not _is(value, _NUMBER)]
    wrong += [name for name, value in flatten(entry).items() if not _is(value, _NUMBER | str | None)]
    if wrong:
        raise FormatError(f"{file} does not say {wrong[0]} as a run does; train again")
    return entry


def _is(value: Any, kind: Any) -> bool:
    """Whether a value is of this kind; true and false are no numbers."""
    return isinstance(value, kind) and not isinstance(value, bool) and not _is_too_large(value)


def _is_too_large(value: Any) -> bool:
    return isinstance(value, int) and abs(value) >= _LARGEST
