"""Explain: a run and a node → attributions of columns, local nodes, contexts, labels and centroids.

Axes: d samples of local nodes, k local nodes, h tokens of each, c centroids or classes.

Enters: a LargeGT run and one of the user's own ids; a node without a preparation is prepared first, as for predict.
Leaves: an `Explanation` of the prediction that is averaged over the run's number of samples. Cost: opening the run as
predict does, then about a hundred forward passes of one node in double precision: seconds (attribution.py).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from largegt.data.labels import num_label_columns
from largegt.data.splits import SPLIT_CODES
from largegt.data.store import GraphStore
from largegt.errors import ConfigError, nearest
from largegt.inference.predictor import PredictOptions, Predictor
from largegt.loader.batch import TokenBatch
from largegt.loader.loader import TokenLoader
from largegt.models.largegt.model import LargeGT
from largegt.preprocessing.prepared import Prepared
from largegt.preprocessing.sampling.neighbor_lists import MappedCSR
from largegt.runtime.progress import Progress
from largegt.training.run import Run
from largegt.types import Array, PathLike

from .attribution import Attribution, scores
from .columns import input_columns, mean_token, token_columns
from .explanation import MOST_DRAWN, Centroid, Contribution, Explanation, LabelAround, LocalNode
from .inputs import OpenModel

MOST_CENTROIDS = 20


def explain(
    run: PathLike | Run,
    node: Any,
    label: Any = None,
    device: str | None = None,
    progress: Progress | None = None,
    num_eval_samples: int | None = None,
    memory: str | int | None = None,
) -> Explanation:
    """Explain why a run predicts what it predicts for one node.

    Explained are the log-odds of one class or label; for a regression, the value.

    Args:
        run: a run of LargeGT, or its folder.
        node: the user's own id.
        label: the class or label to explain; the predicted one by default.
        device: auto, cpu or cuda; that of the run by default.
        progress: is called as `progress(stage, done, total)`.
        num_eval_samples: average over so many samples of local nodes; as many as the run is set to by default.
        memory: for preparing the node where that is missing, such as `"4GiB"`.

    Returns:
        The share of each input, column, local node and label. `write("node.html")` writes a page.

    Raises:
        ConfigError: the run's model is no LargeGT, or there is no such label.
        InputError: there is no run, or the id is unknown.

    Examples:
        >>> found = lg.explain("runs/a", node=7)
        >>> found.node
        7
        >>> page = found.write("node.html")
    """
    opened = Run.open(run)
    name = opened.config.model.name
    if not name.startswith("largegt-"):
        raise ConfigError(
            f"{opened.path} is a {name}, and only predictions of LargeGT can be explained: train largegt-local, "
            "-global or -full"
        )
    prediction = Predictor(opened, PredictOptions(
        ids=[node], all_probabilities=True, device=device, progress=progress, memory=memory,
        num_eval_samples=num_eval_samples,
    ))  # fmt: skip
    model, store, head, prepared = prediction.model, prediction.store, prediction.head, prediction.prepared
    assert isinstance(model, LargeGT)
    assert isinstance(prediction.loader, TokenLoader)
    batch, local_rows_dk = _batch(prediction)
    opened_model = OpenModel(model)
    inputs = opened_model.inputs(batch)
    with torch.no_grad():
        probabilities = head.probabilities(head.average([row[None] for row in opened_model.logits(inputs)]))[0]
    target = _target(store, label, probabilities)
    found = Attribution(
        opened_model, lambda logits: scores(head, logits, torch.full_like(logits[:, 0, 0], target, dtype=torch.long)),
        inputs, opened_model.baseline(inputs, mean_token(prediction.loader)),
    )  # fmt: skip
    number = int(store.nodes_of([node])[0])
    nodes = _local_nodes(store, prepared, found, local_rows_dk, number)
    target_name = None if head.task == "regression" else store.class_name(target)
    return Explanation(
        run=str(opened.path),
        model=name,
        task=head.task,
        node=store.ids_of(np.array([number]))[0],
        label=store.label_of(number),
        predicted=_predicted(store, probabilities),
        explained="predicted value" if target_name is None else f"log-odds of {target_name}",
        target=target_name,
        probability=None if target_name is None else float(probabilities[target]),
        score=found.full,
        base_score=found.base,
        gap=found.gap,
        num_eval_samples=found.num_samples,
        pieces=_pieces(found, prepared.token_names),
        columns=input_columns(found, token_columns(store, prepared.config)),
        local_nodes=nodes,
        centroids=_centroids(found, model, store),
        labels_around=_labels_around(found, store),
        edges=_edges(store, number, store.nodes_of([one.node for one in nodes[:MOST_DRAWN]])),
    )


def _batch(prediction: Predictor) -> tuple[TokenBatch, Array]:
    """The node's batch with all samples of its local nodes, and their rows in the token table [d, k]."""
    rows = np.asarray(prediction.rows)
    batches, local_rows = [], []
    for loader in prediction.scorer.loaders(rows, prediction.num_eval_samples):
        assert isinstance(loader, TokenLoader)
        row = torch.from_numpy(rows.astype(np.int64)).to(loader.table.device)
        batches.append(replace(loader, distinct=False).gather(row))
        local_rows.append(loader.table.unmarked(loader.table.marked_rows_of(row, loader.k))[0])
    parts = {name: [vars(batch)[name] for batch in batches] for name, part in vars(batches[0]).items()
             if part is not None}  # fmt: skip
    joined = replace(batches[0], **{name: torch.cat(every) for name, every in parts.items()})
    return joined, torch.cat(local_rows).cpu().numpy()


