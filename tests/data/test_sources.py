"""Every kind of input gives the same graph, and every malformed file one line that names it."""

from __future__ import annotations

import gzip
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.parquet as pq
import pytest
import scipy.sparse
from graph_helpers import SIX_EDGES, edge_sets, left_behind, rows

from largegt.config.schema import IngestConfig
from largegt.data import sources
from largegt.data.ingest import ingest
from largegt.errors import InputError

X = np.arange(12, dtype=np.float32).reshape(6, 2) / 4
WORDS = np.array(["n0", "n1", "n2", "n3", "n4", "n5"])
BOTH = edge_sets(SIX_EDGES, 6)["both"]


def _write(path: Path, columns: dict[str, Any]) -> Path:
    """A table in the format of the path's suffix."""
    table = pa.table(columns)
    if path.suffix == ".parquet":
        pq.write_table(table, path, row_group_size=3)
        return path
    delimiter = "\t" if ".tsv" in path.name else ","
    plain = path.with_suffix("") if path.suffix == ".gz" else path
    pacsv.write_csv(table, plain, pacsv.WriteOptions(delimiter=delimiter, quoting_style="needed"))
    if path.suffix == ".gz":
        path.write_bytes(gzip.compress(plain.read_bytes()))
        plain.unlink()
    return path


@pytest.mark.slow
@pytest.mark.parametrize("suffix", ["parquet", "csv", "csv.gz", "tsv", "tsv.gz"])
@pytest.mark.parametrize("ids", ["integer", "string"])
def test_tables_of_every_format(tmp_path: Path, suffix: str, ids: str) -> None:
    own = WORDS if ids == "string" else np.array([10, 5, 7, 3, 99, 1])
    edges = _write(
        tmp_path / f"edges.{suffix}",
        {"weight": np.ones(8), "dst": own[SIX_EDGES[1]], "src": own[SIX_EDGES[0]]},
    )
    nodes = _write(
        tmp_path / f"nodes.{suffix}",
        {
            "node_id": own,
            "f0": X[:, 0],
            "comment": list("abcdef"),
            "y": ["cat", "dog", "", "cat", "cow", "dog"],
            "f1": X[:, 1],
            "split": ["train", "train", "", "val", "test", ""],
        },
    )
    store = ingest(sources.files(edges, nodes=nodes), tmp_path / "g")
    assert rows(store, "both") == BOTH
    assert store.id_kind == ids
    assert store.ids_of(np.arange(6)) == own.tolist()
    np.testing.assert_array_equal(store.features[:, [0, -1]], X)
    assert store.folder.meta["feature_names"] == ["f0", "comment=a", "comment=b", "comment=(other)", "f1"]
    assert store.features[:, 1:4].tolist() == [[1, 0, 0], [0, 1, 0], *[[0, 0, 1]] * 4]  # a and b are training nodes
    assert store.classes == ["cat", "cow", "dog"]
    assert store.labels.tolist() == [0, 2, -1, 0, 1, 2]
    assert store.split.tolist() == [1, 1, 0, 2, 3, 0]


def test_matrices_in_npy_and_npz(tmp_path: Path, six: Any) -> None:
    np.save(tmp_path / "e.npy", six.T)
    np.save(tmp_path / "x.npy", X.astype(np.float64))
    scipy.sparse.save_npz(tmp_path / "x.npz", scipy.sparse.csr_matrix(X))
    np.save(tmp_path / "y.npy", np.array([0, 1, -1, 2, 0, 1]))
    np.savez(tmp_path / "s.npz", train=[0, 1], valid=[3], test=[4])
    dense, sparse = (
        ingest(
            sources.files(
                tmp_path / "e.npy",
                features=tmp_path / x,
                labels=tmp_path / "y.npy",
                splits=tmp_path / "s.npz",
            ),
            tmp_path / x.replace(".", "-"),
        )
        for x in ("x.npy", "x.npz")
    )
    np.testing.assert_array_equal(dense.features, X)
    assert dense.fingerprint == sparse.fingerprint
    assert rows(dense, "both") == BOTH
    assert dense.labels.tolist() == [0, 1, -1, 2, 0, 1]
    assert dense.split.tolist() == [1, 1, 0, 2, 3, 0]


