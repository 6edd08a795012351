"""Neighbour lists in a real Redis server: the same rows and bytes, dropped connections, missing nodes."""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import largegt as lg
from largegt.config.schema import LocalNodesConfig, PrepareConfig
from largegt.errors import ConfigError, InputError
from largegt.preprocessing.engine import Engine
from largegt.preprocessing.prepared import Prepared
from largegt.preprocessing.sampling import redis_lists as home
from largegt.preprocessing.sampling.local_nodes import local_nodes
from largegt.preprocessing.sampling.neighbor_lists import MappedCSR
from list_helpers import answers_alike

redis = pytest.importorskip("redis", reason="the client is not installed: pip install 'largegt[redis]'")
pytestmark = [
    pytest.mark.cluster,
    pytest.mark.skipif(shutil.which("redis-server") is None, reason="no redis-server: apt install redis-server"),
]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Server:
    """A Redis of our own that keeps nothing on disk unless asked to."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.port = folder, free_port()
        self.start()

    def start(self) -> None:
        options = ["--port", str(self.port), "--save", "", "--dir", str(self.folder), "--bind", "127.0.0.1"]
        self.process = subprocess.Popen(["redis-server", *options], stdout=subprocess.DEVNULL)
        client = redis.Redis(port=self.port)
        for _ in range(200):
            with suppress(redis.ConnectionError):
                client.ping()
                return
            time.sleep(0.05)
        raise AssertionError("redis-server did not start")

    def stop(self) -> None:
        self.process.terminate()
        self.process.wait()

    def url(self, name: str) -> str:
        return f"redis://127.0.0.1:{self.port}/{name}"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    made = Server(tmp_path_factory.mktemp("redis"))
    yield made
    made.stop()


class CuttingProxy:
    """Forwards to a port and cuts the first `cuts` connections after some bytes of the answer."""

    def __init__(self, port: int, cuts: int, after: int = 40) -> None:
        self.target, self.left, self.after, self.connections = port, cuts, after, 0
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self.listener.getsockname()[1])
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self.listener.accept()
                self.connections += 1
                self.left -= 1
                backend = socket.create_connection(("127.0.0.1", self.target))
                threading.Thread(target=self._pump, args=(client, backend, None), daemon=True).start()
                limit = self.after if self.left >= 0 else None
                threading.Thread(target=self._pump, args=(backend, client, limit), daemon=True).start()

    def _pump(self, source: socket.socket, sink: socket.socket, limit: int | None) -> None:
        with suppress(OSError):
            while data := source.recv(1 << 16):
                sink.sendall(data if limit is None else data[:limit])
                if limit is not None and (limit := limit - len(data)) <= 0:
                    break
        for end in (source, sink):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)


@pytest.fixture
def store(make_store: Any) -> Any:
    ends = (np.random.default_rng(3).random((4_000, 2)) ** 3 * 600).astype(np.int64)
    return make_store(ends, 602, undirected=False, labels=np.arange(602) % 3)


@pytest.mark.parametrize("direction", ["out", "in", "both"])
@pytest.mark.parametrize("hop1_fraction", [None, 0.4])
def test_the_same_rows_as_from_the_store(
    server: Server, store: Any, direction: Any, hop1_fraction: float | None
) -> None:
    lists = home.load_lists(store, server.url(f"rows-{direction}"), direction)
    for k in (5, 60):
        given = {"k": k, "seed": 2, "hop1_fraction": hop1_fraction}
        expected = lg.local_nodes(store, direction=direction, **given)
        assert np.array_equal(lg.local_nodes(lists, threads=2, **given), expected)


def test_each_question_is_answered_as_by_the_store(server: Server, store: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(home, "_KEYS_PER_COMMAND", 7)
    lists, mapped = home.load_lists(store, server.url("ask"), "out"), MappedCSR.of_store(store, "out")
    answers_alike(lists, mapped)


def test_an_undirected_graph_is_stored_once(server: Server, make_store: Any) -> None:
    store = make_store([(0, 1), (1, 2)], 4)
    lists = home.load_lists(store, server.url("undirected"))
    assert lists.reverse is lists
    keys = sorted(key.decode() for key in redis.Redis(port=server.port).keys("undirected:*"))
    assert keys == [*(f"undirected:both:{n}" for n in range(4)), "undirected:meta"]
    assert home.RedisLists(lists.url, "out").neighbors(np.array([1]))[1].tolist() == [0, 2]


def test_prepared_bytes_are_those_of_the_local_engine(server: Server, store: Any) -> None:
    config = PrepareConfig(local_nodes=LocalNodesConfig(k=6))
    files = {}
    for url in (None, server.url("bytes")):
        if url:
            home.load_lists(store, url)
        prepared = lg.prepare(store, config, engine=Engine(1 << 28, 2, neighbors=url))
        files[url] = {file.name: file.read_bytes() for file in prepared.path.iterdir()}
        shutil.rmtree(prepared.path)
    assert files[None] == files[server.url("bytes")]


def test_dropped_connections_are_tried_again(server: Server, store: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(home, "_FIRST_PAUSE_S", 0.001)
    home.load_lists(store, server.url("cut"))
    expected = lg.local_nodes(store, k=20)
    for after in (40, 3_000):  # within the first answer, and in the middle of the lists
        proxy = CuttingProxy(server.port, cuts=5, after=after)
        lists = home.RedisLists(f"redis://127.0.0.1:{proxy.port}/cut")
        assert np.array_equal(lg.local_nodes(lists, k=20, threads=1), expected)
        assert proxy.connections == 6


def test_a_server_that_comes_back_is_waited_for(store: Any, tmp_path: Path) -> None:
    server = Server(tmp_path)
    lists = home.load_lists(store, server.url("back"))
    redis.Redis(port=server.port).save()
    server.stop()
    timer = threading.Timer(0.3, server.start)
    timer.start()
    try:
        found = lg.local_nodes(lists, np.arange(50), k=20, threads=1)
        assert np.array_equal(found, lg.local_nodes(store, np.arange(50), k=20))
    finally:
        timer.join()
        server.stop()


def test_a_server_that_stays_away_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(home, "_FIRST_PAUSE_S", 0.001)
    with pytest.raises(
        InputError, match=r"redis://127.0.0.1:\d+/g does not answer .*, tried 8 times: is the server up\?"
    ):
        home.RedisLists(f"redis://127.0.0.1:{free_port()}/g")


def test_a_missing_node_is_named(server: Server, store: Any) -> None:
    lists = home.load_lists(store, server.url("holes"))
    redis.Redis(port=server.port).delete("holes:both:17")
    with pytest.raises(InputError, match=r"/holes has no list of node 17 along both: .*largegt redis-load"):
        lg.local_nodes(lists, [3, 17], k=5)
    with pytest.raises(InputError, match="no list of node 17"):
        lists.neighbors(np.array([3, 17]))
    expected = lg.local_nodes(store, [600, 601], k=5)  # no neighbours is an empty list, not a missing one
    assert np.array_equal(lg.local_nodes(lists, [600, 601], k=5), expected)


def test_what_is_not_there_is_said(server: Server, store: Any, make_store: Any) -> None:
    with pytest.raises(InputError, match=r"holds no graph: load one with: largegt redis-load STORE redis://"):
        home.RedisLists(server.url("nothing"))
    home.load_lists(store, server.url("one"))
    with pytest.raises(InputError, match=r"has lists along both, not along out: .* --direction out adds them"):
        home.RedisLists(server.url("one"), "out")
    home.load_lists(store, server.url("one"), "out")
    assert home.RedisLists(server.url("one"), "both").num_nodes == 602
    other = make_store([(0, 1)], 3)
    with pytest.raises(InputError, match="holds a different graph than the store"):
        lg.prepare(other, engine=Engine(1 << 28, neighbors=server.url("one")))
    home.load_lists(other, server.url("one"))
    assert home.RedisLists(server.url("one")).num_nodes == 3


@pytest.mark.parametrize("url", ["http://x/y", "redis://localhost:1", "redis:///g", "g"])
def test_a_url_that_names_no_graph_is_refused(url: str) -> None:
    with pytest.raises(ConfigError, match=r"is not the URL of a graph in Redis: write redis://host:port/name"):
        home.RedisLists(url)


def test_without_the_client_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "redis", None)
    with pytest.raises(ConfigError, match=r"pip install 'largegt\[redis\]'"):
        home.RedisLists("redis://localhost/g")


def test_the_command_line(server: Server, store: Any, lg: Any) -> None:
    loaded = lg("redis-load", store.path, server.url("cli"), "--json")
    assert (loaded.code, json.loads(loaded.out)["num_nodes"]) == (0, 602)
    given = ["--neighbor-store", server.url("cli"), "--set", "prepare.local_nodes.k=5", "--json"]
    found = lg("prepare", store.path, *given)
    assert found.code == 0, found.err
    path = Path(json.loads(found.out)["path"])
    expected = local_nodes(store, k=5, hop1_fraction=0.5)
    assert np.array_equal(Prepared.open(path).token_nodes[Prepared.open(path).local_rows], expected)
    refused = lg("redis-load", store.path, server.url("cli"), "--direction", "sideways")
    assert refused.code == 2
    assert "must be one of out, in, both" in refused.err
