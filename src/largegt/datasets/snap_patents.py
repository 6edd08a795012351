"""snap-patents from `snap_patents.mat`, as published by the authors of LINKX.

Enters: `ROOT/snap_patents/snap_patents.mat` (MATLAB version 5): edge_index [2, E], node_feat (sparse N × d), years [N],
num_nodes. Leaves: a `Source`. Cost: the file in memory (edges and sparse features); dense rows are created chunk by
chunk.

Classes are five even quantiles of the grant year. With q(1) … q(4) the quantiles 1/5 … 4/5 of all known years
(interpolated linearly), class 0 is year < q(1), class k is q(k) ≤ year < q(k+1), class 4 is q(4) ≤ year; a patent
without a year (NaN) has no label. Years repeat, so the classes are only approximately even.

Splits: the authors publish five random splits of 50/25/25 as `snap-patents-splits.npy`. This file is a pickle and is
never opened: if it is next to the data, an error explains how to convert it to `snap-patents-splits.npz`, which is
read. Without either file, ingest makes a random split of 50/25/25 with `split_seed`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import scipy.io
import scipy.io.matlab

from largegt.data.duckdb_connection import reading
from largegt.data.parts import ArrayEdges, Labels, MatrixFeatures, Source, Splits
from largegt.data.splits import npz_splits
from largegt.errors import InputError
from largegt.types import Array, PathLike

from .ogb import identity_of
from .registry import dataset

NUM_CLASSES = 5
_INVALID_FILE_ERRORS = (scipy.io.matlab.MatReadError, TypeError, IndexError, MemoryError, RuntimeError)
_VARIABLES = ("edge_index", "node_feat", "years", "num_nodes")
_PICKLE_SPLITS, _NPZ_SPLITS = "snap-patents-splits.npy", "snap-patents-splits.npz"


def snap_patents(root: PathLike, split: int = 0) -> Source:
    """snap-patents, ready to ingest with `ingest_config("snap-patents")`; edges go from the citing patent to the cited.

    `split` selects one of the authors' five splits, if `snap-patents-splits.npz` exists.
    """
    known = dataset("snap-patents")
    folder = known.require(root)
    file = folder / known.files[0]
    splits = _fixed_splits(folder, split)
    data = _load(file)
    num_nodes = _number(data["num_nodes"], file)
    years = _column(data["years"], f"{file}: years")
    notes = [f"{file}: classes are {NUM_CLASSES} even quantiles of years"]
    if splits is None:
        notes.append(f"{folder} has no {_NPZ_SPLITS}: a random split of 50/25/25 is made (split_seed)")
    return Source(
        name=known.name,
        edges=ArrayEdges([(_edge_index(data["edge_index"], f"{file}: edge_index"), f"{file}: edge_index")]),
        features=MatrixFeatures(data["node_feat"], f"{file}: node_feat"),
        labels=Labels(pa.array(even_quantile_classes(years, NUM_CLASSES)), f"{file}: years"),
        splits=splits,
        node_ids=None,
        num_nodes=num_nodes,
        notes=tuple(notes),
        identity=identity_of(folder, (known.files[0], *([_NPZ_SPLITS] if splits else []))) + f"-{split}",
    )


def even_quantile_classes(values: Array, num_classes: int) -> Array:
    """int16: the index of the quantile interval (out of `num_classes`) of each value; -1 for NaN."""
    values = np.asarray(values, dtype=np.float64)
    missing = np.isnan(values)
    if missing.all():
        raise InputError("every year is missing, so there are no classes")
    bounds = np.quantile(values[~missing], np.arange(1, num_classes) / num_classes)
    classes = np.searchsorted(bounds, values, side="right").astype(np.int16)
    classes[missing] = -1
    return classes


def _load(file: Path) -> dict[str, Any]:
    with reading(file):
        with open(file, "rb") as stream:
            begin = stream.read(128)
        if begin.startswith((b"MATLAB 7.3", b"\x89HDF")):
            raise InputError(
                f"{file} is of MATLAB version 7.3 (HDF5), version 5 is read: load it where you can "
                "and write it again with scipy.io.savemat, or in MATLAB with save('snap_patents.mat', '-v7')"
            )
        try:
            data: dict[str, Any] = scipy.io.loadmat(file, variable_names=_VARIABLES)
        except _INVALID_FILE_ERRORS as error:  # SciPy's errors for invalid data
            raise ValueError(f"it is no MATLAB file of version 5, or damaged ({error})") from error
    missing = [name for name in _VARIABLES if name not in data]
    if missing:
        raise InputError(f"{file} has no variable {', '.join(missing)}: it is not the snap_patents.mat of LINKX")
    return data


def _edge_index(edges: Any, where: str) -> Array:
    """[2, E] integers; MATLAB stores them as floats."""
    array = np.asarray(edges)
    if array.ndim != 2 or array.shape[0] != 2:
        raise InputError(f"{where} has shape {list(array.shape)}, expected [2, E]")
    if array.dtype.kind == "f":
        if not (array == np.floor(array)).all():
            raise InputError(f"{where} holds fractions, node numbers must be whole numbers")
        array = array.astype(np.int64)
    return array


def _column(values: Any, where: str) -> Array:
    array = np.asarray(values)
    if array.dtype.kind not in "fiu":
        raise InputError(f"{where} holds {array.dtype}, years must be numbers")
    return array.reshape(-1)


def _number(value: Any, file: Path) -> int:
    array = np.asarray(value)
    if array.size != 1 or array.dtype.kind not in "fiu":
        raise InputError(f"{file}: num_nodes must be one number")
    return int(array.reshape(-1)[0])


def _fixed_splits(folder: Path, split: int) -> Splits | None:
    plain, pickled = folder / _NPZ_SPLITS, folder / _PICKLE_SPLITS
    if plain.is_file():
        return Splits(str(plain), npz_splits(plain, str(split)))
    if pickled.is_file():
        raise InputError(
            f"{pickled} is a pickle, which can run any code when it is opened, so it is not read. Remove it to have a "
            f'split of 50/25/25 drawn; or, if you trust it, write {_NPZ_SPLITS} beside it: python -c "{_CONVERT}"'
        )
    return None


_CONVERT = (
    "import numpy as np; s = np.load('snap-patents-splits.npy', allow_pickle=True); "
    "np.savez('snap-patents-splits.npz', "
    "**{f'{i}_{k}': np.asarray(v) for i, d in enumerate(s) for k, v in d.items()})"
)
