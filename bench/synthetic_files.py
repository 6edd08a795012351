"""Write a synthetic graph as the files a user would have, to measure what reads them.

    python bench/synthetic_files.py --like ogbn-papers100M --scale 0.003 --out files

edges.parquet (int32 `source` and `target`), features.npy (float32 [N, d]), labels.npy (-1: none) and splits.npz (node
numbers of train, valid and test), made in chunks.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from largegt.data.parts import Source
from largegt.data.splits import SPLIT_CODES
from largegt.datasets.synthetic import synthetic

FILES = {"edges": "edges.parquet", "features": "features.npy", "labels": "labels.npy", "splits": "splits.npz"}
SCHEMA = pa.schema([("source", pa.int32()), ("target", pa.int32())])


def write_files(source: Source, folder: Path) -> None:
    """Write a source that has features, labels and splits."""
    folder.mkdir(parents=True)
    assert source.features is not None
    assert source.labels is not None
    assert source.splits is not None
    # random numbers do not compress
    with pq.ParquetWriter(folder / "edges.parquet", SCHEMA, compression="none", use_dictionary=False) as writer:
        for chunk in source.edges.chunks():
            ends = [pa.array(column.astype(np.int32)) for column in (chunk.sources, chunk.targets)]
            writer.write_table(pa.Table.from_arrays(ends, schema=SCHEMA))
    with open(folder / "features.npy", "wb") as stream:
        header = {"descr": "<f4", "fortran_order": False, "shape": (source.num_nodes, source.features.width)}
        np.lib.format.write_array_header_1_0(stream, header)
        for block in source.features.chunks():
            stream.write(np.ascontiguousarray(block).data)
    np.save(folder / "labels.npy", source.labels.values.to_numpy())
    codes = np.asarray(source.splits.codes)
    parts: dict[str, Any] = {name: np.flatnonzero(codes == code).astype(np.int32) for name, code in SPLIT_CODES.items()}
    np.savez(folder / "splits.npz", **parts)


def ingest_options(folder: Path) -> list[str]:
    """The options with which `largegt ingest` reads the files."""
    return [word for option, name in FILES.items() for word in (f"--{option}", str(folder / name))]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--like", required=True)
    parser.add_argument("--scale", type=float, default=1.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    write_files(synthetic(args.like, args.scale, args.seed), args.out)


if __name__ == "__main__":
    main()
