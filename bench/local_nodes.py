"""LocalNodes against the two obvious ways, over degree, hubs, K and threads.

    python bench/local_nodes.py                      # ratios and a plot, a minute or two
    python bench/local_nodes.py --products           # a graph of ogbn-products' size and shape, all nodes, K=100

(a) SciPy forms A·A, then a pool of processes samples each node's row in Python; (b) our own listing of every path,
forced for all nodes. Times are per node and core. Ratios are of one run.
"""

from __future__ import annotations

import argparse
import tempfile
import threading
import time
from collections.abc import Callable
from itertools import pairwise
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp

from largegt.datasets.synthetic import generate
from largegt.preprocessing.sampling import uniform
from largegt.preprocessing.sampling.local_nodes import csr_and_reverse, local_nodes
from largegt.runtime.threads import num_threads, run_chunks


def power_law(num_nodes: int, mean_degree: float, exponent: float = 1.5) -> sp.csr_array:
    """A symmetric graph whose expected degrees follow a power law."""
    rng = np.random.default_rng(0)
    weight = rng.pareto(exponent, num_nodes) + 1
    ends = np.searchsorted(weight.cumsum(), rng.random((2, int(num_nodes * mean_degree / 2))) * weight.sum())
    ones = np.ones(ends.shape[1], dtype=bool)
    directed = sp.csr_array((ones, (ends[0], ends[1])), shape=(num_nodes, num_nodes))
    return (directed + directed.T).astype(bool).tocsr()


def with_larger_hubs(graph: sp.csr_array, factor: float, num_hubs: int = 10) -> sp.csr_array:
    """The same graph, its largest hubs joined to as many more nodes as makes them `factor` times larger."""
    rng = np.random.default_rng(1)
    degree = np.diff(graph.indptr)
    more = [
        (hub, rng.choice(graph.shape[0], min(graph.shape[0], int((factor - 1) * degree[hub])), replace=False))
        for hub in np.argsort(degree)[-num_hubs:]
    ]
    ends = np.concatenate([np.stack([np.full(len(others), hub), others]) for hub, others in more], axis=1)
    extra = sp.csr_array((np.ones(ends.shape[1], bool), (ends[0], ends[1])), shape=graph.shape)
    return (graph + extra + extra.T).astype(bool).tocsr()


def seconds(work: Callable[[], object], repeats: int = 3) -> float:
    """The best of some runs."""
    best = float("inf")
    for _ in range(repeats):
        start = time.perf_counter()
        work()
        best = min(best, time.perf_counter() - start)
    return best


def ours(csr: tuple[np.ndarray, ...], nodes: np.ndarray, k: int, way: int = uniform.ANY_METHOD) -> float:
    """Seconds per node on one core."""
    rows = np.empty((len(nodes), k), np.int32)
    uniform.local_nodes_rows(*csr, nodes[:2], -1, way, 0, 0, rows[:2])
    return seconds(lambda: uniform.local_nodes_rows(*csr, nodes, -1, way, 0, 0, rows)) / len(nodes)


def by_scipy(adjacency: sp.csr_array, nodes: np.ndarray, k: int) -> tuple[float, int]:
    """Seconds per node and core, and non-zeros of A·A: the product for all nodes on one core, then the sampling of
    some by a pool of processes, its wall time multiplied by their number."""
    matrix = adjacency.astype(np.int32)
    start = time.perf_counter()
    square = (matrix @ matrix).tocsr()
    product_s = (time.perf_counter() - start) / adjacency.shape[0]
    _shared.update(adjacency=adjacency, square=square, k=k)
    num_processes, some = num_threads(None), nodes[:1000]
    with get_context("fork").Pool(num_processes) as pool:  # forked, so that A·A is shared and not copied
        pool.map(sample_plainly, some[:num_processes])
        start = time.perf_counter()
        pool.map(sample_plainly, some, chunksize=50)
        sampling_s = (time.perf_counter() - start) * num_processes / len(some)
    return product_s + sampling_s, square.nnz


_shared: dict[str, Any] = {}


def sample_plainly(i: int) -> np.ndarray:
    """One node's row as one would write it first."""
    adjacency, square, wanted = _shared["adjacency"], _shared["square"], _shared["k"] - 1
    rng = np.random.default_rng(i)
    near = adjacency.indices[adjacency.indptr[i] : adjacency.indptr[i + 1]]
    far = square.indices[square.indptr[i] : square.indptr[i + 1]]
    reach = np.union1d(near, far)
    reach = reach[reach != i]
    if not len(reach):
        return rng.integers(adjacency.shape[0], size=wanted)
    return rng.choice(reach, wanted, replace=len(reach) < wanted)


