"""Memory limits, and sizes such as 4GiB.

`memory` is not part of a configuration: results are the same bytes for any limit.
"""

from __future__ import annotations

import ctypes
import os
import re
import resource
from pathlib import Path

from largegt.errors import ConfigError

DEFAULT_FRACTION = 0.5
"""The fraction of free memory to use by default."""
MIN_LIMIT_BYTES = 1 << 28
"""Python and the libraries use about half of it at start."""
_MIN_BUDGET_BYTES = 1 << 26
_PIECE_BYTES = 1 << 20
_MIN_ADDRESS_BYTES = 1 << 28
"""Address space per core; the libraries need six times as much (measured: 1 GB fails on two cores)."""
_UNITS = {"": 1, "b": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12, "ki": 2**10, "mi": 2**20, "gi": 2**30,
          "ti": 2**40}  # fmt: skip


def parse_bytes(text: str | int) -> int:
    """Bytes of `4GiB`, `500MB`, `2g` or a plain number."""
    match = re.fullmatch(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([kmgt]i?)?(b?)\s*", str(text).lower())
    size = float(match[1]) * _UNITS[match[2] or ""] if match else -1.0
    if not 0 <= size < 2**63:
        raise ConfigError(f"{text!r} is not a size: write 4GiB, 500MB or a number of bytes")
    return int(size)


def format_bytes(size: float) -> str:
    """`3.2 GiB`."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(size) < 1024 or unit == "GiB":
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    raise AssertionError


def memory_budget(memory: str | int | None, least: int = MIN_LIMIT_BYTES) -> int:
    """Bytes that a stage may allocate so that the process stays within `memory`, or half of the free memory by default.
    `least` is the smallest limit that the stage supports."""
    if memory is None:
        return max(_MIN_BUDGET_BYTES, int(DEFAULT_FRACTION * available_bytes()))
    requested = parse_bytes(memory)
    if requested < max(least, MIN_LIMIT_BYTES):
        raise ConfigError(f"memory is {memory}: it must be at least {format_bytes(max(least, MIN_LIMIT_BYTES))}")
    return max(_MIN_BUDGET_BYTES, requested - held_bytes())


def check_address_space() -> None:
    """Refuse a limit (`ulimit -v`) that the libraries do not start in. OpenBLAS tries again without end when it gets no
    buffer for one of its threads, in native code."""
    limit, least = resource.getrlimit(resource.RLIMIT_AS)[0], (6 + (os.cpu_count() or 1)) * _MIN_ADDRESS_BYTES
    if limit != resource.RLIM_INFINITY and limit < least:
        raise ConfigError(
            f"the address space of this process is limited to {format_bytes(limit)} (ulimit -v), and the libraries "
            f"need {format_bytes(least)} before any work: raise that limit; `memory` limits what is held"
        )


def rows_within(row_bytes: int) -> int:
    """The number of rows that a thread processes at once, so that temporary copies stay small."""
    return max(1, _PIECE_BYTES // max(1, row_bytes))


def release_freed() -> None:
    """Return freed memory to the operating system; glibc keeps it in one arena per thread."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None) if os.name == "posix" else None
    if trim is not None:
        trim(0)


def held_bytes() -> int:
    """Resident memory of this process without mapped files."""
    return _kernel_numbers("/proc/self/status").get("RssAnon", 0) * 1024


def available_bytes() -> int:
    """Free memory by the kernel's estimate, within the limit of this container."""
    free = _kernel_numbers("/proc/meminfo").get("MemAvailable", 0) * 1024
    free = free or os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2
    limit, used = (_kernel_numbers(f"/sys/fs/cgroup/memory.{name}").get("", -1) for name in ("max", "current"))
    if limit >= 0 and used >= 0:
        cache = _kernel_numbers(
            "/sys/fs/cgroup/memory.stat"
        )  # page cache counts as used, but the kernel can reclaim it
        free = min(free, max(0, limit - used) + cache.get("inactive_file", 0) + cache.get("active_file", 0))
    return free


def _kernel_numbers(file: str) -> dict[str, int]:
    """The numbers in a kernel file by name; empty if the file does not exist."""
    try:
        text = Path(file).read_text(encoding="ascii", errors="replace")
    except OSError:
        return {}
    return {name: int(number) for name, number in re.findall(r"^(?:(\w+):?\s+)?(\d+)(?: kB)?$", text, re.MULTILINE)}
