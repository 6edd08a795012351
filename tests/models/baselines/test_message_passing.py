"""GraphSAGE, GAT and GT-sparse: against loops, against PyTorch Geometric, and layer by layer against one block."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from largegt.config.models import GATConfig
from largegt.config.schema import TrainConfig
from largegt.models.base import DataShape
from largegt.models.baselines.batch import NeighborBatch
from largegt.models.baselines.gat import GAT, GatLayer
from largegt.models.baselines.graphsage import GraphSAGE, SageLayer
from largegt.models.baselines.gt_sparse import GTSparse, TransformerLayer
from largegt.models.baselines.layerwise import layerwise
from largegt.models.baselines.message_passing import (
    MessagePassing,
    is_less_projected,
    over_neighbors,
)  # fmt: skip
from largegt.models.baselines.neighbors import Block, NeighborSampler
from largegt.training.setup import make_optimizer
from oracles import convolutions as oracle

MODELS = [GraphSAGE, GAT, GTSparse]


def config_of(**settings: Any) -> GATConfig:
    """Small, with every setting that one of the models reads."""
    return GATConfig(**{"hidden_dim": 8, "norm": "none", "fanouts": (-1, -1), **settings})


def block_of(neighbors: list[list[int]], num_inputs: int) -> Block:
    indptr = np.cumsum([0, *map(len, neighbors)])
    source = torch.tensor([j for around in neighbors for j in around], dtype=torch.int64)
    return Block(torch.from_numpy(indptr), source, num_inputs)


def even(seed: int = 0) -> tuple[list[list[int]], int]:
    """Eight targets of three or four neighbours."""
    rng = np.random.default_rng(seed)
    return [rng.integers(40, size=3 + i % 2).tolist() for i in range(8)], 40


def uneven(seed: int = 0) -> tuple[list[list[int]], int]:
    """Nobody, one, a few and very many neighbours; some twice."""
    rng = np.random.default_rng(seed)
    return [rng.integers(40, size=size).tolist() for size in [3, 0, 1, 90, 2, 0, 17, 16, 5, 1, 4, 33]], 40


def lonely() -> tuple[list[list[int]], int]:
    """Nobody has a neighbour."""
    return [[], [], []], 3


def whole(seed: int = 0) -> tuple[list[list[int]], int]:
    """A whole graph: every input is a target."""
    rng = np.random.default_rng(seed)
    return [rng.integers(9, size=size).tolist() for size in [3, 0, 1, 30, 2, 8, 17, 5, 1]], 9


SHAPES = [even, uneven, lonely, whole]


def make_layer(kind: type[nn.Module], average: bool = False, width_in: int = 5, **settings: Any) -> Any:
    torch.manual_seed(0)
    if kind is SageLayer:
        return SageLayer(width_in, 3).double()
    return kind(width_in, 3, average, config_of(**settings)).double()


def grads(output: Tensor, *inputs: Tensor) -> list[Tensor]:
    """Gradients of an uneven sum of the output."""
    factor = torch.linspace(-1, 1, output.numel(), dtype=output.dtype).view(output.shape)
    return list(torch.autograd.grad((output * factor).sum(), inputs))


# layers ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("average", [False, True])
@pytest.mark.parametrize(
    ("kind", "written_out", "settings"),
    [
        (SageLayer, oracle.sage, {}),
        (GatLayer, oracle.gat, {}),
        (GatLayer, oracle.gat, {"residual": False}),
        (TransformerLayer, oracle.transformer, {}),
    ],
)
def test_layers_against_loops(
    kind: type[nn.Module],
    written_out: Callable[..., Tensor],
    settings: dict[str, Any],
    average: bool,
    shape: Callable[[], Any],
) -> None:
    neighbors, num_inputs = shape()
    layer = make_layer(kind, average, **settings).eval()
    if settings:
        nn.init.normal_(layer.own_bias)
    h = torch.randn(num_inputs, 5, dtype=torch.float64, requires_grad=True)
    found, expected = layer(h, block_of(neighbors, num_inputs)), written_out(layer, h, neighbors)
    torch.testing.assert_close(found, expected)
    inputs = [h, *layer.parameters()]
    if shape is lonely:
        found, expected = (y + 0.0 * sum(p.sum() for p in inputs) for y in (found, expected))
    for one, other in zip(grads(found, *inputs), grads(expected, *inputs), strict=True):
        torch.testing.assert_close(one, other)


Twin = tuple[nn.Module, list[tuple[Tensor, Tensor]]]
"""A layer of PyTorch Geometric, and pairs of (our weight, its weight)."""


def pyg_sage(layer: Any, pyg: Any) -> Twin:
    conv = pyg.SAGEConv((5, 5), 3).double()
    return conv, [
        (layer.neighbor_weight.weight, conv.lin_l.weight), (layer.neighbor_weight.bias, conv.lin_l.bias),
        (layer.self_weight.weight, conv.lin_r.weight),
    ]  # fmt: skip


def pyg_gat(layer: Any, pyg: Any) -> Twin:
    conv = pyg.GATConv(5, 3, heads=2, concat=not layer.average, add_self_loops=False).double()
    skip = nn.Linear(5, layer.skip.out_features, bias=False).double()
    nn.init.normal_(conv.bias)
    return _WithSkip(conv, skip), [
        (layer.weight, conv.lin.weight), (layer.source_hw, conv.att_src), (layer.target_hw, conv.att_dst),
        (layer.skip.weight, skip.weight), (layer.skip.bias, conv.bias),
    ]  # fmt: skip


def pyg_first_gat(layer: Any, pyg: Any) -> Twin:
    conv = pyg.GATConv(5, 3, heads=2, concat=not layer.average, add_self_loops=True).double()
    nn.init.normal_(conv.bias)
    return conv, [
        (layer.weight, conv.lin.weight), (layer.source_hw, conv.att_src), (layer.target_hw, conv.att_dst),
        (layer.own_bias, conv.bias),
    ]  # fmt: skip


class _WithSkip(nn.Module):
    def __init__(self, conv: nn.Module, skip: nn.Module) -> None:
        super().__init__()
        self.conv, self.skip = conv, skip

    def forward(self, h: tuple[Tensor, Tensor], edges: Tensor) -> Tensor:
        return self.conv(h, edges) + self.skip(h[1])


def pyg_transformer(layer: Any, pyg: Any) -> Twin:
    conv = pyg.TransformerConv(5, 3, heads=2, concat=not layer.average).double()
    pairs = [(layer.query, conv.lin_query), (layer.value, conv.lin_value), (layer.skip, conv.lin_skip)]
    weights = [(ours.weight, theirs.weight) for ours, theirs in [*pairs, (layer.key, conv.lin_key)]]
    return conv, weights + [(ours.bias, theirs.bias) for ours, theirs in pairs]


@pytest.mark.slow
@pytest.mark.parametrize("shape", [even, uneven, whole])
@pytest.mark.parametrize("average", [False, True])
@pytest.mark.parametrize(
    ("kind", "make_twin"),
    [(SageLayer, pyg_sage), (GatLayer, pyg_gat), (GatLayer, pyg_first_gat), (TransformerLayer, pyg_transformer)],
)
def test_layers_against_pytorch_geometric(
    kind: type[nn.Module], make_twin: Callable[..., Twin], average: bool, shape: Callable[[], Any]
) -> None:
    pyg = pytest.importorskip("torch_geometric.nn")
    neighbors, num_inputs = shape()
    block = block_of(neighbors, num_inputs)
    if make_twin is pyg_first_gat:  # it drops the edges from a node to itself that are there
        neighbors = [[j for j in around if j != i] for i, around in enumerate(neighbors)]
        block = block_of(neighbors, num_inputs)
    layer = make_layer(kind, average, residual=make_twin is not pyg_first_gat, dropout=0.0)
    twin, pairs = make_twin(layer, pyg)
    with torch.no_grad():
        for ours, theirs in pairs:
            ours.copy_(theirs.view(ours.shape))
    assert len(pairs) == len(list(layer.parameters()))
    h = torch.randn(num_inputs, 5, dtype=torch.float64, requires_grad=True)
    found = layer(h, block)
    expected = twin((h, h[: len(neighbors)]), torch.stack([block.source, block.target]))
    torch.testing.assert_close(found, expected)
    own, other = grads(found, h, *(ours for ours, _ in pairs)), grads(expected, h, *(theirs for _, theirs in pairs))
    for one, another in zip(own, other, strict=True):
        torch.testing.assert_close(one, another.view(one.shape))


@pytest.mark.slow
@pytest.mark.parametrize("residual", [False, True])
@pytest.mark.parametrize("shape", SHAPES)
def test_gat_without_skip_drops_projected_inputs(shape: Callable[[], Any], residual: bool) -> None:
    """Its weights are the same with and without, so what changes is what is summed: a share of it, on average all."""
    neighbors, num_inputs = shape()
    layer = make_layer(GatLayer, False, residual=residual, dropout=0.4).train()
    h = torch.randn(num_inputs, 5, dtype=torch.float64)
    block = block_of(neighbors, num_inputs)
    drawn = torch.stack([layer(h, block) for _ in range(4000)])
    expected = layer.eval()(h, block)
    if residual:
        torch.testing.assert_close(drawn, expected.expand_as(drawn))
    else:
        assert drawn.std(dim=0).amax() > 0.01
        error = drawn.std(dim=0) / 4000**0.5
        assert ((drawn.mean(dim=0) - expected).abs() < 6 * error + 1e-9).all()


def test_inputs_are_projected_first_where_that_is_less_work() -> None:
    """Both ways are among the shapes that are compared with loops."""
    chosen = {shape: is_less_projected(block_of(*shape()), width_in=5, width_out=3) for shape in SHAPES}
    assert chosen[whole]
    assert not chosen[even]
    assert not is_less_projected(block_of(*whole()), width_in=3, width_out=3)


@pytest.mark.parametrize("kind", MODELS)
def test_weight_decay_falls_on_every_matrix(kind: type[MessagePassing]) -> None:
    """It falls on what has two axes: a layer's weights are kept so, however many heads they are of."""
    model = kind(DataShape(50, 3), config_of())
    optimizer = make_optimizer(model, TrainConfig(weight_decay=0.1), torch.device("cpu"))
    spared = [p.numel() for group in optimizer.param_groups if not group["weight_decay"] for p in group["params"]]
    assert max(spared) <= 8


