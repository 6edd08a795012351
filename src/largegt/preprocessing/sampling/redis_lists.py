"""Neighbour lists in Redis: a graph in a key-value store, one key per node.

Enters: a store, once, by `load_lists`. Leaves: `RedisLists`, which LocalNodes reads like any other lists. Cost: a
request goes out as one pipeline of commands, one for some thousand lists, or for each degree and each place of a list;
the server holds 4 bytes per neighbour and some 90 per key. Its limit: whether an edge is there is seen in the whole
list of its node, so that lists of hubs travel, one after the other.

Under the prefix of the URL (`redis://host:port/PREFIX`): `PREFIX:both:17` is the list of node 17 as int32 (int64 for
graphs that need it), and `PREFIX:meta` says of which graph they are; it is written last.

A connection that drops is tried again with growing pauses: all requests are reads, so nothing is done twice. A login
that the server refuses is not tried again.

The login is REDIS_USERNAME and REDIS_PASSWORD, or the URL's own. It is never shown, and goes to Ray's workers pickled.
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

from .neighbor_lists import NeighborLists, index_type, portions

Result = TypeVar("Result")
Login = tuple[str | None, str | None]
"""A user's name and password."""

_KEYS_PER_COMMAND = 1 << 12
_LOAD_BYTES = 1 << 22
_TRIES = 8
_FIRST_PAUSE_S = 0.05


class RedisLists(NeighborLists):
    """The lists that `load_lists` put under a URL, along `direction`. `login` overrides the URL's own."""

    def __init__(
        self, url: str, direction: Direction = "both", structure: str | None = None, login: Login | None = None
    ) -> None:
        url, own = split_login(url)
        self.url, self.direction, self._login = url, direction, login or own
        self._client, prefix = _connect(url, self._login)
        text = _tried_again(lambda: self._client.get(f"{prefix}:meta"), url)
        if text is None:
            raise InputError(f"{url} holds no graph: put one there with: largegt redis-load STORE {url}")
        meta = json.loads(text)
        if structure is not None and meta["structure"] != structure:
            raise InputError(f"{url} holds another graph than the store: largegt redis-load STORE {url} replaces it")
        self._stored: dict[str, str] = meta["directions"]
        if direction not in self._stored:
            raise InputError(
                f"{url} has lists along {', '.join(self._stored)}, not along {direction}: "
                f"largegt redis-load STORE {url} --direction {direction} adds them"
            )
        self._head = f"{prefix}:{self._stored[direction]}:"
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
        return [f"{self._head}{node}" for node in np.asarray(nodes).tolist()]

    def _pipelined(self, commands: list[tuple[Any, ...]]) -> list[Any]:
        """All answers of some commands that go out together."""

        def ask() -> list[Any]:
            with self._client.pipeline(transaction=False) as pipeline:
                for command in commands:
                    pipeline.execute_command(*command)
                return list(pipeline.execute())

        return _tried_again(ask, self.url) if commands else []

    def _check(self, nodes: Array, there: list[Any]) -> None:
        """Refuse a node that has no list."""
        if not all(there):
            raise InputError(
                f"{self.url} has no list of node {int(nodes[there.index(False)])} along {self.direction}: "
                f"put the whole graph there with: largegt redis-load STORE {self.url}"
            )


def load_lists(
    store: GraphStore, url: str, direction: Direction = "both", progress: Progress | None = None
) -> RedisLists:
    """Put the lists of a store that LocalNodes along `direction` needs under a URL: beside those along other directions
    of the same graph, in place of any other graph."""
    show = progress or silent
    url, login = split_login(url)
    client, prefix = _connect(url, login)
    names = ("both",) if direction == "both" else ("out", "in")
    # an undirected graph has one list per node, whatever the direction is called
    stored = {name: name if store.directed else "both" for name in (names if store.directed else OPPOSITE)}
    before = _tried_again(lambda: client.getdel(f"{prefix}:meta"), url)
    kept = json.loads(before) if before is not None else {}
    for name in dict.fromkeys(stored.values()):
        indptr, indices = store.csr(name)  # type: ignore[arg-type]
        stage = f"redis, lists {name}"
        for first, last in portions(4 * np.diff(indptr) + 100, _LOAD_BYTES):
            show(stage, first, store.num_nodes)
            base = indptr[first]
            bounds = (np.asarray(indptr[first : last + 1]) - base).tolist()
            block = np.asarray(indices[base : indptr[last]], dtype=index_type(store.num_nodes))
            values = {
                f"{prefix}:{name}:{first + n}": block[bounds[n] : bounds[n + 1]].tobytes() for n in range(last - first)
            }
            _tried_again(lambda values=values: client.mset(values), url)  # type: ignore[misc]
        show(stage, store.num_nodes, store.num_nodes)
    meta = {"num_nodes": store.num_nodes, "structure": store.structure_fingerprint, "directions": stored}
    if kept.get("structure") == meta["structure"]:
        meta["directions"] = {**kept["directions"], **stored}
    _tried_again(lambda: client.set(f"{prefix}:meta", json.dumps(meta)), url)
    return RedisLists(url, direction, login=login)


def split_login(url: str) -> tuple[str, Login]:
    """The URL without its login, and the login: the URL's own, else that of the environment."""
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname, parts.port
    except ValueError:  # the port is no number: perhaps it is a part of a password
        host = None
    if not host or parts.scheme not in ("redis", "rediss") or not parts.path.strip("/"):
        raise ConfigError(f"{redacted(url)!r} names no graph in Redis: write redis://host:port/name")
    bare = parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()
    if redacted(bare) != bare:
        raise ConfigError(f"{url} has a password that cannot be read: leave it out, and set REDIS_PASSWORD")
    given = (unquote(own) if own else None for own in (parts.username, parts.password))
    names = ("REDIS_USERNAME", "REDIS_PASSWORD")
    username, password = (own or os.environ.get(name) for own, name in zip(given, names, strict=True))
    return bare, (username or None, password or None)


def _connect(url: str, login: Login) -> tuple[Any, str]:
    """A client, and the prefix that is the URL's path."""
    try:
        import redis
        from redis.backoff import NoBackoff
        from redis.retry import Retry
    except ImportError:
        raise ConfigError("neighbour lists in Redis need its client: pip install 'largegt[redis]'") from None
    parts = urlsplit(url)
    server = urlunsplit((parts.scheme, parts.netloc, "", parts.query, ""))
    # pauses between tries are ours: the client's own tries would only multiply them
    client = redis.Redis.from_url(
        server, username=login[0], password=login[1], socket_timeout=60, socket_connect_timeout=10,
        retry=Retry(NoBackoff(), 0),
    )  # fmt: skip
    return client, parts.path.strip("/")


def _tried_again(request: Callable[[], Result], url: str) -> Result:
    """The answer, or after several dropped connections a one-line error."""
    import redis

    pause_s = _FIRST_PAUSE_S
    for tries in range(1, _TRIES + 1):
        try:
            return request()
        except redis.AuthenticationError as error:  # a kind of ConnectionError
            raise InputError(f"{url} refuses the login ({error}): set REDIS_PASSWORD, and REDIS_USERNAME") from error
        except (redis.ConnectionError, redis.TimeoutError) as error:
            if tries == _TRIES:
                raise InputError(f"{url} does not answer ({error}), tried {tries} times: is the server up?") from error
        except redis.RedisError as error:
            raise InputError(f"{url} refuses: {error}") from error
        time.sleep(pause_s)
        pause_s *= 2
    raise AssertionError
