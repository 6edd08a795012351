"""Ray Train: the same training on workers of a Ray cluster. Store and run folder have the same path on every machine;
the store may be at a URL. If a worker is lost, Ray restarts all workers and they resume from the last checkpoint."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from largegt.config.overrides import build
from largegt.config.schema import Config
from largegt.data.store import GraphStore
from largegt.errors import ConfigError, LargeGTError, first_line
from largegt.io.atomic import write_text_atomically
from largegt.io.remote import refuse_url
from largegt.preprocessing.ray_engine import connect
from largegt.runtime.distributed import LostRank
from largegt.types import PathLike

from .launch import resume_advice
from .run import Run
from .trainer import check_out, train

try:
    import ray
    from ray.train import FailureConfig, RunConfig, ScalingConfig
    from ray.train.torch import TorchConfig, TorchTrainer
except ImportError:
    raise ConfigError("a Ray cluster needs Ray: pip install 'largegt[ray]'") from None

_MAX_LOST_WORKERS = 3
"""Lost workers after which the job ends."""
_STEP_LIMIT_S = 120


def train_on_ray(
    store: GraphStore,
    config: Config,
    out: PathLike,
    devices: int = 1,
    address: str | None = None,
    resume: bool = False,
    overwrite: bool = False,
    memory: str | int | None = None,
) -> Run:
    """Train on `devices` workers of the cluster at `address`, of the cluster that this process is connected to, or of a
    new one on this machine. Each worker gets a GPU if the cluster has enough. The rest is as in `train`."""
    refuse_url(out, "a run")
    out = Path(out).absolute()
    check_out(out, config, store, resume, overwrite)
    if overwrite and out.exists():
        shutil.rmtree(out)
    connect(address)
    there = ray.cluster_resources()
    has_gpus = config.train.device != "cpu" and there.get("GPU", 0) >= devices
    if there.get("CPU", 0) < devices:
        raise ConfigError(f"`devices={devices}`, but the Ray cluster has {there.get('CPU', 0):.0f} cores")
    scratch = out.with_name(f".{out.name}.ray")
    shutil.rmtree(scratch, ignore_errors=True)
    refusal = scratch / "refusal.txt"
    job = {
        "store": store.folder.url or str(store.path.absolute()), "version": store.fingerprint, "out": str(out),
        "memory": memory,
        "refusal": str(refusal), "config": config.model_dump(mode="json"),
    }  # fmt: skip
    trainer = TorchTrainer(
        _train_worker,
        train_loop_config=job,
        torch_config=TorchConfig(backend="nccl" if has_gpus else "gloo", timeout_s=_STEP_LIMIT_S),
        scaling_config=ScalingConfig(num_workers=devices, use_gpu=has_gpus),
        run_config=RunConfig(
            name="train", storage_path=str(scratch), failure_config=FailureConfig(max_failures=_MAX_LOST_WORKERS)
        ),
    )
    try:
        trainer.fit()
        if refusal.exists():
            raise ConfigError(refusal.read_text(encoding="utf-8"))
    except LargeGTError:
        raise
    except Exception as error:
        raise LostRank(f"the Ray job ended: {first_line(error)}: {resume_advice(out, devices)}") from error
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return Run.open(out)


def _train_worker(job: dict[str, Any]) -> None:
    """Train on one worker, in the process group that Ray has created. A `LargeGTError` is written to a file instead of
    raised: Ray would retry."""
    try:
        store = GraphStore.open(job["store"], version=job["version"])
        train(store, build(Config, job["config"]), job["out"], resume=True, memory=job["memory"])
    except LargeGTError as error:
        write_text_atomically(Path(job["refusal"]), str(error))
