"""Folders and files made to harm cannot lead elsewhere, ask for absurd memory, crash a kernel or run in a page."""

from __future__ import annotations

import csv
import io
import json
import os
import resource
import shutil
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import scipy.sparse as sp
import torch
from optuna.distributions import CategoricalDistribution

from largegt.auto.tuning.output import Trial, Tuned, notes
from largegt.auto.tuning.output import page as tuning_page
from largegt.auto.tuning.space import Space
from largegt.cli.inspection import inspect
from largegt.config.schema import Config
from largegt.data.ingest import ingest
from largegt.data.sources import arrays, files
from largegt.data.splits import npz_splits
from largegt.data.store import GraphStore
from largegt.data.table_reading import Table as SourceTable
from largegt.datasets.npz_stream import NpzMember
from largegt.errors import FormatError, InputError, LargeGTError
from largegt.experiments.figures import Panel, save_figure
from largegt.experiments.page import page as experiment_page
from largegt.inference.predictor import predict
from largegt.io.array_folder import array_file
from largegt.io.checksums import file_checksum, sealed
from largegt.pages.charts import Axis, Dot, Line
from largegt.pages.tables import PageTable, Ranked
from largegt.pages.template import SCRIPT
from largegt.preprocessing.pipeline import prepare
from largegt.preprocessing.prepared import Prepared
from largegt.preprocessing.sampling.local_nodes import local_nodes
from largegt.reporting.page import report
from largegt.training.run import Run
from largegt.training.trainer import train
from run_helpers import (  # noqa: F401
    FULL,
    SMALL,
    array_path,
    homophilous,
    one_thread,
    prepared_folder,
    stage_array,
    thirds,
)

EVIL = "<script>alert(1)</script><img src=x onerror=alert(2)>\"'><svg/onload=alert(3)>{{7*7}}&lt;"


