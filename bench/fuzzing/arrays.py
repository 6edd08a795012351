"""Fuzzing ingest with arrays: `.npy` and `.npz` files, or arrays in memory, of every dtype, order and shape."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse

from largegt.config.schema import IngestConfig
from largegt.data import sources
from largegt.data.ingest import ingest
from largegt.errors import LargeGTError

from .cases import ACCEPTED, RIGHT, Wrong
from .mutations import damaged

_STEPS = ("kind", "shape", "damage", "value", "length", "pickle", "split", "sparse")


def run_arrays(folder: Path, rng: random.Random, steps: Sequence[random.Random]) -> str:
    """One case: see `IngestTarget`."""
    num_nodes = rng.randint(3, 9)
    random_numbers = np.random.default_rng(rng.randrange(2**32))
    ends = random_numbers.integers(0, num_nodes, (2, rng.randint(4, 20)))
    ends[:, 0] = 0, 1
    given: dict[str, Any] = {
        "edges": ends.astype(rng.choice(("i1", "<i2", ">i2", "<i4", ">i4", "<i8", ">i8", "u1", "<u4", ">u8", "<u8"))),
        "features": random_numbers.normal(size=(num_nodes, 3)).astype(rng.choice(("f4", ">f4", "f8", ">f8"))),
        "labels": (np.arange(num_nodes) % 3).astype(rng.choice(("i1", "<i8", ">i4", "<f8"))),
    }
    for name in ("edges", "features"):
        given[name] = np.asfortranarray(given[name]) if rng.random() < 0.4 else given[name]
    if rng.random() < 0.4 and given["edges"].shape[1] != 2:
        given["edges"] = given["edges"].T
    order = random_numbers.permutation(num_nodes)
    splits = {"train": order[:1], "valid": order[1:2], "test": order[2:]}
    wanted = {name: np.array(array, dtype=array.dtype.newbyteorder("=")) for name, array in given.items()}
    unsure = False
    broken: dict[str, random.Random] = {}
    for step in steps:
        unsure |= _disturb(given, splits, broken, step)
    in_memory = rng.random() < 0.3 and not broken
    try:
        source = _in_memory(given, splits) if in_memory else _on_disk(folder, given, splits, broken)
        store = ingest(source, folder / "store", IngestConfig(), threads=1, memory=1 << 28)
    except LargeGTError as error:
        if not unsure:
            raise Wrong(f"refused arrays that are right: {error}") from error
        raise
    if unsure:
        return ACCEPTED
    edges = wanted["edges"] if wanted["edges"].shape[0] == 2 else wanted["edges"].T
    pairs = {(int(a), int(b)) for a, b in edges.T if a != b}
    indptr, indices = (np.asarray(part) for part in store.csr("out"))
    found = {(row, int(other)) for row in range(num_nodes) for other in indices[indptr[row] : indptr[row + 1]]}
    if found != pairs or store.num_nodes != num_nodes:
        raise Wrong(f"edges of arrays: {sorted(found ^ pairs)} differ")
    if not np.array_equal(np.asarray(store.features), wanted["features"].astype(np.float32)):
        raise Wrong("features of arrays: they differ")
    if [store.classes[code] for code in np.asarray(store.labels)] != wanted["labels"].astype(int).tolist():
        raise Wrong("labels of arrays: they differ")
    if any(sorted(store.splits[name].tolist()) != sorted(part.tolist()) for name, part in splits.items()):
        raise Wrong("splits of arrays: they differ")
    return RIGHT


def _disturb(
    given: dict[str, Any], splits: dict[str, Any], broken: dict[str, random.Random], rng: random.Random
) -> bool:
    """Change one array; whether it is now unclear what must come of it."""
    name = rng.choice([name for name, array in given.items() if not scipy.sparse.issparse(array)])
    array, step = given[name], rng.choice(_STEPS)
    if step == "kind":
        with np.errstate(all="ignore"), contextlib.suppress(ValueError, TypeError):
            given[name] = array.astype(rng.choice(("f2", "c16", "U8", "S8", "O", "?", "M8[s]", "m8[s]", "f8", "i8")))
    elif step == "shape" and array.ndim:
        shapes = {
            "0-d": lambda: np.asarray(array.flat[0] if array.size else 0),
            "1-d": lambda: array.reshape(-1), "3-d": lambda: array[None],
            "empty": lambda: array[:0], "thin": lambda: array[..., :1], "none": lambda: array[..., :0],
            "wide": lambda: np.stack([array, array], axis=-1),
        }  # fmt: skip
        given[name] = shapes[rng.choice(list(shapes))]()
    elif step == "damage" or step == "pickle":
        broken[name] = rng
    elif step == "value" and array.size:
        changed = np.array(array)
        with np.errstate(all="ignore"):
            try:
                changed.flat[rng.randrange(array.size)] = rng.choice(
                    (-1, 100, 127, 2**40, float("nan"), float("inf"), -7)
                )
            except (OverflowError, ValueError):
                return False
        given[name] = changed
    elif step == "length":
        given[name] = np.concatenate([array, array[:1]]) if array.ndim else array
    elif step == "split":
        part = rng.choice(list(splits))
        splits[part] = rng.choice((
            np.array([-1]), np.array([10**6]), np.array([0.5]), np.array(["a"]), np.zeros(3, bool), np.zeros((2, 2)),
            np.arange(3), np.array(1), np.array([], dtype=object),
        ))  # fmt: skip
    elif name == "features" and array.ndim == 2 and array.dtype.kind in "fiu" and array.dtype != np.float16:
        form = rng.choice((scipy.sparse.csr_matrix, scipy.sparse.coo_matrix, scipy.sparse.csc_matrix))
        given[name] = form(np.asarray(array, dtype=array.dtype.newbyteorder("=")))
    return True


def _in_memory(given: dict[str, Any], splits: dict[str, Any]) -> sources.Source:
    return sources.arrays(given["edges"], given["features"], given["labels"], splits)


def _on_disk(
    folder: Path, given: dict[str, Any], splits: dict[str, Any], broken: dict[str, random.Random]
) -> sources.Source:
    files: dict[str, Path] = {}
    for name, array in given.items():
        if scipy.sparse.issparse(array):
            files[name] = folder / f"{name}.npz"
            scipy.sparse.save_npz(files[name], array)
        else:
            files[name] = folder / f"{name}.npy"
            np.save(files[name], array, allow_pickle=True)
        if name in broken:
            files[name].write_bytes(damaged(files[name].read_bytes(), broken[name]))
    np.savez(folder / "splits.npz", **splits)
    return sources.files(
        files["edges"], features=files["features"], labels=files["labels"], splits=folder / "splits.npz"
    )
