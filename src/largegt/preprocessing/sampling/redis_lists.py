"""Neighbour lists in Redis: a graph in a key-value store, one key per node.

Enters: a store, once, by `load_lists`. Leaves: `RedisLists`, with the interface of other neighbour lists. Cost: a
request is one pipeline of commands, one per some thousand lists, or per degree and list entry; the server holds 4 bytes
per neighbour and about 90 per key. Limitation: `has` transfers whole lists, also those of hubs, one after the other.

Keys under the prefix of the URL (`redis://host:port/PREFIX`): `PREFIX:both:17` is the list of node 17 as int32 (int64
for large graphs), and `PREFIX:meta` identifies the graph; it is written last.

A dropped connection is retried with growing pauses; repeated requests are safe because they only read. A refused login
is not retried.

The login is that of the URL, or REDIS_USERNAME and REDIS_PASSWORD. It is never printed, and is pickled for Ray workers.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from typing import Any, TypeVar
from urllib.parse import unquote, urlsplit, urlunsplit

import numpy as np

from largegt.data.store import GraphStore
from largegt.errors import ConfigError, InputError
from largegt.io.urls import redacted
from largegt.runtime.progress import Progress, silent
from largegt.types import OPPOSITE, Array, Direction

from .neighbor_lists import NeighborLists, index_type, split_by_size

Result = TypeVar("Result")
Login = tuple[str | None, str | None]
"""User name and password."""

_KEYS_PER_COMMAND = 1 << 12
_LOAD_BYTES = 1 << 22
_TRIES = 8
_FIRST_PAUSE_S = 0.05


class RedisLists(NeighborLists):
    """The lists that `load_lists` stored under a URL, along `direction`. `login` overrides that of the URL."""

    def __init__(
        self, url: str, direction: Direction = "both", structure: str | None = None, login: Login | None = None
    ) -> None:
        url, own = split_login(url)
        self.url, self.direction, self._login = url, direction, login or own
        self._client, prefix = _connect(url, self._login)
        text = _with_retries(lambda: self._client.get(f"{prefix}:meta"), url)
        if text is None:
            raise InputError(f"{url} holds no graph: load one with: largegt redis-load STORE {url}")
        meta = json.loads(text)
        if structure is not None and meta["structure"] != structure:
            raise InputError(
                f"{url} holds a different graph than the store: largegt redis-load STORE {url} replaces it"
            )
        self._stored: dict[str, str] = meta["directions"]
        if direction not in self._stored:
            raise InputError(
                f"{url} has lists along {', '.join(self._stored)}, not along {direction}: "
                f"largegt redis-load STORE {url} --direction {direction} adds them"
            )
        self._key_prefix = f"{prefix}:{self._stored[direction]}:"
        self.num_nodes = int(meta["num_nodes"])
        self._type = index_type(self.num_nodes)
        self._reverse: RedisLists | None = None

    def __reduce__(self) -> Any:
        return RedisLists, (self.url, self.direction, None, self._login)

    @property
    def reverse(self) -> RedisLists:
        opposite = OPPOSITE[self.direction]
        if self._stored[opposite] == self._stored[self.direction]:
            return self
        if self._reverse is None:
            self._reverse = RedisLists(self.url, opposite, login=self._login)
        return self._reverse

    def neighbors(self, nodes: Array) -> tuple[Array, Array]:
        keys = self._keys(nodes)
        cuts = range(0, len(keys), _KEYS_PER_COMMAND)
        answers = self._pipelined([("MGET", *keys[low : low + _KEYS_PER_COMMAND]) for low in cuts])
        lists = [value for answer in answers for value in answer]
        self._check(nodes, [value is not None for value in lists])
        indptr = np.append(0, np.cumsum([len(value) // self._type.itemsize for value in lists], dtype=np.int64))
        return indptr, np.frombuffer(b"".join(lists), dtype=self._type)

    def degrees(self, nodes: Array) -> Array:
        keys = self._keys(nodes)
        lengths = np.array(self._pipelined([("STRLEN", key) for key in keys]), dtype=np.int64)
        empty = np.flatnonzero(lengths == 0)
        self._check(nodes[empty], self._pipelined([("EXISTS", keys[n]) for n in empty]))
        return lengths // self._type.itemsize

    def at(self, nodes: Array, places: Array) -> Array:
        size = self._type.itemsize
        starts = (np.asarray(places) * size).tolist()
        commands = [("GETRANGE", key, low, low + size - 1) for key, low in zip(self._keys(nodes), starts, strict=True)]
        found = np.frombuffer(b"".join(self._pipelined(commands)), dtype=self._type)
        if len(found) != len(nodes):
            raise InputError(f"{self.url} changed while it was read: load the graph again, then run the same command")
        return found

    def _keys(self, nodes: Array) -> list[str]:
        return [f"{self._key_prefix}{node}" for node in np.asarray(nodes).tolist()]

    def _pipelined(self, commands: list[tuple[Any, ...]]) -> list[Any]:
        """The replies to several commands in one round trip."""

        def execute() -> list[Any]:
            with self._client.pipeline(transaction=False) as pipeline:
                for command in commands:
                    pipeline.execute_command(*command)
                return list(pipeline.execute())

        return _with_retries(execute, self.url) if commands else []

    def _check(self, nodes: Array, is_present: list[Any]) -> None:
        """Refuse a node without a list."""
        if not all(is_present):
            raise InputError(
                f"{self.url} has no list of node {int(nodes[is_present.index(False)])} along {self.direction}: "
                f"load the whole graph with: largegt redis-load STORE {self.url}"
            )


def load_lists(
    store: GraphStore, url: str, direction: Direction = "both", progress: Progress | None = None
) -> RedisLists:
    """Store the lists that LocalNodes along `direction` needs under a URL. Lists along other directions of the same
    graph are kept; a different graph is replaced."""
    show = progress or silent
    url, login = split_login(url)
    client, prefix = _connect(url, login)
    names = ("both",) if direction == "both" else ("out", "in")
    # an undirected graph has one list per node, whatever the direction is called
    stored = {name: name if store.directed else "both" for name in (names if store.directed else OPPOSITE)}
    before = _with_retries(lambda: client.getdel(f"{prefix}:meta"), url)
    kept = json.loads(before) if before is not None else {}
    for name in dict.fromkeys(stored.values()):
        indptr, indices = store.csr(name)  # type: ignore[arg-type]
        stage = f"redis, lists {name}"
        for first, last in split_by_size(4 * np.diff(indptr) + 100, _LOAD_BYTES):
            show(stage, first, store.num_nodes)
            base = indptr[first]
            bounds = (np.asarray(indptr[first : last + 1]) - base).tolist()
            block = np.asarray(indices[base : indptr[last]], dtype=index_type(store.num_nodes))
            values = {
                f"{prefix}:{name}:{first + n}": block[bounds[n] : bounds[n + 1]].tobytes() for n in range(last - first)
            }
            _with_retries(lambda values=values: client.mset(values), url)  # type: ignore[misc]
        show(stage, store.num_nodes, store.num_nodes)
    meta = {"num_nodes": store.num_nodes, "structure": store.structure_fingerprint, "directions": stored}
    if kept.get("structure") == meta["structure"]:
        meta["directions"] = {**kept["directions"], **stored}
    _with_retries(lambda: client.set(f"{prefix}:meta", json.dumps(meta)), url)
    return RedisLists(url, direction, login=login)


def split_login(url: str) -> tuple[str, Login]:
    """The URL without its login, and the login: that of the URL, else of the environment."""
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname, parts.port
    except ValueError:  # the port is not a number: possibly part of a password
        host = None
    if not host or parts.scheme not in ("redis", "rediss") or not parts.path.strip("/"):
        raise ConfigError(f"{redacted(url)!r} is not the URL of a graph in Redis: write redis://host:port/name")
    bare = parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()
    if redacted(bare) != bare:
        raise ConfigError(f"{url} has a password that cannot be read: leave it out, and set REDIS_PASSWORD")
    given = (unquote(own) if own else None for own in (parts.username, parts.password))
    names = ("REDIS_USERNAME", "REDIS_PASSWORD")
    username, password = (own or os.environ.get(name) for own, name in zip(given, names, strict=True))
    return bare, (username or None, password or None)


def _connect(url: str, login: Login) -> tuple[Any, str]:
    """A client, and the URL's path as the key prefix."""
    try:
        import redis
        from redis.backoff import NoBackoff
        from redis.retry import Retry
    except ImportError:
        raise ConfigError("neighbour lists in Redis need its client: pip install 'largegt[redis]'") from None
    parts = urlsplit(url)
    server = urlunsplit((parts.scheme, parts.netloc, "", parts.query, ""))
    # `_with_retries` retries: the client's own retries would multiply them
    client = redis.Redis.from_url(
        server, username=login[0], password=login[1], socket_timeout=60, socket_connect_timeout=10,
        retry=Retry(NoBackoff(), 0),
    )  # fmt: skip
    return client, parts.path.strip("/")


def _with_retries(request: Callable[[], Result], url: str) -> Result:
    """The result of `request`; an error after several dropped connections."""
    import redis

    pause_s = _FIRST_PAUSE_S
    for tries in range(1, _TRIES + 1):
        try:
            return request()
        except redis.AuthenticationError as error:  # a subclass of ConnectionError
            raise InputError(f"{url} refuses the login ({error}): set REDIS_PASSWORD, and REDIS_USERNAME") from error
        except (redis.ConnectionError, redis.TimeoutError) as error:
            if tries == _TRIES:
                raise InputError(f"{url} does not answer ({error}), tried {tries} times: is the server up?") from error
        except redis.RedisError as error:
            raise InputError(f"{url} refuses: {error}") from error
        time.sleep(pause_s)
        pause_s *= 2
    raise AssertionError
