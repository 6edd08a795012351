"""How fast ids on disk are made, looked up and freed of repeats.

python bench/ids_on_disk.py --ids 5_000_000 --memory 256MiB --threads 2
"""

from __future__ import annotations

import argparse
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from largegt.graph.id_file import IdFile
from largegt.graph.sorted_ids import sorted_unique
from largegt.memory import format_bytes, parse_bytes

CHUNK = 1 << 18


def texts(numbers: Any) -> Any:
    """`paper:…`: about 20 bytes each, in no order."""
    mixed = pa.array(numbers * 0x1E3779B97F4A7C15 & 0x7FFFFFFFFFFFFFF).cast(pa.large_string())
    return pc.binary_join_element_wise(pa.scalar("p:", pa.large_string()), mixed, pa.scalar("", pa.large_string()))


def stream(count: int, times: int = 1) -> Iterator[Any]:
    for _ in range(times):
        for start in range(0, count, CHUNK):
            yield texts(np.arange(start, min(start + CHUNK, count)))


def anonymous_bytes() -> int:
    for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
        if line.startswith("RssAnon"):
            return int(line.split()[1]) * 1024
    return 0


def measure(name: str, rows: int, work: Callable[[], Any]) -> Any:
    """Run, print the rate and by how much anonymous memory rose at most."""
    before, peak, done = anonymous_bytes(), 0, threading.Event()

    def watch() -> None:
        nonlocal peak
        while not done.wait(0.005):
            peak = max(peak, anonymous_bytes())

    watcher = threading.Thread(target=watch)
    watcher.start()
    start = time.perf_counter()
    result = work()
    elapsed_s = time.perf_counter() - start
    done.set()
    watcher.join()
    rise = format_bytes(max(0, peak - before))
    print(f"{name:24} {rows / elapsed_s / 1e6:6.2f} M ids/s   {elapsed_s:6.2f} s   {rise} more", flush=True)
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ids", type=int, default=5_000_000)
    parser.add_argument("--wanted", type=int, default=2_000_000)
    parser.add_argument("--memory", default="256MiB")
    parser.add_argument("--threads", type=int, default=2)
    given = parser.parse_args()
    count, threads, memory = given.ids, given.threads, parse_bytes(given.memory)
    wanted = texts(np.random.default_rng(0).integers(0, count, given.wanted))
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        for size in (1000, 40_000):  # compile
            IdFile.build(folder / "first", stream(size), memory, threads, "ids").find(texts(np.arange(40_000)))
        measure("stream alone", count, lambda: sum(len(chunk) for chunk in stream(count)))
        file = measure("IdFile.build", count, lambda: IdFile.build(folder / "a", stream(count), memory, threads, "ids"))
        measure("IdFile.find", given.wanted, lambda: file.find(wanted))
        measure("IdFile.find again", given.wanted, lambda: file.find(wanted))
        file.remove()
        twice = measure(
            "sorted_unique",
            2 * count,
            lambda: sorted_unique(stream(count, 2), folder / "b", memory, threads),
        )
        assert twice.total == count
        twice.remove()


if __name__ == "__main__":
    main()
