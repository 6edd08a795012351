"""Explain: a run and a node → which columns, local nodes, contexts, labels and centroids carried what is said of it.

Enters: a LargeGT run and one of the user's own ids; a node that was not prepared is prepared first, as for predict.
Leaves: an `Explanation`. Cost: opening the run as predict does, then some hundred forwards of one node in double
precision: seconds (attribution.py). What is explained is the prediction of the run's weights, over as many draws of
local nodes as the run is set to.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from largegt.data.labels import num_label_columns
from largegt.data.splits import SPLIT_CODES
from largegt.data.store import GraphStore
from largegt.errors import ConfigError, nearest
from largegt.inference.predictor import PredictOptions, Predictor
from largegt.loader.batch import TokenBatch, distinct_rows
from largegt.loader.loader import TokenLoader
from largegt.models.largegt.model import LargeGT
from largegt.runtime.progress import Progress
from largegt.training.run import Run
from largegt.types import Array, PathLike

from .attribution import Attribution, Score
from .columns import input_columns, mean_token, token_columns
from .explanation import Centroid, Explanation, LabelAround, LocalNode, Piece
from .inputs import Inputs, OpenModel

MOST_CENTROIDS = 20
MOST_DRAWN = 40
"""Local nodes in the picture, and their edges: the strongest."""

_TOLD, _AROUND_ITSELF = "labels that local nodes tell", "labels around, its own token"
_OTHERS = {
    "around": "training labels around it", "weights": "centroids of the whole graph",
    "own": "its own features, added last",
}  # fmt: skip


def explain(
    run: PathLike | Run,
    node: Any,
    label: Any = None,
    device: str | None = None,
    progress: Progress | None = None,
    draws: int | None = None,
    memory: str | int | None = None,
) -> Explanation:
    """Why a run predicts what it predicts for the node with this id.

    Explained are the log-odds of one class or label: of `label` where it is given, of what is predicted otherwise; for
    regression, the value. `draws`, `device` and `memory` are as for `predict`.
    """
    opened = Run.open(run)
    name = opened.config.model.name
    if not name.startswith("largegt-"):
        raise ConfigError(
            f"{opened.path} is a {name}, and only what a LargeGT says can be explained: train with --model largegt"
        )
    prediction = Predictor(opened, PredictOptions(
        ids=[node], all_probabilities=True, device=device, progress=progress, draws=draws, memory=memory
    ))  # fmt: skip
    model = prediction.model
    assert isinstance(model, LargeGT)
    store, head = prediction.store, prediction.head
    batch, local_rows_dk = _batch(prediction, model)
    opened_model = OpenModel(model)
    inputs = opened_model.inputs(batch)
    assert batch.multiplicity is not None
    h = 1 if model.local_module is None else model.local_module.tokens_per_node
    bias_dt = batch.multiplicity.double().log().repeat_interleave(h, dim=1)
    with torch.no_grad():
        logits_do = opened_model.logits(inputs, bias_dt)
    probabilities = head.probabilities(head.average([row[None] for row in logits_do]))[0]
    target = _target(store, label, probabilities)
    assert isinstance(prediction.loader, TokenLoader)
    baseline = opened_model.nothing_known(inputs, mean_token(prediction.loader))
    found = Attribution(opened_model, Score(head, target), inputs, baseline, bias_dt)
    carried, gap = found.integrated()
    number = int(store.nodes_of([node])[0])
    nodes = _local_nodes(prediction, found, carried, local_rows_dk, batch.multiplicity.cpu().numpy(), number)
    is_value = head.task == "regression"
    return Explanation(
        run=str(opened.path),
        model=name,
        task=head.task,
        node=store.ids_of(np.array([number]))[0],
        label=store.label_of(number),
        predicted=_predicted(store, probabilities),
        explained="predicted value" if is_value else f"log-odds of {store.class_name(target)}",
        target=None if is_value else store.class_name(target),
        probability=None if is_value else float(probabilities[target]),
        score=found.full,
        base_score=found.base,
        gap=gap,
        draws=len(bias_dt),
        pieces=_pieces(found, carried, prediction.prepared.token_names[:h]),
        columns=input_columns(found, carried, token_columns(store, prediction.prepared.config)),
        local_nodes=nodes,
        centroids=_centroids(found, carried, model, store),
        labels_around=_labels_around(found, carried, model, store),
        edges=_edges(store, number, store.nodes_of([one.node for one in nodes[:MOST_DRAWN]])),
    )


# what the model reads --------------------------------------------------------------------------------------------


def _batch(prediction: Predictor, model: LargeGT) -> tuple[TokenBatch, Array]:
    """The node as every draw has it, distinct local nodes alone, and their rows of the token table [d, k]."""
    rows = np.asarray(prediction.rows)
    loaders = prediction.scorer.loaders(rows, prediction.draws)
    first = loaders[0]
    assert isinstance(first, TokenLoader)
    table, at = first.table, torch.from_numpy(rows.astype(np.int64)).to(first.table.device)
    drawn = [loader.table.marked_rows_of(at, first.k) for loader in loaders]
    local_rows_dk = torch.cat(drawn)
    multiplicity_dk = torch.ones_like(local_rows_dk, dtype=torch.int32)
    if local_rows_dk.shape[1] > 1:
        local_rows_dk, multiplicity_dk = distinct_rows(local_rows_dk)
    local_rows_dk, near_dk = table.unmarked(local_rows_dk)
    at = at.expand(len(drawn))
    batch = TokenBatch(
        nodes=table.nodes[at].long(),
        tokens=table.tokens_of(local_rows_dk),
        multiplicity=multiplicity_dk,
        positions=table.positions_np[at],
        labels=table.labels[at],
        label_contexts=table.label_contexts[at] if table.label_contexts.shape[1] else None,
        local_labels=None if first.local_labels is None else first.local_labels.told_to(local_rows_dk),
        near=near_dk,
        local_contexts=table.local_contexts_of(at, local_rows_dk, near_dk),
    )
    return batch.to(first.device), local_rows_dk.cpu().numpy()


# what is explained -----------------------------------------------------------------------------------------------


def _target(store: GraphStore, label: Any, probabilities: Tensor) -> int:
    """The class or label column that is explained."""
    if store.task == "regression":
        if label is not None:
            raise ConfigError("this run predicts a value, so there is no label to choose: leave out --label")
        return 0
    if len(store.classes) < 2 and store.task == "multiclass":
        raise ConfigError("this run knows one class only, so nothing speaks for or against it")
    if label is None:
        return int(probabilities.argmax())
    names = [str(name) for name in store.classes]
    if str(label) not in names:
        shown = ", ".join(names[:8]) + (", …" if len(names) > 8 else "")
        raise ConfigError(f"{label!r} is none of the labels{nearest(str(label), names)}; there are: {shown}")
    return names.index(str(label))


def _predicted(store: GraphStore, probabilities: Tensor) -> Any:
    if store.task == "regression":
        return float(probabilities[0])
    if store.task == "multilabel":
        return [name for name, chance in zip(store.classes, probabilities.tolist(), strict=True) if chance >= 0.5]
    return store.class_name(int(probabilities.argmax()))


# what carried it -------------------------------------------------------------------------------------------------


def _pieces(found: Attribution, carried: Inputs, names: list[str]) -> list[Piece]:
    """Kinds of inputs, the strongest first."""
    pieces = []
    if carried.tokens is not None and found.inputs.tokens is not None and found.baseline.tokens is not None:
        h = len(names)
        of_own = [(f"its own {name}", slice(hop, hop + 1)) for hop, name in enumerate(names)]
        of_others = [(f"{name} of local nodes", slice(h + hop, None, h)) for hop, name in enumerate(names)]
        for words, tokens in [*of_own, *(of_others if found.inputs.tokens.shape[1] > h else [])]:
            others_dtf = found.inputs.tokens.clone()
            others_dtf[:, tokens] = found.baseline.tokens[:, tokens]
            total = float(carried.tokens[:, tokens].sum())
            pieces.append(Piece(words, total, found.without(tokens=others_dtf)))
    if carried.told is not None and found.inputs.told is not None and found.baseline.told is not None:
        own, others = slice(0, 1), slice(1, None)  # itself, it tells of nothing but labels around
        is_told = found.model.local is not None and found.model.local.context is not None
        for words, of in [
            (_TOLD, others),
            *([(_AROUND_ITSELF, own)] if is_told else []),
        ]:
            told_dk1w = found.inputs.told.clone()
            told_dk1w[:, of] = found.baseline.told[:, of]
            pieces.append(Piece(words, float(carried.told[:, of].sum()), found.without(told=told_dk1w)))
    for key, words in _OTHERS.items():
        part = getattr(carried, key)
        if part is not None:
            without = found.without(**{key: getattr(found.baseline, key)})
            pieces.append(Piece(words, float(part.sum()), without))
    return sorted(pieces, key=lambda piece: -abs(piece.carried))


def _local_nodes(
    prediction: Predictor,
    found: Attribution,
    carried: Inputs,
    local_rows_dk: Array,
    multiplicity_dk: Array,
    number: int,
) -> list[LocalNode]:
    """Every distinct local node of all draws, the strongest first; not the node itself."""
    if carried.tokens is None or local_rows_dk.shape[1] < 2:
        return []
    store, names = prediction.store, prediction.prepared.token_names
    h = len(names)
    by_token_dkh = carried.tokens.sum(dim=2).view(len(local_rows_dk), -1, h).cpu().numpy()
    told_dk = np.zeros(local_rows_dk.shape)
    if carried.told is not None:
        told_dk = carried.told.sum(dim=(2, 3)).cpu().numpy()
    weight_dk = (
        found.model.readout(found.inputs, found.bias_dt).view(len(local_rows_dk), -1, h).sum(dim=2).cpu().numpy()
    )
    slots: dict[int, list[tuple[int, int]]] = {}
    for draw, slot in np.argwhere(multiplicity_dk[:, 1:] > 0).tolist():
        slots.setdefault(int(local_rows_dk[draw, slot + 1]), []).append((draw, slot + 1))
    nodes = np.asarray(prediction.prepared.token_nodes[list(slots)], dtype=np.int64)
    falls = found.without_nodes(list(slots.values()))
    hops = _hops(store, prediction, number, nodes)
    splits = {code: name for name, code in SPLIT_CODES.items()}
    made = []
    for at, (places, id_) in enumerate(zip(slots.values(), store.ids_of(nodes), strict=True)):
        draws, columns = (np.array(part) for part in zip(*places, strict=True))
        by_token_h = by_token_dkh[draws, columns].sum(axis=0)
        told = float(told_dk[draws, columns].sum())
        made.append(
            LocalNode(
                node=id_,
                label=store.label_of(int(nodes[at])),
                split=splits.get(int(store.split[nodes[at]]), "none"),
                hop=int(hops[at]),
                drawn=float(multiplicity_dk[draws, columns].sum()) / len(local_rows_dk),
                carried=float(by_token_h.sum()) + told,
                told=told,
                by_token=dict(zip(names, by_token_h.tolist(), strict=True)),
                without=falls[at],
                weight=float(weight_dk[draws, columns].sum()) / len(local_rows_dk),
            )
        )
    return sorted(made, key=lambda one: -abs(one.carried))


def _hops(store: GraphStore, prediction: Predictor, number: int, nodes: Array) -> Array:
    indptr, indices = store.csr(prediction.prepared.config.local_nodes.direction)
    neighbors = np.asarray(indices[indptr[number] : indptr[number + 1]])
    if not len(neighbors[neighbors != number]):
        return np.zeros(len(nodes), np.int64)
    return np.where(np.isin(nodes, neighbors), 1, 2)


def _centroids(found: Attribution, carried: Inputs, model: LargeGT, store: GraphStore) -> list[Centroid]:
    """Those that carried most."""
    if carried.weights is None or found.inputs.weights is None or found.baseline.weights is None:
        return []
    assert model.global_module is not None
    codebook = model.global_module.codebook
    carried_c = carried.weights.sum(dim=(0, 1)).cpu().numpy()
    weight_c, size_c = (part.mean(dim=(0, 1)).cpu().numpy() for part in (found.inputs.weights, found.baseline.weights))
    strongest = np.argsort(-np.abs(carried_c), kind="stable")[:MOST_CENTROIDS]
    is_named = store.task in ("multiclass", "binary")
    train = store.splits["train"] if is_named else np.empty(0, np.int64)
    centroid_n = codebook.assignment.cpu().numpy()[train]
    made = []
    for c in strongest.tolist():
        counts = np.bincount(np.asarray(store.labels)[train[centroid_n == c]]) if is_named else np.empty(0)
        mostly = store.class_name(int(counts.argmax())) if counts.sum() else None
        made.append(
            Centroid(c, int(codebook.counts[c]), mostly, float(weight_c[c]), float(size_c[c]), float(carried_c[c]),
                     found.without_centroid(c))
        )  # fmt: skip
    return made


def _labels_around(found: Attribution, carried: Inputs, model: LargeGT, store: GraphStore) -> list[LabelAround]:
    if carried.around is None or found.inputs.around is None:
        return []
    columns = num_label_columns(store.task, store.num_outputs)
    names = [*(store.classes or ["their mean"]), None]
    carried_hc = carried.around.sum(dim=0).view(-1, columns + 1).cpu().numpy()
    share_hc = found.inputs.around[0].view(-1, columns + 1).cpu().numpy()
    made = [
        LabelAround(hop + 1, name, float(share_hc[hop, at]), float(carried_hc[hop, at]))
        for hop in range(len(share_hc))
        for at, name in enumerate(names)
        if share_hc[hop, at]
    ]
    return sorted(made, key=lambda one: -abs(one.carried))


def _edges(store: GraphStore, number: int, nodes: Array) -> list[tuple[int, int]]:
    """Edges among these nodes and the explained one (-1), each once."""
    indptr, indices = store.csr("both")
    every = np.concatenate([[number], nodes])
    found = set()
    for at, node in enumerate(every):
        near = np.isin(every, np.asarray(indices[indptr[node] : indptr[node + 1]]))
        found |= {(min(at, other) - 1, max(at, other) - 1) for other in np.flatnonzero(near).tolist() if other != at}
    return sorted(found)
