"""Folders of arrays: whole or not there, readable with NumPy alone, damage noticed."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from largegt.errors import DiskError, FormatError, InputError
from largegt.io import array_writer as home
from largegt.io import checksums
from largegt.io.array_folder import ArrayFolder
from largegt.io.array_writer import ArrayWriter
from largegt.io.atomic import require_space, write_text_atomically
from largegt.io.checksums import file_checksum, fingerprint, sealed


def left_behind(folder: Path, *known: str) -> list[str]:
    """Everything in a folder but what the test put there."""
    return sorted(entry.name for entry in folder.iterdir() if entry.name not in known)


def _write(path: Path, values: list[int], replace: bool = False) -> ArrayFolder:
    with ArrayWriter(path, "store", replace=replace) as writer:
        writer.save("values", np.array(values))
        made = writer.grow("made", "bfloat16", (3,))
        made.append(np.full((2, 3), 7))
        writer.close("made")
        writer.finish({"about": "a test"})
    return ArrayFolder(path, "store")


def _fail(path: Path, error: type[BaseException]) -> None:
    """Write half a folder, then fail."""
    with ArrayWriter(path, "store", replace=True) as writer:
        writer.save("values", np.array([2]))
        raise error


def test_written_and_read_with_numpy_alone(tmp_path: Path) -> None:
    folder = _write(tmp_path / "f", [1, 2, 3])
    assert np.load(tmp_path / "f" / folder.entry("values")["file"], allow_pickle=False).tolist() == [1, 2, 3]
    assert folder.array("values").tolist() == [1, 2, 3]
    assert not folder.array("values").flags.writeable
    assert folder.dtype("made") == "bfloat16"
    assert folder.array("made").dtype == np.uint16
    assert "values" in folder
    assert "other" not in folder
    assert folder.meta == {"about": "a test"}
    assert list(folder.damages()) == []
    assert left_behind(tmp_path, "f") == []


def test_same_content_same_name(tmp_path: Path) -> None:
    assert _write(tmp_path / "a", [1]).fingerprint == _write(tmp_path / "b", [1]).fingerprint
    assert _write(tmp_path / "c", [2]).fingerprint != _write(tmp_path / "d", [1]).fingerprint
    assert fingerprint({"a": 1, "b": 2}) == fingerprint({"b": 2, "a": 1})


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_failure_leaves_nothing(tmp_path: Path, error: type[BaseException]) -> None:
    with pytest.raises(error):
        _fail(tmp_path / "f", error)
    assert left_behind(tmp_path) == []


def test_failed_replacement_keeps_the_old(tmp_path: Path) -> None:
    _write(tmp_path / "f", [1])
    with pytest.raises(RuntimeError):
        _fail(tmp_path / "f", RuntimeError)
    assert ArrayFolder(tmp_path / "f", "store").array("values").tolist() == [1]
    assert _write(tmp_path / "f", [3], replace=True).array("values").tolist() == [3]
    assert left_behind(tmp_path, "f") == []


def test_what_is_not_ours_is_never_replaced(tmp_path: Path) -> None:
    (tmp_path / "f").mkdir()
    (tmp_path / "f" / "thesis.tex").write_text("years of work")
    for replace in (False, True):
        with pytest.raises(InputError):
            ArrayWriter(tmp_path / "f", "store", replace=replace)
    assert (tmp_path / "f" / "thesis.tex").exists()
    assert left_behind(tmp_path, "f") == []


def test_damage_is_noticed(tmp_path: Path) -> None:
    folder = _write(tmp_path / "f", [1, 2, 3])
    file = folder.file("values")
    good = file.read_bytes()
    file.write_bytes(good[:-1] + b"\x09")
    assert [(damage.file, damage.reason) for damage in folder.damages()] == [(file, "does not match its checksum")]
    with pytest.raises(FormatError, match="checksum"):
        folder.verify(["values"])
    with pytest.raises(FormatError, match="checksum"):
        ArrayFolder(tmp_path / "f", "store")
    np.save(file, np.arange(4))
    with pytest.raises(FormatError, match=r"does not begin as an array of int64 \[3\]"):
        ArrayFolder(tmp_path / "f", "store")
    file.unlink()
    with pytest.raises(FormatError, match="is missing"):
        ArrayFolder(tmp_path / "f", "store")
    with pytest.raises(FormatError, match="no array 'other'"):
        folder.array("other")


def test_manifests_that_cannot_be_trusted(tmp_path: Path) -> None:
    _write(tmp_path / "f", [1])
    file = tmp_path / "f" / "manifest.json"
    manifest = json.loads(file.read_text())
    del manifest["checksum"]
    assert sealed(manifest) == file.read_text()
    entry = manifest["arrays"]["values"]
    for text, message in (
        ("{", "cannot be read"),
        ("[" * 100_000, "cannot be read"),
        ("[]", "expected an object"),
        (json.dumps({**manifest, "meta": {}}), "does not match its checksum"),
        (json.dumps({**manifest, "checksum": None}), "does not match its checksum"),
        (sealed({**manifest, "format": "largegt-prepared"}), "not a largegt store"),
        (sealed({**manifest, "version": "4"}), "format version"),
        (sealed({**manifest, "version": 3}), "make the folder again"),
        (sealed({**manifest, "version": 5}), "make the folder again"),
        (sealed({**manifest, "fingerprint": "../../../x"}), "incomplete"),
        (sealed({**manifest, "arrays": None}), "incomplete"),
        (sealed({**manifest, "arrays": {"../up": entry}}), "does not describe"),
        (sealed({**manifest, "arrays": {"values": {**entry, "shape": "3"}}}), "does not describe"),
        (sealed({**manifest, "arrays": {"values": {**entry, "file": "../x.npy"}}}), "does not describe"),
        (sealed({**manifest, "arrays": {"values": {**entry, "checksum": "xxh3:../x"}}}), "does not describe"),
        (sealed({**manifest, "arrays": {"values": {**entry, "bytes": 1 << 70}}}), "does not describe"),
        (sealed({**manifest, "arrays": {"values": {**entry, "shape": [10**15]}}}), "does not begin as"),
        (sealed({**manifest, "arrays": {"values": {**entry, "dtype": "float64"}}}), "does not begin as"),
        (sealed({**manifest, "arrays": {"values": {**entry, "dtype": "object"}}}), "does not describe"),
    ):
        file.write_text(text)
        with pytest.raises(FormatError, match=message):
            ArrayFolder(tmp_path / "f", "store")


def test_small_files_are_replaced_whole(tmp_path: Path) -> None:
    write_text_atomically(tmp_path / "note.txt", "one")
    write_text_atomically(tmp_path / "note.txt", "two")
    assert (tmp_path / "note.txt").read_text() == "two"
    assert left_behind(tmp_path, "note.txt") == []


# versions ---------------------------------------------------------------------------------------------------------


def test_a_reader_keeps_the_version_that_it_opened(tmp_path: Path) -> None:
    before = _write(tmp_path / "f", [1, 2])
    after = _write(tmp_path / "f", [3, 4, 5], replace=True)
    assert before.array("values").tolist() == [1, 2], "opened after the new version was committed"
    assert after.array("values").tolist() == [3, 4, 5]
    again = ArrayFolder(tmp_path / "f", "store", version=before.fingerprint)
    assert again.array("values").tolist() == [1, 2]
    assert ArrayFolder(tmp_path / "f", "store", version=after.fingerprint).fingerprint == after.fingerprint
    assert before.file("made") == after.file("made"), "equal arrays are one file"


@pytest.mark.parametrize("version", ["0123456789abcdef", "../manifest", "", "x" * 300])
def test_versions_that_there_are_not(tmp_path: Path, version: str) -> None:
    _write(tmp_path / "f", [1])
    with pytest.raises(InputError, match="has no version"):
        ArrayFolder(tmp_path / "f", "store", version=version)


def test_a_version_beside_the_newest(tmp_path: Path) -> None:
    newest = _write(tmp_path / "f", [1, 2])
    with ArrayWriter(tmp_path / "f", "store", replace=True) as writer:
        writer.reuse("made", newest)
        writer.save("values", np.array([7]))
        version = writer.finish({"about": "other values"}, newest=False)
    assert ArrayFolder(tmp_path / "f", "store").fingerprint == newest.fingerprint
    beside = ArrayFolder(tmp_path / "f", "store", version=version)
    assert beside.array("values").tolist() == [7]
    assert beside.file("made") == newest.file("made")


@pytest.mark.parametrize("at", ["_link_arrays", "_link_old_manifest", "replacing"])
def test_a_commit_that_stops_leaves_the_old_version_and_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at: str
) -> None:
    for number, path in enumerate((tmp_path / "new", tmp_path / "old")):
        if number:
            _write(path, [1])

        def commit(path: Path = path, number: int = number) -> None:
            with ArrayWriter(path, "store", replace=bool(number), identity="x") as writer:
                if not writer.has("values"):
                    writer.save("values", np.array([2]))
                    writer.commit()
                writer.finish({})

        def stop(*_: object) -> None:
            raise Stopped

        with monkeypatch.context() as patch:
            patch.setattr(home if at == "replacing" else ArrayWriter, at, stop)
            with pytest.raises(Stopped):
                commit()
        if number:
            assert ArrayFolder(path, "store").array("values").tolist() == [1]
        else:
            assert not (path / "manifest.json").exists()
        commit()
        folder = ArrayFolder(path, "store")
        assert folder.array("values").tolist() == [2]
        folder.verify()
    assert left_behind(tmp_path, "new", "old") == []


# going on ---------------------------------------------------------------------------------------------------------


class Stopped(BaseException):
    """As if the process had been killed here."""


def _count_to(path: Path, stop_at: int | None, identity: str = "count", error: type[BaseException] = Stopped) -> int:
    """Write 0..9 with a commit after each; how many were there already."""
    with ArrayWriter(path, "store", identity=identity) as writer:
        numbers = writer.grow("numbers", "int32")
        first = numbers.rows
        for number in range(first, 10):
            numbers.append(np.array([number]))
            if number == stop_at:
                raise error("stop")
            writer.commit(last=number)
        assert writer.state == {"last": 9}
        writer.close("numbers")
        writer.finish({})
    return first


def test_a_stopped_writer_goes_on_from_its_last_commit(tmp_path: Path) -> None:
    with pytest.raises(Stopped):
        _count_to(tmp_path / "f", 4)
    with pytest.raises(Stopped):
        _count_to(tmp_path / "f", 7)
    assert not (tmp_path / "f").exists()
    assert _count_to(tmp_path / "f", None) == 7
    folder = ArrayFolder(tmp_path / "f", "store")
    assert folder.array("numbers").tolist() == list(range(10))
    folder.verify()
    assert left_behind(tmp_path, "f") == []
    assert {file.name for file in (tmp_path / "f").iterdir()} == {"manifest.json", folder.entry("numbers")["file"]}


def test_other_work_does_not_go_on_from_it(tmp_path: Path) -> None:
    with pytest.raises(Stopped):
        _count_to(tmp_path / "f", 4)
    assert _count_to(tmp_path / "f", None, identity="other") == 0


def test_after_a_restart_of_the_machine_it_starts_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(Stopped):
        _count_to(tmp_path / "f", 4)
    monkeypatch.setattr(home, "_boot_id", lambda: "another")
    assert _count_to(tmp_path / "f", None) == 0


@pytest.mark.parametrize("damage", ["missing", "short", "journal"])
def test_a_promise_that_the_files_do_not_keep_is_not_believed(tmp_path: Path, damage: str) -> None:
    with pytest.raises(Stopped):
        _count_to(tmp_path / "f", 4)
    file = tmp_path / ".f.partial" / "numbers.npy"
    if damage == "missing":
        file.unlink()
    elif damage == "short":
        file.write_bytes(file.read_bytes()[:-8])
    else:
        (tmp_path / ".f.partial" / "progress.json").write_text('{"rows": 3')
    assert _count_to(tmp_path / "f", None) == 0
    assert ArrayFolder(tmp_path / "f", "store").array("numbers").tolist() == list(range(10))


@pytest.mark.parametrize(("error", "kept"), [(InputError, False), (DiskError, True), (KeyboardInterrupt, True)])
def test_bad_input_leaves_nothing_and_bad_luck_leaves_the_work(
    tmp_path: Path, error: type[BaseException], kept: bool
) -> None:
    with pytest.raises(error):
        _count_to(tmp_path / "f", 4, error=error)
    assert left_behind(tmp_path) == ([".f.partial"] if kept else [])
    assert _count_to(tmp_path / "f", None) == (4 if kept else 0)


def test_two_writers_of_one_folder(tmp_path: Path) -> None:
    with ArrayWriter(tmp_path / "f", "store") as writer:
        with pytest.raises(InputError, match=r"another process \(pid \d+ on .*, since .*\) is writing .*f: wait"):
            ArrayWriter(tmp_path / "f", "store")
        writer.save("a", np.arange(3))
        writer.finish({})
    assert left_behind(tmp_path, "f") == []


def test_scratch_that_was_dropped(tmp_path: Path) -> None:
    with ArrayWriter(tmp_path / "f", "store", identity="x") as writer:
        scratch = writer.grow("scratch", "int64", (2,))
        scratch.append(np.arange(6).reshape(3, 2))
        assert scratch.so_far().tolist() == [[0, 1], [2, 3], [4, 5]]
        writer.drop("scratch")
        writer.save("late", np.arange(3))
        empty = writer.grow("empty", "float32", (4,))
        assert empty.so_far().shape == (0, 4)
        writer.close("empty")
        writer.finish({})
    folder = ArrayFolder(tmp_path / "f", "store")
    assert sorted(folder.manifest["arrays"]) == ["empty", "late"]
    assert folder.array("empty").shape == (0, 4)
    folder.verify()


def test_space_is_refused_before_it_is_used(tmp_path: Path) -> None:
    require_space(tmp_path / "not" / "there", 1, "a byte")
    with pytest.raises(DiskError, match=r"a planet needs .* are free"):
        require_space(tmp_path / "not" / "there", 1 << 60, "a planet")


def test_the_checksum_of_many_blocks_sees_every_byte(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "x"
    data = bytearray(np.random.default_rng(0).bytes(100_000))
    file.write_bytes(data)
    whole = file_checksum(file)
    monkeypatch.setattr(checksums, "BLOCK_BYTES", 1000)
    monkeypatch.setattr(checksums, "_READ_BYTES", 300)
    blocks = file_checksum(file)
    assert blocks != whole
    for at in (0, 999, 1000, 54_321, 99_999):
        data[at] ^= 1
        file.write_bytes(data)
        assert file_checksum(file) != blocks
        data[at] ^= 1
    file.write_bytes(data)
    assert file_checksum(file) == blocks
