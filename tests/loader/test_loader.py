"""The loader: which nodes, in which order, and with what in their batches."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from largegt.config.models import model_config
from largegt.config.schema import LocalNodesConfig, PositionalEncodingConfig, PrepareConfig, TokensConfig
from largegt.errors import InputError, LargeGTError
from largegt.loader import table as table_module
from largegt.loader.loader import TokenLoader, token_batches
from largegt.loader.table import TokenTable
from largegt.models.largegt.model import LargeGT
from largegt.preprocessing.pipeline import prepare
from largegt.preprocessing.prepared import Prepared
from oracles import input_tokens as oracle


@pytest.fixture
def prepared(make_store: Any, random_edges: Any) -> Prepared:
    """60 nodes of which 40 have a label; K = 7, so that some rows have repetitions and some have none."""
    labels = np.arange(60) % 4
    labels[labels == 3] = -1
    labels[50:] = -1
    labels[[58, 59]] = 1  # the two isolated ones
    store = make_store(random_edges(60, 60), 60, labels=labels)
    return prepare(
        store, PrepareConfig(local_nodes=LocalNodesConfig(k=7), positional_encoding=PositionalEncodingConfig(dim=5))
    )


def nodes_of(batches: Any) -> list[int]:
    return [int(v) for batch in batches for v in batch.nodes]


def test_a_batch_holds_what_prepared_holds(prepared: Prepared) -> None:
    batches = list(token_batches(prepared, batch_size=16))
    tokens = oracle.input_tokens(prepared.local_rows, prepared.tokens[:, 0], prepared.tokens[:, 1:])
    assert torch.equal(torch.cat([b.tokens for b in batches]), torch.from_numpy(tokens))
    assert torch.equal(torch.cat([b.positions for b in batches]), torch.from_numpy(np.array(prepared.positions)))
    assert torch.cat([b.labels for b in batches]).tolist() == prepared.labels.tolist()
    assert nodes_of(batches) == prepared.nodes.tolist()
    assert all(b.multiplicity is None and b.nodes.dtype == torch.int64 for b in batches)


@pytest.mark.parametrize("batch_size", [1, 7, 16, 1000])
@pytest.mark.parametrize("seed", [None, 3])
@pytest.mark.parametrize("distinct", [False, True])
def test_every_node_comes_exactly_once(prepared: Prepared, batch_size: int, seed: int | None, distinct: bool) -> None:
    batches = list(token_batches(prepared, batch_size=batch_size, seed=seed, distinct=distinct))
    assert sorted(nodes_of(batches)) == prepared.nodes.tolist()
    full, rest = divmod(len(prepared.nodes), batch_size)
    assert [len(b) for b in batches] == [batch_size] * full + [rest] * (rest > 0)


def test_shuffling_is_a_function_of_seed_and_epoch(prepared: Prepared) -> None:
    def order(**key: int) -> list[int]:
        return nodes_of(token_batches(prepared, split="train", batch_size=5, **key))

    assert order(seed=1, epoch=2) == order(seed=1, epoch=2)
    orders = [order(seed=seed, epoch=epoch) for seed in (0, 1) for epoch in (0, 1)]
    assert len({tuple(o) for o in orders}) == 4
    assert order() == sorted(order()), "in order without a seed"
    assert order(seed=0) != sorted(order())


@pytest.mark.parametrize("split", ["train", "valid", "test"])
def test_a_split_holds_its_nodes_alone(prepared: Prepared, split: str) -> None:
    expected = prepared.nodes[prepared.split_rows(split)]
    assert len(expected) > 3
    assert nodes_of(token_batches(prepared, split=split, batch_size=4)) == expected.tolist()


def test_given_nodes_come_in_the_order_given(prepared: Prepared) -> None:
    assert nodes_of(token_batches(prepared, nodes=[59, 0, 5], batch_size=2)) == [59, 0, 5]
    batch = next(token_batches(prepared, nodes=np.array([5])))
    assert batch.tokens.shape == (1, 21, 4)
    row = int(prepared.rows_of(np.array([5]))[0])
    assert torch.equal(batch.tokens[0, ::3], torch.from_numpy(prepared.tokens[prepared.local_rows[row], 0]))
    assert list(token_batches(prepared, nodes=[])) == []


def test_a_node_without_a_row_is_refused_at_once(prepared: Prepared) -> None:
    with pytest.raises(InputError, match="node 3 was not prepared"):
        token_batches(prepared, nodes=[0, 3])
    with pytest.raises(InputError, match="node 1000 "):
        token_batches(prepared, nodes=[1000])
    with pytest.raises(InputError, match="split"):
        token_batches(prepared, split="holdout")


def test_a_mask_is_not_taken_for_node_numbers(prepared: Prepared) -> None:
    mask = np.zeros(60, dtype=bool)
    mask[[5, 6]] = True
    assert nodes_of(token_batches(prepared, nodes=mask)) == [5, 6]


@pytest.mark.parametrize("bad", [{"batch_size": 0}, {"batch_size": -1}, {"seed": -1}])
def test_impossible_settings_are_one_line_errors(prepared: Prepared, bad: dict[str, int]) -> None:
    with pytest.raises(LargeGTError):
        list(token_batches(prepared, **bad))


def test_fewer_local_nodes_are_the_first_ones(prepared: Prepared) -> None:
    table = TokenTable(prepared)
    whole = TokenLoader(table, torch.device("cpu")).gather(torch.arange(9))
    few = TokenLoader(table, torch.device("cpu"), k=3).gather(torch.arange(9))
    assert torch.equal(few.tokens, whole.tokens[:, :9])
    alone = TokenLoader(table, torch.device("cpu"), k=1, distinct=True).gather(torch.arange(9))
    assert torch.equal(alone.tokens, whole.tokens[:, :3])
    assert TokenLoader(table, torch.device("cpu")).num_batches(9, 4) == len(list(torch.arange(9).split(4)))


@pytest.mark.parametrize("place", ["pinned", "mmap"])
@pytest.mark.parametrize("is_large", [False, True])
@pytest.mark.parametrize(("k", "hops", "rows"), [(1, 0, "all"), (1, 3, "sampled"), (5, 1, "all"), (5, 0, "sampled")])
def test_tables_of_any_number_of_hops(
    make_store: Any, random_edges: Any, k: int, hops: int, rows: Any, place: Any, is_large: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    labels = np.where(np.arange(60) % 3, -1, np.arange(60) % 2)
    config = PrepareConfig(
        local_nodes=LocalNodesConfig(k=k),
        tokens=TokensConfig(num_hops=hops, precompute_for=rows),
        positional_encoding=PositionalEncodingConfig(method="none"),
    )
    prepared = prepare(make_store(random_edges(60, 60), 60, labels=labels), config)
    if is_large:
        monkeypatch.setattr(table_module, "available_bytes", lambda: 10**9 if place == "pinned" else 0)
    batches = list(token_batches(prepared, batch_size=7, table=place))
    expected = prepared.tokens[prepared.local_rows].reshape(20, k * (hops + 1), 4)
    assert np.array_equal(torch.cat([b.tokens for b in batches]).numpy(), expected)
    distinct = list(token_batches(prepared, batch_size=7, table=place, distinct=True))
    assert all((b.multiplicity is None) == (k == 1) for b in distinct)
    assert all(b.positions.shape == (len(b), 0) for b in batches)


def test_leaving_a_loop_early_ends_the_worker(prepared: Prepared) -> None:
    batches = token_batches(prepared, batch_size=3)
    next(batches)
    batches.close()
    assert list(batches) == []


@pytest.mark.parametrize("num_layers", [1, 2])
@pytest.mark.parametrize("name", ["largegt-local", "largegt-full"])
@pytest.mark.parametrize("batch_size", [1, 13, 60])
def test_distinct_tokens_give_the_same_logits(prepared: Prepared, num_layers: int, name: Any, batch_size: int) -> None:
    torch.manual_seed(0)
    codebook = {"codebook": {"num_centroids": 8, "dim": 6}} if name == "largegt-full" else {}
    config = model_config(name, hidden_dim=16, num_layers=num_layers, **codebook)
    model = LargeGT.for_prepared(prepared, config).eval()

    def logits(distinct: bool) -> torch.Tensor:
        found = {}
        for batch in token_batches(prepared, batch_size=batch_size, distinct=distinct, seed=1):
            with torch.no_grad():
                output = model(batch)
            assert torch.equal(output.nodes, batch.nodes)
            found.update(zip(batch.nodes.tolist(), output.logits, strict=True))
        return torch.stack([found[node] for node in sorted(found)])

    plain, merged = logits(False), logits(True)
    assert plain.std() > 1e-2
    torch.testing.assert_close(merged, plain, atol=1e-5, rtol=1e-5)


def test_distinct_batches_are_smaller_and_keep_rows_together(prepared: Prepared) -> None:
    plain = {int(b.nodes[0]): b for b in token_batches(prepared, batch_size=1)}
    merged = list(token_batches(prepared, batch_size=10, distinct=True))
    alone = list(token_batches(prepared, batch_size=1, distinct=True))
    assert sum(b.tokens.numel() for b in alone) < 0.9 * sum(b.tokens.numel() for b in plain.values())
    for batch in merged:
        assert batch.multiplicity is not None
        assert (batch.multiplicity.sum(dim=1) == prepared.k).all()
        lengths = (batch.multiplicity > 0).sum(dim=1).tolist()
        assert lengths == sorted(lengths)
        for row, node in enumerate(batch.nodes.tolist()):
            expected = plain[node]
            assert batch.labels[row] == expected.labels[0]
            assert torch.equal(batch.positions[row], expected.positions[0])
            assert torch.equal(batch.tokens[row, :3], expected.tokens[0, :3])
            spread = batch.tokens[row].view(-1, 3, 4).repeat_interleave(batch.multiplicity[row].long(), dim=0)
            assert sorted(spread.flatten(1).tolist()) == sorted(expected.tokens[0].view(-1, 12).tolist())
