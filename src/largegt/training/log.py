"""Where a training writes what happened: metrics.jsonl and .csv, TensorBoard, and Weights & Biases on request."""

from __future__ import annotations

import csv
import io
import json
import threading
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from ..config import Config
from ..errors import ConfigError, LargeGTError
from .checksums import note_all, put_text


class RunLog:
    """One line per epoch, everywhere. Opening it at epoch e forgets lines of epochs after e (a killed run's). One that
    does not write only remembers."""

    def __init__(
        self, path: Path, config: Config, history: list[dict[str, Any]], epoch: int, writes: bool = True
    ) -> None:
        self.path, self.writes = path, writes
        self.history = [entry for entry in history if entry["epoch"] <= epoch]
        if not writes:
            return
        from torch.utils.tensorboard.writer import SummaryWriter

        self._write()
        self._hook, threading.excepthook = threading.excepthook, self._on_thread_error
        self.board = SummaryWriter(str(path / "tensorboard"), purge_step=epoch + 1)
        self.wandb = _wandb(config, path) if config.train.wandb else None

    def add(self, entry: dict[str, Any]) -> None:
        """Log one epoch: `{"epoch": …, "train": {…}, "valid": {…}, …}`."""
        self.history.append(entry)
        if not self.writes:
            return
        self._write()
        flat = flatten(entry)
        for name, value in flat.items():
            if name != "epoch":
                self.board.add_scalar(name.replace(".", "/"), value, entry["epoch"])
        self.board.flush()
        if self.wandb is not None:
            self.wandb.log(flat, step=entry["epoch"])

    def _on_thread_error(self, args: threading.ExceptHookArgs) -> None:
        """TensorBoard's thread raises its errors in ours too: there they are told, once."""
        if not (isinstance(args.exc_value, OSError) and type(args.thread).__module__.startswith("tensorboard.")):
            self._hook(args)

    def close(self) -> None:
        if not self.writes:
            return
        try:
            self.board.close()
        finally:
            threading.excepthook = self._hook
        with suppress(LargeGTError, OSError):  # what is not noted is not checked, and nothing is made from it
            note_all(self.path, sorted(file for file in (self.path / "tensorboard").rglob("*") if file.is_file()))
        if self.wandb is not None:
            self.wandb.finish()

    def _write(self) -> None:
        put_text(self.path, self.path / "metrics.jsonl", "".join(json.dumps(entry) + "\n" for entry in self.history))
        rows = [flatten(entry) for entry in self.history]
        stream = io.StringIO(newline="")
        writer = csv.DictWriter(stream, fieldnames=list({name: None for row in rows for name in row}) or ["epoch"])
        writer.writeheader()
        writer.writerows(rows)
        put_text(self.path, self.path / "metrics.csv", stream.getvalue())


def flatten(entry: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """`{"valid": {"loss": 1}}` → `{"valid.loss": 1}`."""
    flat: dict[str, Any] = {}
    for key, value in entry.items():
        if isinstance(value, dict):
            flat |= flatten(value, f"{prefix}{key}.")
        else:
            flat[prefix + key] = value
    return flat


def check_wandb() -> None:
    """Refuse early where Weights & Biases is wanted and not installed."""
    if find_spec("wandb") is None:
        raise ConfigError(
            "train.wandb is set, but Weights & Biases is not installed: "
            "pip install 'largegt[wandb]', or --set train.wandb=none"
        )


def _wandb(config: Config, path: Path) -> Any:
    import wandb

    return wandb.init(
        project=config.train.wandb, name=path.name, dir=str(path), config=config.model_dump(mode="json"),
        id=path.name, resume="allow",
    )  # fmt: skip
