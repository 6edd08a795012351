"""A real PyTorch Geometric `Data` goes in."""

from pathlib import Path

import numpy as np
import pytest
import torch

import largegt as lg

Data = pytest.importorskip("torch_geometric.data").Data


def test_a_real_data_object(tmp_path: Path) -> None:
    data = Data(
        x=torch.randn(6, 3),
        edge_index=torch.tensor([[0, 1, 2, 0], [1, 2, 3, 4]]),
        y=torch.tensor([0, 1, 2, 0, 1, 2]),
        train_mask=torch.tensor([1, 1, 1, 0, 0, 0], dtype=torch.bool),
        val_mask=torch.tensor([0, 0, 0, 1, 1, 0], dtype=torch.bool),
        test_mask=torch.tensor([0, 0, 0, 0, 0, 1], dtype=torch.bool),
    )
    store = lg.ingest(lg.sources.pyg(data, name="six"), tmp_path / "g")
    assert (store.name, store.num_nodes, store.num_edges) == ("six", 6, 4)
    np.testing.assert_array_equal(store.features, data.x.numpy())
    np.testing.assert_array_equal(store.indices, [1, 4, 2, 3])
    assert {name: nodes.tolist() for name, nodes in store.splits.items()} == {
        "train": [0, 1, 2],
        "valid": [3, 4],
        "test": [5],
    }
