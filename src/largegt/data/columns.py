"""Encode the columns of a node table or an edge table as features.

Enters: a staged table (rows in node order; columns are text, as in CSV files, or typed) and the training rows.
Leaves: `Columns`, the fitted transform of the table. All rows decide the kind of a column; means, categories and the
newest date come from training rows only. Labels are used only to warn about leaks.
Cost: one pass over the staged file; memory for a batch of rows of some columns. DuckDB counts the distinct values of
columns that have many, and spills to a folder next to the file.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from string import ascii_lowercase, ascii_uppercase
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from largegt.errors import ConfigError, InputError, first_line, nearest
from largegt.types import Array

from . import column_kernels as kernels
from .column_cells import BLANKS, MICROS_PER_DAY, Cells, cells_of, type_group
from .column_encoding import (
    MAX_WIDTH,
    Column,
    ColumnOptions,
    Columns,
    Kind,
    refuse_missing,
    shown,
    wrong_vector,
    years_and_days,
)
from .duckdb_connection import literal
from .table_reading import Table
from .text_model import embeddings, given_text_model, load_text_model

__all__ = ["Column", "ColumnOptions", "Columns", "Kind", "fit_columns"]

_TOLERANCE, _GIVEN_TOLERANCE = 0.02, 0.5  # allowed fraction of invalid cells; if the user gives the kind
_BATCH_ROWS, _STATEMENT_COLUMNS, _WORD_ROWS = 1 << 16, 200, 1 << 18
_MIN_FOR_TAIL, _HEAVY_TAIL_RATIO = 20, 2.5
_MAX_EXACT_INTEGER = 1 << 24  # float32 represents all integers up to 2^24
_ADDRESS = r"^(\S+@\S+|[a-z]+://\S+)$"
_PLURAL = {"number": "numbers", "log": "numbers", "boolean": "booleans", "date": "dates"}
_KINDS_TO_TRY: dict[str, tuple[Kind, ...]] = {
    "text": ("number", "boolean", "date"), "number": ("number",), "boolean": ("boolean",), "date": ("date",),
    "vector": (), "empty": (), "other": (),
}  # fmt: skip
_POSSIBLE = {
    "text": {"number", "log", "boolean", "category", "date", "text"},
    "number": {"number", "log", "boolean", "category", "text"},
    "boolean": {"number", "boolean", "category", "text"}, "date": {"date", "category", "text"}, "vector": {"vector"},
    "empty": {"number", "log", "boolean", "category", "date", "text"}, "other": set(),
}  # fmt: skip


def fit_columns(
    table: Table, names: Sequence[str], options: ColumnOptions, train: Array | None, labels: Array | None = None
) -> Columns:
    """Fit the columns `names` of a staged table on the rows where `train` [rows] is true (None: all rows)."""
    where, num_rows = table.where, table.count()
    for name in options.kinds:
        if name not in names:
            raise ConfigError(f"{where} has no feature column {shown(name)} to give a kind{nearest(name, names)}")
    for given, what in ((train, "training mask"), (labels, "labels")):
        if given is not None and given.shape != (num_rows,):
            raise InputError(f"{where}: the {what} has shape {given.shape}, expected ({num_rows},)")
    rows = _Rows(np.ones(num_rows, dtype=bool) if train is None else train.astype(bool), labels)
    scans = [_Scan(name, table.arrow_type(name), rows, options, where) for name in names]
    markers = pa.array(options.missing_markers, pa.large_string())
    for part, batch_rows in _column_groups(table, [scan for scan in scans if scan.is_read]):
        first = 0
        for batch in table.batches([scan.name for scan in part], batch_rows):
            for scan, cells in zip(part, cells_of(batch.columns, markers), strict=True):
                _update(scan, cells, first, where)
            first += batch.num_rows
    many = [scan for scan in scans if scan.needs_count()]
    for scan, count in zip(many, _counts(table, [_distinct_sql(table, scan, options) for scan in many]), strict=True):
        scan.distinct = count
    large = [scan for scan in scans if scan.kind in ("number", "log") and scan.passes("number")]
    large = [scan for scan in large if scan.trials["number"].high > _MAX_EXACT_INTEGER]
    merged = _counts(table, [sql for scan in large for sql in _float32_sql(table, scan)])
    for scan, before, after in zip(large, merged[::2], merged[1::2], strict=True):
        scan.num_merged = before - after
    if not options.text_model:
        _find_frequent_words(table, [scan for scan in scans if scan.kind == "text"], options)
    columns = [_fit(scan, options, where) for scan in scans]
    if (width := sum(column.width for column in columns)) > MAX_WIDTH:
        raise InputError(
            f"{where}: {len(names)} columns make {width} features, at most {MAX_WIDTH} are possible: ignore some"
        )
    return Columns(columns, options.missing_values, options.missing_markers)


def _column_groups(table: Table, scans: list[_Scan]) -> Iterator[tuple[list[_Scan], int]]:
    """Pairs (columns to read together, rows per batch) that use an eighth of the memory."""
    num_rows, memory = max(1, table.count()), table.memory // 8
    cell = max(64, 4 * table.staged_bytes // (num_rows * len(table.columns)))
    rows = min(_BATCH_ROWS, num_rows, max(1024, memory // cell))
    step = max(1, memory // (cell * rows))
    for start in range(0, len(scans), step):
        yield scans[start : start + step], rows


def _counts(table: Table, expressions: list[str]) -> list[int]:
    """The values of aggregates over all rows, with as many per statement as memory allows."""
    step = max(1, min(_STATEMENT_COLUMNS, table.memory // 4 // (64 * max(1, table.count()))))
    counts: list[int] = []
    for start in range(0, len(expressions), step):
        [found] = table.query(", ".join(expressions[start : start + step]))
        counts += map(int, found)
    return counts


def _distinct_sql(table: Table, scan: _Scan, options: ColumnOptions) -> str:
    """SQL aggregate that counts the distinct values that are not missing."""
    name = table.sql(scan.name)
    if scan.group != "text":
        return f"count(DISTINCT {name})"
    text = f"trim({name}::VARCHAR, {literal(BLANKS)})"
    markers = ", ".join(map(literal, options.missing_markers))
    return f"count(DISTINCT {text}) FILTER ({text} NOT IN ({markers}))" if markers else f"count(DISTINCT {text})"


def _float32_sql(table: Table, scan: _Scan) -> tuple[str, str]:
    """Two SQL aggregates: the count of distinct integers beyond 2^24, before and after conversion to float32."""
    name = table.sql(scan.name)
    if scan.group == "text":
        name = f"replace(trim({name}::VARCHAR, {literal(BLANKS)}), ',', '')"
    whole = f"TRY_CAST({name} AS HUGEINT)"
    beyond = f"FILTER (abs({whole}) > {_MAX_EXACT_INTEGER} AND TRY_CAST({name} AS DOUBLE) = {whole}::DOUBLE)"
    return f"count(DISTINCT {whole}) {beyond}", f"count(DISTINCT {whole}::DOUBLE::FLOAT) {beyond}"


def _find_frequent_words(table: Table, scans: list[_Scan], options: ColumnOptions) -> None:
    """Set the words that occur in the most training rows, and in at least two. Large tables are sampled at regular
    intervals. Words are defined as in `kernels.hash_words`."""
    if not scans:
        return
    rows = np.flatnonzero(scans[0].rows.train)
    rows = rows[:: max(1, len(rows) // _WORD_ROWS)]
    markers, expressions = ", ".join(map(literal, ("", *options.missing_markers))), []
    for scan in scans:
        text = f"trim({table.sql(scan.name)}::VARCHAR, {literal(BLANKS)})"
        lower = f"translate({text}, {literal(ascii_uppercase)}, {literal(ascii_lowercase)})"
        words = f"unnest(list_distinct(regexp_extract_all({lower}, '[0-9a-z\\x{{80}}-\\x{{10FFFF}}]+')))"
        expressions.append((words, f"{text} NOT IN ({markers})"))
    found = table.most_frequent(expressions, rows, options.text_dims - options.text_dims // 4)
    for scan, frequent_words in zip(scans, found, strict=True):
        scan.frequent_words = frequent_words


class _Rows:
    """The training mask and the labels of the rows."""

    def __init__(self, train: Array, labels: Array | None) -> None:
        self.train, self.labels = train, labels
        self.num_classes = 0 if labels is None else len(np.unique(labels[train & (labels >= 0)]))
        labelled = 0 if labels is None else int((labels >= 0).sum())
        self.some_labelled = 0 < labelled < len(train)


@dataclass(slots=True)
class _Trial:
    """Statistics of a column parsed as one kind."""

    good: int = 0
    bad: int = 0
    first_bad: str = ""
    first_missing: int = -1
    high: float = 0.0
    num_train: int = 0
    num_nonzero: int = 0
    """Among training rows."""
    newest: int = 0
    has_time: bool = False
    sums: Array = field(default_factory=lambda: np.zeros((2, 3)))
    """Over training rows: sums of a number, its absolute value and its square; or of the year and day of a date."""

    def means(self, width: int) -> list[float]:
        """Means over training rows; 0 if no training row has a value."""
        return [float(mean) for mean in (self.sums[0] + self.sums[1])[:width] / max(1, self.num_train)]

    @property
    def mean_size(self) -> float:
        """Mean absolute value of the nonzero numbers; 1 if there are none."""
        return float(self.sums[:, 1].sum()) / self.num_nonzero if self.num_nonzero else 1.0

    @property
    def has_heavy_tail(self) -> bool:
        """Whether a few numbers are much larger than most. The mean square is twice the squared mean for an exponential
        distribution, and about ten times the squared mean for amounts of money or counts of followers."""
        if self.num_nonzero < _MIN_FOR_TAIL:
            return False
        return float(self.sums[:, 2].sum()) / self.num_nonzero > _HEAVY_TAIL_RATIO * self.mean_size**2


class _Scan:
    """Statistics of one pass over a column."""

    def __init__(self, name: str, kind: Any, rows: _Rows, options: ColumnOptions, where: str) -> None:
        self.name, self.type, self.rows, self.group = name, kind, rows, type_group(kind)
        given = options.kinds.get(name, "")
        self.given = "ignored" if given in ("ignore", "ignored") else given
        if self.given not in ("", "ignored") and self.given not in _POSSIBLE[self.group]:
            raise InputError(f"{where}: column {shown(name)} is {kind}, which cannot be kind {given}: choose another")
        self.is_read = self.given != "ignored" and self.group != "other"
        self.as_text = self.group == "text" or self.given in ("category", "text")
        own = (_trial_of(self.given),) if self.given in _PLURAL else ()
        self.kinds_to_try: tuple[str, ...] = own if self.given else _KINDS_TO_TRY[self.group]
        self.trials: dict[str, _Trial] = {}
        self.tolerance = _GIVEN_TOLERANCE if self.given else _TOLERANCE if self.group == "text" else 1.0
        self.max_categories = options.max_categories
        self.filled = self.words = self.addresses = self.num_merged = 0
        self.frequent_words: tuple[str, ...] = ()
        self.seen: set[Any] | None = set()
        self.seen_in_training: set[Any] | None = set()
        self.distinct: int | None = None
        self.may_be_id = True
        self.classes: dict[Any, int] | None = {} if rows.num_classes > 1 else None
        self.filled_where_labelled = rows.some_labelled
        self.length, self.vector_sums, self.vector_counts = -1, np.zeros((2, 0)), np.zeros(0, dtype=np.int64)
        self.vector_missing, self.first_missing = 0, -1

    @property
    def mean_words(self) -> float:
        return self.words / max(1, self.filled)

    @property
    def has_short_text(self) -> bool:
        """Whether cells have at most two words on average, or are URLs or e-mail addresses."""
        return self.mean_words <= 2 or self.addresses > 0.95 * self.filled

    def passes(self, kind: str) -> bool:
        trial = self.trials.get(kind)
        return trial is not None and 0 < trial.good >= (1 - self.tolerance) * (trial.good + trial.bad)

    def needs_count(self) -> bool:
        """Whether the number of distinct values is needed but not known after one pass."""
        if not self.is_read or self.seen is not None or self.group == "vector" or self.given in ("text", "category"):
            return False
        if any(map(self.passes, self.trials)):
            return self.may_be_id and self.group == "number"
        return self.as_text and (self.mean_words <= 4 or self.has_short_text)

    @cached_property
    def kind(self) -> Kind:
        """The kind of the column after all rows; `ignored` if `reason` is not empty."""
        if self.given:
            return self.given  # type: ignore[return-value]
        if self.reason():
            return "ignored"
        if self.group == "vector":
            return "vector"
        for kind in _KINDS_TO_TRY[self.group]:
            if self.passes(kind):
                return "log" if kind == "number" and self.trials[kind].has_heavy_tail else kind
        count = self.distinct if self.seen is None else len(self.seen)
        repeats = count is not None and count <= 0.5 * self.filled
        if (repeats and self.mean_words <= 4) or (self.seen is not None and (repeats or self.mean_words <= 4)):
            return "category"
        return "text" if self.mean_words > 2 else "category"

    def reason(self) -> str:
        """Why the column is ignored; empty if it is not."""
        if self.given:
            return "the user says so" if self.given == "ignored" else ""
        if self.group == "other":
            return f"{self.type} cannot be a feature"
        if self.filled == 0:
            return "no value"
        if self.seen is not None and len(self.seen) == 1 and self.filled == len(self.rows.train):
            return f"one value only: {shown(next(iter(self.seen)))}"
        if self.as_text and self.seen is None and self.is_id() and not any(map(self.passes, self.trials)):
            return "every value is different: looks like an id" if self.has_short_text else ""
        return ""

    def is_id(self) -> bool:
        """Whether nearly all values of a text column, or all values of an integer column, are distinct."""
        count = len(self.seen) if self.seen is not None and self.group == "text" else self.distinct
        least = 0.95 * self.filled if self.group == "text" else self.filled - 0.5
        return count is not None and count > least and self.filled > 1


def _trial_of(kind: str) -> str:
    """The kind as which cells are parsed: `log` columns hold numbers."""
    return "number" if kind == "log" else kind


def _update(scan: _Scan, cells: Cells, first: int, where: str) -> None:
    """Add the batch that starts at row `first`."""
    train = scan.rows.train[first : first + len(cells)]
    try:
        if scan.group == "vector":
            _update_vectors(scan, cells, first, where)
            return
        filled = cells.text_valid if scan.as_text else cells.filled
        for kind in scan.kinds_to_try:
            trial = scan.trials.setdefault(kind, _Trial())
            if trial.bad > scan.tolerance * len(scan.rows.train):
                continue
            read = _update_trial(scan, trial, kind, cells, (first, train))
            if not scan.as_text:
                filled = read[1]
                _update_distinct(scan, pa.array(read[0]), filled, train)
            if len(cells) == len(scan.rows.train) and scan.passes(kind):
                break  # this batch is the whole table: no other kind is possible
        if scan.as_text:
            scan.words += int(kernels.count_words(*cells.buffers))
            _update_distinct(scan, cells.text, filled, train)
            if scan.seen is None:
                scan.addresses += pc.sum(pc.match_substring_regex(cells.text, _ADDRESS)).as_py() or 0
        scan.filled += int(filled.sum())
        _update_leaks(scan, cells, filled, first)
    except (pa.ArrowException, UnicodeError) as error:
        raise InputError(f"{where}, column {shown(scan.name)} cannot be read: {first_line(error)}") from error


def _update_trial(scan: _Scan, trial: _Trial, kind: str, cells: Cells, at: tuple[int, Array]) -> tuple[Array, Array]:
    """Parse a batch as one kind: (values, mask of parsed cells)."""
    first, train = at
    values, read = getattr(cells, _PLURAL[kind])
    used = read & train
    good, first_missing, bad, first_bad, num_used = kernels.count_read(read, cells.filled, used)
    if bad and not trial.bad:
        trial.first_bad = f"{shown(cells.text[first_bad])} in row {first + first_bad}"
    if first_missing >= 0 and trial.first_missing < 0:
        trial.first_missing = first + first_missing
    trial.good += good
    trial.bad += bad
    if kind == "date" and good:
        trial.has_time = trial.has_time or bool((values[read] % MICROS_PER_DAY != 0).any())
        if num_used:
            newest = int(values[used].max())
            trial.newest = max(trial.newest, newest) if trial.num_train else newest
        kernels.add_in_order(years_and_days(values), used, trial.sums)
    elif good:
        trial.high = max(trial.high, float(np.abs(values).max()))
        trial.num_nonzero += kernels.add_sizes(values, used, trial.sums)
    trial.num_train += num_used
    return values, read


def _update_distinct(scan: _Scan, values: Any, filled: Array, train: Array) -> None:
    """Update the sets of distinct values; None once there are more than `scan.max_categories`."""
    found: Any = None
    for name, rows in (("seen", filled), ("seen_in_training", filled & train)):
        known = getattr(scan, name)
        if known is None or not rows.any():
            continue
        if found is None or not train.all():
            found = (values if rows.all() else values.filter(pa.array(rows))).unique()
        if name == "seen" and scan.group == "number":
            scan.may_be_id = scan.may_be_id and len(found) == int(rows.sum()) and pa.types.is_integer(scan.type)
        if len(found) <= scan.max_categories:
            known.update(found.to_pylist())
        setattr(scan, name, known if len(found) <= scan.max_categories >= len(known) else None)


def _update_leaks(scan: _Scan, cells: Cells, filled: Array, first: int) -> None:
    """Check whether values determine the class, and whether exactly the labelled rows have values."""
    if scan.rows.labels is None:
        return
    labels = scan.rows.labels[first : first + len(cells)]
    scan.filled_where_labelled = scan.filled_where_labelled and bool(np.array_equal(filled, labels >= 0))
    rows = np.flatnonzero(filled & scan.rows.train[first : first + len(cells)] & (labels >= 0))
    if scan.classes is None or not rows.size:
        return
    pairs = (cells.text if scan.as_text else cells.array).take(pa.array(rows)).dictionary_encode()
    values, classes = pairs.dictionary, labels[rows].astype(np.int64)
    codes = pairs.indices.to_numpy(zero_copy_only=False).astype(np.int64)
    both = np.unique(codes << 32 | classes) if len(values) <= scan.rows.num_classes else codes[:0]
    is_leak = len(both) == len(values)
    if is_leak:
        if pa.types.is_temporal(values.type):
            values = values.cast(pa.large_string())
        for value, label in zip(values.to_pylist(), (both & 0xFFFFFFFF).tolist(), strict=True):
            is_leak = is_leak and scan.classes.setdefault(value, label) == label
    scan.classes = scan.classes if is_leak and len(scan.classes) <= scan.rows.num_classes else None


def _update_vectors(scan: _Scan, cells: Cells, first: int, where: str) -> None:
    lengths, values = cells.vectors()
    if not len(cells):
        return
    if scan.length < 0:
        scan.length = max(1, int(lengths[0])) if lengths[0] >= 0 else int(lengths.max(initial=1))
        scan.vector_sums, scan.vector_counts = np.zeros((2, scan.length)), np.zeros(scan.length, dtype=np.int64)
    wrong = np.flatnonzero(lengths != scan.length)
    if wrong.size:
        place = f"{where}, column {shown(scan.name)}"
        raise wrong_vector(place, first + int(wrong[0]), int(lengths[wrong[0]]), scan.length)
    table, train = values.reshape(-1, scan.length), scan.rows.train[first : first + len(cells)]
    missing = np.isnan(table).any(axis=1)
    if missing.any() and scan.first_missing < 0:
        scan.first_missing = first + int(np.flatnonzero(missing)[0])
    scan.vector_missing += int(missing.sum())
    scan.filled += len(cells)
    kernels.add_in_order(table, train, scan.vector_sums)
    scan.vector_counts += (~np.isnan(table) & train[:, None]).sum(axis=0)


def _fit(scan: _Scan, options: ColumnOptions, where: str) -> Column:
    """The fitted column."""
    kind, rows = scan.kind, len(scan.rows.train)
    distinct = len(scan.seen) if scan.seen is not None and scan.is_read and scan.group != "vector" else scan.distinct
    distinct = distinct if scan.group != "number" or scan.seen is not None or scan.is_id() else None
    values: dict[str, Any] = {"missing": rows - scan.filled, "distinct": distinct}
    notes: list[str] = []
    first_missing = scan.first_missing
    if kind in _PLURAL:
        first_missing = _fit_trial(scan, kind, values, notes, where)
    elif kind == "vector":
        means = (scan.vector_sums[0] + scan.vector_sums[1]) / np.maximum(1, scan.vector_counts)
        values |= {"means": tuple(map(float, means)), "dims": scan.length, "missing": scan.vector_missing}
    elif kind == "category" and scan.seen_in_training is not None:
        values["categories"] = tuple(sorted(scan.seen_in_training))
        notes += [] if scan.seen_in_training else ["no training row has a value"]
    elif kind == "category":
        values["dims"] = options.hash_buckets
    elif kind == "text" and options.text_model:
        folder = given_text_model(options.text_model)
        model, checksum = load_text_model(folder)
        values |= {"dims": embeddings(model, ["text"]).shape[1], "model": folder, "model_checksum": checksum}
    elif kind == "text":
        words = scan.frequent_words
        values |= {"words": words, "dims": len(words) + options.text_dims // 4}
    reason = scan.reason() if kind == "ignored" else ""
    column = Column(scan.name, kind, reason=reason, notes=(*notes, *_warnings(scan, kind)), **values)
    if options.missing_values == "refuse" and first_missing >= 0:
        refuse_missing(column, np.ones(1, dtype=bool), where, first_missing)
    return column


def _fit_trial(scan: _Scan, kind: str, values: dict[str, Any], notes: list[str], where: str) -> int:
    """Add the values and notes of a number, boolean or date; return the first missing row, or -1."""
    parsed_as = _trial_of(kind)
    trial = scan.trials.get(parsed_as, _Trial())
    if scan.given and scan.filled and not scan.passes(parsed_as):
        raise InputError(
            f"{where}: most cells of column {shown(scan.name)} are no {_PLURAL[kind]}, yet its kind is given as {kind}"
            f"{', first ' + trial.first_bad if trial.first_bad else ''}: give another kind"
        )
    values["missing"] = len(scan.rows.train) - trial.good
    if trial.first_bad:
        cells = f"1 cell is no {parsed_as}" if trial.bad == 1 else f"{trial.bad} cells are no {_PLURAL[kind]}"
        notes.append(f"{cells}, first {trial.first_bad}: treated as missing")
    if not trial.num_train:
        notes.append("no training row has a value")
    if kind == "number":
        values["means"] = tuple(trial.means(1))
    elif kind == "log":
        values["means"] = (*trial.means(1), trial.mean_size)
    elif kind == "date":
        year, day = trial.means(2)
        age = trial.newest / MICROS_PER_DAY - day if trial.num_train else 0.0
        values |= {"means": (year, age), "newest": trial.newest, "has_time": trial.has_time}
    return trial.first_missing


def _warnings(scan: _Scan, kind: Kind) -> list[str]:
    """Warnings about leaks, ids, and integers that are equal as float32."""
    notes = []
    if scan.num_merged > 0:
        notes.append(f"{scan.num_merged} whole numbers beyond 2^24 equal others as float32: use kind category for ids")
    if kind not in ("ignored", "text") and scan.is_id():
        notes.append("every value is different: looks like an id")
    leaky = kind in ("category", "text", "number", "log", "boolean")
    if leaky and scan.classes and len(scan.classes) == scan.rows.num_classes == len(set(scan.classes.values())):
        notes.append("equals the label: each value has one class among training rows; ignore it if it is a leak")
    if kind != "ignored" and scan.filled_where_labelled:
        notes.append("is filled exactly where there is a label; ignore it if it is a leak")
    return notes