@pytest.mark.parametrize("kind", [GatLayer, TransformerLayer])
def test_attention_dropout_is_right_on_average(kind: type[nn.Module]) -> None:
    """One target, repeated: the mean over many draws of dropout is what there is without."""
    copies, around = 20_000, [0, 3, 5, 6]
    layer = make_layer(kind, attention_dropout=0.4)
    h = torch.randn(8, 5, dtype=torch.float64)
    h = torch.cat([h[:1].expand(copies, 5), h])
    block = block_of([[copies + j for j in around]] * copies, len(h))
    with torch.no_grad():
        drawn, plain = layer.train()(h, block), layer.eval()(h, block)
    assert drawn.std(dim=0).min() > 1e-3
    z = (drawn.mean(dim=0) - plain[0]) / drawn.std(dim=0) * copies**0.5
    assert z.abs().max() < 5


# sums over neighbours --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", SHAPES)
def test_padding_at_most_doubles_the_edges(shape: Callable[[], Any]) -> None:
    neighbors, num_inputs = shape()
    places = []

    def note(rows: Tensor | slice, place: Tensor, here: Tensor) -> Tensor:
        places.append(place.numel())
        return torch.arange(len(neighbors))[rows][:, None]

    assert over_neighbors(block_of(neighbors, num_inputs), note)[:, 0].tolist() == list(range(len(neighbors)))
    assert sum(places) <= 2 * sum(map(len, neighbors)) + sum(not around for around in neighbors)


