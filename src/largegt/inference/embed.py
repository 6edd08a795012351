"""Embed: node embeddings from a run's best weights, and the nearest nodes of a node.

Axes: n nodes, d width of a vector.

Enters: a LargeGT run and the requested nodes. Leaves: a Parquet file (the user's own ids and a list per node), npz (the
same as arrays), npy (only the vectors, in the same order), or a table. A vector is the input of the prediction head
(`output`, H_out) or the output of one module, H_local or H_global; with several samples of local nodes, their mean.
Cost: that of a prediction for the same nodes.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Literal, cast, get_args

import numpy as np
import pyarrow as pa
from torch import Tensor

from largegt.errors import ConfigError, nearest
from largegt.loader.batch import TokenBatch
from largegt.models.base import NodeModel, NodeOutput
from largegt.models.largegt.model import LargeGT
from largegt.training.metrics import TaskHead
from largegt.training.run import Run
from largegt.types import Array, PathLike

from .predictor import Ids, PredictOptions, Predictor

Layer = Literal["output", "local", "global"]
LAYERS: tuple[str, ...] = get_args(Layer)
SUFFIXES = (".parquet", ".npy", ".npz")


def embed(
    run: PathLike | Run, out: PathLike | None = None, ids: Ids | None = None, split: str | None = None,
    layer: str = "output", **options: Any,
) -> pa.Table:  # fmt: skip
    """Compute the vectors of the nodes with these ids, of one split, or of every node of the run's store.

    Args:
        run: a run of LargeGT, or its folder.
        out: a file to write, .parquet or .npz; none by default.
        ids: nodes by the user's own ids, in the order of the result.
        split: train, valid or test.
        layer: `output`, what the prediction head reads; `local`, from the local nodes alone; `global`, from the
            codebook alone.
        options: as for `predict`.

    Returns:
        A table with the columns `node` and `embedding`, a list of numbers of the same length for each node.

    Raises:
        ConfigError: the run's model is no LargeGT or has no such layer.
        InputError: there is no run, an id is unknown, or `out` is there already.

    Examples:
        >>> table = lg.embed("runs/a", split="test")
        >>> table.column_names
        ['node', 'embedding']
    """
    return Embedding(run, PredictOptions(out, ids, split, **options), layer).collect()


def nearest_nodes(
    run: PathLike | Run, node: Any, top_k: int = 10, split: str | None = None, layer: str = "output", **options: Any
) -> pa.Table:
    """The `top_k` nodes with the highest cosine similarity to `node`, most similar first: columns `node` (the user's
    own id), `label` (null for unlabelled nodes) and `similarity`. Exact search over every node of the store or of one
    split; of equal similarities the smaller node number comes first. Options are those of `predict`."""
    if top_k < 1:
        raise ConfigError(f"top_k is {top_k}: it must be at least 1")
    opened, settings = Run.open(run), PredictOptions(split=split, **options)
    one_node = replace(settings, ids=[node], split=None, progress=None)
    direction_d = _unit(np.concatenate(list(Embedding(opened, one_node, layer).groups())))[0]
    everyone = Embedding(opened, settings, layer)
    store = everyone.store
    [number] = store.nodes_of([node])
    best_n, nodes_n = np.empty(0), np.empty(0, np.int64)
    done = 0
    for found_nd in everyone.groups():
        nodes = everyone.nodes_of(done, found_nd)
        done += len(found_nd)
        is_other = nodes != number
        best_n = np.concatenate([best_n, (_unit(found_nd) @ direction_d)[is_other]])
        nodes_n = np.concatenate([nodes_n, nodes[is_other]])
        best = np.lexsort((nodes_n, -best_n))[:top_k]
        best_n, nodes_n = best_n[best], nodes_n[best]
    labels = [store.label_of(int(each)) for each in nodes_n]
    return pa.table({"node": store.id_array(nodes_n), "label": pa.array(labels), "similarity": pa.array(best_n)})


class Embedding(Predictor):
    """Computes the vectors of some nodes of a run: a `Predictor` with vectors as outputs."""

    what, suffixes = "embeddings", SUFFIXES

    def __init__(self, run: PathLike | Run, options: PredictOptions, layer: str = "output") -> None:
        self.layer = cast(Layer, layer)
        super().__init__(run, replace(options, all_probabilities=True))  # all columns of the vectors

    def check_run(self) -> None:
        name, path = self.run.config.model.name, self.run.path
        if self.layer not in LAYERS:
            raise ConfigError(f"layer {self.layer!r} is none of {', '.join(LAYERS)}{nearest(self.layer, LAYERS)}")
        if not name.startswith("largegt-"):
            raise ConfigError(
                f"{path} is a {name}, and only LargeGT has embeddings: train a model largegt-local, -global or -full"
            )
        if self.layer != "output" and name not in ("largegt-full", f"largegt-{self.layer}"):
            raise ConfigError(f"{path} is a {name}, which has no {self.layer} layer: use `layer='output'`")

    def open_model(self) -> tuple[NodeModel, TaskHead]:
        model = self.run.load_model(self.prepared)
        assert isinstance(model, LargeGT)
        return Embedder(model, self.layer), vectors_head(model.hidden_dim)

    def row_width(self) -> int:
        return self.head.num_outputs

    def table(self, done: int, found: Array) -> pa.Table:
        nodes = self.nodes_of(done, found)
        numbers = pa.array(np.ascontiguousarray(found, np.float32).reshape(-1))
        vectors = pa.FixedSizeListArray.from_arrays(numbers, self.width)
        return pa.table({"node": self.store.id_array(nodes), "embedding": vectors})


class Embedder(NodeModel):
    """A LargeGT that outputs node vectors instead of logits."""

    takes_padding = True

    def __init__(self, model: LargeGT, layer: Layer = "output") -> None:
        super().__init__()
        self.model, self.layer = model, layer
        self.num_local_nodes = 1 if layer == "global" else model.num_local_nodes
        self.reads_labels = model.reads_labels and layer != "global"

    def forward(self, batch: TokenBatch) -> NodeOutput:
        if self.layer == "output":
            output = self.model(batch)
            return NodeOutput(output.hidden, output.hidden, batch.nodes, None)
        vectors_bd = self._module_output(batch)
        return NodeOutput(vectors_bd, vectors_bd, batch.nodes, None)

    def _module_output(self, batch: TokenBatch) -> Tensor:
        if self.layer == "local":
            assert self.model.local_module is not None
            embedded = self.model.embed(batch)
            local_bd: Tensor = self.model.local_module(embedded.tokens, embedded.token_bias)
            return local_bd
        assert self.model.global_module is not None
        global_bd: Tensor = self.model.global_module(batch.tokens[:, 0], batch.positions)[0]
        return global_bd

    def compile_for(self, batch_sizes: set[int]) -> None:
        """Only `output` is compiled: the fused kernels cover the whole model, not one module."""
        if self.layer == "output":
            self.model.compile_for(batch_sizes)
            self.compiled_sizes = self.model.compiled_sizes


def vectors_head(width: int) -> TaskHead:
    """A head that returns vectors unchanged and averages samples by their mean, as for regression."""
    return TaskHead("regression", width, None, 0.0, 0.0, 1.0)


def _unit(vectors_nd: Array) -> Array:
    """The vectors scaled to length one; zero vectors stay zero, with similarity 0 to all others."""
    vectors_nd = vectors_nd.astype(np.float64)
    lengths_n1 = np.linalg.norm(vectors_nd, axis=1, keepdims=True)
    return vectors_nd / np.where(lengths_n1 > 0, lengths_n1, 1.0)