def test_all_formats_give_the_same_bytes(tmp_path: Path, six: Any) -> None:
    made = []
    for suffix in ("parquet", "csv", "tsv.gz"):
        file = _write(tmp_path / f"e.{suffix}", {"a": six[0], "b": six[1]})
        made.append(ingest(sources.files(file, num_nodes=6), tmp_path / suffix).fingerprint)
    np.save(tmp_path / "e.npy", six)
    made.append(ingest(sources.files(tmp_path / "e.npy", num_nodes=6), tmp_path / "npy").fingerprint)
    made.append(ingest(sources.arrays(six, num_nodes=6), tmp_path / "arrays").fingerprint)
    assert len(set(made)) == 1


def test_folders_and_lists_of_files(tmp_path: Path, six: Any) -> None:
    (tmp_path / "parts").mkdir()
    for part in range(2):
        half = six[:, part * 4 : part * 4 + 4]
        _write(tmp_path / "parts" / f"{part}.parquet", {"source": half[0], "target": half[1]})
        np.save(tmp_path / f"{part}.npy", half)
    folder = ingest(sources.files(tmp_path / "parts", num_nodes=6), tmp_path / "a")
    listed = ingest(sources.files([tmp_path / "0.npy", tmp_path / "1.npy"], num_nodes=6), tmp_path / "b")
    assert folder.fingerprint == listed.fingerprint
    assert rows(folder, "both") == BOTH


def test_a_note_names_the_edge_columns_that_are_not_used(tmp_path: Path) -> None:
    (tmp_path / "e.csv").write_text("source,target,amount,paid\n0,1,2.5,2024-01-01\n")
    notes = sources.files(tmp_path / "e.csv", weight_column="amount").notes
    unused = "not used, as neither weight_column nor edge_feature_columns names them"
    assert notes[1] == f"{tmp_path / 'e.csv'}: paid: {unused}"


def test_headerless_csv_with_comments(tmp_path: Path) -> None:
    (tmp_path / "e.tsv").write_text("# a comment\n# another\n0\t1\n1\t2\n")
    source = sources.files(tmp_path / "e.tsv")
    store = ingest(source, tmp_path / "g")
    assert rows(store, "out") == {0: [1], 1: [2], 2: []}
    assert "edges go from column 'f0' to column 'f1'" in source.notes[0]