# the target ------------------------------------------------------------------------------------------------------


def _target(store: GraphStore, label: Any, probabilities: Tensor) -> int:
    """The class or label column that is explained."""
    if store.task == "regression":
        if label is not None:
            raise ConfigError("this run predicts a value, so there is no label to choose: leave out `label`")
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
        return [name for name, p in zip(store.classes, probabilities.tolist(), strict=True) if p >= 0.5]
    return store.class_name(int(probabilities.argmax()))


# attributions ----------------------------------------------------------------------------------------------------


def _pieces(found: Attribution, names: list[str]) -> list[Contribution]:
    """Attributions by kind of input, largest first."""
    carried, every, h = found.carried, slice(None), len(names)
    kinds = [(f"its own {name}", "tokens", slice(hop, hop + 1)) for hop, name in enumerate(names)]
    if "tokens" in carried and carried["tokens"].shape[1] > h:
        kinds += [(f"{name} of local nodes", "tokens", slice(h + hop, None, h)) for hop, name in enumerate(names)]
    kinds.append(("labels of local nodes", "labels", slice(1, None)))
    if found.model.encoder is not None and found.model.encoder.histogram is not None:
        kinds.append(("labels around, its own token", "labels", slice(0, 1)))  # its own label is no input
    kinds += [
        ("training labels around it", "around", every), ("centroids of the whole graph", "weights", every),
        ("its own features, added last", "own", every),
    ]  # fmt: skip
    pieces = []
    for words, name, of in kinds:
        if name in carried:
            changed = found.inputs[name].clone()
            changed[:, of] = found.baseline[name][:, of]
            pieces.append(Contribution(words, float(carried[name][:, of].sum()), found.without(**{name: changed})))
    return sorted(pieces, key=lambda piece: -abs(piece.carried))


