"""A bucket: a real S3-speaking server on this machine, for the tests of stores at URLs."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

fsspec = pytest.importorskip("fsspec", reason="fsspec is not installed: pip install 'largegt[cloud]'")
pytest.importorskip("s3fs", reason="s3fs is not installed: pip install 'largegt[cloud]'")
moto = pytest.importorskip("moto.server", reason="moto is not installed: pip install 'largegt[dev]'")

BUCKET = "graphs"


@contextmanager
def serving() -> Iterator[str]:
    """Start a server with an empty bucket; this process, and those it starts, find it by their environment."""
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = moto.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    given = {
        "AWS_ENDPOINT_URL": f"http://{host}:{port}",
        "AWS_ACCESS_KEY_ID": "someone",
        "AWS_SECRET_ACCESS_KEY": "secret",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_EC2_METADATA_DISABLED": "true",
        "AWS_SHARED_CREDENTIALS_FILE": "/nowhere",
        "AWS_CONFIG_FILE": "/nowhere",
    }
    with pytest.MonkeyPatch.context() as patch:
        for name, value in given.items():
            patch.setenv(name, value)
        forget_connections()
        if files().exists(BUCKET):  # of an earlier server: what they hold is this process's
            files().rm(BUCKET, recursive=True)
        files().mkdir(BUCKET)
        yield f"s3://{BUCKET}"
    forget_connections()
    server.stop()


def forget_connections() -> None:
    """A file system keeps the server and the credentials that it was made with."""
    fsspec.get_filesystem_class("s3").clear_instance_cache()


def files() -> Any:
    """The server's files as fsspec has them, without a memory of what was there."""
    found = fsspec.filesystem("s3")
    found.invalidate_cache()
    return found


def content(url: str) -> dict[str, bytes]:
    """Every file below a URL."""
    path = url.removeprefix("s3://")
    return {name.removeprefix(f"{path}/"): files().cat_file(name) for name in files().find(path)}


def local_content(folder: Path) -> dict[str, bytes]:
    """Every file below a folder."""
    return {str(file.relative_to(folder)): file.read_bytes() for file in folder.rglob("*") if file.is_file()}
