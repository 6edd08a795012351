"""LINKX against a dense adjacency matrix."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from largegt.config.models import LINKXConfig
from largegt.models.base import DataShape
from largegt.models.baselines.batch import AdjacencyBatch
from largegt.models.baselines.linkx import LINKX

NUM_NODES = 9


def make_graph(seed: int = 0) -> tuple[Tensor, Tensor]:
    """A directed adjacency matrix, node 4 without neighbours, and features."""
    g = torch.Generator().manual_seed(seed)
    adjacency = (torch.rand(NUM_NODES, NUM_NODES, generator=g) < 0.4).double()
    adjacency[4] = 0.0
    return adjacency, torch.randn(NUM_NODES, 5, generator=g, dtype=torch.float64)


def batch_of(nodes: list[int], adjacency: Tensor, features: Tensor) -> AdjacencyBatch:
    lists = [adjacency[i].nonzero()[:, 0] for i in nodes]
    indptr = torch.from_numpy(np.cumsum([0, *map(len, lists)]))
    chosen = torch.tensor(nodes)
    return AdjacencyBatch(
        nodes=chosen, features=features[chosen], neighbors_indptr=indptr, neighbors=torch.cat(lists),
        positions=torch.zeros(len(nodes), 0), labels=chosen % 3,
    )  # fmt: skip


def make_model(**settings: Any) -> LINKX:
    torch.manual_seed(0)
    config = LINKXConfig(**{"hidden_dim": 6, "norm": "none", **settings})
    model = LINKX(DataShape(5, 3, NUM_NODES), config).double().eval()
    nn.init.normal_(model.table_nd)
    return model


@pytest.mark.parametrize("nodes", [[0, 1, 2, 3, 4, 5, 6, 7, 8], [4], [7, 4, 0]])
@pytest.mark.parametrize("settings", [{"num_layers": 1}, {"num_layers": 3, "norm": "layer"}])
def test_against_the_dense_matrix(nodes: list[int], settings: dict[str, Any]) -> None:
    adjacency, features = make_graph()
    model = make_model(**settings)
    output = model(batch_of(nodes, adjacency, features).to("cpu"))
    h_a = adjacency @ model.table_nd + model.table_bias_d
    h_x = F.linear(features, model.features.weight, model.features.bias)
    h = F.relu(F.linear(torch.cat([h_a, h_x], dim=1), model.join.weight, model.join.bias) + h_a + h_x)
    assert len(model.body) == 4 * settings["num_layers"]
    for linear, norm, _, _ in zip(*(model.body[part::4] for part in range(4)), strict=True):
        h = F.relu(norm(h @ linear.weight.T + linear.bias))
    expected = h @ model.head.weight.T + model.head.bias
    torch.testing.assert_close(output.hidden, h[nodes])
    torch.testing.assert_close(output.logits, expected[nodes])
    assert output.nodes.tolist() == nodes
    parameters = list(model.parameters())
    ours = torch.autograd.grad((output.logits**2).sum(), parameters)
    theirs = torch.autograd.grad((expected[nodes] ** 2).sum(), parameters)
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one, other)


def test_against_pytorch_geometric() -> None:
    models = pytest.importorskip("torch_geometric.nn.models")
    adjacency, features = make_graph()
    theirs = models.LINKX(NUM_NODES, 5, 6, 3, num_layers=1).double().eval()
    ours = make_model()
    ours.body = nn.Sequential()
    with torch.no_grad():
        ours.table_nd.copy_(theirs.edge_lin.weight)
        ours.table_bias_d.copy_(theirs.edge_lin.bias)
        ours.features.load_state_dict(theirs.node_mlp.lins[0].state_dict())
        ours.join.weight.copy_(torch.cat([theirs.cat_lin1.weight, theirs.cat_lin2.weight], dim=1))
        ours.join.bias.copy_(theirs.cat_lin1.bias + theirs.cat_lin2.bias)
        ours.head.load_state_dict(theirs.final_mlp.lins[0].state_dict())
    found = ours(batch_of(list(range(NUM_NODES)), adjacency, features)).logits
    torch.testing.assert_close(found, theirs(features, adjacency.T.nonzero().T))


def test_only_neighbours_rows_learn() -> None:
    adjacency, features = make_graph()
    model = make_model(norm="layer").train()
    batch = batch_of([0, 3], adjacency, features)
    F.cross_entropy(model(batch).logits, batch.labels).backward()
    assert model.table_nd.grad is not None
    touched = model.table_nd.grad.abs().sum(dim=1) > 0
    assert touched.nonzero()[:, 0].tolist() == sorted(set(batch.neighbors.tolist()))
