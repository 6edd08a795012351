"""Checkpoints: the whole state of a training between two epochs, so that a resumed run equals an unbroken one.

Randomness needs no saving: shuffling and dropout of an epoch are functions of (seed, epoch).
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import IO, Annotated, Any

import torch
from pydantic import Field, TypeAdapter
from torch import nn
from torch.amp.grad_scaler import GradScaler

from ..errors import FormatError, disk_errors, first_line
from ..io.atomic import require_space
from .checksums import check_file
from .weight_average import WeightAverage


@dataclass
class Progress:
    """How far a training has come."""

    epoch: Annotated[int, Field(ge=0, lt=2**31)] = 0
    """Epochs finished."""
    best_valid: dict[str, float] = field(default_factory=dict)
    """Scores of the best epoch on valid; empty where there is nothing to validate on."""
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
    scaler: GradScaler | None = None,
) -> None:
    """Write the whole state of a training to a file."""
    with disk_errors(path.parent, checkpoint_bytes(model, average)):
        path.parent.mkdir(parents=True, exist_ok=True)
        state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "progress": asdict(progress)}
        if average is not None:
            state["average"] = average.state_dict()
        if scaler is not None:
            state["scaler"] = scaler.state_dict()
        _save(state, path)


def checkpoint_bytes(model: nn.Module, average: WeightAverage | None = None) -> int:
    """About how large a checkpoint is: weights, two moments of each parameter, and the average where there is one."""
    held = int(sum(tensor.nbytes for tensor in model.state_dict().values()))
    moments = 2 * sum(parameter.nbytes for parameter in model.parameters() if parameter.requires_grad)
    return held * (2 if average is not None else 1) + moments


def require_room(folder: Path, model: nn.Module, average: WeightAverage | None = None) -> None:
    """Refuse to begin where checkpoints and weights will not fit, each of them beside the one it replaces."""
    weights = sum(tensor.nbytes for tensor in model.state_dict().values())
    there = sum(file.stat().st_size for file in (*folder.glob("checkpoints/*.pt"), *folder.glob("*.safetensors")))
    needed = 2 * (weights + checkpoint_bytes(model, average)) - there
    require_space(folder, needed, f"training (weights and checkpoints of {folder.name})")


def _save(state: dict[str, Any], file: Path) -> None:
    """torch.save, whose own errors do not say that a disk is full."""
    with open(file, "wb") as stream:
        kept = _Kept(stream)
        try:
            torch.save(state, kept)  # type: ignore[arg-type]
        except RuntimeError:
            if kept.error is not None:
                raise kept.error from None
            raise


class _Kept:
    """A stream that remembers why it could not be written to."""

    def __init__(self, stream: IO[bytes]) -> None:
        self.stream = stream
        self.error: OSError | None = None

    def write(self, data: bytes) -> int:
        try:
            return self.stream.write(data)
        except OSError as error:
            self.error = error
            raise

    def flush(self) -> None:
        self.stream.flush()


def load_checkpoint(
    path: Path,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    device: torch.device,
    average: WeightAverage | None = None,
    scaler: GradScaler | None = None,
) -> Progress:
    """Restore all of them; no code is run from the file. Of the optimizer only its moments are read: its settings are
    those of the run's configuration, and how it runs is the device's."""
    check_file(path.parents[1], path)
    try:
        state: dict[str, Any] = torch.load(path, map_location=device, weights_only=True)
        model.load_state_dict(state["model"])
        own = [{name: value for name, value in group.items() if name != "params"} for group in optimizer.param_groups]
        optimizer.load_state_dict(state["optimizer"])
        for group, kept in zip(optimizer.param_groups, own, strict=True):
            group.update(kept)
        _check_moments(optimizer)
        if average is not None:
            average.load_state_dict(state["average"])
        if scaler is not None and state["scaler"]:  # empty where it was written in another precision
            scaler.load_state_dict(state["scaler"])
        return TypeAdapter(Progress).validate_python(state["progress"])
    except Exception as error:
        raise FormatError(
            f"checkpoint {path} cannot be resumed from ({first_line(error)}); train again with --overwrite"
        ) from error


def _check_moments(optimizer: torch.optim.Optimizer) -> None:
    """Refuse moments of another shape than their parameter: kernels do not look."""
    for parameter, moments in optimizer.state.items():
        for name, value in moments.items():
            if not isinstance(value, torch.Tensor) or (value.dim() and value.shape != parameter.shape):
                raise ValueError(f"{name} of the optimizer does not fit its parameter")
