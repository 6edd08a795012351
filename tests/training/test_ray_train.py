"""The same training on two workers of a Ray cluster."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from largegt.data.store import GraphStore
from largegt.errors import ConfigError
from largegt.training.trainer import train
from run_helpers import final, history, left_in, small

pytest.importorskip("ray.train.torch", reason="Ray Train is not installed", exc_type=ImportError)

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.filterwarnings("ignore::DeprecationWarning:ray.data.context"),  # Ray reads its own deprecated settings
]

STILL = ("model.dropout=0", "model.encoder_dropout=0", "train.batch_size=37")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    import ray

    source = str(Path(__file__).parents[2] / "src")
    ray.init(
        address="local", num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="ERROR",
        runtime_env={"env_vars": {"PYTHONPATH": source, "OMP_NUM_THREADS": "1"}},
    )  # fmt: skip
    yield
    ray.shutdown()


def test_two_workers_do_as_one_process(store: GraphStore, cluster: Any, tmp_path: Path) -> None:
    from largegt.training.ray_train import train_on_ray

    one = train(store, small(*STILL), tmp_path / "one")
    two = train_on_ray(store, small(*STILL), tmp_path / "two", devices=2)
    for mine, theirs in zip(history(one.path), history(two.path), strict=True):
        assert theirs["train"] == pytest.approx(mine["train"], rel=2e-5)
        assert theirs["valid"] == pytest.approx(mine["valid"], rel=2e-4)
    assert final(two.path)["devices"] == 2
    assert sorted(name for name in left_in(tmp_path) if "/" not in name) == ["one", "two"]


def test_what_a_user_can_mend_is_said_once(store: GraphStore, cluster: Any, tmp_path: Path) -> None:
    from largegt.training.ray_train import train_on_ray

    with pytest.raises(ConfigError, match=r"train\.monitor=loose is no metric"):
        train_on_ray(store, small("train.monitor=loose"), tmp_path / "run", devices=1)
    with pytest.raises(ConfigError, match="the Ray cluster has 2 cores"):
        train_on_ray(store, small(), tmp_path / "run", devices=3)