def compare(size: int, picture: Path) -> None:
    """On graphs of at most `size` nodes."""
    print(f"{'graph':<34}{'K':>5}{'ours µs':>10}{'(b) µs':>10}{'(a) µs':>10}{'(a)/ours':>10}{'nnz(A·A)':>14}")
    for num_nodes, degree, k in ((size // 5, 50, 100), (size // 2, 50, 100), (size, 50, 100), (size // 5, 20, 100),
                                 (size // 5, 50, 20), (size // 5, 50, 200)):  # fmt: skip
        graph = power_law(num_nodes, degree)
        graph.setdiag(False)
        graph.eliminate_zeros()
        csr = csr_and_reverse(graph, "both")
        nodes = np.random.default_rng(1).permutation(num_nodes)[:5000]
        mine, listing = ours(csr, nodes, k), ours(csr, nodes, k, uniform.BY_LISTING)
        plain, nnz = by_scipy(graph, nodes, k) if num_nodes < size else (float("nan"), 0)
        name = f"{num_nodes:,} nodes, mean degree {degree}"
        print(f"{name:<34}{k:>5}{mine * 1e6:>10.1f}{listing * 1e6:>10.1f}{plain * 1e6:>10.1f}{plain / mine:>10.1f}"
              f"{nnz:>14,}", flush=True)  # fmt: skip

    print("\nlargest hubs ten times larger, all nodes, K=100:")
    times = []
    graph = power_law(size, 50, exponent=2.5)
    for factor in (1.0, 10.0):
        csr = csr_and_reverse(with_larger_hubs(graph, factor), "both")
        times.append(elapsed_s := size * ours(csr, np.arange(size), 100))
        print(f"  largest degree {np.diff(csr[0]).max():>7,}: {elapsed_s:.1f} s")
    print(f"  ratio {times[1] / times[0]:.2f}")

    graph = power_law(size, 50)
    csr = csr_and_reverse(graph, "both")
    rows = np.empty((size, 100), np.int32)
    there = csr[0].nbytes + csr[1].nbytes + rows.nbytes
    extra = extra_bytes(csr, np.arange(size), rows)
    print(f"\nmemory beyond the graph and the result ({there / 2**20:.0f} MiB): {extra / 2**20:.1f} MiB")

    print(f"\nthreads, {size // 5:,} of {size:,} nodes, K=100:")
    for threads in (1, 2, 4, 8, 16):
        elapsed_s = seconds(lambda t=threads: local_nodes(graph, np.arange(size // 5), k=100, threads=t), 3)
        print(f"  {threads:>2}: {elapsed_s:.2f} s")
    draw(csr, picture)


def draw(csr: tuple[np.ndarray, ...], picture: Path) -> None:
    """Cost per node against the number of two-hop paths, for each way and the chosen one."""
    from matplotlib.figure import Figure

    degree = np.diff(csr[0])
    paths = np.zeros(len(degree), np.int64)
    has = degree > 0
    paths[has] = np.add.reduceat(degree[csr[1]], csr[0][:-1][has])
    figure = Figure(figsize=(7, 4.2))
    axes = figure.add_subplot()
    edges = np.geomspace(500, paths.max(), 12)
    ways = {"chosen": uniform.ANY_METHOD, "by paths": uniform.BY_PATHS, "by nodes": uniform.BY_NODES,
            "by listing": uniform.BY_LISTING}  # fmt: skip
    for name, way in ways.items():
        points = []
        for low, high in pairwise(edges):
            nodes = np.flatnonzero((paths >= low) & (paths < high))[:300]
            if len(nodes) > 20:
                points.append((paths[nodes].mean(), ours(csr, nodes, 100, way) * 1e6))
        style = {"linewidth": 3, "color": "black"} if name == "chosen" else {"linewidth": 1.5, "linestyle": "--"}
        axes.plot(*zip(*points, strict=True), label=name, **style)
    axes.set(xscale="log", yscale="log", xlabel="two-hop paths of the node", ylabel="µs per node, one core",
             title=f"LocalNodes, K = 100, power law, {len(degree):,} nodes of mean degree 50")  # fmt: skip
    axes.legend(frameon=False)
    figure.savefig(picture, bbox_inches="tight", dpi=120)
    print(f"\n{picture} shows the cost per node against its two-hop paths")


def anonymous_bytes() -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("RssAnon:"))


def extra_bytes(csr: tuple[np.ndarray, ...], nodes: np.ndarray, rows: np.ndarray) -> int:
    """Peak memory while all `nodes` are sampled, beyond the graph and the result, which are there before."""
    rows.fill(0)
    before, peak, done = anonymous_bytes(), [0], threading.Event()

    def watch() -> None:
        while not done.wait(0.005):
            peak[0] = max(peak[0], anonymous_bytes())

    watcher = threading.Thread(target=watch)
    watcher.start()
    sample_all(csr, nodes, rows)
    done.set()
    watcher.join()
    return max(0, peak[0] - before)


def sample_all(csr: tuple[np.ndarray, ...], nodes: np.ndarray, rows: np.ndarray) -> None:
    """On all cores."""
    run_chunks(
        lambda start, stop: uniform.local_nodes_rows(*csr, nodes[start:stop], -1, -1, 0, 0, rows[start:stop]),
        len(nodes),
        1024,
    )


def products(scale: float) -> None:
    """A synthetic graph like ogbn-products (2.45M nodes, 61.9M undirected edges, heavy tail); all nodes, K=100."""
    with tempfile.TemporaryDirectory() as folder:
        store = generate("ogbn-products", f"{folder}/g", scale)
        csr = tuple(np.array(part) for part in csr_and_reverse(store, "both"))
    degree = np.diff(csr[0])
    print(f"{len(degree):,} nodes, {len(csr[1]) // 2:,} undirected edges, largest degree {degree.max():,}")
    nodes, rows = np.arange(len(degree)), np.empty((len(degree), 100), np.int32)
    sample_all(csr, nodes[:10], rows[:10])
    elapsed_s = seconds(lambda: sample_all(csr, nodes, rows), 2)
    there = csr[0].nbytes + csr[1].nbytes + rows.nbytes
    extra = extra_bytes(csr, nodes, rows)
    print(f"LocalNodes of all nodes, K=100: {elapsed_s:.1f} s")
    print(f"memory beyond the graph and the result: {extra / 2**20:.0f} MiB, {extra / there:.4f} of them")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--products", action="store_true", help="only the graph of ogbn-products' size")
    parser.add_argument("--scale", type=float, default=1.0, help="of that graph")
    parser.add_argument("--nodes", type=int, default=100_000, help="of the largest graph to compare on")
    parser.add_argument("--picture", type=Path, default=Path("local-nodes.png"))
    args = parser.parse_args()
    products(args.scale) if args.products else compare(args.nodes, args.picture)


if __name__ == "__main__":
    main()