def _local_nodes(
    store: GraphStore, prepared: Prepared, found: Attribution, local_rows_dk: Array, number: int
) -> list[LocalNode]:
    """Each distinct local node of all samples except the node itself, largest attribution first."""
    carried = found.carried
    if "tokens" not in carried or local_rows_dk.shape[1] < 2:
        return []
    names, num_samples = prepared.token_names, len(local_rows_dk)
    by_token_dkh = carried["tokens"].sum(dim=2).view(*local_rows_dk.shape, -1).cpu().numpy()
    labels_dk = (
        carried["labels"].sum(dim=(2, 3)).cpu().numpy() if "labels" in carried else np.zeros(local_rows_dk.shape)
    )
    weight_dk = found.model.readout(found.inputs).view(*local_rows_dk.shape, -1).sum(dim=2).cpu().numpy()
    rows = np.unique(local_rows_dk[:, 1:])
    slots_ndk = rows[:, None, None] == local_rows_dk
    slots_ndk[:, :, 0] = False
    nodes = np.asarray(prepared.token_nodes[rows], dtype=np.int64)
    lists = MappedCSR.of_store(store, prepared.config.local_nodes.direction)
    is_isolated = not (lists.neighbors(np.array([number]))[1] != number).any()
    hops = np.where(lists.has(np.full(len(nodes), number), nodes), 1, 0 if is_isolated else 2)
    falls = found.without_nodes(torch.from_numpy(slots_ndk).to(found.logits_do.device))
    splits = {code: name for name, code in SPLIT_CODES.items()}
    made = []
    for at, (slots_dk, id_) in enumerate(zip(slots_ndk, store.ids_of(nodes), strict=True)):
        by_token_h, from_label = by_token_dkh[slots_dk].sum(axis=0), float(labels_dk[slots_dk].sum())
        made.append(
            LocalNode(
                node=id_,
                label=store.label_of(int(nodes[at])),
                split=splits.get(int(store.split[nodes[at]]), "none"),
                hop=int(hops[at]),
                drawn=float(slots_dk.sum()) / num_samples,
                carried=float(by_token_h.sum()) + from_label,
                from_label=from_label,
                by_token=dict(zip(names, by_token_h.tolist(), strict=True)),
                without=float(falls[at]),
                weight=float(weight_dk[slots_dk].sum()) / num_samples,
            )
        )
    return sorted(made, key=lambda one: -abs(one.carried))


def _centroids(found: Attribution, model: LargeGT, store: GraphStore) -> list[Centroid]:
    """The centroids with the largest attributions."""
    if model.global_module is None:
        return []
    codebook = model.global_module.codebook
    carried_c = found.carried["weights"].sum(dim=(0, 1)).cpu().numpy()
    weight_c, size_c = (one["weights"].mean(dim=(0, 1)).cpu().numpy() for one in (found.inputs, found.baseline))
    train = store.splits["train"] if store.task in ("multiclass", "binary") else np.empty(0, np.int64)
    centroid_n, label_n = codebook.assignment.cpu().numpy()[train], np.asarray(store.labels[train])
    made = []
    for c in np.argsort(-np.abs(carried_c), kind="stable")[:MOST_CENTROIDS].tolist():
        counts = np.bincount(label_n[centroid_n == c]) if len(train) else np.empty(0)
        made.append(
            Centroid(
                number=c,
                nodes=int(codebook.counts[c]),
                mostly=store.class_name(int(counts.argmax())) if counts.sum() else None,
                weight=float(weight_c[c]),
                by_size=float(size_c[c]),
                carried=float(carried_c[c]),
                without=found.without_centroid(c),
            )
        )
    return made


def _labels_around(found: Attribution, store: GraphStore) -> list[LabelAround]:
    if "around" not in found.inputs:
        return []
    columns = 1 + num_label_columns(store.task, store.num_outputs)
    names = [*(store.classes or ["their mean"]), None]
    carried_hc = found.carried["around"].sum(dim=0).view(-1, columns).tolist()
    share_hc = found.inputs["around"][0].view(-1, columns).tolist()
    made = [
        LabelAround(hop, name, share, part)
        for hop, (shares, parts) in enumerate(zip(share_hc, carried_hc, strict=True), start=1)
        for name, share, part in zip(names, shares, parts, strict=True)
        if share
    ]
    return sorted(made, key=lambda one: -abs(one.carried))


def _edges(store: GraphStore, number: int, nodes: Array) -> list[tuple[int, int]]:
    """Edges among these nodes and the explained one (-1), each once."""
    members = np.concatenate([[number], nodes])
    first, second = np.triu_indices(len(members), k=1)
    lists = MappedCSR.of_store(store, "both")
    has_edge = lists.has(members[first], members[second])
    return list(zip((first[has_edge] - 1).tolist(), (second[has_edge] - 1).tolist(), strict=True))