@contextmanager
def no_more_than(num_bytes: int) -> Iterator[None]:
    """Inside, the process may take so many bytes more; asking for more is a MemoryError, not a slow machine."""
    before = resource.getrlimit(resource.RLIMIT_AS)
    held = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (held + num_bytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


def forge(folder: Path, change: Callable[[dict[str, Any]], Any], **arrays_of: Any) -> None:
    """What a stranger can do: write other arrays, change the manifest, and make every name and checksum fit."""
    manifest = json.loads((folder / "manifest.json").read_text())
    del manifest["checksum"]
    for name, array in arrays_of.items():
        np.save(folder / manifest["arrays"][name]["file"], array)
        manifest["arrays"][name].update(shape=list(array.shape), dtype=array.dtype.name)
    for name, entry in manifest["arrays"].items():
        file = folder / entry["file"]
        checksum = file_checksum(file)
        entry.update(bytes=file.stat().st_size, checksum=checksum, file=array_file(name, checksum))
        file.rename(folder / entry["file"])
    change(manifest)
    (folder / "manifest.json").write_text(sealed(manifest))


# paths ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["../secret", "/etc/passwd", "a/b", "..", "", "a\x00b", "features.npy/../x"])
def test_an_array_cannot_be_called_by_a_path(copy: Path, name: str) -> None:
    forge(copy / "g", lambda tree: tree["arrays"].update({name: tree["arrays"]["features"]}))
    with pytest.raises(FormatError, match="does not describe its array"):
        GraphStore.open(copy / "g")


def test_a_link_does_not_lead_out_of_a_store(copy: Path, tmp_path: Path) -> None:
    secret, features = tmp_path / "secret.npy", array_path(copy / "g", "features")
    shutil.move(features, secret)
    features.symlink_to(secret)
    with pytest.raises(FormatError, match=r"features-\w+\.npy leads out of its folder"):
        GraphStore.open(copy / "g")
    features.unlink()
    shutil.move(secret, copy / "g" / "other.npy")
    features.symlink_to("other.npy")
    assert GraphStore.open(copy / "g").num_features == 5  # inside, a link is as good as a file
    os.symlink(copy / "g", tmp_path / "link")
    assert GraphStore.open(tmp_path / "link").num_nodes == 150


@pytest.mark.parametrize("name", ["../../etc/passwd", "/etc/passwd", "a/../../b"])
def test_checksums_of_a_run_cannot_name_other_files(copy: Path, name: str) -> None:
    file = copy / "run" / "checksums.json"
    tree = json.loads(file.read_text())
    del tree["checksum"]
    tree["files"][name] = tree["files"]["config.toml"]
    file.write_text(sealed(tree))
    with pytest.raises(FormatError, match=r"checksums\.json is of another version"):
        Run.open(copy / "run")


# sizes ------------------------------------------------------------------------------------------------------------


def _header(shape: tuple[int, ...], dtype: str = "<f4") -> bytes:
    stream = io.BytesIO()
    np.lib.format.write_array_header_1_0(stream, {"descr": dtype, "fortran_order": False, "shape": shape})
    return stream.getvalue()


def test_a_header_that_claims_a_planet(copy: Path, tmp_path: Path) -> None:
    huge = _header((10**15, 4)) + bytes(1024)
    (tmp_path / "x.npy").write_bytes(huge)
    np.save(tmp_path / "edges.npy", np.array([[0, 1], [1, 2]]))
    with no_more_than(1 << 30):
        with pytest.raises(InputError, match=r"x\.npy"):
            files(tmp_path / "edges.npy", features=tmp_path / "x.npy")
        array_path(copy / "g", "features").write_bytes(huge)
        with pytest.raises(FormatError, match=r"features-\w+\.npy does not begin as an array of float32"):
            GraphStore.open(copy / "g")
        forge(copy / "g", lambda tree: tree["arrays"]["features"].update(shape=[10**15, 4]))
        with pytest.raises(FormatError, match=r"features-\w+\.npy has shape .* which takes 16000000000000128 bytes"):
            GraphStore.open(copy / "g")


@pytest.mark.parametrize("key", ["num_nodes", "num_edges"])
@pytest.mark.parametrize("value", [10**15, 2**62, -1, 0, "9", None, True, 1.5])
def test_a_count_that_the_arrays_do_not_bear_out(copy: Path, key: str, value: Any) -> None:
    forge(copy / "g", lambda tree: tree["meta"].update({key: value}))
    with no_more_than(1 << 30), pytest.raises(FormatError):
        GraphStore.open(copy / "g")


STORE_FACTS = ("name", "directed", "task", "classes", "id_kind", "num_nodes")
PREPARED_FACTS = ("config", "stages", "store")


@pytest.mark.parametrize("key", STORE_FACTS + PREPARED_FACTS)
def test_a_folder_that_does_not_say_what_it_is(copy: Path, key: str) -> None:
    is_prepared = key in PREPARED_FACTS
    folder = prepared_folder(copy / "g") if is_prepared else copy / "g"
    forge(folder, lambda tree: tree["meta"].pop(key))
    with pytest.raises(FormatError, match=key):
        (Prepared if is_prepared else GraphStore).open(folder)


@pytest.mark.parametrize("rows", [10**12, 10**15])
def test_rows_of_nothing(tmp_path: Path, rows: int) -> None:
    """A matrix without columns has as many rows as it likes, in 128 bytes; a number costs nothing at all."""
    (tmp_path / "x.npy").write_bytes(_header((rows, 0)))
    np.save(tmp_path / "edges.npy", np.array([[0, 1], [1, 2]]))
    for given in ({"features": tmp_path / "x.npy"}, {"num_nodes": rows}):
        with no_more_than(1 << 30), pytest.raises(InputError):
            ingest(files(tmp_path / "edges.npy", **given), tmp_path / "g")  # type: ignore[arg-type]
        assert not (tmp_path / "g").exists()


def _npz(path: Path, members: dict[str, bytes], compression: int = zipfile.ZIP_DEFLATED) -> Path:
    with zipfile.ZipFile(path, "w", compression) as archive:
        for name, content in members.items():
            archive.writestr(f"{name}.npy", content)
    return path


def test_archives_that_claim_or_hold_too_much(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    claims = _npz(tmp_path / "claims.npz", {"train": _header((10**14,)) + bytes(100)})
    with no_more_than(1 << 30), pytest.raises(InputError, match="has a header for"):
        npz_splits(claims, None)
    with no_more_than(1 << 30), pytest.raises(InputError, match="has a header for"):
        NpzMember(claims, "train").read()
    bomb = _npz(tmp_path / "bomb.npz", {"train": _header((50_000_000,), "|b1") + bytes(50_000_000)})
    assert bomb.stat().st_size < 100_000
    monkeypatch.setattr("largegt.data.limits.available_bytes", lambda: 10_000_000)
    with no_more_than(1 << 30), pytest.raises(InputError, match="of memory"):
        npz_splits(bomb, None)
    np.save(tmp_path / "edges.npy", np.array([[0, 1], [1, 2]]))
    with no_more_than(1 << 30), pytest.raises(InputError, match="of memory"):
        files(tmp_path / "edges.npy", features=bomb)


def test_a_zip_directory_that_lies(tmp_path: Path) -> None:
    """The directory of a zip says how large a member is; a byte of it cannot stand for a million."""
    path = _npz(tmp_path / "x.npz", {"train": _header((10**9,), "|b1")})
    data = bytearray(path.read_bytes())
    entry, size = data.rindex(b"PK\x01\x02"), len(_header((10**9,), "|b1")) + 10**9
    data[entry + 24 : entry + 28] = size.to_bytes(4, "little")
    path.write_bytes(data)
    with no_more_than(1 << 29), pytest.raises(InputError, match="bytes hold"):
        npz_splits(path, None)


def test_a_table_of_one_value_repeated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pq.write_table(
        pa.table({"source": np.zeros(10**6, np.int64), "target": np.ones(10**6, np.int64)}), tmp_path / "e.parquet"
    )
    assert SourceTable(tmp_path / "e.parquet").num_rows == 10**6
    monkeypatch.setattr("largegt.data.limits._MAX_VALUES_PER_BYTE", 10)
    monkeypatch.setattr("largegt.data.limits._FEW_VALUES", 1000)
    with pytest.raises(InputError, match="which no table does"):
        SourceTable(tmp_path / "e.parquet")


def test_a_sparse_matrix_with_indices_outside(tmp_path: Path) -> None:
    good = sp.random(50, 8, density=0.3, format="csr", random_state=0)
    good.indices[3] = 2**30
    sp.save_npz(tmp_path / "x.npz", good)
    np.save(tmp_path / "edges.npy", np.array([[0, 1], [1, 2]]))
    with pytest.raises(InputError, match=r"x\.npz"):
        ingest(files(tmp_path / "edges.npy", features=tmp_path / "x.npz"), tmp_path / "g")


# numbers that point elsewhere: kernels do not look, so they would read or write anywhere ------------------------


@pytest.mark.parametrize(
    ("name", "index", "value", "message"),
    [
        *(("out_indices", 300, value, "holds numbers from .* 0 to 149 are possible") for value in (-1, 150, 2**31 - 1)),
        *(("out_indptr", index, value, "is no list of rows") for index, value in ((5, 10**9), (0, 3), (-1, 10**5))),
        ("labels", 0, 2**31 - 1, "has labels without a class"),  # counting classes up to there would take 16 GB
        ("local_rows", (7, 1), 10**6, "holds numbers"),
    ],
)
def test_numbers_that_point_elsewhere(copy: Path, name: str, index: Any, value: int, message: str) -> None:
    is_prepared = name == "local_rows"
    file = stage_array(copy / "g", name) if is_prepared else array_path(copy / "g", name)
    array = np.load(file, allow_pickle=False)
    array[index] = value
    forge(file.parent, lambda tree: None, **{name: array})
    works: list[Callable[[], Any]] = [lambda: prepare(GraphStore.open(copy / "g"))]
    if is_prepared:
        opened = Prepared.open(prepared_folder(copy / "g"))
        works = [lambda: train(opened, Config.from_recipe("default", FULL), copy / "again")]
    else:
        shutil.rmtree(copy / "g" / "prepared")
    if name == "out_indices":
        works.append(lambda: local_nodes(GraphStore.open(copy / "g"), [1, 2], k=4))
    for work in works:
        with no_more_than(4 << 30), pytest.raises(FormatError, match=rf"{name}-\w+\.npy {message}"):
            work()


def test_ids_that_begin_elsewhere(tmp_path: Path) -> None:
    edges = np.array([["a", "b"], ["b", "c"]])
    store = ingest(
        arrays(edges, np.ones((3, 2), np.float32), np.array([0, 1, 0]), node_ids=["a", "b", "c"]), tmp_path / "g"
    )
    offsets = np.load(array_path(store.path, "node_id_offsets"), allow_pickle=False)
    offsets[1] = 2**40
    forge(store.path, lambda tree: None, node_id_offsets=offsets)
    with pytest.raises(FormatError, match=r"node_id_offsets-\w+\.npy is damaged"):
        GraphStore.open(store.path).ids_of(np.arange(3))


# pages ------------------------------------------------------------------------------------------------------------


class Active(HTMLParser):
    """Everything in a page that could do something, and its text."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.scripts: list[str] = []
        self.tags: set[str] = set()
        self.harmful: list[str] = []
        self.text = ""
        self._in_script = False
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self._in_script = tag == "script"
        if self._in_script:
            self.scripts.append("")
        for name, value in attrs:
            if (
                name.startswith("on")
                or name in ("srcdoc", "formaction")
                or (value or "").strip().lower().startswith("javascript:")
            ):
                self.harmful.append(f"{tag} {name}={value}")
            if name in ("src", "href") and not (value or "").startswith(("#", "data:,")):
                self.harmful.append(f"{tag} {name}={value}")

    def handle_endtag(self, tag: str) -> None:
        self._in_script = False

    def handle_data(self, data: str) -> None:
        if self._in_script:
            self.scripts[-1] += data
        else:
            self.text += data


def _harmless(page: Path) -> Active:
    found = Active(page.read_text(encoding="utf-8"))
    assert found.harmful == []
    assert found.scripts == [SCRIPT]
    assert not found.tags & {"img", "iframe", "object", "embed", "base", "form", "svg/onload"}
    assert "alert(1)" in found.text  # shown, as text
    return found


def test_every_string_in_a_report_is_only_shown(tmp_path: Path) -> None:
    edges, features, classes = homophilous()
    names = np.array([f"{EVIL}\n{number}" for number in range(3)])
    source = arrays(edges, features, names[classes], thirds(len(classes)), name=EVIL)
    store = ingest(source, tmp_path / "g")
    folder = tmp_path / EVIL.replace("/", "∕")
    run = train(store, Config.from_recipe("default", [*SMALL, "train.epochs=1"]), folder)
    other = train(
        store, Config.from_recipe("default", [*SMALL, "train.epochs=1", "model.hidden_dim=10"]), tmp_path / "other"
    )
    predicted = predict(run.path, tmp_path / "p.parquet").column("label").to_pylist()
    assert set(predicted) <= set(names.tolist()), "names come back as they were given: nothing is cut off on the way"
    for changed in (run.path, other.path):  # what a stranger's run can say
        (changed / "checksums.json").unlink()
        metrics = json.loads((changed / "metrics.json").read_text())
        metrics |= {"stopped": EVIL, "model": EVIL, "dataset": EVIL}
        metrics["test"][EVIL] = 0.5
        (changed / "metrics.json").write_text(json.dumps(metrics))
    page = report([run.path, other.path], tmp_path / "page.html", title=EVIL)
    found = _harmless(page)
    assert found.text.count(EVIL) > 5
    (tmp_path / "experiment" / "runs").mkdir(parents=True)
    shutil.copytree(other.path, tmp_path / "experiment" / "runs" / "one")
    for name in ("table-main", "fig-curves"):
        rows = [[EVIL, "minutes", EVIL, "test"], [EVIL, "1", "0.5", "0.5"]]
        with open(tmp_path / "experiment" / f"{name}.csv", "w", newline="") as stream:
            csv.writer(stream).writerows(rows)
    _harmless(experiment_page(tmp_path / "experiment", EVIL))


def test_every_string_in_a_tuning_is_only_shown(tmp_path: Path) -> None:
    name = f"train.{EVIL}"
    trials = [
        Trial(number, state, {name: EVIL}, 0.5 + number / 10, 3, 1.0, EVIL, EVIL)
        for number, state in enumerate(("finished", "finished", "pruned"))
    ]
    space = Space("default", (), {name: CategoricalDistribution((EVIL, "b"))}, {name: "b"}, {name: "b"})
    tuned = Tuned(tmp_path, EVIL, tmp_path / EVIL, EVIL, 1.0, space, trials, trials[:2], {EVIL: 0.5}, 1, [], EVIL)
    tuned.page.write_text(tuning_page(tuned), encoding="utf-8")
    assert _harmless(tuned.page).text.count(EVIL) > 5
    assert "<" not in notes(tuned)
    assert "\\|" in notes(replace(tuned, dataset="a|b"))


def test_every_string_in_a_table_or_figure_is_only_shown(tmp_path: Path) -> None:
    command = r"\input{/etc/passwd} $\frac{"
    table = PageTable(EVIL, (command, EVIL), ((command, Ranked(EVIL, 1)),))
    assert "<" not in table.markdown()
    assert r"\input" not in table.latex()
    panel = Panel(Axis(EVIL), Axis(command), rows=[(EVIL, [Dot(EVIL, 1.0, 0.5, 0)])])
    files = save_figure(
        tmp_path / "f", f"{EVIL} {command}", [panel, Panel(Axis(EVIL), Axis(EVIL), [Line(EVIL, [1, 2], [1, 2], 0)])]
    )
    assert all(file.stat().st_size for file in files)
    assert EVIL not in files[0].read_text()


@pytest.mark.parametrize(
    "change",
    [
        {"epoch": "two"}, {"epoch": -1}, {"epoch": [1]}, {"best_valid": "high"}, {"elapsed_s": None}, {"stopped": 3},
        {"stale_epochs": 2.5},
    ],
)  # fmt: skip
def test_a_checkpoint_of_the_wrong_kind_is_refused(copy: Path, change: dict[str, Any]) -> None:
    (copy / "run" / "checksums.json").unlink()
    file = copy / "run" / "checkpoints" / "last.pt"
    state = torch.load(file, weights_only=True)
    state["progress"] |= change
    torch.save(state, file)
    with pytest.raises(FormatError, match=r"last\.pt cannot be resumed from"):
        train(GraphStore.open(copy / "g"), Config.from_recipe("default", FULL), copy / "run", resume=True)


def test_moments_that_do_not_fit_are_refused_and_settings_are_the_runs_own(copy: Path) -> None:
    (copy / "run" / "checksums.json").unlink()
    file = copy / "run" / "checkpoints" / "last.pt"
    state = torch.load(file, weights_only=True)
    state["progress"] |= {"epoch": 1}
    state["optimizer"]["param_groups"][0] |= {"betas": "x", "weight_decay": "much"}
    torch.save(state, file)
    store, config = GraphStore.open(copy / "g"), Config.from_recipe("default", FULL)
    assert len(train(store, config, copy / "run", resume=True).history) == 3
    state["optimizer"]["state"][0]["exp_avg"] = torch.zeros(3, 1, 7)
    torch.save(state, file)
    (copy / "run" / "checksums.json").unlink()
    with pytest.raises(FormatError, match="does not fit its parameter"):
        train(store, config, copy / "run", resume=True)


def test_an_analysis_of_the_wrong_kind_is_left_out(copy: Path) -> None:
    page = report([copy / "run"], copy / "page.html")
    assert "Not looked into" not in page.read_text(encoding="utf-8")
    file = copy / "run" / "analysis.json"
    whole = json.loads(file.read_text())
    del whole["checksum"]
    for change in ({"num_nodes": "x"}, {"confusion": [1]}, {"per_class": None}, {"map": {"x": [1]}}):
        file.write_text(sealed(whole | change))
        shown = Active(report([copy / "run"], copy / "page.html").read_text(encoding="utf-8")).text
        assert "analysis.json is damaged" in shown


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("table-main", ""),
        ("table-main", "a,b\n1\n"),
        ("fig-curves", "a,b,c,d\nm,x,1,2\n"),
        ("fig-curves", "a,b\nm,1\n"),
    ],
)
def test_tables_of_an_experiment_of_the_wrong_kind_are_refused(copy: Path, name: str, text: str) -> None:
    (copy / "runs").mkdir()
    shutil.move(copy / "run", copy / "runs" / "one")
    (copy / f"{name}.csv").write_text(text)
    with pytest.raises(FormatError, match=rf"{name}\.csv is no table of ours"):
        experiment_page(copy, "t")


@pytest.mark.parametrize(
    "change",
    [
        {"valid": EVIL}, {"valid": {"accuracy": EVIL}}, {"seed": EVIL}, {"train_time_s": "1"}, {"num_parameters": [1]},
        {"test": None}, {"model": 3}, {"dataset": {}},
    ],
)  # fmt: skip
def test_metrics_of_the_wrong_kind_are_refused(copy: Path, change: dict[str, Any]) -> None:
    (copy / "run" / "checksums.json").unlink()
    file = copy / "run" / "metrics.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | change))
    with pytest.raises(LargeGTError, match=r"metrics\.json does not say"):
        report([copy / "run"], copy / "page.html", look_into=False)


def test_a_forged_store_does_not_crash_the_process(copy: Path) -> None:
    """In a process of its own: a kernel that reads outside its arrays would end it by a signal."""
    shutil.rmtree(copy / "g" / "prepared")
    wrong = np.full_like(np.load(array_path(copy / "g", "out_indices"), allow_pickle=False), 2**31 - 1)
    forge(copy / "g", lambda tree: None, out_indices=wrong)
    if not (child := os.fork()):
        try:
            inspect(copy / "g")  # it tries the sampler on a few nodes, to say what a preparation would take
        except FormatError:
            os._exit(7)
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