# models ----------------------------------------------------------------------------------------------------------


def graph(num_nodes: int = 60, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """A directed CSR: distinct sorted neighbours, node 7 a hub, the last two nodes alone, and out of reach."""
    rng = np.random.default_rng(seed)
    rows = [np.sort(rng.choice(num_nodes - 2, size=rng.integers(0, 6), replace=False)) for _ in range(num_nodes - 2)]
    rows[7] = np.arange(0, num_nodes - 2)
    rows += [np.zeros(0, dtype=np.int64)] * 2
    return np.cumsum([0, *map(len, rows)]), np.concatenate(rows).astype(np.int32)


def make_model(kind: type[MessagePassing], num_layers: int = 2, norm: str = "none", **settings: Any) -> MessagePassing:
    torch.manual_seed(1)
    config = config_of(fanouts=(-1,) * num_layers, norm=norm, **settings)
    model = kind(DataShape(6, 4), config).double().eval()  # type: ignore[call-arg, arg-type]
    for module in model.norms:
        if isinstance(module, nn.BatchNorm1d):
            module.running_mean.normal_()
            module.running_var.uniform_(0.5, 2.0)
    return model


def whole_graph(csr: tuple[np.ndarray, np.ndarray], num_layers: int) -> tuple[NeighborBatch, Tensor]:
    """Every node as a target, the graph as one block for every layer."""
    num_nodes = len(csr[0]) - 1
    block = Block(torch.from_numpy(csr[0]), torch.from_numpy(csr[1]).long(), num_nodes)
    features = torch.randn(num_nodes, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    nodes, nothing = torch.arange(num_nodes), torch.zeros(num_nodes, 0)
    batch = NeighborBatch(
        nodes=nodes, features=features, blocks=(block,) * num_layers, positions=nothing, labels=nodes % 4
    )
    return batch, features


@pytest.mark.parametrize("norm", ["none", "layer", "batch"])
@pytest.mark.parametrize(("kind", "activation"), [(GraphSAGE, F.relu), (GAT, F.elu), (GTSparse, F.relu)])
def test_a_model_is_its_layers_with_norms_and_activations_between(
    kind: type[MessagePassing], activation: Callable[[Tensor], Tensor], norm: str
) -> None:
    batch, features = whole_graph(graph(), 3)
    block = batch.blocks[0]
    model = make_model(kind, 3, norm)
    names = {"none": nn.Identity, "layer": nn.LayerNorm, "batch": nn.BatchNorm1d}
    assert [isinstance(module, names[norm]) for module in model.norms] == [True, True]
    h = features
    for layer, normalize in zip(model.layers, model.norms, strict=False):
        h = activation(normalize(layer(h, block)))
    output = model(batch)
    torch.testing.assert_close(output.hidden, h)
    torch.testing.assert_close(output.logits, model.layers[2](h, block))
    assert output.logits.shape == (60, 4)


@pytest.mark.parametrize("kind", MODELS)
def test_widths_follow_the_heads(kind: type[MessagePassing]) -> None:
    model = make_model(kind, 3, num_heads=3, head_dim=5)
    expected = 8 if kind is GraphSAGE else 15
    assert [model.width_after(number) for number in range(3)] == [expected, expected, 4]
    output = model(whole_graph(graph(), 3)[0])
    assert output.hidden.shape == (60, expected)
    assert output.logits.shape == (60, 4)


@pytest.mark.slow
@pytest.mark.parametrize("kind", MODELS)
def test_a_sample_of_all_neighbours_is_the_whole_graph(kind: type[MessagePassing]) -> None:
    csr = graph()
    batch, features = whole_graph(csr, 2)
    model = make_model(kind)
    seeds = torch.tensor([7, 59, 3, 20])
    sample = NeighborSampler(*csr, [-1, -1], seed=0).sample(seeds)
    part = replace(batch, nodes=seeds, features=features[sample.nodes], blocks=sample.blocks)
    found, expected = model(part.to("cpu")), model(batch)
    assert found.nodes.tolist() == [7, 59, 3, 20]
    torch.testing.assert_close(found.logits, expected.logits[found.nodes])
    torch.testing.assert_close(found.hidden, expected.hidden[found.nodes])


@pytest.mark.parametrize("kind", MODELS)
def test_dropout_falls_between_layers_in_training_alone(kind: type[MessagePassing]) -> None:
    batch, _ = whole_graph(graph(), 2)
    model = make_model(kind, dropout=0.5)
    assert torch.equal(model(batch).logits, model(batch).logits)
    hidden = model.train()(batch).hidden
    kept = make_model(kind)(batch).hidden
    fell = (hidden == 0) & (kept != 0)
    assert 0.4 < fell.sum() / (kept != 0).sum() < 0.6
    torch.testing.assert_close(hidden[hidden != 0], 2 * kept[hidden != 0])


# layer by layer --------------------------------------------------------------------------------------------------


EVERYONE = np.arange(60)


def rows_of(features: Tensor) -> Callable[[np.ndarray], Tensor]:
    return lambda nodes: features[torch.from_numpy(nodes)]


@pytest.mark.parametrize("memory", [0, 1 << 30])
@pytest.mark.parametrize("block_size", [1, 17, 1 << 20])
@pytest.mark.parametrize("num_layers", [1, 2, 3])
@pytest.mark.parametrize("kind", MODELS)
def test_layerwise_equals_one_block(kind: type[MessagePassing], num_layers: int, block_size: int, memory: int) -> None:
    csr = graph()
    batch, features = whole_graph(csr, num_layers)
    model = make_model(kind, num_layers, "batch", dropout=0.5, attention_dropout=0.5)
    expected = model(batch)
    outputs = list(layerwise(model.train(), csr, rows_of(features.requires_grad_()), EVERYONE, block_size, memory))
    assert not any(output.logits.requires_grad for output in outputs), "no gradient, and no dropout"
    assert torch.cat([output.nodes for output in outputs]).tolist() == list(range(60))
    torch.testing.assert_close(torch.cat([output.logits for output in outputs]), expected.logits)
    torch.testing.assert_close(torch.cat([output.hidden for output in outputs]), expected.hidden)


@pytest.mark.parametrize("wanted", [[58], [59, 2, 30], list(range(59, -1, -2)), []])
@pytest.mark.parametrize("kind", MODELS)
def test_layerwise_of_some_nodes_in_their_order(kind: type[MessagePassing], wanted: list[int]) -> None:
    csr = graph()
    batch, features = whole_graph(csr, 3)
    model = make_model(kind, 3)
    outputs = list(layerwise(model, csr, rows_of(features), np.array(wanted, dtype=np.int32), block_size=9))
    assert [node for output in outputs for node in output.nodes.tolist()] == wanted
    expected = model(batch).logits
    for output in outputs:
        torch.testing.assert_close(output.logits, expected[output.nodes])


def test_layerwise_computes_what_is_needed_and_no_more() -> None:
    """A path 0 → 1 → … → 99: two layers below node 10 lie nodes 11 and 12."""
    csr = np.append(np.arange(100), 99), np.arange(1, 100, dtype=np.int32)
    _, features = whole_graph(csr, 3)
    asked: list[list[int]] = []

    def rows(nodes: np.ndarray) -> Tensor:
        asked.append(sorted(nodes.tolist()))
        return features[torch.from_numpy(nodes)]

    for wanted, expected in [([10], [10, 11, 12, 13]), ([98], [98, 99]), ([3, 50], [3, 4, 5, 6, 50, 51, 52, 53])]:
        asked.clear()
        list(layerwise(make_model(GraphSAGE, 3), csr, rows, np.array(wanted)))
        assert asked == [expected]
    asked.clear()
    list(layerwise(make_model(GraphSAGE, 3), csr, rows, np.arange(0, 100, 2)[1:]))
    assert asked == [list(range(100))]


@pytest.mark.parametrize("block_size", [1, 10, 40])
def test_layerwise_keeps_its_bound(block_size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks are as large as the bound lets them be, and a hub is alone in its own."""
    csr = graph()
    batch, features = whole_graph(csr, 2)
    model = make_model(GAT)
    monkeypatch.setattr("largegt.models.baselines.layerwise._NODES_AT_ONCE", 7)
    sizes: list[int] = []
    plain = model.layer

    def layer(number: int, h: Tensor, block: Block) -> Tensor:
        sizes.append(len(block.source) + block.num_targets)
        assert len(h) == block.num_inputs <= sizes[-1]
        return plain(number, h, block)

    monkeypatch.setattr(model, "layer", layer)
    found = torch.cat([output.logits for output in layerwise(model, csr, rows_of(features), EVERYONE, block_size)])
    monkeypatch.undo()
    torch.testing.assert_close(found, model(batch).logits)
    expected: list[int] = []
    for node, degree in enumerate(np.diff(csr[0])):
        if node % 7 and expected[-1] + 1 + degree <= block_size:
            expected[-1] += 1 + degree
        else:
            expected.append(1 + degree)
    assert sizes == 2 * expected
    assert max(sizes) == 1 + 58


def test_layers_that_take_too_much_memory_lie_in_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Half of the limit is for each of two layers; a layer's file goes when the one after the next begins."""
    csr = graph()
    _, features = whole_graph(csr, 4)
    model = make_model(GraphSAGE, 4)
    one_layer = 60 * 8 * 8
    seen: dict[int, set[str]] = {}
    plain = model.layer

    def layer(number: int, h: Tensor, block: Block) -> Tensor:
        seen.setdefault(number, set()).update(file.name for file in tmp_path.glob("*/*"))
        return plain(number, h, block)

    monkeypatch.setattr(model, "layer", layer)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    list(layerwise(model, csr, rows_of(features), EVERYONE, memory=2 * one_layer))
    assert seen == {0: set(), 1: set(), 2: set(), 3: set()}
    seen.clear()
    list(layerwise(model, csr, rows_of(features), EVERYONE, memory=2 * one_layer - 1))
    assert seen == {0: {"0"}, 1: {"0", "1"}, 2: {"1", "2"}, 3: {"2"}}
    walk = layerwise(model, csr, rows_of(features), EVERYONE, 5, 0)
    next(walk)
    assert list(tmp_path.iterdir())
    walk.close()  # type: ignore[attr-defined]
    assert not list(tmp_path.iterdir())
