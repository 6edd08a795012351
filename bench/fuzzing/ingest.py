"""Fuzzing ingest: a graph is disturbed, written as CSV, TSV or Parquet in one of many styles, perhaps damaged, and
ingested; or it is given as arrays of odd kinds (see `arrays`). A store that comes out is compared with the graph."""

from __future__ import annotations

import gzip
import io
import json
import math
import random
import shutil
from collections.abc import Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from largegt.config.overrides import build
from largegt.config.schema import IngestConfig
from largegt.data import sources
from largegt.data.ingest import ingest
from largegt.errors import LargeGTError

from .arrays import run_arrays
from .cases import ACCEPTED, RIGHT, Wrong
from .graphs import ANY, GRAPH_STEPS, MUST_BE_REFUSED, TEXT_ONLY, Graph, compare, random_graph
from .mutations import damaged, odd_text

Columns = dict[str, list[Any]]
_FILE_STEPS = ("damage", "damage", "empty", "disguise", "headless", "repeated column", "short column")


class IngestTarget:
    """See the module's text."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder / "ingest"

    def run(self, rng: random.Random, steps: Sequence[random.Random]) -> str:
        shutil.rmtree(self._folder, ignore_errors=True)
        self._folder.mkdir(parents=True)
        if rng.random() < 0.3:
            return run_arrays(self._folder, rng, steps)
        return self._run_tables(rng, steps)

    def _run_tables(self, rng: random.Random, steps: Sequence[random.Random]) -> str:
        graph = random_graph(rng)
        has_nodes = rng.random() < 0.75
        style = _Style(rng, graph)
        file_steps: list[tuple[str, random.Random]] = []
        for step in steps:
            if step.random() < 0.7:
                step.choice(GRAPH_STEPS)(graph, step)
            else:
                file_steps.append((step.choice(_FILE_STEPS), step))
        graph.settle()
        if graph.has_endless and style.is_text:
            graph.unsure()  # such a cell is text there
        if not has_nodes and graph.expects == MUST_BE_REFUSED and graph.edges:
            graph.unsure()  # what is wrong may be in the part that is left out
        files = self._write(graph, style, has_nodes, file_steps, rng)
        options = {"num_nodes": 5} if rng.random() < 0.03 and not has_nodes else {}
        if options:
            graph.unsure()
        config = build(IngestConfig, graph.settings)
        try:
            given = sources.files(files["edges"], nodes=files.get("nodes"), **options)  # type: ignore[arg-type]
            store = ingest(given, self._folder / "store", config, threads=1, memory=1 << 28)
        except LargeGTError as error:
            if graph.expects not in (MUST_BE_REFUSED, ANY):
                raise Wrong(f"refused what is right ({graph.id_kind} ids, {style.suffix}): {error}") from error
            raise
        if graph.expects == MUST_BE_REFUSED:
            raise Wrong("accepted what is wrong: nothing was said")
        if graph.expects == ANY:
            _read_all(store)
            return ACCEPTED
        compare(store, graph, has_nodes)
        return RIGHT

    def _write(
        self, graph: Graph, style: _Style, has_nodes: bool, steps: list[tuple[str, random.Random]], rng: random.Random
    ) -> dict[str, Path]:
        tables: dict[str, Columns] = {
            "edges": {"source": [a for a, _ in graph.edges], "target": [b for _, b in graph.edges]}
        }
        if has_nodes:
            named: Columns = {"id": graph.ids, **graph.columns, **graph.extra, "label": graph.labels}
            if graph.split is not None:
                named["split"] = graph.split
            order = rng.sample(list(named), len(named))
            tables["nodes"] = {name: named[name] for name in order}
            by_feature = [name for name in order if name in graph.columns]
            graph.columns = {name: graph.columns[name] for name in by_feature}
        files: dict[str, Path] = {}
        for name, columns in tables.items():
            data, suffix = style.written(columns, graph, name), style.suffix
            for step, own in steps:
                if own.choice(list(tables)) != name:
                    continue
                graph.unsure()
                if step == "damage":
                    data = damaged(data, own)
                elif step == "empty":
                    data = b""
                elif step == "disguise":
                    suffix = own.choice((".csv", ".tsv", ".parquet", ".npy", ".npz", ".txt", ".csv.gz", ".gz"))
                elif step == "headless" and b"\n" in data:
                    data = data.partition(b"\n")[2]
                elif step == "repeated column" and style.is_text:
                    data = data.replace(own.choice(list(columns)).encode(), own.choice(list(columns)).encode(), 1)
                elif step == "short column" and style.is_text:
                    data = data.rpartition(style.delimiter.encode())[0] + odd_text(own).encode("utf-8", "replace")
            file = self._folder / f"{name}{suffix}"
            file.write_bytes(data)
            files[name] = file
        return files


class _Style:
    """How tables are written: the kind of file and its manners."""

    def __init__(self, rng: random.Random, graph: Graph) -> None:
        self.suffix = rng.choice((".csv", ".csv", ".csv.gz", ".tsv", ".parquet", ".parquet", ".jsonl", ".arrow"))
        self.is_text = self.suffix.startswith((".csv", ".tsv"))
        self.delimiter = "\t" if self.suffix == ".tsv" else ","
        self._end = rng.choice(("\n", "\n", "\r\n"))
        self._mark = "\ufeff" if rng.random() < 0.15 else ""
        self._quote_all = rng.random() < 0.2
        self._last_end = rng.random() < 0.8
        self._headless = rng.random() < 0.15 and graph.id_kind in ("row", "number", "negative")
        packed = self.suffix.endswith(".gz")
        self._comment = f"# made by hand{self._end if packed else chr(10)}" if rng.random() < 0.1 else ""
        self._number = rng.choice((pa.float32(), pa.float64(), pa.decimal128(20, 6)))
        self._dictionary = rng.random() < 0.25
        self._large = rng.random() < 0.3
        self._as_vectors = rng.random() < 0.1
        self._row_group = rng.choice((1, 3, 1000))
        if self.is_text and self._quote_all and graph.id_kind not in TEXT_ONLY:
            self._quote_all = rng.random() < 0.5

    def written(self, columns: Columns, graph: Graph, table: str) -> bytes:
        if self.suffix == ".jsonl":
            return self._lines(columns)
        return self._text(columns) if self.is_text else self._typed(columns, graph)

    def _lines(self, columns: Columns) -> bytes:
        rows = [dict(zip(columns, map(_plain, row), strict=True)) for row in zip(*columns.values(), strict=True)]
        return "".join(f"{json.dumps(row, ensure_ascii=self._large)}\n" for row in rows).encode("utf-8", "replace")

    def _text(self, columns: Columns) -> bytes:
        lines = (
            [] if self._headless and len(columns) == 2 else [self.delimiter.join(self._cell(name) for name in columns)]
        )
        lines += [
            self.delimiter.join(self._cell(value) for value in row) for row in zip(*columns.values(), strict=True)
        ]
        text = self._mark + self._comment + self._end.join(lines) + (self._end if self._last_end else "")
        data = text.encode("utf-8", "surrogateescape")
        return gzip.compress(data, 1) if self.suffix.endswith(".gz") else data

    def _cell(self, value: Any) -> str:
        text = "" if value is None else str(value)
        if (self._quote_all and value is not None) or any(sign in text for sign in (self.delimiter, '"', "\n", "\r")):
            return '"' + text.replace('"', '""') + '"'
        return text

    def _typed(self, columns: Columns, graph: Graph) -> bytes:
        table = pa.table({name: self._column(name, values, graph) for name, values in columns.items()})
        stream = io.BytesIO()
        if self.suffix == ".arrow":
            with pa.ipc.new_file(stream, table.schema) as file:
                file.write_table(table, self._row_group)
        else:
            pq.write_table(table, stream, row_group_size=self._row_group)
        return stream.getvalue()

    def _column(self, name: str, values: list[Any], graph: Graph) -> Any:
        kinds = {type(value) for value in values if value is not None}
        if name in graph.columns and kinds <= {float} and pa.types.is_decimal(self._number):
            if all(value is None or abs(value) < 1e9 for value in values):
                return pa.array([None if value is None else Decimal(str(value)) for value in values], self._number)
            return pa.array(values, pa.float64())
        if name in graph.columns and kinds <= {float}:
            return pa.array(values, pa.float64())
        if kinds == {int}:
            low, high = (pick(value for value in values if value is not None) for pick in (min, max))
            for kind in (pa.int64(), pa.uint64()):
                if (-(2**63) if kind == pa.int64() else 0) <= low and high < 2 ** (63 if kind == pa.int64() else 64):
                    return pa.array(values, kind)
        if len(kinds) == 1 and kinds <= {bool, float}:
            return pa.array(values)
        text = pa.array(
            [None if value is None else str(value).encode("utf-8", "replace").decode() for value in values],
            pa.large_string() if self._large else pa.string(),
        )
        return text.dictionary_encode() if self._dictionary and not self._large else text


def _plain(value: Any) -> Any:
    """As JSON has it: a number that it cannot write is null."""
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _read_all(store: Any) -> None:
    """What a later stage reads of a store."""
    store.ids_of(range(store.num_nodes))
    for name in store.folder.manifest["arrays"]:
        store.folder.array(name)
    store.splits, store.labelled, store.classes  # noqa: B018 - reading is what is tried
