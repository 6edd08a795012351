"""Checkpoints: the whole state of a training between two epochs, so that a resumed run equals an unbroken one.

Randomness needs no saving: shuffling and dropout of an epoch are functions of (seed, epoch).
"""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from ..errors import FormatError, disk_errors, first_line
from .weight_average import WeightAverage

_OF_THE_DEVICE = ("lr", "fused", "foreach", "capturable")
"""How an optimizer runs on its device: not the checkpoint's to say. The step size is set at every step."""


@dataclass
class Progress:
    """How far a training has come."""

    epoch: int = 0
    """Epochs finished."""
    best_score: float | None = None
    best_epoch: int = 0
    stale_epochs: int = 0
    """Epochs since the best."""
    elapsed_s: float = 0.0
    stopped: str = ""
    """Why training ended before its last epoch; empty while it goes on."""


def save_checkpoint(
    path: Path,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    progress: Progress,
    average: WeightAverage | None = None,
) -> None:
    """Write aside and rename: a kill at any moment leaves the old checkpoint or the new one."""
    with disk_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_name(f".{path.name}.partial-{os.getpid()}")
        state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "progress": asdict(progress)}
        if average is not None:
            state["average"] = average.state_dict()
        try:
            torch.save(state, partial)
            os.replace(partial, path)
        finally:
            partial.unlink(missing_ok=True)


def load_checkpoint(
    path: Path,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    device: torch.device,
    average: WeightAverage | None = None,
) -> Progress:
    """Restore all of them; no code is run from the file."""
    try:
        state: dict[str, Any] = torch.load(path, map_location=device, weights_only=True)
        model.load_state_dict(state["model"])
        own = [{name: group.get(name) for name in _OF_THE_DEVICE} for group in optimizer.param_groups]
        optimizer.load_state_dict(state["optimizer"])
        for group, kept in zip(optimizer.param_groups, own, strict=True):
            group.update(kept)
        if average is not None:
            average.load_state_dict(state["average"])
        return Progress(**state["progress"])
    except Exception as error:
        raise FormatError(
            f"checkpoint {path} cannot be resumed from ({first_line(error)}); train again with --overwrite"
        ) from error
