"""PyTorch Geometric: conversion between `Data` and stores, and token batches for a PyG script's own training loop.

Enters: a `Data`, or any object with its attributes. Leaves: a GraphStore (`from_pyg`), a `Data` (`to_pyg`),
TokenBatches (`loader`), or a `Data` with the inputs of batches (`LargeGTTransform`). Cost: `from_pyg` is `ingest`;
loaders of one graph share one preparation in a temporary folder (store_cache.py); the transform holds K + 3d + p
numbers per node in memory. Only `to_pyg` imports torch_geometric.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import torch

from largegt.config.models import AnyLargeGTConfig
from largegt.config.overrides import build
from largegt.config.schema import IngestConfig, PrepareConfig
from largegt.data import precision, sources
from largegt.data.ingest import ingest
from largegt.data.labels import Encoded, encode_as, labelled, unlabelled
from largegt.data.sources import as_numpy
from largegt.data.splits import SPLIT_CODES, given_split
from largegt.data.store import GraphStore
from largegt.errors import ConfigError, InputError
from largegt.loader.batch import TokenBatch, input_tokens
from largegt.loader.label_inputs import LocalLabels
from largegt.loader.loader import TokenLoader
from largegt.loader.table import TokenTable
from largegt.models.largegt.model import LargeGT
from largegt.preprocessing.prepared import Prepared
from largegt.preprocessing.sampling.local_nodes import node_numbers
from largegt.runtime.progress import Progress
from largegt.types import Array, PathLike, TablePlace

from .store_cache import StoreCache

_MASKS = {"train_mask": "train", "val_mask": "valid", "test_mask": "test"}
_temporary: list[TemporaryDirectory[str]] = []
"""Stores without a folder of their own, kept until the process ends."""


def from_pyg(
    data: Any, out: PathLike | None = None, config: IngestConfig | None = None, overwrite: bool = False,
    progress: Progress | None = None, **which: Any,
) -> GraphStore:  # fmt: skip
    """A `Data` (edge_index, x, y, masks) as a store in the folder `out`; without one, in a temporary folder that is
    removed when the process ends. Self loops are left out and repeated edges are one. Of masks [N, s], column
    `split_index=0` is taken. Its edge_weight and edge_attr, where it has them, are the weights and the features of its
    edges, unless `edge_weights=False` or `edge_features=False`."""
    if out is None:
        _temporary.append(TemporaryDirectory(prefix="largegt-"))
        out = Path(_temporary[-1].name) / "graph"
    return ingest(sources.pyg(data, **which), out, config, overwrite, progress)


def to_pyg(store: GraphStore | PathLike) -> Any:
    """A store as a `Data`: x, edge_index, y, train_mask, val_mask, test_mask, in memory; edge_weight, where edges have
    weights.

    y holds the user's own labels where they are whole numbers (-1: none), else class numbers, and `classes` what they
    stand for; 0/1 columns or values (NaN: none) for the other tasks. `node_id` holds ids other than row numbers.
    """
    try:
        from torch_geometric.data import Data
    except ImportError as error:
        raise ConfigError("to_pyg needs PyTorch Geometric: pip install 'largegt[pyg]'") from error
    store = store if isinstance(store, GraphStore) else GraphStore.open(store)
    store.check("out", features=True)
    sources_e = np.repeat(np.arange(store.num_nodes), np.diff(store.indptr))
    data = Data(
        x=torch.from_numpy(np.array(precision.decode(store.features, store.feature_dtype))),
        edge_index=torch.from_numpy(np.stack([sources_e, store.indices]).astype(np.int64)),
        num_nodes=store.num_nodes,
    )
    if store.weighted:
        data.edge_weight = torch.from_numpy(np.array(store.weights))
    if store.labelled.any():
        data.y = torch.from_numpy(_own_labels(store))
        split = np.asarray(store.split)
        for name, key in _MASKS.items():
            data[name] = torch.from_numpy(split == SPLIT_CODES[key])
    if store.classes:
        data.classes = store.classes
    if store.id_kind != "row":
        data.node_id = store.ids_of(np.arange(store.num_nodes))
    return data


def _own_labels(store: GraphStore) -> Array:
    labels = np.array(store.labels)
    if store.task in ("regression", "multilabel"):
        return labels
    if all(type(name) is int for name in store.classes):
        return np.where(labels < 0, -1, np.array(store.classes, dtype=np.int64)[labels])
    return labels.astype(np.int64)


# batches


def preparation(k: int = 32, seed: int = 0, positions: int = 64) -> PrepareConfig:
    """The default preparation of a loader and the transform; `positions=0` means no positional encodings."""
    method = "random_projection" if positions else "none"
    return build(PrepareConfig, {
        "local_nodes": {"k": k, "seed": seed, "target_nodes": "all"},
        "tokens": {"precompute_for": "all"},
        "positional_encoding": {"method": method, "dim": max(1, positions), "seed": seed},
    })  # fmt: skip


class Loader:
    """`for batch in lg.pyg.loader(data, data.train_mask, k=32, batch_size=512, shuffle=True): out = model(batch)`.

    Iterates over TokenBatches of the nodes (a mask or numbers; all by default): batch.tokens [b, 3k, d], batch.labels
    from data.y, and batch.nodes, rows of data. Each iteration is an epoch, shuffled by (seed, epoch). Loaders of the
    same graph and the same k share one preparation; `prepare` replaces k with a whole configuration. `loader.model()`
    returns a matching LargeGT.
    """

    def __init__(
        self,
        data: Any,
        nodes: Any = None,
        *,
        k: int = 32,
        batch_size: int = 512,
        shuffle: bool = False,
        seed: int = 0,
        prepare: PrepareConfig | None = None,
        distinct: bool = False,
        device: torch.device | str = "cpu",
        table: TablePlace = "auto",
        local_labels: bool = False,
        work_dir: PathLike | None = None,
        progress: Progress | None = None,
    ) -> None:
        if batch_size < 1:
            raise ConfigError(f"batch_size is {batch_size}: it must be at least 1")
        labels = _labels_of(data)
        self._cache = StoreCache.of(data, None, True, work_dir, progress)
        self._store = store = self._cache.labelled(*labels)
        self.prepared: Prepared = self._cache.prepared(store, (prepare or preparation(k)).for_all_nodes(), progress)
        self.nodes = _chosen(nodes, store.num_nodes)
        self.batch_size, self.shuffle, self.seed, self.epoch = batch_size, shuffle, seed, 0
        rows = TokenTable(self.prepared, device, table)
        training_labels = LocalLabels.of_training_nodes(self.prepared, rows.device) if local_labels else None
        self._loader = TokenLoader(rows, torch.device(device), distinct=distinct, local_labels=training_labels)

    def __len__(self) -> int:
        """Batches in an epoch."""
        return self._loader.num_batches(len(self.nodes), self.batch_size)

    def __iter__(self) -> Iterator[TokenBatch]:
        self.epoch += 1
        seed = self.seed if self.shuffle else None
        return self._loader.batches(self.nodes, self.batch_size, seed, self.epoch - 1)  # row i of prepared is node i

    def model(self, config: AnyLargeGTConfig | None = None) -> LargeGT:
        """A LargeGT for these batches, with an output per class (0 to max(data.y)), per label, or one for a value."""
        if not self.prepared.meta["num_outputs"]:
            raise InputError("the Data has no y, which says how many classes there are: make lg.LargeGT(…) yourself")
        return LargeGT.for_prepared(self.prepared, config)


loader = Loader


class LargeGTTransform:
    """A PyG transform: `data = LargeGTTransform(k=32)(data)`, alone or in a `Compose`, adds the inputs of batches.

    local_nodes [N, k]: LocalNodes, node numbers, the node itself first. token_rows [N, 3, d]: H, ÃH and Ã²H.
    positions [N, p]: encodings. `token_batch(data, nodes)` gathers from them, on the device of data. They depend on the
    whole graph: take a subgraph before the transform, not after.
    """

    def __init__(self, k: int = 32, seed: int = 0, positions: int = 64) -> None:
        self.k, self.seed, self.positions = k, seed, positions

    def __call__(self, data: Any) -> Any:
        config = preparation(self.k, self.seed, self.positions)
        cache = StoreCache.of(data, edge_weights=True)
        prepared = cache.prepared(cache.graph, config)
        data = copy.copy(data)
        data.local_nodes = torch.from_numpy(np.array(prepared.local_rows, dtype=np.int64))
        data.token_rows = torch.from_numpy(np.array(prepared.tokens))
        data.positions = torch.from_numpy(np.array(prepared.positions))
        return data

    def __repr__(self) -> str:
        return f"LargeGTTransform(k={self.k}, seed={self.seed}, positions={self.positions})"


def token_batch(data: Any, nodes: Any) -> TokenBatch:
    """A batch of nodes (numbers or a mask) of a transformed `Data`."""
    _check_transformed(data)
    chosen = torch.as_tensor(nodes, device=data.local_nodes.device)
    if chosen.dtype == torch.bool:
        chosen = chosen.nonzero()[:, 0]
    y = getattr(data, "y", None)
    labels = torch.full((len(chosen),), -1, device=chosen.device) if y is None else y[chosen]
    if labels.ndim == 2 and labels.shape[1] == 1:
        labels = labels[:, 0]
    return TokenBatch(
        nodes=chosen,
        tokens=input_tokens(data.token_rows, data.local_nodes[chosen]),
        multiplicity=None,
        positions=data.positions[chosen],
        labels=labels,
    )


def model_for(data: Any, num_outputs: int, config: AnyLargeGTConfig | None = None) -> LargeGT:
    """A LargeGT for batches of a transformed `Data`."""
    _check_transformed(data)
    num_nodes, hops, width = data.token_rows.shape
    return LargeGT(width, num_outputs, num_nodes, data.positions.shape[1], config, hops - 1)


def _check_transformed(data: Any) -> None:
    if getattr(data, "token_rows", None) is None:
        raise InputError("this Data has no token_rows: data = lg.pyg.LargeGTTransform(k=32)(data) adds them")


def _chosen(nodes: Any, num_nodes: int) -> Array:
    if nodes is None:
        return np.arange(num_nodes)
    given = as_numpy(nodes)
    if given.dtype == np.bool_ and given.shape != (num_nodes,):
        raise InputError(f"the mask has shape {list(given.shape)}, expected [{num_nodes}]: an entry per node")
    chosen = node_numbers(given)
    outside = (chosen < 0) | (chosen >= num_nodes)
    if chosen.ndim != 1 or outside.any():
        wrong = f"node {int(chosen[outside][0])}" if outside.any() else f"an array of shape {list(chosen.shape)}"
        raise InputError(f"nodes= names {wrong}, but nodes go from 0 to {num_nodes - 1}")
    return chosen


def _labels_of(data: Any) -> tuple[Encoded, Array]:
    """data.y and the masks. Integer labels stay class numbers even if some classes do not occur."""
    source = sources.pyg(data, edge_weights=False, edge_features=False)
    num_nodes = int(data.num_nodes)
    encoded = unlabelled(num_nodes, "multiclass", []) if source.labels is None else _encoded(source.labels.values)
    if len(encoded.values) != num_nodes:
        raise InputError(f"y has {len(encoded.values)} entries, but the Data has {num_nodes} nodes")
    parts = {} if source.splits is None else source.splits.parts
    return encoded, given_split(num_nodes, parts, labelled(encoded.values, encoded.task))


def _encoded(y: Any) -> Encoded:
    if isinstance(y, np.ndarray):
        return encode_as(y, None, "multilabel", list(range(y.shape[1])), "y")
    if pa.types.is_floating(y.type):
        return encode_as(y, None, "regression", [], "y")
    if not (pa.types.is_integer(y.type) or pa.types.is_boolean(y.type)):
        raise InputError(f"y is {y.type}, expected classes [N], values [N] or 0/1 labels [N, c]")
    last = pc.max(y).as_py()
    return encode_as(y, None, "multiclass", list(range(0 if last is None else last + 1)), "y")
