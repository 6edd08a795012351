"""Text models: which folders are loaded and which are refused, and that a store's texts go through its own model.

The library is a stand-in that knows how it was called: what it makes of texts is checked by hand with the real one.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from largegt.config.schema import IngestConfig
from largegt.data import sources
from largegt.data.append import append
from largegt.data.column_encoding import Columns
from largegt.data.ingest import ingest
from largegt.data.store import GraphStore
from largegt.data.text_model import load_text_model
from largegt.errors import ConfigError, FormatError, InputError
from largegt.io import urls

TEXTS = ["bread and butter", "a diesel engine with gears", "soup", "tyres and brakes", "roasted potatoes with salt"]


class StandIn:
    """Three features of a text, of length 1."""

    def __init__(self, folder: str, **how: Any) -> None:
        assert os.path.isabs(folder)
        assert how == {
            "local_files_only": True, "trust_remote_code": False, "model_kwargs": {"use_safetensors": True},
        }  # fmt: skip

    def encode(self, texts: list[str], normalize_embeddings: bool) -> np.ndarray:
        assert normalize_embeddings
        made = np.array([[len(text), text.count("a"), 1] for text in texts], dtype=np.float32)
        return made / np.linalg.norm(made, axis=1, keepdims=True)


@pytest.fixture(autouse=True)
def fresh(nothing_given: Path) -> Iterator[None]:
    load_text_model.cache_clear()
    yield
    load_text_model.cache_clear()


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> None:
    module = types.ModuleType("sentence_transformers")
    module.SentenceTransformer = StandIn  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "sentence_transformers", module)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A folder with the files that are looked at."""
    folder = tmp_path / "model"
    (folder / "2_Dense").mkdir(parents=True)
    parts = [("", "Transformer"), ("1_Pooling", "Pooling"), ("2_Dense", "Dense"), ("3_Normalize", "Normalize")]
    modules = [{"idx": at, "name": str(at), "path": path, "type": f"sentence_transformers.models.{name}"}
               for at, (path, name) in enumerate(parts)]  # fmt: skip
    (folder / "modules.json").write_text(json.dumps(modules))
    (folder / "2_Dense" / "config.json").write_text('{"activation_function": "torch.nn.modules.activation.Tanh"}')
    for place in (folder, folder / "2_Dense"):
        (place / "model.safetensors").write_bytes(b"weights")
    return folder


def written(path: Path, head: str, rows: list[str]) -> Path:
    path.write_text("\n".join([head, *rows]) + "\n")
    return path


def made(tmp_path: Path, model: Path) -> GraphStore:
    rows = [f"n{at},{text},{'ab'[at % 2]}" for at, text in enumerate(TEXTS)]
    nodes = written(tmp_path / "nodes.csv", "id,words,label", rows)
    edges = written(tmp_path / "edges.csv", "source,target", [f"n{at},n{(at + 1) % 5}" for at in range(5)])
    config = IngestConfig(text_model=str(model), column_kinds=("words=text",))
    return ingest(sources.files(edges, nodes=nodes), tmp_path / "g", config, threads=1)


def grown(tmp_path: Path, store: GraphStore) -> GraphStore:
    """In a process that knows what is on disk alone."""
    urls._given.clear()
    load_text_model.cache_clear()
    nodes = written(tmp_path / "more.csv", "id,words", ["m,an old van"])
    edges = written(tmp_path / "more_edges.csv", "source,target", ["m,n0"])
    return append(store.path, nodes, edges, tmp_path / "grown", overwrite=True, threads=1)


def test_texts_go_through_the_model_also_when_nodes_are_added(library: None, model: Path, tmp_path: Path) -> None:
    store = made(tmp_path, model)
    assert store.columns is not None
    [column] = store.columns.columns
    assert (column.model, column.dims, column.used_as) == (str(model), 3, "sentence embedding, 3 wide")
    expected = StandIn.encode(None, [*TEXTS, "an old van"], normalize_embeddings=True)  # type: ignore[arg-type]
    assert np.array_equal(store.features, expected[:5])
    assert np.array_equal(grown(tmp_path, store).features, expected)


