"""A small graph in plain Python, the steps that disturb it, and what a store of it must hold.

`Graph` is what a person would write down: ids, edges, features, labels, a split. A step changes it and says what that
means for ingest: nothing (`expects` stays RIGHT), that it must be refused, or that nobody can say (`ANY`).
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from largegt.data.store import GraphStore

from .cases import Wrong
from .mutations import NUMBERS, WORDS

MUST_BE_RIGHT, MUST_BE_REFUSED, ANY = "right", "refused", "any"


@dataclass
class Graph:
    """Nodes in the order of the table, a row each. `columns` are features by name."""

    ids: list[Any]
    edges: list[tuple[Any, Any]]
    columns: dict[str, list[Any]]
    labels: list[Any]
    split: list[Any] | None
    id_kind: str
    settings: dict[str, Any] = field(default_factory=dict)
    extra: dict[str, list[Any]] = field(default_factory=dict)
    """Columns that are no features: dates, words, nested things."""
    expects: str = MUST_BE_RIGHT
    has_gaps: bool = False
    """Features that are missing."""
    has_endless: bool = False
    """Features that float32 cannot hold: missing in a typed column, and text in a CSV file."""
    has_unknown: bool = False
    """Edges to nobody."""

    def settle(self) -> None:
        """Say what is expected once all steps are done."""
        if self.has_gaps and self.settings.get("missing_values") == "refuse":
            self.refuse()
        if any(len(set(finite(column))) < 2 for column in self.columns.values()):
            self.unsure()  # a column without values, or of one value, is ignored
        if self.has_unknown and "unknown_ids" not in self.settings:
            self.refuse()

    def refuse(self) -> None:
        if self.expects == MUST_BE_RIGHT:
            self.expects = MUST_BE_REFUSED

    def unsure(self) -> None:
        self.expects = ANY


_ID_MAKERS: dict[str, Callable[[int, random.Random], Any]] = {
    "row": lambda row, rng: row,
    "number": lambda row, rng: 3 * row + 10,
    "negative": lambda row, rng: -5 * row - 1,
    "large": lambda row, rng: 2**62 + row,
    "word": lambda row, rng: f"n{row}",
    "padded": lambda row, rng: f"{row:04d}",
    "partly padded": lambda row, rng: f"{row:02d}" if row else "5000",
    "hexadecimal": lambda row, rng: f"0x{row:x}",
    "unsigned": lambda row, rng: str(2**63 + row),
    "signed": lambda row, rng: f"+{row}",
    "date": lambda row, rng: f"2020-01-{row + 1:02d}",
    "time": lambda row, rng: f"10:{row + 10}:00",
    "mixed": lambda row, rng: row if row % 3 else f"n{row}",
    "unicode": lambda row, rng: "é日🦜"[row % 3] + str(row),
    "quoted": lambda row, rng: f'a "{row}", b',
    "spaced": lambda row, rng: f"node {row}",
    "null-like": lambda row, rng: ("NA", "null", "NaN", "None", "#N/A", "nan")[row] if row < 6 else f"x{row}",
}  # fmt: skip
TEXT_ONLY = ("padded", "partly padded", "hexadecimal", "unsigned", "signed", "date", "time", "null-like")
"""Ids that are text, and look like something else in a CSV."""


def random_graph(rng: random.Random) -> Graph:
    """Something that ingest must take, whatever the form it is written in."""
    num_nodes = rng.randint(3, 12)
    kind = rng.choice(list(_ID_MAKERS))
    ids = [_ID_MAKERS[kind](row, rng) for row in range(num_nodes)]
    edges = [(ids[row], ids[(row + 1) % num_nodes]) for row in range(num_nodes)]
    edges += [(rng.choice(ids), rng.choice(ids)) for _ in range(rng.randrange(12))]
    label = rng.choice(("word", "number", "fraction", "padded", "flag"))
    makers: dict[str, Callable[[int], Any]] = {
        "word": lambda row: ("b", "a", "c d", "é")[row % 4],
        "number": lambda row: (3, 1, 20)[row % 3],
        "fraction": lambda row: row + 0.25,
        "padded": lambda row: f"{row % 3:02d}",
        "flag": lambda row: (True, False)[row % 2],
    }
    width = rng.randint(1, 3)
    columns = {f"f{at}": [round(rng.uniform(-9, 9), 3) for _ in ids] for at in range(width)}
    split = [("train", "valid", "test", "")[row % 4] for row in range(num_nodes)] if rng.random() < 0.5 else None
    return Graph(ids, edges, columns, [makers[label](row) for row in range(num_nodes)], split, kind)


# steps: each changes the graph ------------------------------------------------------------------------------------


def missing_id(graph: Graph, rng: random.Random) -> None:
    graph.ids[rng.randrange(len(graph.ids))] = None
    graph.unsure()  # an empty text is an id like any other, but an empty number is none


def repeated_id(graph: Graph, rng: random.Random) -> None:
    graph.ids[0] = graph.ids[-1]
    graph.refuse()


def unknown_end(graph: Graph, rng: random.Random) -> None:
    graph.edges.append((graph.ids[0], 999_999 if isinstance(graph.ids[0], int) else "nobody"))
    if rng.random() < 0.5:
        graph.settings["unknown_ids"] = "drop"
    graph.has_unknown = True


def odd_end(graph: Graph, rng: random.Random) -> None:
    graph.edges.append((rng.choice([*WORDS[:40], *NUMBERS, None]), graph.ids[0]))
    graph.unsure()


def odd_id(graph: Graph, rng: random.Random) -> None:
    graph.ids[rng.randrange(len(graph.ids))] = rng.choice([*WORDS[:40], *NUMBERS])
    graph.unsure()


def missing_feature(graph: Graph, rng: random.Random) -> None:
    name = rng.choice(list(graph.columns))
    graph.columns[name][rng.randrange(len(graph.ids))] = rng.choice((None, math.nan))
    if rng.random() < 0.5:
        graph.settings["missing_values"] = "refuse"
    graph.has_gaps = True


def endless_feature(graph: Graph, rng: random.Random) -> None:
    name = rng.choice(list(graph.columns))
    graph.columns[name][rng.randrange(len(graph.ids))] = rng.choice((math.inf, -math.inf, 1e300))
    graph.has_gaps = graph.has_endless = True


def odd_feature(graph: Graph, rng: random.Random) -> None:
    name = rng.choice(list(graph.columns))
    graph.columns[name][rng.randrange(len(graph.ids))] = rng.choice([*WORDS[:40], *NUMBERS])
    graph.unsure()


def missing_label(graph: Graph, rng: random.Random) -> None:
    graph.labels[rng.randrange(len(graph.ids))] = None
    if all(label is None for label in graph.labels):
        graph.refuse()


def no_labels(graph: Graph, rng: random.Random) -> None:
    graph.labels = [None] * len(graph.ids)
    graph.refuse()


def odd_label(graph: Graph, rng: random.Random) -> None:
    graph.labels[rng.randrange(len(graph.ids))] = rng.choice([*WORDS[:40], *NUMBERS])
    graph.unsure()


def odd_split(graph: Graph, rng: random.Random) -> None:
    if graph.split is None:
        graph.split = ["train"] * len(graph.ids)
    word = rng.choice(("training", "Val", " TEST ", "dev", "holdout", "0", "1"))
    graph.split[rng.randrange(len(graph.ids))] = word
    if word in ("holdout", "0", "1"):
        graph.refuse()


def more_edges(graph: Graph, rng: random.Random) -> None:
    graph.edges += [(graph.ids[0], graph.ids[0]), *graph.edges[:1], *[pair[::-1] for pair in graph.edges[-1:]]]


def no_edges(graph: Graph, rng: random.Random) -> None:
    graph.edges.clear()
    graph.refuse()


def loops_only(graph: Graph, rng: random.Random) -> None:
    graph.edges[:] = [(one, one) for one in graph.ids]
    graph.refuse()


def odd_settings(graph: Graph, rng: random.Random) -> None:
    choices: list[tuple[str, Any]] = [
        ("undirected", True), ("feature_dtype", "float16"), ("feature_dtype", "bfloat16"), ("stratify", True),
        ("task", "regression"), ("task", "binary"), ("task", "multilabel"), ("task", "multiclass"),
        ("split", (0.0, 0.5, 0.5)), ("split", (1.0, 0.0, 0.0)), ("split", (0.2, 0.2, 0.2)), ("split_seed", 2**62),
        ("missing_values", "mean"), ("name", rng.choice(WORDS)), ("parallel_edges", rng.choice(("count", "last"))),
        ("kinds", (f"f0={rng.choice(('category', 'date', 'text', 'ignore', 'boolean'))}",)),
        ("missing_markers", (rng.choice(("b", "3", "", "n1")),)),
    ]  # fmt: skip
    name, value = rng.choice(choices)
    graph.settings[name] = value
    if name != "undirected":
        graph.unsure()


def extra_column(graph: Graph, rng: random.Random) -> None:
    kinds: dict[str, Callable[[int], Any]] = {
        "when": lambda row: f"20{row:02d}-01-{row + 1:02d}T00:00:00",
        "text": lambda row: f"lorem {row}, ipsum dolor {row % 3} sit amet",
        "été": lambda row: "xyz"[row % 3],
        "with space": lambda row: (True, False)[row % 2],
        "constant": lambda row: "x y",
        "Gaps": lambda row: rng.choice((None, "", "NA", "7", "1,000")),
    }
    name = rng.choice(list(kinds))
    graph.extra[name] = [kinds[name](row) for row in range(len(graph.ids))]


GRAPH_STEPS = (
    missing_id, repeated_id, unknown_end, odd_end, odd_id, missing_feature, endless_feature, odd_feature, missing_label,
    no_labels, odd_label, odd_split, more_edges, no_edges, loops_only, odd_settings, extra_column,
)  # fmt: skip


# what must come out -----------------------------------------------------------------------------------------------


def compare(store: GraphStore, graph: Graph, has_nodes: bool) -> None:
    """Raise `Wrong` unless the store holds this graph. Ids are compared as they are written."""
    rows = np.arange(store.num_nodes)
    ids = [str(one) for one in store.ids_of(rows)]
    expected = [str(one) for one in graph.ids]
    known = set(expected)
    ends = [(str(a), str(b)) for a, b in graph.edges]
    if not has_nodes:
        expected = sorted({one for pair in ends for one in pair})
        known = set(expected)
    if (ids if has_nodes else sorted(ids)) != expected:
        raise Wrong(f"ids: {ids} instead of {expected}")
    pairs = {(a, b) for a, b in ends if a != b and a in known and b in known}
    if graph.settings.get("undirected"):
        pairs |= {(b, a) for a, b in pairs}
    indptr, indices = (np.asarray(part) for part in store.csr("out"))
    found = {(ids[row], ids[other]) for row in rows for other in indices[indptr[row] : indptr[row + 1]]}
    if found != pairs:
        raise Wrong(f"edges: {sorted(found ^ pairs)} differ")
    if has_nodes:
        _compare_features(store, graph)
        _compare_labels(store, graph)


def finite(column: list[Any]) -> list[float]:
    """The values of a feature that float32 can hold."""
    return [float(value) for value in column if isinstance(value, float) and abs(value) < 3e38]


def _compare_features(store: GraphStore, graph: Graph) -> None:
    """Numbers are there as float32, the mean of training nodes where they are missing; no column is lost."""
    assert store.columns is not None
    known = {column.name: column for column in store.columns.columns}
    if lost := {*graph.columns, *graph.extra} - set(known):
        raise Wrong(f"columns {lost} are neither used nor ignored")
    names, features = store.columns.names, np.asarray(store.features)
    train = np.asarray(store.split) == 1
    for name, column in graph.columns.items():
        values = np.array(
            [value if isinstance(value, float) and abs(value) < 3e38 else math.nan for value in column],
            dtype=np.float64,
        )
        learned = values[(train if train.any() else np.ones(len(train), bool)) & ~np.isnan(values)]
        wanted = np.where(np.isnan(values), learned.mean() if len(learned) else 0.0, values).astype(np.float32)
        if not np.allclose(features[:, names.index(name)], wanted, rtol=1e-6, atol=1e-7):
            raise Wrong(f"feature {name}: {features[:, names.index(name)].tolist()} instead of {wanted.tolist()}")
        missing = np.isnan(values)
        if missing.any() and not np.array_equal(features[:, names.index(f"{name} is missing")], missing):
            raise Wrong(f"feature {name}: {missing} are missing")


def _compare_labels(store: GraphStore, graph: Graph) -> None:
    found: list[Any]
    if store.task == "regression":
        found = [None if math.isnan(value) else float(value) for value in np.asarray(store.labels)]
        wanted = [None if value is None else float(np.float32(value)) for value in graph.labels]
    else:
        found = [None if code < 0 else str(store.classes[code]) for code in np.asarray(store.labels)]
        wanted = [None if value is None else str(value) for value in graph.labels]
    if found != wanted:
        raise Wrong(f"labels: {found} instead of {wanted}")
    if graph.split is not None:
        codes = {"tra": 1, "val": 2, "dev": 2, "tes": 3}
        split = [0 if lab is None else codes.get(word.strip().lower()[:3], 0)
                 for word, lab in zip(graph.split, graph.labels, strict=True)]  # fmt: skip
        if np.asarray(store.split).tolist() != split:
            raise Wrong(f"split: {np.asarray(store.split).tolist()} instead of {split}")
