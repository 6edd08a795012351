"""Checkpoints: the whole state of a training between two epochs. A resumed run equals an uninterrupted one.

Random number generators are not saved: shuffling and dropout of an epoch are functions of (seed, epoch).
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, Any

import torch
from pydantic import Field, TypeAdapter
from torch.amp.grad_scaler import GradScaler

from largegt.config.schema import TrainConfig
from largegt.errors import FormatError, disk_errors, first_line
from largegt.io.atomic import require_space
from largegt.models.base import NodeModel

from .ema import WeightAverage
from .run_checksums import check_file
from .setup import Accelerator, make_optimizer


@dataclass
class TrainingProgress:
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


@dataclass(frozen=True)
class TrainingState:
    """What training changes, and a checkpoint keeps."""

    model: NodeModel
    optimizer: torch.optim.Optimizer
    scaler: GradScaler
    average: WeightAverage | None = None

    @classmethod
    def make(cls, model: NodeModel, config: TrainConfig, accelerator: Accelerator) -> TrainingState:
        """The state before the first step; the model is moved to its device."""
        accelerator.ranks.attach(model.to(accelerator.device))
        average = WeightAverage(model, config.ema_decay) if config.ema_decay else None
        return cls(model, make_optimizer(model, config, accelerator.device), accelerator.scaler, average)

    def num_bytes(self) -> int:
        """Approximate size of a checkpoint: weights, two moments per parameter, and the moving average if any."""
        moments = 2 * sum(parameter.nbytes for parameter in self.model.parameters() if parameter.requires_grad)
        return self.weight_bytes() * (2 if self.average is not None else 1) + moments

    def weight_bytes(self) -> int:
        return sum(int(tensor.nbytes) for tensor in self.model.state_dict().values())


def save_checkpoint(path: Path, state: TrainingState, progress: TrainingProgress) -> None:
    """Write the whole state of a training to a file."""
    parts: dict[str, Any] = {
        "model": state.model,
        "optimizer": state.optimizer,
        "scaler": state.scaler,
        "average": state.average,
    }
    contents = {name: part.state_dict() for name, part in parts.items() if part is not None}
    with disk_errors(path.parent, state.num_bytes()):
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(path, "wb") as stream:
            try:
                torch.save(contents | {"progress": asdict(progress)}, stream)
            except RuntimeError as error:  # torch.save hides the OSError of a full disk
                if isinstance(error.__context__, OSError):
                    raise error.__context__ from None
                raise


def require_room(folder: Path, state: TrainingState) -> None:
    """Refuse to begin where checkpoints and weights will not fit, each of them beside the one it replaces."""
    there = sum(file.stat().st_size for file in (*folder.glob("checkpoints/*.pt"), *folder.glob("*.safetensors")))
    needed = 2 * (state.weight_bytes() + state.num_bytes()) - there
    require_space(folder, needed, f"training (weights and checkpoints of {folder.name})")


def load_checkpoint(path: Path, state: TrainingState, device: torch.device) -> TrainingProgress:
    """Restore the whole state; no code is run from the file. Of the optimizer only its moments are read: its settings
    are those of the run's configuration, and how it runs is the device's."""
    check_file(path.parents[1], path)
    optimizer = state.optimizer
    try:
        saved: dict[str, Any] = torch.load(path, map_location=device, weights_only=True)
        state.model.load_state_dict(saved["model"])
        own = [{name: value for name, value in group.items() if name != "params"} for group in optimizer.param_groups]
        optimizer.load_state_dict(saved["optimizer"])
        for group, settings in zip(optimizer.param_groups, own, strict=True):
            group.update(settings)
        _check_moments(optimizer)
        if state.average is not None:
            state.average.load_state_dict(saved["average"])
        if saved["scaler"]:  # empty where it was written in another precision
            state.scaler.load_state_dict(saved["scaler"])
        return TypeAdapter(TrainingProgress).validate_python(saved["progress"])
    except Exception as error:
        raise FormatError(
            f"checkpoint {path} cannot be resumed from ({first_line(error)}); train again with `overwrite=True`"
        ) from error


def _check_moments(optimizer: torch.optim.Optimizer) -> None:
    """Refuse moments whose shape differs from their parameter's: the optimizer's kernels do not check."""
    for parameter, moments in optimizer.state.items():
        for name, value in moments.items():
            if not isinstance(value, torch.Tensor) or (value.dim() and value.shape != parameter.shape):
                raise ValueError(f"{name} of the optimizer does not fit its parameter")
