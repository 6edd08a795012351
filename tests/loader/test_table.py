"""TokenTable: the same batches from every place, and which place is taken."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from largegt.config.schema import Config, LocalNodesConfig, PositionalEncodingConfig, PrepareConfig, TokensConfig
from largegt.errors import ConfigError
from largegt.loader import table as module
from largegt.loader.batch import TokenBatch
from largegt.loader.loader import TokenLoader, token_batches
from largegt.loader.pinned_gather import pinned
from largegt.loader.table import TokenTable, choose_place
from largegt.preprocessing.pipeline import prepare
from largegt.preprocessing.prepared import Prepared
from largegt.training.evaluate import evaluate
from largegt.training.trainer import train
from largegt.types import TablePlace
from run_helpers import logged

CPU, GPU = torch.device("cpu"), torch.device("cuda")


@pytest.fixture(params=["float32", "float16"])
def prepared(make_store: Any, random_edges: Any, request: pytest.FixtureRequest) -> Prepared:
    store = make_store(random_edges(300, 900), 300, labels=np.arange(300) % 4)
    config = PrepareConfig(
        local_nodes=LocalNodesConfig(k=9),
        positional_encoding=PositionalEncodingConfig(dim=5),
        tokens=TokensConfig(dtype=request.param),
    )
    return prepare(store, config)


def larger_than_memory(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(module, "available_bytes", lambda: 0)


def same(found: TokenBatch, expected: TokenBatch) -> bool:
    return len(found.tensors()) == len(expected.tensors()) and all(
        a.dtype == b.dtype and torch.equal(a, b) for a, b in zip(found.tensors(), expected.tensors(), strict=True)
    )


def plain_batches(prepared: Prepared, distinct: bool) -> list[TokenBatch]:
    """What a table gives whose rows are indexed in place: the way that test_loader.py holds against the double loop."""
    return list(token_batches(prepared, batch_size=70, seed=3, distinct=distinct, table="pinned"))


@pytest.mark.parametrize("distinct", [False, True])
@pytest.mark.parametrize("is_large", [False, True])
def test_disk_gives_the_same_batches_as_memory(
    prepared: Prepared, distinct: bool, is_large: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = plain_batches(prepared, distinct)
    tokens = prepared.tokens[prepared.local_rows[prepared.rows_of(expected[0].nodes.numpy())], 0].astype(np.float32)
    if not distinct:
        assert np.array_equal(expected[0].tokens[:, ::3].numpy(), tokens)
    if is_large:
        larger_than_memory(monkeypatch)
    found = list(token_batches(prepared, batch_size=70, seed=3, distinct=distinct, table="mmap"))
    assert len(found) == len(expected) == 5
    assert all(same(a, b) for a, b in zip(found, expected, strict=True))


@pytest.mark.parametrize("place", ["pinned", "mmap"])
def test_other_local_rows_replace_some_and_leave_the_first_table(prepared: Prepared, place: TablePlace) -> None:
    loader = TokenLoader(TokenTable(prepared, place=place), CPU)
    rows = torch.arange(0, 300, 3)
    before = loader.gather(rows)
    drawn, is_neighbor = np.asarray(prepared.local_rows)[:, ::-1][5:45].copy(), np.zeros((40, 9), dtype=bool)
    other = replace(loader, table=loader.table.with_local_rows(np.arange(5, 45), drawn, is_neighbor))
    after = other.gather(rows)
    changed = (rows >= 5) & (rows < 45)
    assert torch.equal(after.tokens[~changed], before.tokens[~changed])
    expected = prepared.tokens[drawn[rows[changed].numpy() - 5]].reshape(int(changed.sum()), 27, 4)
    assert np.array_equal(after.tokens[changed].numpy(), expected.astype(np.float32))
    assert not after.is_neighbor[changed].any()
    assert torch.equal(after.is_neighbor[~changed], before.is_neighbor[~changed])
    assert same(loader.gather(rows), before)


def test_host_is_a_copy_and_disk_is_the_file(prepared: Prepared) -> None:
    mapped = prepared.tokens.ctypes.data
    assert TokenTable(prepared, place="mmap").tokens_rhd.data_ptr() == mapped
    assert TokenTable(prepared, place="pinned").tokens_rhd.data_ptr() != mapped


def test_a_row_that_is_not_there_is_no_silent_neighbour(prepared: Prepared) -> None:
    with pytest.raises(AssertionError):
        TokenTable(prepared, place="mmap").tokens_of(torch.tensor([[0, 10_000]]))


@pytest.mark.parametrize(
    ("device", "gpu_free", "host_free", "expected"),
    [(CPU, 0, 10**9, "mmap"), (GPU, 200, 0, "cuda"), (GPU, 120, 300, "pinned"), (GPU, 120, 150, "mmap")],
)
def test_auto_takes_the_first_with_room(
    device: torch.device, gpu_free: int, host_free: int, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (gpu_free, 1000))
    monkeypatch.setattr(module, "available_bytes", lambda: host_free)
    assert choose_place("auto", 100, device) == expected


@pytest.mark.parametrize(
    ("place", "device", "advice"),
    [("cuda", CPU, "auto"), ("cuda", GPU, "pinned"), ("pinned", GPU, "mmap"), ("pinned", CPU, "mmap")],
)
def test_a_place_without_room_is_refused_with_what_to_do(
    place: TablePlace, device: torch.device, advice: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (50, 1000))
    monkeypatch.setattr(module, "available_bytes", lambda: 60)
    with pytest.raises(ConfigError, match=rf"train\.token_table={place}.*`train\.token_table={advice}`"):
        choose_place(place, 100, device)


def test_memory_that_cannot_be_pinned_is_used_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> int:
        raise RuntimeError("out of memory\nand more")

    monkeypatch.setattr(torch.cuda, "cudart", lambda: SimpleNamespace(cudaHostRegister=refuse))
    host = torch.ones(4, 3, 2)
    with logged(r"could not be pinned \(out of memory\): they stay"):
        assert pinned(host, CPU) is host


def test_training_is_the_same_from_every_place(prepared: Prepared, tmp_path: Path) -> None:
    def losses(place: str) -> list[Any]:
        config = Config.from_recipe(
            "base", ["model.hidden_dim=8", "train.epochs=2", "train.device=cpu", f"train.token_table={place}"]
        )
        run = train(prepared, config, tmp_path / place)
        return [entry[split]["loss"] for entry in run.history for split in ("train", "valid")]

    assert losses("pinned") == losses("mmap") == losses("auto")
    with pytest.raises(ConfigError, match=r"train\.token_table=auto"):
        losses("cuda")
    assert not (tmp_path / "cuda").exists(), "refused before anything is written"


@pytest.mark.slow
def test_a_run_may_be_scored_and_resumed_with_another_table(prepared: Prepared, tmp_path: Path) -> None:
    settings = ["model.hidden_dim=8", "train.epochs=1", "train.device=cpu"]
    run = train(prepared, Config.from_recipe("base", [*settings, "train.token_table=pinned"]), tmp_path / "run")
    file = run.path / "config.toml"
    file.write_text(
        file.read_text().replace('token_table = "pinned"', 'token_table = "cuda"')
    )  # as if it came from another machine
    (run.path / "checksums.json").unlink()
    assert evaluate(run.path, device="cpu") == run.metrics["test"]
    train(prepared, Config.from_recipe("base", [*settings, "train.token_table=mmap"]), run.path, resume=True)


def test_tokens_leave_in_the_form_asked_for() -> None:
    from largegt.loader.table import TokenForm

    form = TokenForm(torch.bfloat16, 4)
    assert [form.width(width) for width in (1, 3, 4, 5, 8)] == [1, 3, 4, 8, 8]
    rows = torch.randn(7, 3, 5)
    made = form.cast(rows)
    assert made.shape == (7, 3, 8)
    assert torch.equal(made[..., :5], rows.bfloat16())
    assert not made[..., 5:].any()
    assert torch.equal(form.cast_table(rows, torch.device("cpu")), made)
    assert TokenForm().cast(rows).data_ptr() == rows.data_ptr() or torch.equal(TokenForm().cast(rows), rows)
