"""The log of a training: metrics.jsonl and .csv, TensorBoard, and Weights & Biases on request. Also reads metrics.json
and metrics.jsonl, and checks all types: a run folder may come from an untrusted source."""

from __future__ import annotations

import csv
import json
import threading
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from largegt.config.schema import Config
from largegt.errors import ConfigError, FormatError, first_line

_LARGEST = 2**63
Number = int | float
Scores = dict[str, Number]


class Entry(BaseModel):
    """An entry of a metrics file. It has the fields of its class; further fields are numbers, text or scores."""

    model_config = ConfigDict(strict=True, extra="allow")
    __pydantic_extra__: dict[str, Number | str | Scores | None]


class EpochEntry(Entry):
    """A line of metrics.jsonl."""

    epoch: int
    train: Scores
    valid: Scores
    train_s: Number
    elapsed_s: Number


class FinalEntry(Entry):
    """metrics.json."""

    model: str
    dataset: str
    seed: int
    num_parameters: int
    best_epoch: int
    epochs: int
    stopped: str
    epoch_time_s: Number
    train_time_s: Number
    peak_gpu_bytes: Number
    num_eval_samples: int
    valid: Scores
    test: Scores


def parse_metrics(file: Path, text: str, kind: type[Entry]) -> dict[str, Any]:
    """Parse and check the entry in `text`, which is one line or all of `file`."""
    try:
        entry: dict[str, Any] = json.loads(text)
        kind.model_validate(entry)
        if any(isinstance(value, int) and abs(value) >= _LARGEST for value in flatten(entry).values()):
            raise ValueError("a number does not fit 64 bits")
    except ValidationError as error:
        wrong = ".".join(str(part) for part in error.errors()[0]["loc"]) or "an object"
        raise FormatError(f"{file} does not say {wrong} as a run does; train again") from None
    except (ValueError, RecursionError) as error:
        raise FormatError(f"{file} is damaged ({first_line(error)}); train again") from error
    return entry


def write_history(folder: Path, history: list[dict[str, Any]]) -> None:
    """Write metrics.jsonl and metrics.csv, one line per epoch."""
    lines = "".join(json.dumps(entry) + "\n" for entry in history)
    (folder / "metrics.jsonl").write_text(lines, encoding="utf-8")
    rows = [flatten(entry) for entry in history]
    with open(folder / "metrics.csv", "w", encoding="utf-8", newline="") as stream:
        writer = csv.DictWriter(stream, fieldnames=list({name: None for row in rows for name in row}))
        writer.writeheader()
        writer.writerows(rows)


class RunLog:
    """TensorBoard, and Weights & Biases if `train.wandb_project` is set. Removes the events of a killed run that are
    later than `epoch`."""

    def __init__(self, path: Path, config: Config, epoch: int) -> None:
        from torch.utils.tensorboard.writer import SummaryWriter

        self.path = path
        self._hook, threading.excepthook = threading.excepthook, self._on_thread_error
        self.board = SummaryWriter(str(path / "tensorboard"), purge_step=epoch + 1)
        self.wandb: Any = None
        if config.train.wandb_project:
            import wandb

            self.wandb = wandb.init(
                project=config.train.wandb_project, name=path.name, dir=str(path), id=path.name,
                resume="allow", config=config.model_dump(mode="json"),
            )  # fmt: skip

    def add(self, entry: dict[str, Any]) -> None:
        """Log one epoch: `{"epoch": …, "train": {…}, "valid": {…}, …}`."""
        flat = flatten(entry)
        for name, value in flat.items():
            if name != "epoch":
                self.board.add_scalar(name.replace(".", "/"), value, entry["epoch"])
        self.board.flush()
        if self.wandb is not None:
            self.wandb.log(flat, step=entry["epoch"])

    def _on_thread_error(self, args: threading.ExceptHookArgs) -> None:
        """Ignore disk errors of TensorBoard's thread: TensorBoard raises them again in the main thread."""
        if not (isinstance(args.exc_value, OSError) and type(args.thread).__module__.startswith("tensorboard.")):
            self._hook(args)

    def close(self) -> None:
        try:
            self.board.close()
        finally:
            threading.excepthook = self._hook
        if self.wandb is not None:
            self.wandb.finish()

    def events(self) -> list[Path]:
        """TensorBoard's files."""
        return sorted(file for file in (self.path / "tensorboard").rglob("*") if file.is_file())


def flatten(entry: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """`{"valid": {"loss": 1}}` → `{"valid.loss": 1}`."""
    flat: dict[str, Any] = {}
    for key, value in entry.items():
        flat |= flatten(value, f"{prefix}{key}.") if isinstance(value, dict) else {prefix + key: value}
    return flat


def check_wandb() -> None:
    """Refuse `train.wandb_project` if Weights & Biases is not installed, before any work is done."""
    if find_spec("wandb") is None:
        raise ConfigError(
            "train.wandb_project is set, but Weights & Biases is not installed: "
            "pip install 'largegt[wandb]', or `train.wandb_project=none`"
        )
