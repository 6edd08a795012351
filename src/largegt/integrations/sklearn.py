"""LargeGTClassifier and LargeGTRegressor: graph transformers with the scikit-learn interface.

Enters: a graph and its features, given to the constructor; nodes and their labels, given to `fit`. Leaves: labels,
probabilities or values of any nodes of that graph. A sample is a node: `X` holds node numbers (or the ids of a store
with ids), so `cross_val_score` and `GridSearchCV` split nodes, and the graph stays whole. A fit uses all nodes and
edges, and only the labels given to it (transductive learning).

Cost: the graph is written as a store and prepared once for all fits (store_cache.py); a fit is `lg.train`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Self

import numpy as np

from largegt.config.overrides import as_overrides
from largegt.config.schema import Config
from largegt.data.labels import Encoded, counted, scatter
from largegt.data.sources import as_numpy
from largegt.data.splits import SPLIT_CODES, made_split
from largegt.data.store import GraphStore
from largegt.data.versions import register
from largegt.errors import ConfigError, InputError, disk_errors
from largegt.inference.predictor import predict
from largegt.preprocessing.auto_config import ConfigLike, config_for
from largegt.runtime.progress import Progress, console_progress
from largegt.training.trainer import train
from largegt.types import Array, PathLike, Task

from .store_cache import StoreCache

try:
    from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin, clone
    from sklearn.utils import check_random_state, column_or_1d
    from sklearn.utils.multiclass import check_classification_targets, type_of_target
    from sklearn.utils.validation import check_is_fitted
except ImportError as error:
    raise ConfigError(
        "LargeGTClassifier and LargeGTRegressor need scikit-learn 1.6 or newer: pip install 'largegt[sklearn]'"
    ) from error

_SETTINGS = {
    "k": "prepare.local_nodes.k", "hidden_dim": "model.hidden_dim", "num_heads": "model.num_heads",
    "num_layers": "model.num_layers", "dropout": "model.dropout", "epochs": "train.epochs",
    "batch_size": "train.batch_size", "learning_rate": "train.learning_rate",
    "weight_decay": "train.weight_decay", "patience": "train.patience", "device": "train.device",
}  # fmt: skip
_SHARED = ("graph", "features")
_RUN_FILES = ("config.toml", "metrics.json", "metrics.jsonl", "model.safetensors", "checksums.json")


class SampleError(InputError, ValueError):
    """Samples or targets that cannot be used; also a ValueError, as scikit-learn expects."""


@dataclass(eq=False)
class _Fitted:
    """The result of a fit: a graph, its labels, and a run in a folder that can be restored."""

    graph: tuple[Any, Any, bool, PathLike | None]
    """The first arguments of `StoreCache.of`."""
    encoded: Encoded
    split: Array
    files: dict[str, bytes] = field(default_factory=dict)
    """The run's files after unpickling or copying, when there is no folder."""
    cache: StoreCache | None = None
    run: Path | None = None

    def opened(self, progress: Progress) -> tuple[StoreCache, Path]:
        """The cache and the folder of the run, restored if missing."""
        if self.cache is None:
            self.cache = StoreCache.of(*self.graph, progress)
        if self.run is None:
            run = self.cache.run_folder(self)
            store = self.cache.labelled(self.encoded, self.split)
            with disk_errors(run):
                run.mkdir()
                for name, content in self.files.items():
                    (run / name).write_bytes(content)
            register(store, run)
            self.run = run
        return self.cache, self.run

    def __getstate__(self) -> dict[str, Any]:
        files = self.files
        if self.run is not None:
            files = {name: (self.run / name).read_bytes() for name in _RUN_FILES if (self.run / name).is_file()}
        return vars(self) | {"files": files, "cache": None, "run": None}


