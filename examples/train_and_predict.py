"""Ingest, train, evaluate and predict a small synthetic graph: python examples/train_and_predict.py"""

import numpy as np

import largegt as lg

rng = np.random.default_rng(0)
labels = rng.integers(3, size=600)
edge_index = rng.integers(600, size=(2, 6000))
edge_index = edge_index[:, (labels[edge_index[0]] == labels[edge_index[1]]) | (rng.random(6000) < 0.2)]
features = (rng.normal(size=(600, 8)) + 0.5 * labels[:, None]).astype(np.float32)

store = lg.ingest(lg.sources.arrays(edge_index, features, labels), out="data/graph", overwrite=True)
config = lg.Config.from_recipe(
    "default", ["prepare.local_nodes.k=16", "model.hidden_dim=32", "train.batch_size=32", "train.epochs=8"]
)
run = lg.train(store, config, out="runs/a", overwrite=True)
print("test:", lg.evaluate("runs/a", split="test"))
print(lg.predict("runs/a", out="predictions.parquet").slice(0, 5).to_pylist())
lg.report(["runs/a"], out="report.html")
