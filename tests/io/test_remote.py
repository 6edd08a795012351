"""Stores and preparations in a bucket: the bytes of a path, no more of them read than needed, never half of one."""

from __future__ import annotations

import gc
import json
import pickle
import shutil
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import largegt as lg
from bucket_helpers import content, files, forget_connections, local_content
from largegt.cli.inspection import inspect
from largegt.config.schema import (
    LocalNodesConfig,
    PositionalEncodingConfig,
    PrepareConfig,
    ResolvedPrepareConfig,
    TokensConfig,
)
from largegt.data.store import GraphStore
from largegt.data.versions import clean
from largegt.errors import DiskError, InputError, LargeGTError
from largegt.io import remote, remote_array
from largegt.io.array_folder import ArrayFolder
from largegt.io.array_writer import ArrayWriter
from largegt.io.remote_array import RemoteArray, window
from largegt.preprocessing.blocks import Neighbors
from largegt.preprocessing.pipeline import prepare
from largegt.preprocessing.prepared import Prepared
from run_helpers import logged, refusal

pytestmark = pytest.mark.slow

CONFIG = PrepareConfig(local_nodes=LocalNodesConfig(k=5), tokens=TokensConfig(precompute_for="sampled"))


@pytest.fixture
def bucket(server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A part of the bucket for this test alone, and an empty cache."""
    monkeypatch.setenv("LARGEGT_CACHE", str(tmp_path / "cache"))
    return f"{server}/{tmp_path.name}"


def ingested(out: Any, seed: int = 0, **more: Any) -> GraphStore:
    rng = np.random.default_rng(seed)
    ends = (rng.random((2, 1_500)) ** 2 * 298).astype(np.int64)
    features = rng.normal(size=(300, 6)).astype(np.float32)
    labels = np.where(np.arange(300) % 3 > 0, np.arange(300) % 4, -1)
    return lg.ingest(lg.sources.arrays(ends, features, labels), out, lg.IngestConfig(undirected=False), **more)


def another_machine() -> None:
    """Nothing of what was read or written is here any more."""
    shutil.rmtree(remote.cache_folder(), ignore_errors=True)
    files()


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int, int]]:
    """Every range that is asked for: (file, start, stop)."""
    seen: list[tuple[str, int, int]] = []
    read_ranges = remote.read_ranges

    def noted(url: str, ranges: Any) -> list[bytes]:
        seen.extend((url.rsplit("/", 1)[1].split("-")[0].removesuffix(".npy"), *pair) for pair in ranges)
        return read_ranges(url, ranges)

    monkeypatch.setattr(remote, "read_ranges", noted)
    monkeypatch.setattr(remote_array, "read_ranges", noted)
    return seen


# paths and URLs


def test_urls_have_twins_and_paths_are_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LARGEGT_CACHE", str(tmp_path / "cache"))
    for path in ("data/g", "/data/g", "./g:1/x", str(tmp_path / "cache" / "g")):
        assert not remote.is_url(path)
        assert remote.local_path(path) == Path(path)
        assert remote.url_of(path) is None
    assert remote.local_path("file:///data/g") == Path("/data/g")
    twin = remote.local_path("s3://b/some/g/")
    assert twin.name == "g"
    assert remote.local_path(Path("s3://b/some/g")) == twin  # a Path has one slash less
    assert remote.url_of(twin / "prepared" / ".x.partial" / "a.npy") == "s3://b/some/g/prepared/.x.partial/a.npy"
    assert remote.url_of(twin.parent / ".g.partial" / "a.npy") == "s3://b/some/.g.partial/a.npy", "beside it"
    assert remote.local_path("s3://c/some/g") != twin
    inside = "prepared/0123456789abcdef"
    assert remote.local_path(f"s3://b/some/g/{inside}") == twin / inside


# parts of arrays


@pytest.fixture
def stored(bucket: str, tmp_path: Path) -> Any:
    """Puts an array into the bucket, and opens it there."""

    def put(values: np.ndarray) -> RemoteArray:
        np.save(tmp_path / "a.npy", values)
        remote.put(tmp_path / "a.npy", f"{bucket}/a.npy")
        return RemoteArray(f"{bucket}/a.npy", values.dtype.name, values.shape)

    return put


@pytest.mark.parametrize("shape", [(0, 3), (1, 0), (1_000,), (150, 3, 2)])
def test_any_part_of_an_array(stored: Any, monkeypatch: pytest.MonkeyPatch, shape: tuple[int, ...]) -> None:
    for name, size in (("PART_BYTES", 256), ("_PREFETCH_BYTES", 700), ("_GAP_BYTES", 64), ("_NEARBY_BYTES", 50)):
        monkeypatch.setattr(remote_array, name, size)
    monkeypatch.setattr(remote, "PART_BYTES", 256)
    rng = np.random.default_rng(0)
    values = rng.normal(size=shape).astype(np.float32)
    array = stored(values)
    assert (len(array), array.shape, array.ndim, array.nbytes) == (len(values), shape, values.ndim, values.nbytes)
    size = len(values)
    for start, stop in [(0, size), (0, 0), (size, size), (3, 2), *np.sort(rng.integers(0, size + 1, (5, 2)))]:
        assert np.array_equal(array[start:stop], values[start:stop])
    for start in range(0, size // 2, 31):  # from front to back, each slice with the row that the last one ended with
        assert np.array_equal(array[start : start + 32], values[start : start + 32])
    for count in (0, 1, 20) if size else (0,):
        rows = rng.integers(0, max(1, size), count)
        assert np.array_equal(array[rows], values[rows])
        assert np.array_equal(array[np.sort(rows)], values[np.sort(rows)])
    for row in (0, -1, size // 2) if size else ():
        assert np.array_equal(array[row], values[row])
    again = pickle.loads(pickle.dumps(array))
    assert np.array_equal(again[:], values)


def test_what_is_asked_for_is_what_is_read(stored: Any, asked: list[tuple[str, int, int]]) -> None:
    array = stored(np.arange(1 << 20, dtype=np.int64))
    array[1_000:2_000]
    assert asked == [("a", 0, 128), ("a", 8_128, 16_128)]
    asked.clear()
    array[np.array([10, 11, 500_000, 500_001])]  # far apart: two requests
    assert asked == [("a", 128 + 80, 128 + 96), ("a", 128 + 4_000_000, 128 + 4_000_016)]
    asked.clear()
    for start in range(600_000, 1 << 20, 1_000):  # from front to back: large requests
        array[start : start + 1_000]
    assert len(asked) == 2
    assert max(stop for _, _, stop in asked) == 128 + array.nbytes
    asked.clear()
    found = [int(array[row]) for row in (77, 78, 80, 300)]  # a search: one request
    assert found == [77, 78, 80, 300]
    assert len(asked) == 1


def test_a_window_holds_its_rows_in_their_places(stored: Any, asked: list[tuple[str, int, int]]) -> None:
    values = np.arange(1, 4_001, dtype=np.int32).reshape(-1, 2)
    held = window(stored(values), 700, 900)
    assert held.shape == values.shape
    assert np.array_equal(held[700:900], values[700:900])
    assert not held[:500].any()
    assert sum(stop - start for _, start, stop in asked) == 128 + 200 * 8
    assert window(values, 3, 4) is values
    assert not list(remote.cache_folder().iterdir()), "its file goes with it"


# stores and preparations


def test_the_bytes_of_a_path(bucket: str, tmp_path: Path) -> None:
    here, there = ingested(tmp_path / "x" / "g"), ingested(f"{bucket}/g")
    assert there.place == f"{bucket}/g"
    assert there.name == here.name == "g"
    prepare(here, CONFIG)
    another_machine()
    assert prepare(f"{bucket}/g", CONFIG).place.startswith(f"{bucket}/g/prepared/")
    assert content(f"{bucket}/g") == local_content(here.path)
    another_machine()
    seen: list[str] = []
    found = prepare(GraphStore.open(f"{bucket}/g"), CONFIG, progress=lambda stage, done, total: seen.append(stage))
    assert seen == [], "it is there"
    assert np.array_equal(found.tokens, Prepared.open(here.path / "prepared" / found.path.name).tokens)
    assert not list(remote.local_path(f"{bucket}/g").glob("*.npy")), "what is prepared needs nothing of the graph"
    changed = CONFIG.model_copy(update={"positional_encoding": PositionalEncodingConfig(method="none")})
    another_machine()
    prepare(f"{bucket}/g", changed, progress=lambda stage, done, total: seen.append(stage))
    assert not {"local nodes", "context C0"} & set(seen), "stages that did not change are taken from what is there"
    more = ResolvedPrepareConfig(**dict(changed), local_label_histograms=True)
    another_machine()
    extended = prepare(f"{bucket}/g", more)
    assert extended.is_neighbor.shape == (len(found.nodes), 1), "and those that nobody asked for before are made"
    assert np.array_equal(extended.label_counts, prepare(here, more).label_counts)


def test_train_evaluate_and_predict(bucket: str, tmp_path: Path, lg: Any) -> None:
    store = ingested(f"{bucket}/g")
    settings = (
        "prepare.local_nodes.k=5",
        "model.hidden_dim=8",
        "train.epochs=1",
        "train.num_eval_samples=1",
        "train.resample=never",
    )
    sets = [word for item in settings for word in ("--set", item)]
    prepared = lg("prepare", store.place, *sets, "--json")
    assert prepared.code == 0, prepared.err
    assert prepared.json["path"].startswith(f"{bucket}/g/prepared/")
    another_machine()
    assert lg("train", store.place, "--out", tmp_path / "run", *sets).code == 0
    brought = {file.name.split("-")[0] for file in remote.cache_folder().rglob("*.npy")}
    assert {"tokens", "local_rows"} <= brought
    assert not {"features", "out_indices", "both_indices", "feature_gain"} & brought
    assert [name for name in content(f"{bucket}/g") if name.startswith("refs/")], "the run is registered there"
    assert f'store = "{bucket}/g"' in (tmp_path / "run" / "config.toml").read_text()
    another_machine()
    assert lg("evaluate", tmp_path / "run").code == 0
    assert lg("predict", tmp_path / "run", "--split", "test", "--out", tmp_path / "p.parquet").code == 0
    facts = lg("inspect", store.place, "--verify", "--json").json
    assert (facts["path"], facts["nodes"], facts["verified"]) == (store.place, 300, True)
    assert prepared.json["path"].rsplit("/", 1)[1] in facts["prepared"]
    for wrong in (["train", store.place, "--out", f"{bucket}/run"], ["evaluate", f"{bucket}/run"]):
        refused = lg(*wrong)
        assert refused.code == 2
        assert "a run cannot lie at a URL" in refused.err


def test_a_shard_reads_only_its_range(bucket: str, tmp_path: Path, asked: list[tuple[str, int, int]]) -> None:
    pytest.importorskip("ray", reason="Ray is not installed: pip install 'largegt[ray]'")
    from largegt.preprocessing.ray_engine import Shard

    here = ingested(tmp_path / "g")
    ingested(f"{bucket}/g")
    another_machine()
    shard = Shard(f"{bucket}/g", here.fingerprint, ["in", "out"], 100, 140)
    expected = []
    for side in ("in", "out"):
        indptr, indices = here.csr(side)  # type: ignore[arg-type]
        low, high = int(indptr[100]), int(indptr[140])
        assert np.array_equal(shard.lists[side].indices, indices[low:high])  # type: ignore[index]
        assert np.array_equal(shard.lists[side].degrees(np.arange(100, 140)), np.diff(indptr[100:141]))  # type: ignore[index]
        expected += [
            (f"{side}_indptr", 128 + 800, 128 + 8 * 141),
            (f"{side}_indices", 128 + 4 * low, 128 + 4 * high),
        ]
    assert sorted(part for part in asked if part[1:] != (0, 128)) == sorted(expected)
    assert not list(remote.cache_folder().rglob("*.npy"))


def test_a_task_reads_the_lists_of_its_rows(bucket: str, tmp_path: Path, asked: list[tuple[str, int, int]]) -> None:
    here = ingested(tmp_path / "g")
    there = ingested(f"{bucket}/g").in_ranges()
    nodes = np.array([20, 21, 60])
    some = Neighbors(*there.csr("out"), self_loops=False).load_rows(nodes)
    indptr, indices = here.csr("out")
    for node in nodes:
        assert np.array_equal(
            some.indices[some.indptr[node] : some.indptr[node + 1]], indices[indptr[node] : indptr[node + 1]]
        )
    assert sum(stop - start for _, start, stop in asked) == 2 * 128 + 8 * 42 + 4 * int(indptr[61] - indptr[20])


# what goes wrong


def test_an_interrupted_upload_never_opens(bucket: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    edges = tmp_path / "edges.npy"  # files, so that the work can go on
    np.save(edges, (np.random.default_rng(0).random((2, 900)) * 200).astype(np.int64))
    put, sent, stop = remote.put, [], 0

    def counted(file: Path, url: str) -> None:
        if len(sent) == stop:
            raise KeyboardInterrupt
        put(file, url)
        sent.append(url.rsplit("/", 1)[1])

    source = lg.sources.files(edges, num_nodes=200)
    whole = local_content(lg.ingest(source, tmp_path / "h").path)
    for stop in (0, 5, len(whole) - 1):
        url = f"{bucket}/{stop}/h"
        with monkeypatch.context() as patch:
            patch.setattr(remote, "put", counted)
            sent.clear()
            with pytest.raises(KeyboardInterrupt):
                lg.ingest(source, url)
        assert "manifest.json" not in content(url)
        with pytest.raises(InputError, match="does not exist or has no manifest"):
            GraphStore.open(url)
        before = list(sent)
        with monkeypatch.context() as patch:
            patch.setattr(remote, "put", counted)
            kept, stop = stop, 99
            lg.ingest(source, url)
            stop = kept
        assert sorted(sent) == sorted(whole), "none is sent twice"
        assert sent[: len(before)] == before
        assert sent[-1] == "manifest.json"
        assert content(f"{bucket}/{stop}") == {f"h/{name}": value for name, value in whole.items()}


def test_a_store_is_replaced_as_a_whole(bucket: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    url = f"{bucket}/g"
    prepare(ingested(url), CONFIG)
    reader = GraphStore.open(url)
    assert len(reader.features) == 300
    with pytest.raises(InputError, match=rf"{url} already exists: choose another `out`, or say `overwrite=True`"):
        ingested(url, seed=1)
    kept = remote.cache_folder()
    monkeypatch.setenv("LARGEGT_CACHE", str(tmp_path / "elsewhere"))
    ingested(url, seed=1, overwrite=True)
    here = ingested(tmp_path / "g", seed=1)
    there = content(url)
    assert {name: there[name] for name in local_content(here.path)} == local_content(here.path)
    monkeypatch.setenv("LARGEGT_CACHE", str(kept))  # the machine that has a copy of the old one
    assert reader.folder.file("labels").is_file(), "its version is still there"
    assert np.array_equal(GraphStore.open(url).features, here.features)
    assert np.array_equal(GraphStore.open(url, reader.fingerprint).labels, reader.labels)
    reader.folder.close()
    gc.collect()  # preparations that were opened on the way
    clean(url)
    assert content(url) == local_content(here.path), "nothing of the old one is left"
    prepare(url, CONFIG)
    another_machine()
    assert not clean(url).preparations, "what another machine prepared stays"
    assert prepare(url, CONFIG).place in [
        f"{url}/prepared/{name}" for name in remote.names(remote.local_path(url) / "prepared")
    ]


def test_two_who_need_a_file_bring_it_once(bucket: str, asked: list[tuple[str, int, int]], monkeypatch: Any) -> None:
    monkeypatch.setattr(remote, "PART_BYTES", 100)
    ingested(f"{bucket}/g")
    another_machine()
    stores = [GraphStore.open(f"{bucket}/g") for _ in range(4)]
    threads = [threading.Thread(target=lambda store=store: store.features.sum()) for store in stores]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(stop - start for _, start, stop in asked) == 128 + 300 * 6 * 4


def test_an_interrupted_copy_goes_on(bucket: str, asked: list[tuple[str, int, int]], monkeypatch: Any) -> None:
    monkeypatch.setattr(remote, "PART_BYTES", 100)
    monkeypatch.setattr(remote, "PARTS_AT_ONCE", 2)
    features = np.array(ingested(f"{bucket}/g").features)
    another_machine()
    read = remote.read

    def dies(url: str, start: int, stop: int) -> list[bytes]:
        if start >= 3_000:
            raise DiskError("the network is gone")
        return read(url, start, stop)

    with monkeypatch.context() as patch:
        patch.setattr(remote, "read", dies)
        with pytest.raises(DiskError):
            _ = GraphStore.open(f"{bucket}/g").features
    assert np.array_equal(GraphStore.open(f"{bucket}/g").features, features)
    assert sum(stop - start for _, start, stop in asked) == 128 + features.nbytes


@pytest.mark.parametrize("harm", ["changed", "shorter", "gone"])
def test_damage_is_found(bucket: str, harm: str, lg: Any) -> None:
    store = ingested(f"{bucket}/g")
    url, file = store.place, f"{store.place}/{store.folder.entry('features')['file']}"
    if harm == "gone":
        files().rm_file(file)
    else:
        data = bytearray(files().cat_file(file))
        data[1_000] ^= 1
        files().pipe_file(file, bytes(data if harm == "changed" else data[:-8]))
    another_machine()
    with pytest.raises(LargeGTError, match=r"features-.*npy (does not match its checksum|ends before|cannot be read)"):
        _ = GraphStore.open(url).features
    assert not list(remote.cache_folder().rglob("features-*.npy"))
    found = lg("inspect", url, "--verify")
    assert found.code
    assert file in found.out + found.err


def test_a_damaged_preparation_is_made_again(bucket: str) -> None:
    made = prepare(ingested(f"{bucket}/g"), CONFIG)
    expected = content(made.place)
    manifest = f"{made.place}/manifest.json"
    tree = json.loads(files().cat_file(manifest))
    files().pipe_file(manifest, json.dumps(tree | {"meta": {}}).encode())
    another_machine()
    with logged("is made again"):
        prepare(f"{bucket}/g", CONFIG)
    assert content(made.place) == expected


def test_a_writer_that_fails_leaves_nothing(bucket: str) -> None:
    writer = ArrayWriter(f"{bucket}/g", "store")
    writer.save("labels", np.arange(3))
    assert remote.publish(writer.partial / "labels.npy") == f"{bucket}/.g.partial/labels.npy"
    assert set(content(bucket)) == {".g.partial/labels.npy", ".g.partial/writer"}
    writer.__exit__(InputError, InputError("bad input"), None)
    assert content(bucket) == {}
    with ArrayWriter(f"{bucket}/g", "store") as again:
        again.save("labels", np.arange(3))
        remote.publish(again.partial / "labels.npy")
        assert ".g.partial/labels.npy" in content(bucket), "it goes there anew"


def test_refusals_are_one_line(bucket: str, monkeypatch: pytest.MonkeyPatch) -> None:
    missing = "s3://no-such-bucket/g"
    nothing = refusal(lambda: GraphStore.open(f"{bucket}/nothing"))
    assert nothing.startswith(f"{bucket}/nothing does not exist or has no manifest.json: check the path")
    assert "bucket does not exist" in refusal(lambda: GraphStore.open(missing))
    assert "bucket does not exist" in refusal(lambda: ingested(missing))
    assert "bucket does not exist" in refusal(lambda: inspect(missing))
    assert "is a whole bucket: give a name in it" in refusal(lambda: ingested("s3://no-such-bucket"))
    assert "gcsfs for gs://" in refusal(lambda: GraphStore.open("gs://bucket/g"))
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    forget_connections()
    told = refusal(lambda: GraphStore.open(f"{bucket}/g"))
    assert "Unable to locate credentials: see that your credentials are set" in told
    forget_connections()


def test_without_fsspec_the_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LARGEGT_CACHE", str(tmp_path))
    monkeypatch.setitem(sys.modules, "fsspec.core", None)
    assert "pip install 'largegt[cloud]'" in refusal(lambda: ArrayFolder("s3://b/g", "store"))
