"""Ids on a cluster: what `sorted_ids` and `id_file` do in one process, as tasks that meet in files.

Enters: streams or ranges of ids, workers, a folder that all of them see. Leaves: `SortedIds` and `IdFile`, the same
files as in one process. Cost: a task holds the workers' memory; the driver holds the results that it appends, a quarter
of that each, and looks into the mapped keys to find ranges. On disk: 16 bytes and its text for each id of each part.

How: each task frees its part of repeats and leaves runs in a folder of its own. Ranges of keys over all runs are merged
by further tasks. Whole numbers are then sorted; text is sorted within a range, left as a run, and ranges of text over
those are merged in turn.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import count, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from ..types import Array
from .id_columns import Columns, ColumnWriter, Cuts, Run, Strings, key_ranges, text_ranges
from .id_file import IdFile, Repeat, earlier, first_repeat, numbered_runs, remove_id_file
from .id_sorting import mark_first, sort_by_key
from .ids import Ids, MixedIdsError
from .parts import Edges
from .sorted_ids import SortedIds, distinct_runs, sorted_text
from .workers import Workers, new_token, written_aside

_LEAST_ROWS = 1 << 18
"""Ids that a task numbers at least."""


@dataclass(frozen=True)
class RunFolder:
    """Runs that a task has left, and how to open them."""

    folder: Path
    columns: tuple[str, ...]
    run_starts: tuple[int, ...]

    @classmethod
    def of(cls, columns: Columns, folder: Path) -> RunFolder:
        return cls(folder, columns.columns, tuple(columns.run_starts.tolist()))

    def open(self) -> Columns:
        return Columns(self.folder, self.columns, np.array(self.run_starts, dtype=np.int64))


class RunFolders:
    """The runs of several folders as one list, in the order of the folders."""

    def __init__(self, folders: Sequence[RunFolder]) -> None:
        self.folders = list(folders)
        self._runs: list[tuple[int, Run]] = []
        for number, folder in enumerate(self.folders):
            self._runs += [(number, run) for run in folder.open().runs()]

    def key_ranges(self, limit: int) -> Iterator[tuple[Cuts]]:
        """Ranges of keys as calls of a task: rows [low, high) of folders."""
        return ((self._of_folders(cuts),) for cuts in key_ranges([run for _, run in self._runs], limit))

    def text_ranges(self, limit: int) -> Iterator[tuple[Cuts]]:
        return ((self._of_folders(cuts),) for cuts in text_ranges([run for _, run in self._runs], limit))

    def _of_folders(self, cuts: Cuts) -> Cuts:
        found = [(*self._runs[run], low, high) for run, low, high in cuts]
        return [(number, run.low + low, run.low + high) for number, run, low, high in found]


@dataclass(frozen=True)
class Loaded:
    """Rows of several runs, in memory, end to end."""

    keys: Array
    numbers: Array
    strings: Strings | None

    @classmethod
    def of(cls, folders: Sequence[RunFolder], cuts: Cuts) -> Loaded:
        opened = {number: folders[number].open() for number in {number for number, _, _ in cuts}}
        keys, numbers, texts = [np.zeros(0, dtype=np.uint64)], [np.zeros(0, dtype=np.int64)], []
        for number, low, high in cuts:
            columns = opened[number]
            if "key" in columns.columns:
                keys.append(columns.keys[low:high])
            if "number" in columns.columns:
                numbers.append(columns.numbers[low:high])
            if columns.strings is not None:
                texts.append(Strings(columns.strings.offsets[low : high + 1], columns.strings.text))
        return cls(np.concatenate(keys), np.concatenate(numbers), _joined(texts) if texts else None)

    def merged(self) -> tuple[Array, Array, Array]:
        """(keys, positions, first of its kind) in the order of keys; equal keys in the order of the runs."""
        keys, positions = sort_by_key(self.keys, np.arange(len(self.keys)), 1)
        return keys, positions, mark_first(keys, positions, self.strings)


def _joined(parts: list[Strings]) -> Strings:
    bounds = [(int(part.offsets[0]), int(part.offsets[-1])) for part in parts]
    starts = np.cumsum([0, *(end - begin for begin, end in bounds)])
    offsets = [part.offsets[1:] - begin + start for part, (begin, _), start in zip(parts, bounds, starts, strict=False)]
    text = [part.text[begin:end] for part, (begin, end) in zip(parts, bounds, strict=True)]
    return Strings(np.concatenate([np.zeros(1, dtype=np.int64), *offsets]), np.concatenate(text))


# distinct ids, sorted


def sorted_unique_by(
    workers: Workers, parts: Sequence[Edges], others: Iterable[Ids], text: bool, folder: Path, seen: Any
) -> SortedIds:
    """As `sorted_unique`: the distinct ids of the ends of all edges and of `others`, sorted. `seen(number)` hears of
    edges that were read."""
    shutil.rmtree(folder, ignore_errors=True)
    runs_folder, by_text = folder / "distinct", folder / "sorted"
    for place in (folder, runs_folder, by_text):
        place.mkdir()
    token, limit = new_token(), workers.memory // 2
    task = DistinctIds(runs_folder, text, limit)
    calls = ((part, f"{token}-{at}") for at, part in enumerate(parts))
    found: list[RunFolder] = []
    for runs, num_edges in workers.run(task, calls, workers.memory):
        found += [runs] if runs is not None else []
        seen(num_edges)
    if found:
        last = distinct_runs(runs_folder / "others", others, limit, 1)
        found += [RunFolder.of(last, last.folder)] if last is not None else []
    if len({runs.columns for runs in found}) > 1:
        raise MixedIdsError("ids are partly whole numbers and partly text")
    if not found:
        return SortedIds(None)
    runs = RunFolders(found)
    if "text" not in found[0].columns:
        ranges = workers.run(MergeNumbers(found), runs.key_ranges(workers.memory // 4), workers.memory)
        columns = _appended(folder, ("key",), (({"key": keys}, None) for keys in ranges))
    else:
        texts = ((cuts, f"{token}-{at}") for at, (cuts,) in zip(count(), runs.key_ranges(limit), strict=False))
        sorted_runs = list(workers.run(SortText(found, by_text), texts, workers.memory))
        ranges = RunFolders(sorted_runs).text_ranges(workers.memory // 4)
        merged = workers.run(MergeText(sorted_runs), ranges, workers.memory)
        columns = _appended(folder, ("offsets", "text"), (({}, Strings(*strings)) for strings in merged))
    for place in (runs_folder, by_text):
        shutil.rmtree(place)
    return SortedIds(columns)


def _appended(
    folder: Path, columns: tuple[str, ...], rows: Iterable[tuple[dict[str, Array], Strings | None]]
) -> Columns:
    writer = ColumnWriter(folder, columns)
    try:
        for numbers, strings in rows:
            writer.append(numbers, strings)
        writer.join_runs()
        return writer.finish()
    finally:
        writer.close()


@dataclass(frozen=True)
class DistinctIds:
    """The ids that some edges name, as runs without repeats; and how many edges there are."""

    folder: Path
    text: bool
    limit: int

    def __call__(self, edges: Edges, name: str) -> tuple[RunFolder | None, int]:
        sizes: list[int] = []

        def ends() -> Iterator[Ids]:
            for sources, targets in edges.chunks(self.text):
                sizes.append(len(sources))
                yield from (sources, targets)
                del sources, targets
                pa.default_memory_pool().release_unused()  # Arrow keeps what it has freed

        with written_aside(self.folder / name) as aside:
            aside.mkdir()
            runs = distinct_runs(aside, ends(), self.limit, 1)
            found = None if runs is None else RunFolder.of(runs, self.folder / name / runs.folder.name)
        return found, sum(sizes)


@dataclass(frozen=True)
class MergeNumbers:
    """The distinct keys of a range, sorted."""

    folders: Sequence[RunFolder]

    def __call__(self, cuts: Cuts) -> Array:
        keys, _, keep = Loaded.of(self.folders, cuts).merged()
        return keys[keep]


@dataclass(frozen=True)
class SortText:
    """The distinct texts of a range of keys, as a run that is sorted by text."""

    folders: Sequence[RunFolder]
    folder: Path

    def __call__(self, cuts: Cuts, name: str) -> RunFolder:
        loaded = Loaded.of(self.folders, cuts)
        assert loaded.strings is not None
        _, positions, keep = loaded.merged()
        strings = loaded.strings.take(positions[keep], 1)
        del loaded, positions, keep
        with written_aside(self.folder / name) as aside:
            strings = sorted_text(strings.rows(0, len(strings)))
            columns = _appended(aside, ("offsets", "text"), [({}, strings)])
        return RunFolder.of(columns, self.folder / name)


@dataclass(frozen=True)
class MergeText:
    """The texts of a range, sorted: offsets and bytes."""

    folders: Sequence[RunFolder]

    def __call__(self, cuts: Cuts) -> tuple[Array, Array]:
        strings = Loaded.of(self.folders, cuts).strings
        assert strings is not None
        found = sorted_text(strings.rows(0, len(strings)))
        return found.offsets, found.text


# from ids to numbers


def build_by(workers: Workers, folder: Path, ids: Any, num_nodes: int, where: str, threads: int) -> IdFile:
    """As `IdFile.build`. `ids.chunks(low, high)` gives the ids of a range of nodes, here and where a worker runs."""
    remove_id_file(folder)
    scratch = folder.with_name(f"{folder.name}-runs")
    shutil.rmtree(scratch, ignore_errors=True)
    scratch.mkdir()
    step = max(_LEAST_ROWS, -(-num_nodes // (workers.num_shards or 4 * workers.num_workers)))
    token = new_token()
    bounds = pairwise([*range(0, num_nodes, step), num_nodes])
    calls = ((low, high, f"{token}-{low}") for low, high in bounds)
    made = list(workers.run(NumberIds(ids, scratch, workers.memory // 2), calls, workers.memory))
    folders = [runs for runs, _ in made]
    repeat = None
    for _, other in made:
        repeat = earlier(repeat, other)
    columns = ("key", IdFile.number_column(num_nodes), *[name for name in folders[0].columns if name not in _NUMBERED])
    ranges = RunFolders(folders).key_ranges(workers.memory // 4)
    writer = ColumnWriter(folder, columns)
    try:
        for keys, numbers, strings, other in workers.run(MergeNumbered(folders), ranges, workers.memory):
            repeat = earlier(repeat, other)
            if repeat is None:
                writer.append({"key": keys, columns[1]: numbers}, Strings(*strings) if strings else None)
        if repeat is not None:
            raise repeat.error(where)
        writer.join_runs()
        return IdFile.finished(writer.finish(), where, threads)
    except BaseException:
        remove_id_file(folder)
        raise
    finally:
        writer.close()
        shutil.rmtree(scratch, ignore_errors=True)


_NUMBERED = ("key", "number")


@dataclass(frozen=True)
class NumberIds:
    """The ids of a range of nodes as runs sorted by key, with their numbers; and the first one that comes again."""

    ids: Any
    folder: Path
    limit: int

    def __call__(self, low: int, high: int, name: str) -> tuple[RunFolder, Repeat | None]:
        with written_aside(self.folder / name) as aside:
            runs, repeat = numbered_runs(aside, self.ids.chunks(low, high), self.limit, 1, low)
            assert runs is not None
        return RunFolder.of(runs, self.folder / name), repeat


@dataclass(frozen=True)
class MergeNumbered:
    """A range of keys with their numbers and texts, sorted by key; and the first node that repeats an id."""

    folders: Sequence[RunFolder]

    def __call__(self, cuts: Cuts) -> tuple[Array, Array, tuple[Array, Array] | None, Repeat | None]:
        loaded = Loaded.of(self.folders, cuts)
        keys, positions, keep = loaded.merged()
        repeat = first_repeat(loaded.keys, loaded.numbers, loaded.strings, positions[~keep])
        strings = None if loaded.strings is None else loaded.strings.take(positions, 1)
        return keys, loaded.numbers[positions], (strings.offsets, strings.text) if strings else None, repeat