class _LargeGTEstimator(BaseEstimator):  # type: ignore[misc]
    """Base class of the classifier and the regressor."""

    _fitted: _Fitted

    def __init__(
        self, graph: Any = None, features: Any = None, *, recipe: ConfigLike = "default", k: int | None = None,
        hidden_dim: int | None = None, num_heads: int | None = None, num_layers: int | None = None,
        dropout: float | None = None, epochs: int | None = None, batch_size: int | None = None,
        learning_rate: float | None = None, weight_decay: float | None = None, patience: int | None = None,
        settings: Mapping[str, Any] | Iterable[str] | None = None, validation_fraction: float = 0.1,
        device: str | None = None, work_dir: PathLike | None = None, random_state: Any = None, verbose: bool = False,
        edge_weights: bool = False,
    ) -> None:  # fmt: skip
        given = locals()
        for name in self._get_param_names():  # only parameters, as scikit-learn requires
            setattr(self, name, given[name])

    def fit(self, X: Any, y: Any, validation: tuple[Any, Any] | None = None) -> Self:
        """Train on the nodes `X` and their labels `y` [n], or 0/1 columns [n, c] for several labels per node.

        X holds node numbers, or a mask over all nodes. `validation=(nodes, labels)` selects the best epoch; without it
        a part of X does (`validation_fraction`).
        """
        if not 0 <= self.validation_fraction < 1:
            raise ConfigError(f"validation_fraction is {self.validation_fraction}: it must be at least 0 and below 1")
        targets, seed = self._targets(y, "y"), self._seed()
        graph = self.graph, self.features, self.edge_weights, self.work_dir
        with console_progress(quiet=not self.verbose) as show:
            cache = StoreCache.of(*graph, show)
            nodes, targets, is_valid = self._samples(cache.graph, X, targets, validation)
            encoded = self._encoded(targets, ~is_valid)
            nodes, first = _deduplicated(nodes, encoded.values, is_valid)
            encoded, is_valid = replace(encoded, values=encoded.values[first]), is_valid[first]
            split = np.zeros(cache.graph.num_nodes, dtype=np.uint8)
            split[nodes] = np.where(is_valid, SPLIT_CODES["valid"], SPLIT_CODES["train"])
            if validation is None:
                split[nodes] = _split_off(encoded, self.validation_fraction, seed)
            encoded = counted(scatter(encoded, nodes, len(split)), encoded.task, encoded.classes)
            store = cache.labelled(encoded, split)
            config = self._config(store, seed)
            cache.prepared(store, config.preparation, show)
            fitted = _Fitted(graph, encoded, split, cache=cache)
            fitted.run = cache.run_folder(fitted)
            run = train(store, config, fitted.run, progress=show, score_test=False)
        self._fitted = fitted
        self.run_path_: Path = run.path
        self.config_: Config = run.config
        self.n_iter_: int = run.metrics["epochs"]
        self.validation_scores_: dict[str, float] = run.metrics["valid"]
        return self

    # the scikit-learn protocol

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.one_d_array, tags.input_tags.string = True, True
        tags.target_tags.required = True
        tags.non_deterministic = self.random_state is None
        return tags

    def __sklearn_clone__(self) -> Self:
        """A clone shares the graph, which is read-only, to save a copy per fold."""
        parameters = self.get_params(deep=False)
        copy = type(self)(**{
            name: value if name in _SHARED else clone(value, safe=False) for name, value in parameters.items()
        })  # fmt: skip
        if "_metadata_requests" in vars(self):
            copy._metadata_requests = self._metadata_requests
        return copy

    def __sklearn_is_fitted__(self) -> bool:
        return "_fitted" in vars(self)

    # parts of fit

    def _samples(self, graph: GraphStore, X: Any, targets: Array, validation: Any) -> tuple[Array, Array, Array]:
        """(nodes, targets, is_valid) of `fit` and of `validation` together."""
        nodes = _numbers(graph, X)
        _check_lengths(nodes, targets, "y")
        is_valid = np.zeros(len(nodes), dtype=bool)
        if validation is None:
            return nodes, targets, is_valid
        try:
            X, y = validation
        except (TypeError, ValueError):
            raise SampleError("validation must be a pair: (nodes, labels)") from None
        others, more = _numbers(graph, X), self._targets(y, "the labels of validation")
        _check_lengths(others, more, "the labels of validation")
        if more.shape[1:] != targets.shape[1:]:
            raise SampleError("the labels of validation have another shape than y")
        is_valid = np.concatenate([is_valid, np.ones(len(others), dtype=bool)])
        return np.concatenate([nodes, others]), np.concatenate([targets, more]), is_valid

    def _seed(self) -> int:
        if isinstance(self.random_state, int | np.integer):
            return int(self.random_state)
        return int(check_random_state(self.random_state).randint(2**31 - 1))

    def _config(self, store: GraphStore, seed: int) -> Config:
        """The recipe with the parameters of the constructor on top, and `settings` on top of those."""
        overrides = ["prepare.local_nodes.target_nodes=all", f"train.seed={seed}"]
        if isinstance(self.random_state, int | np.integer):  # otherwise every fit would need a new preparation
            overrides += [f"prepare.local_nodes.seed={seed}", f"prepare.positional_encoding.seed={seed}"]
        for name, setting in _SETTINGS.items():
            if getattr(self, name) is not None:
                overrides += as_overrides({setting: getattr(self, name)})
        if isinstance(self.settings, Mapping):
            overrides += as_overrides(self.settings)
        elif isinstance(self.settings, str):
            raise ConfigError(f"settings={self.settings!r}: give a dict or a list, such as ['model.num_heads=4']")
        elif self.settings is not None:
            overrides += [str(line) for line in self.settings]
        return config_for(store, self.recipe, overrides)[0]

    def _targets(self, y: Any, what: str) -> Array:
        raise NotImplementedError

    def _encoded(self, targets: Array, is_train: Array) -> Encoded:
        raise NotImplementedError

    # predict

    def _outputs(self, X: Any) -> Array:
        """[n, w] probabilities or values of these nodes."""
        check_is_fitted(self)
        with console_progress(quiet=not self.verbose) as show:
            cache, run = self._fitted.opened(show)
            ids = cache.graph.ids_of(_numbers(cache.graph, X))
            table = predict(run, ids=ids, all_probabilities=True, device=self.device, progress=show)
        names = [f"probability_{name}" for name in self._fitted.encoded.classes] or ["value"]
        return np.stack([table[name].to_numpy() for name in names], axis=1)