def test_a_folder_from_the_working_folder_is_kept_as_a_whole_path(
    library: None, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    store = made(tmp_path, Path("model"))
    monkeypatch.chdir("/")
    assert grown(tmp_path, store).num_nodes == 6


@pytest.mark.slow
def test_a_folder_that_was_moved_or_changed_is_one_line(library: None, model: Path, tmp_path: Path) -> None:
    store = made(tmp_path, model)
    shutil.move(model, tmp_path / "elsewhere")
    with pytest.raises(InputError, match=r"model: no such folder; if it was moved, put it or a link to it there"):
        grown(tmp_path, store)
    model.symlink_to(tmp_path / "elsewhere")
    assert grown(tmp_path, store).num_nodes == 6, "a link will do"
    (tmp_path / "elsewhere" / "model.safetensors").write_bytes(b"Weights")
    with pytest.raises(InputError, match="is not the one that the store was made with"):
        grown(tmp_path, store)


@pytest.mark.slow
def test_a_model_that_a_store_names_is_loaded_if_it_was_given_here(
    library: None, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = made(tmp_path, model)
    monkeypatch.setenv("LARGEGT_CONFIG", str(tmp_path / "other machine"))
    with pytest.raises(InputError, match=r"never given on this machine.*--trust-remote"):
        grown(tmp_path, store)
    monkeypatch.setenv("LARGEGT_TRUST_REMOTE", "1")
    assert grown(tmp_path, store).num_nodes == 6


def change(file: Path, old: str, new: str) -> None:
    text = file.read_text()
    assert old in text
    file.write_text(text.replace(old, new))


@pytest.mark.parametrize(
    ("file", "old", "new", "said"),
    [
        ("modules.json", "sentence_transformers.models.Pooling", "evil.Pooling", "evil.Pooling is none of"),
        ("modules.json", "models.Pooling", "models.WordEmbeddings", "WordEmbeddings is none of"),
        ("modules.json", "1_Pooling", "../elsewhere", "is none of"),
        ("modules.json", "[", "{", "cannot be read"),
        ("2_Dense/config.json", "torch.nn.modules.activation.Tanh", "os.abort", "os.abort is none of torch"),
        ("2_Dense/config.json", '"activation', '"trust_remote_code": true, "activation', "asks to trust code"),
    ],
)
def test_a_folder_that_could_run_code_is_refused(
    file: str, old: str, new: str, said: str, library: None, model: Path
) -> None:
    change(model / file, old, new)
    with pytest.raises(InputError, match=said):
        load_text_model(str(model))


@pytest.mark.parametrize("file", ["modules.json", "2_Dense/model.safetensors"])
def test_a_folder_without_its_files_is_one_line(file: str, library: None, model: Path) -> None:
    (model / file).rename(model / "2_Dense" / "pytorch_model.bin")
    with pytest.raises(InputError, match="cannot be read"):
        load_text_model(str(model))


def test_without_the_library_nothing_begins(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sentence_transformers", None)
    with pytest.raises(ConfigError, match=r"needs the package sentence-transformers: pip install 'largegt\[text\]'"):
        made(tmp_path, model)
    assert not (tmp_path / "g").exists()


@pytest.mark.parametrize("change", [{"model_checksum": "x"}, {"kind": "number", "dims": 0}, {"model": "a\0b"}])
def test_a_store_with_a_wrong_model_does_not_open(change: dict[str, Any]) -> None:
    column = {"name": "t", "kind": "text", "dims": 3, "model": "/m", "model_checksum": "xxh3:" + 32 * "0"}
    assert Columns.from_json({"columns": [column]}).width == 3
    with pytest.raises(FormatError):
        Columns.from_json({"columns": [{**column, **change}]})
