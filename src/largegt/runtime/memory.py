"""Memory as a setting: how much a stage may hold at once, and the sizes people write.

`memory` is never a part of a configuration: a result is the same bytes for any amount of it.
"""

from __future__ import annotations

import ctypes
import os
import re
import resource
from pathlib import Path

from largegt.errors import ConfigError

DEFAULT_SHARE = 0.5
"""Of the memory that is free, when nothing is asked for."""
LEAST = 1 << 28
"""Python and the libraries hold about half of it before anything begins."""
_LEAST = 1 << 26
_PIECE_BYTES = 1 << 20
_LEAST_ADDRESSES = 1 << 28
"""Address space per core, and six times for the libraries themselves (measured: 1 GB fails on two cores)."""
_UNITS = {"": 1, "b": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12, "ki": 2**10, "mi": 2**20, "gi": 2**30,
          "ti": 2**40}  # fmt: skip


def parse_bytes(text: str | int) -> int:
    """Bytes of `4GiB`, `500MB`, `2g` or a plain number."""
    match = re.fullmatch(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([kmgt]i?)?(b?)\s*", str(text).lower())
    size = float(match[1]) * _UNITS[match[2] or ""] if match else -1.0
    if not 0 <= size < 2**63:
        raise ConfigError(f"{text!r} is no size: write 4GiB, 500MB or a number of bytes")
    return int(size)


def format_bytes(size: float) -> str:
    """`3.2 GiB`."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(size) < 1024 or unit == "GiB":
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    raise AssertionError


def memory_budget(memory: str | int | None, least: int = LEAST) -> int:
    """Bytes a stage may add to what the process holds: so that all of it stays within what was asked for, or half of
    what this machine has free now. `least` is the smallest limit that the stage can keep."""
    if memory is None:
        return max(_LEAST, int(DEFAULT_SHARE * available_bytes()))
    asked = parse_bytes(memory)
    if asked < max(least, LEAST):
        raise ConfigError(f"memory is {memory}: it must be at least {format_bytes(max(least, LEAST))}")
    return max(_LEAST, asked - held_bytes())


def check_address_space() -> None:
    """Refuse a limit (`ulimit -v`) that the libraries do not start in. OpenBLAS tries again without end when it gets no
    buffer for one of its threads, in native code."""
    limit, least = resource.getrlimit(resource.RLIMIT_AS)[0], (6 + (os.cpu_count() or 1)) * _LEAST_ADDRESSES
    if limit != resource.RLIM_INFINITY and limit < least:
        raise ConfigError(
            f"the address space of this process is limited to {format_bytes(limit)} (ulimit -v), and the libraries "
            f"need {format_bytes(least)} before any work: raise that limit; `memory` limits what is held"
        )


def rows_within(row_bytes: int) -> int:
    """How many rows of a large array a thread takes at once: some temporary copies of them stay small."""
    return max(1, _PIECE_BYTES // max(1, row_bytes))


def release_freed() -> None:
    """Give memory that was freed back to the system. glibc keeps it for the next allocation, in an arena per thread,
    which may be of another size or in another thread."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None) if os.name == "posix" else None
    if trim is not None:
        trim(0)


def held_bytes() -> int:
    """Memory of this process that is not a view of a file."""
    return _facts("/proc/self/status").get("RssAnon", 0) * 1024


def available_bytes() -> int:
    """Memory that programs can still take, by the kernel's estimate and within this container's limit."""
    free = _facts("/proc/meminfo").get("MemAvailable", 0) * 1024
    free = free or os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2
    limit, used = (_facts(f"/sys/fs/cgroup/memory.{name}").get("", -1) for name in ("max", "current"))
    if limit >= 0 and used >= 0:
        cache = _facts("/sys/fs/cgroup/memory.stat")  # page cache counts, and goes when memory is needed
        free = min(free, max(0, limit - used) + cache.get("inactive_file", 0) + cache.get("active_file", 0))
    return free


def _facts(file: str) -> dict[str, int]:
    """The numbers in a file of the kernel, by the names before them; nothing without the file."""
    try:
        text = Path(file).read_text(encoding="ascii", errors="replace")
    except OSError:
        return {}
    return {name: int(number) for name, number in re.findall(r"^(?:(\w+):?\s+)?(\d+)(?: kB)?$", text, re.MULTILINE)}