class LargeGTClassifier(ClassifierMixin, _LargeGTEstimator):  # type: ignore[misc]
    """Classify nodes, as a scikit-learn estimator.

    After `fit` it has classes_, n_iter_ (epochs), validation_scores_, config_ and run_path_, a run as `lg.train` leaves
    it.

    Args:
        graph: a sparse adjacency (entry i, j is an edge from i to j), an `edge_index` [2, E], a PyG `Data`, a
            GraphStore or the path of one.
        features: [N, d], an array, a tensor or a sparse matrix; without them, node degrees. A store and a Data have
            their own.
        recipe: what `lg.train` takes as `config`.
        k, hidden_dim, num_heads, num_layers, dropout, epochs, batch_size, learning_rate, weight_decay, patience: the
            settings of these names; None leaves them to the recipe.
        settings: any others, `{"model.num_heads": 4}` or `["model.num_heads=4"]`.
        validation_fraction: fraction of the nodes of `fit`, of each class, that pick the best epoch instead of being
            trained on.
        device: auto, cpu or cuda; that of the recipe by default.
        work_dir: where graph and runs are kept; a temporary folder without it.
        random_state: a number seeds everything; None and a RandomState leave the sample of local nodes to the recipe,
            so that it serves all fits.
        verbose: show progress.
        edge_weights: take the values of the matrix, or the edge_weight of the Data, for weights of edges.

    Returns:
        `fit` returns the estimator, `predict` the class of each node, `predict_proba` the probability of each class.

    Raises:
        InputError: samples, labels or the graph cannot be used; it is a ValueError too.
        ConfigError: a setting is unknown or out of range.

    Examples:
        >>> classifier = lg.LargeGTClassifier(edge_index, features, k=8, hidden_dim=16, epochs=2)
        >>> train, test = range(100), range(100, 150)
        >>> classifier.fit(train, labels[train]).predict(test).shape
        (50,)
    """

    def predict(self, X: Any) -> Array:
        """The class of each node of `X`, or 0/1 rows."""
        outputs = self._outputs(X)
        if self._fitted.encoded.task == "multilabel":
            return (outputs >= 0.5).astype(np.int64)
        return np.asarray(self.classes_[outputs.argmax(axis=1)])

    def predict_proba(self, X: Any) -> Array:
        """[n, c] the probability of each class, in the order of `classes_`."""
        return self._outputs(X)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.classifier_tags.multi_label = True
        return tags

    def _targets(self, y: Any, what: str) -> Array:
        if y is None:
            raise SampleError(f"LargeGTClassifier requires y to be passed, but the target {what} is None")
        targets = as_numpy(y)
        if targets.dtype.kind == "f" and not np.isfinite(targets).all():
            raise SampleError(f"{what} holds NaN or infinity: give fit the nodes whose labels are known")
        check_classification_targets(targets)
        kind = type_of_target(targets)
        if kind == "multiclass-multioutput":
            raise SampleError(
                f"{what} has {targets.shape[1]} columns that are not 0 or 1: several classes of many values"
            )
        return targets if kind == "multilabel-indicator" else column_or_1d(targets, warn=True)

    def _encoded(self, targets: Array, is_train: Array) -> Encoded:
        if targets.ndim == 2:
            self.classes_ = np.arange(targets.shape[1])
            return counted(targets.astype(np.float32), "multilabel", self.classes_.tolist())
        self.classes_, codes = np.unique(targets, return_inverse=True)
        if len(unseen := np.setdiff1d(targets[~is_train], targets[is_train])):
            raise SampleError(f"class {unseen[0]!r} occurs in validation, and not in y")
        if len(self.classes_) < 2:
            raise SampleError(f"y has one class only ({self.classes_[0]!r}): there is nothing to tell apart")
        task: Task = "binary" if len(self.classes_) == 2 else "multiclass"
        names = self.classes_.tolist() if self.classes_.dtype.kind in "iuU" else [str(c) for c in self.classes_]
        if len(set(names)) < len(names):
            names = list(range(len(names)))
        return counted(codes.reshape(-1).astype(np.int32), task, names)


