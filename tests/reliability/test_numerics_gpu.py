"""Losses that are no numbers, where steps are recorded and nobody waits for them. Skipped where there is no GPU."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

import largegt as lg
from largegt.errors import ConfigError
from largegt.runtime.distributed import ALONE
from largegt.training.nan_check import Losses

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


@pytest.mark.parametrize("num_steps", [1, 63, 64, 65, 200])
@pytest.mark.parametrize("bad", [None, 0, 62, 150])
def test_losses_of_a_replayed_graph_come_in_order(num_steps: int, bad: int | None) -> None:
    losses, loss = Losses(torch.device("cuda"), ALONE), torch.zeros((), device="cuda")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        losses.add(loss)
    losses.restart()
    given = torch.rand(num_steps)
    if bad is not None and bad < num_steps:
        given[bad] = torch.nan
    for number, value in enumerate(given.tolist()):
        loss.fill_(value)
        graph.replay()
        found = losses.look()
        assert not found or (bad is not None and number >= bad)
        if found:
            break
        assert bad is None or number < bad + 128
    np.testing.assert_array_equal(losses.finish(), given.double()[: number + 1])


def store_with(folder: Path, scale: float, huge: int | None = None) -> lg.GraphStore:
    """Pairs of nodes, of which one may have features that no float32 network takes."""
    rng = np.random.default_rng(0)
    features = (scale * rng.normal(size=(800, 8))).astype(np.float32)
    if huge is not None:
        features[huge] = 1e30
    pairs = np.stack([np.arange(0, 800, 2), np.arange(1, 800, 2)])
    source = lg.sources.arrays(
        pairs, features, np.arange(800) % 3, {"train": np.arange(700), "valid": np.arange(700, 800)}
    )
    return lg.ingest(source, folder / "g", lg.IngestConfig(undirected=True))


SETTINGS = (
    "prepare.local_nodes.k=8", "prepare.tokens.standardize=false", "model.hidden=32", "train.epochs=2",
    "train.batch_size=4", "train.device=cuda", "prepare.tokens.degrees=false",
)  # fmt: skip


@pytest.mark.parametrize("compile", ["no", "yes"])
def test_the_first_bad_step_is_named(compile: str, tmp_path: Path) -> None:
    """Recorded steps (`yes`) and steps as they come. Compiled norms make zeros of what is too large: the weights are
    spoilt by that step all the same, and a loss within the next ones is."""
    store = store_with(tmp_path, 1.0, huge=300)
    config = lg.Config.from_recipe("plain", [*SETTINGS, f"train.compile={compile}", "train.precision=32-true"])
    order = np.random.default_rng([0, 0]).permutation(700)
    step = 1 + int(np.flatnonzero(order // 2 == 150)[0]) // 4
    with pytest.raises(ConfigError, match=r"the loss of step \d+ in epoch 1 .* as large as") as caught:
        lg.train(store, config, tmp_path / "run")
    told = int(str(caught.value).split("step ")[1].split()[0])
    assert step <= told <= step + (3 if compile == "yes" else 0)


def test_float16_overflow_says_so(tmp_path: Path) -> None:
    config = lg.Config.from_recipe("plain", [*SETTINGS, "train.precision=16-mixed"])
    with pytest.raises(ConfigError, match=r"float16 ends at 65504 .* --set train.precision=bf16-mixed"):
        lg.train(store_with(tmp_path, 1e6), config, tmp_path / "run")
