"""The Ray cluster that this process works with; preparation and training meet it by the same door."""

from __future__ import annotations

import socket

from largegt.errors import ConfigError, first_line


def connect(address: str | None) -> None:
    """Join the cluster at `address`, or start one on this machine; nothing where this process is connected already."""
    import ray

    if ray.is_initialized():
        return
    try:
        _knock(address)
        ray.init(address=address, log_to_driver=False, logging_level="ERROR")
    except OSError as error:
        raise ConfigError(
            f"no Ray cluster answers at {address} ({first_line(error)}): start one with ray start --head, "
            "or leave --address out"
        ) from error


def _knock(address: str | None) -> None:
    """See that something listens at host:port: Ray itself would try for many minutes."""
    host, _, port = (address or "").removeprefix("ray://").rpartition(":")
    if host and port.isdigit():
        socket.create_connection((host, int(port)), timeout=10).close()
