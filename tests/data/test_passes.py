"""How often a user's tables are read: nodes and edges at most twice each."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.parquet as pq
import pytest

from largegt.config.schema import IngestConfig
from largegt.data import sources, tables
from largegt.data.ingest import ingest


def written(folder: Path, form: str) -> tuple[Path, Path]:
    rng = np.random.default_rng(0)
    names = [f"n{number}" for number in range(60)]
    nodes = {
        "id": names,
        "age": rng.random(60),
        "city": rng.choice(list("abc"), 60),
        "label": rng.choice(["x", "y"], 60),
    }
    ends = rng.choice(names, (2, 300))
    edges = {"source": ends[0], "target": ends[1], "amount": rng.random(300), "kind": rng.choice(["p", "q"], 300)}
    for name, columns in (("nodes", nodes), ("edges", edges)):
        write = pacsv.write_csv if form == "csv" else pq.write_table
        write(pa.table(columns), folder / f"{name}.{form}")
    return folder / f"nodes.{form}", folder / f"edges.{form}"


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often each file is read; every connection to it counts as once."""
    counted: Counter[str] = Counter()
    connected = tables._Files.connected

    @contextmanager
    def counting(self: Any, *means: Any) -> Iterator[Any]:
        counted.update(Path(str(piece.file)).stem for piece in self.pieces)
        with connected(self, *means) as found:
            yield found

    monkeypatch.setattr(tables._Files, "connected", counting)
    return counted


@pytest.mark.parametrize("form", ["csv", "parquet"])
@pytest.mark.parametrize(
    ("options", "config", "with_nodes"),
    [
        ({}, {}, True),
        ({}, {}, False),
        ({"weight": "amount", "edge_features": "kind,amount"}, {}, True),
        ({"weight": "amount"}, {"parallel_edges": "last"}, True),
        ({"split_group": "city"}, {"kinds": ("age=number",)}, True),
    ],
)
def test_tables_are_read_at_most_twice(
    tmp_path: Path, reads: Counter[str], form: str, options: dict[str, Any], config: dict[str, Any], with_nodes: bool
) -> None:
    nodes, edges = written(tmp_path, form)
    source = sources.files(edges, nodes=nodes if with_nodes else None, **options)
    reads.clear()  # of headers and footers
    ingest(source, tmp_path / "g", IngestConfig(**config))
    is_copied = form == "csv" or "edge_features" in options or "parallel_edges" in config
    assert reads["nodes"] == (1 if with_nodes else 0)
    assert reads["edges"] == (1 if is_copied or with_nodes else 2)