def test_ids_that_turn_into_text_late_in_a_csv(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:

    lines = [f"{i},{i + 1}" for i in range(50)]
    (tmp_path / "e.csv").write_text("source,target\n" + "\n".join(lines) + "\n3,A12\n")
    store = ingest(sources.files(tmp_path / "e.csv"), tmp_path / "g")
    assert store.id_kind == "string"
    assert store.num_edges == 51
    assert store.nodes_of(["A12", "7"]).size == 2
    with pytest.raises(InputError, match="'A12' is out of range"):
        ingest(sources.files(tmp_path / "e.csv", num_nodes=60), tmp_path / "h")
    dropped = ingest(sources.files(tmp_path / "e.csv", num_nodes=60), tmp_path / "h", IngestConfig(unknown_ids="drop"))
    assert (dropped.num_edges, dropped.id_kind) == (50, "row")


def test_text_and_number_ids_meet(tmp_path: Path, six: Any) -> None:
    nodes = _write(tmp_path / "n.parquet", {"id": [str(i) for i in range(6)], "x": X[:, 0]})
    edges = _write(tmp_path / "e.parquet", {"source": six[0], "target": six[1]})
    store = ingest(sources.files(edges, nodes=nodes), tmp_path / "a")
    assert (store.id_kind, rows(store, "both")) == ("row", BOTH)  # text of whole numbers, as in a CSV
    nodes = _write(tmp_path / "n.csv", {"id": np.arange(6), "x": X[:, 0]})
    edges = _write(tmp_path / "f.parquet", {"source": six[0].astype(str), "target": six[1].astype(str)})
    store = ingest(sources.files(edges, nodes=nodes), tmp_path / "b")
    assert (store.id_kind, rows(store, "both")) == ("row", BOTH)


def test_vectors_in_one_column_and_several_labels(tmp_path: Path, six: Any) -> None:
    edges = _write(tmp_path / "e.parquet", {"u": six[0], "v": six[1]})
    nodes = _write(
        tmp_path / "n.parquet",
        {
            "id": np.arange(6),
            "vector": pa.array(X.tolist()),
            "age": np.arange(6),
            "a": [1, 0, 0, None, 1, 0],
            "b": [0, 0, 1, None, 1, 1],
        },
    )
    store = ingest(sources.files(edges, nodes=nodes, label_column="a, b"), tmp_path / "g")
    assert (store.task, store.classes) == ("multilabel", ["a", "b"])
    assert store.labelled.tolist() == [True, True, True, False, True, True]
    np.testing.assert_array_equal(store.features, np.hstack([X, np.arange(6)[:, None]]))
    assert store.folder.meta["feature_names"] == ["vector[0]", "vector[1]", "age"]
    chosen = ingest(sources.files(edges, nodes=nodes, label_column="a", feature_columns="ag*, b"), tmp_path / "h")
    assert chosen.folder.meta["feature_names"] == ["age", "b", "b is missing"]


@pytest.mark.slow
def test_labels_and_splits_by_id_in_their_own_tables(tmp_path: Path) -> None:
    edges = _write(tmp_path / "e.csv", {"from": ["a", "b"], "to": ["b", "c"]})
    labels = _write(tmp_path / "l.csv", {"id": ["c", "z", "a"], "class": ["hot", "cold", "hot"]})
    splits = _write(tmp_path / "s.csv", {"id": ["z", "a"], "split": ["test", "train"]})
    store = ingest(sources.files(edges, labels=labels, splits=splits), tmp_path / "g")
    assert store.ids_of(np.arange(4)) == ["a", "b", "c", "z"]  # z has a label and no edge: kept
    assert store.labels.tolist() == [1, -1, 1, 0]
    assert store.split.tolist() == [1, 0, 0, 3]
    twice = _write(tmp_path / "t.csv", {"id": ["a", "a"], "class": ["hot", "cold"]})
    with pytest.raises(InputError, match="node id 'a' occurs twice"):
        ingest(sources.files(edges, labels=twice), tmp_path / "h")


def test_feature_and_label_tables_in_row_order(tmp_path: Path, six: Any) -> None:
    np.save(tmp_path / "e.npy", six)
    features = _write(tmp_path / "x.csv.gz", {"p": X[:, 0], "q": X[:, 1]})
    labels = _write(tmp_path / "y.csv", {"anything": [0, 1, 1, 0, 1, 0]})
    splits = _write(tmp_path / "s.csv", {"split": ["train"] * 3 + ["test"] * 3})
    store = ingest(sources.files(tmp_path / "e.npy", features=features, labels=labels, splits=splits), tmp_path / "g")
    np.testing.assert_array_equal(store.features, X)
    assert store.labels.tolist() == [0, 1, 1, 0, 1, 0]
    assert store.split.tolist() == [1, 1, 1, 3, 3, 3]


@pytest.mark.slow
@pytest.mark.parametrize("late", [False, True], ids=["numbers", "text only in a later block"])
@pytest.mark.parametrize("forms", [("csv", "parquet"), ("parquet", "csv"), ("csv", "csv")])
def test_ids_of_two_tables_are_compared_in_pieces(
    tmp_path: Path, forms: tuple[str, str], late: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Chunks end at different rows, and numbers may stand as text."""
    monkeypatch.setattr("largegt.data.parts.EDGE_CHUNK_ROWS", 10)
    ids: list[Any] = [*map(str, range(-3, 200)), "last"] if late else [*range(-3, 200)]
    edges = _write(tmp_path / "e.csv", {"u": ids[:-1], "v": ids[1:]})
    nodes = _write(tmp_path / f"n.{forms[0]}", {"id": ids, "y": [0, 1] * 102 if late else [0, 1] * 101 + [0]})
    for wrong in (ids[::-1], ids[:-1], [*ids[:-1], type(ids[0])(700)], None):
        given = ids if wrong is None else wrong
        features = _write(tmp_path / f"x.{forms[1]}", {"id": given, "p": np.arange(len(given)) / 2})
        if wrong is None:
            store = ingest(sources.files(edges, nodes=nodes, features=features), tmp_path / "g")
            assert store.features[:, 0].tolist() == (np.arange(len(ids)) / 2).tolist()
        else:
            with pytest.raises(InputError, match="not those of the node table in the same order"):
                sources.files(edges, nodes=nodes, features=features)


def test_a_missing_id_is_named_by_its_row(tmp_path: Path) -> None:
    (tmp_path / "n.csv").write_text("id,x\n" + "".join(f"{i},{i}\n" for i in range(300)) + ",5\n")
    for given in ({"edges": tmp_path / "n.csv"}, {"edges": tmp_path / "e.npy", "nodes": tmp_path / "n.csv"}):
        np.save(tmp_path / "e.npy", SIX_EDGES)
        with pytest.raises(InputError, match=r"n.csv: column 'id': an id is missing \(row 300, counted from 0\)"):
            ingest(sources.files(**given), tmp_path / "g")


def test_a_file_of_its_own_goes_before_the_node_table(tmp_path: Path, six: Any) -> None:
    np.save(tmp_path / "e.npy", six)
    nodes = _write(tmp_path / "n.csv", {"id": np.arange(6), "y": [9, 9, 9, 8, 8, 8], "f": X[:, 0]})
    labels = _write(tmp_path / "l.csv", {"id": np.arange(6), "kind": list("ababab")})
    np.savez(tmp_path / "s.npz", a_train=[0], a_val=[1], b_train=[2], b_val=[3])
    source = sources.files(
        tmp_path / "e.npy", nodes=nodes, labels=labels, label_column="kind", splits=tmp_path / "s.npz", split_column="b"
    )
    store = ingest(source, tmp_path / "g")
    assert store.classes == ["a", "b"]
    assert store.split.tolist() == [0, 0, 1, 2, 0, 0]
    assert store.folder.meta["feature_names"] == ["f"]  # the table's own label is no feature: it would leak
    np.save(tmp_path / "x.npy", X)
    other = ingest(sources.files(tmp_path / "e.npy", nodes=nodes, features=tmp_path / "x.npy"), tmp_path / "h")
    np.testing.assert_array_equal(other.features, X)
    assert other.classes == [8, 9]
    with pytest.raises(InputError, match="no named columns"):
        sources.files(tmp_path / "e.npy", features=tmp_path / "x.npy", feature_columns="a")


def test_label_column_that_is_all_missing(tmp_path: Path) -> None:
    (tmp_path / "e.csv").write_text("source,target\na,b\nb,c\n")
    (tmp_path / "n.csv").write_text("id,age,label\na,1,\nb,2,\nc,3,\n")
    with pytest.raises(InputError, match=r"n\.csv: label column 'label': every label is missing"):
        ingest(sources.files(tmp_path / "e.csv", nodes=tmp_path / "n.csv"), tmp_path / "g")
    assert left_behind(tmp_path, "e.csv", "n.csv") == []


def test_edge_index_shapes_and_torch(tmp_path: Path, six: Any) -> None:
    torch = pytest.importorskip("torch")
    tensors = sources.arrays(torch.tensor(six), torch.tensor(X).bfloat16(), torch.tensor([0, 1, 0, 1, 0, 1]))
    flat = sources.arrays(six.T.tolist(), X, [0, 1, 0, 1, 0, 1])
    assert ingest(tensors, tmp_path / "a").fingerprint == ingest(flat, tmp_path / "b").fingerprint
    square = ingest(sources.arrays([[0, 1], [2, 2]]), tmp_path / "c")  # read as [2, E]: 0 → 2, 1 → 2
    assert rows(square, "out") == {0: [2], 1: [2], 2: []}


@pytest.mark.slow
def test_pyg_data_and_its_masks(tmp_path: Path, six: Any) -> None:
    torch = pytest.importorskip("torch")
    data_of = pytest.importorskip("torch_geometric.data").Data
    masks = torch.zeros((6, 3), dtype=torch.bool)
    masks[0, 0] = masks[1, 2] = True
    labels = torch.tensor([[0], [1], [0], [1], [0], [1]])
    data = data_of(
        x=torch.tensor(X), edge_index=torch.tensor(six), y=labels, train_mask=masks, test_mask=torch.arange(6) > 3
    )
    first = ingest(sources.pyg(data, name="six"), tmp_path / "a")
    third = ingest(sources.pyg(data, split_index=2), tmp_path / "b")
    assert (first.name, rows(first, "both")) == ("six", BOTH)
    np.testing.assert_array_equal(first.features, X)
    assert first.labels.tolist() == [0, 1, 0, 1, 0, 1]
    assert first.split.tolist() == [1, 0, 0, 0, 3, 3]
    assert third.splits["train"].tolist() == [1]
    with pytest.raises(InputError, match="split_index is 3"):
        sources.pyg(data, split_index=3)
    with pytest.raises(InputError, match="no edge_index"):
        sources.pyg(SimpleNamespace(x=X))


# bad files


def _bad(tmp_path: Path) -> dict[str, Path]:
    file = {name: tmp_path / name for name in (
        "garbage.parquet", "ragged.csv", "pickle.npy", "short.npy", "flat.npy", "float.npy", "empty.csv",
        "cut.csv.gz",
        "e.csv", "n.csv", "one.csv", "what.xyz", "null.csv",
    )}  # fmt: skip
    file["garbage.parquet"].write_bytes(b"PAR1 this is not a Parquet file")
    file["ragged.csv"].write_text("source,target\n1,2\n3\n4,5,6\n")
    np.save(file["pickle.npy"], np.array([{"a": 1}, None], dtype=object), allow_pickle=True)
    np.save(file["short.npy"], np.ones((2, 5), dtype=np.int64))
    file["short.npy"].write_bytes(file["short.npy"].read_bytes()[:-9])
    np.save(file["flat.npy"], np.arange(6))
    np.save(file["float.npy"], np.ones((2, 5)))
    file["empty.csv"].write_text("")
    file["cut.csv.gz"].write_bytes(gzip.compress(b"source,target\n" + b"1,2\n" * 5000)[:-40])
    file["e.csv"].write_text("source,target\na,b\nb,c\n")
    file["n.csv"].write_text("id,age,colour,label\na,1,red,0\nb,x,blue,1\nc,3,red,\n")
    file["one.csv"].write_text("source\n1\n")
    file["what.xyz"].write_text("?")
    file["null.csv"].write_text("source,target\n1,2\n,3\n")
    return file


@pytest.mark.parametrize(
    ("edges", "more", "message"),
    [
        ("nothing.csv", {}, r"nothing\.csv does not exist"),
        ("what.xyz", {}, r"what\.xyz is of no known kind"),
        ("garbage.parquet", {}, r"garbage\.parquet cannot be read"),
        ("ragged.csv", {}, r"ragged\.csv cannot be read: line 3: Expected Number of Columns: 2 Found: 1"),
        ("pickle.npy", {}, r"pickle\.npy cannot be read"),
        ("short.npy", {}, r"short\.npy cannot be read"),
        ("flat.npy", {}, r"flat\.npy has shape \[6\], expected \[2, E\]"),
        ("float.npy", {}, r"float\.npy holds float64, ids must be whole numbers or text"),
        ("empty.csv", {}, r"empty\.csv cannot be read: the file is empty"),
        ("cut.csv.gz", {}, r"cut\.csv\.gz cannot be read"),
        ("one.csv", {}, r"one\.csv has 1 column, edges need two"),
        ("null.csv", {}, r"null\.csv: column 'source': an id is missing"),
        (
            "e.csv",
            {"source_column": "sorce"},
            r"no column 'sorce' for the source \(did you mean 'source'\?\); its columns are",
        ),
        (
            "e.csv",
            {"nodes": "n.csv", "label_column": "lable"},
            r"no column 'lable' for the label \(did you mean 'label'",
        ),
        ("e.csv", {"nodes": "n.csv", "id_column": "ident"}, r"no column 'ident' for the ids \(did you mean 'id'"),
        ("e.csv", {"nodes": "n.csv", "split_column": "fold"}, r"no column 'fold' for the split"),
        ("e.csv", {"nodes": "n.csv", "feature_columns": "z*"}, r"no column like 'z\*' for the features"),
        ("e.csv", {"nodes": "missing.csv"}, r"missing\.csv does not exist"),
        ("e.csv", {"features": "pickle.npy"}, r"pickle\.npy cannot be read"),
        ("e.csv", {"labels": "short.npy"}, r"short\.npy cannot be read"),
        ("e.csv", {"splits": "garbage.parquet"}, r"garbage\.parquet cannot be read"),
        ("e.csv", {"num_nodes": 0}, r"num_nodes is 0"),
        ("e.csv", {"num_nodes": 5}, r"node id 'a' is out of range"),
    ],
)
def test_malformed_files(tmp_path: Path, edges: str, more: dict[str, Any], message: str) -> None:
    files = _bad(tmp_path)
    places = ("nodes", "features", "labels", "splits")
    arguments = {key: tmp_path / value if key in places else value for key, value in more.items()}
    with pytest.raises(InputError, match=message) as error:
        ingest(sources.files(tmp_path / edges, **arguments), tmp_path / "g")
    assert "\n" not in str(error.value)
    assert left_behind(tmp_path, *files) == []


def test_bytes_that_are_no_text(tmp_path: Path) -> None:
    odd = np.array([b"a", b"\xff"])
    with pytest.raises(InputError, match="labels must be all numbers or all text"):
        sources.arrays(np.array([[0], [1]]), labels=odd)
    with pytest.raises(InputError, match="edge_index must be all numbers or all text"):
        ingest(sources.arrays(odd[:, None]), tmp_path / "g")