class LargeGTRegressor(RegressorMixin, _LargeGTEstimator):  # type: ignore[misc]
    """Values of nodes: `LargeGTRegressor(graph=A, features=X).fit(nodes, y).predict(others)`.

    The parameters are those of LargeGTClassifier, whose text says what they are. `score` is R².
    """

    def predict(self, X: Any) -> Array:
        """The value of each node of `X`."""
        return self._outputs(X)[:, 0]

    def _targets(self, y: Any, what: str) -> Array:
        if y is None:
            raise SampleError(f"LargeGTRegressor requires y to be passed, but the target {what} is None")
        try:
            targets: Array = column_or_1d(as_numpy(y), warn=True).astype(np.float32)
        except (TypeError, ValueError) as error:
            raise SampleError(f"{what} must be one number per node: {error}") from None
        if not np.isfinite(targets).all():
            raise SampleError(f"{what} holds NaN or infinity: give fit the nodes whose values are known")
        return targets

    def _encoded(self, targets: Array, is_train: Array) -> Encoded:
        return counted(targets, "regression", [])


def _numbers(graph: GraphStore, X: Any) -> Array:
    """Node numbers from node numbers, the store's own ids, or a mask over all nodes."""
    nodes = as_numpy(X)
    if nodes.ndim == 2 and nodes.shape[1] == 1:
        nodes = nodes[:, 0]
    if nodes.ndim != 1:
        raise SampleError(
            f"X has shape {list(nodes.shape)}, and must hold nodes, one number or id per sample: features belong "
            "to the constructor, features="
        )
    if nodes.dtype == np.bool_:
        if len(nodes) != graph.num_nodes:
            raise SampleError(f"X is a mask of {len(nodes)} entries, and the graph has {graph.num_nodes} nodes")
        return np.flatnonzero(nodes)
    try:
        return graph.nodes_of(nodes.tolist())
    except OverflowError:
        raise SampleError("X holds infinity, which is no node") from None
    except InputError as error:
        reason = str(error).replace(graph.place, "the graph").partition(": largegt inspect")[0]
        raise SampleError(f"X: {reason}") from None


def _check_lengths(nodes: Array, targets: Array, what: str) -> None:
    if len(nodes) != len(targets):
        raise SampleError(f"X names {len(nodes)} nodes, and {what} has {len(targets)} entries")
    if not len(nodes):
        raise SampleError("X names no node")


def _deduplicated(nodes: Array, values: Array, is_valid: Array) -> tuple[Array, Array]:
    """(distinct nodes, index of the first occurrence of each); repeated nodes must have equal labels."""
    distinct, first, inverse = np.unique(nodes, return_index=True, return_inverse=True)
    is_same = (values == values[first][inverse]).reshape(len(nodes), -1).all(axis=1)
    if not is_same.all():
        raise SampleError(f"node {int(nodes[~is_same][0])} is named twice with different labels")
    if (is_valid != is_valid[first][inverse]).any():
        raise SampleError("a node is in X and in validation: each may be in one only")
    return distinct, first


def _split_off(encoded: Encoded, fraction: float, seed: int) -> Array:
    """The split of these nodes: a fraction of each class for validation, never a whole class."""
    is_labelled = np.ones(len(encoded.values), dtype=bool)
    stratify = encoded.task in ("multiclass", "binary")
    split = made_split(encoded.values, is_labelled, (1 - fraction, fraction, 0.0), seed, stratify=stratify)
    if stratify:
        train = split == SPLIT_CODES["train"]
        unseen = np.setdiff1d(encoded.values, encoded.values[train])
        split[np.isin(encoded.values, unseen)] = SPLIT_CODES["train"]
    elif not (split == SPLIT_CODES["train"]).any():
        split[:] = SPLIT_CODES["train"]
    return split
