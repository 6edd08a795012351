"""Folders of arrays: whole or not there, readable with NumPy alone, damage noticed."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from graph_helpers import left_behind

from largegt.errors import FormatError, InputError
from largegt.folder import ArrayFolder, FolderWriter, file_checksum, fingerprint, write_text_atomically


def _write(path: Path, values: list[int], replace: bool = False) -> ArrayFolder:
    with FolderWriter(path, "store", replace=replace) as writer:
        writer.save("values", np.array(values))
        made = writer.create("made", (2, 3), "bfloat16")
        made[:] = 7
        writer.finish({"about": "a test"})
    return ArrayFolder(path, "store")


def _fail(path: Path, error: type[BaseException]) -> None:
    """Write half a folder, then fail."""
    with FolderWriter(path, "store", replace=True) as writer:
        writer.save("values", np.array([2]))
        raise error


def test_written_and_read_with_numpy_alone(tmp_path: Path) -> None:
    folder = _write(tmp_path / "f", [1, 2, 3])
    assert np.load(tmp_path / "f" / "values.npy", allow_pickle=False).tolist() == [1, 2, 3]
    assert folder.array("values").tolist() == [1, 2, 3]
    assert not folder.array("values").flags.writeable
    assert folder.dtype("made") == "bfloat16"
    assert folder.array("made").dtype == np.uint16
    assert "values" in folder
    assert "other" not in folder
    assert folder.meta == {"about": "a test"}
    folder.verify()
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
            FolderWriter(tmp_path / "f", "store", replace=replace)
    assert (tmp_path / "f" / "thesis.tex").exists()
    assert left_behind(tmp_path, "f") == []


def test_damage_is_noticed(tmp_path: Path) -> None:
    folder = _write(tmp_path / "f", [1, 2, 3])
    file = tmp_path / "f" / "values.npy"
    good = file.read_bytes()
    file.write_bytes(good[:-1] + b"\x09")
    with pytest.raises(FormatError, match="checksum"):
        folder.verify()
    np.save(file, np.arange(4))
    with pytest.raises(FormatError, match="shape"):
        ArrayFolder(tmp_path / "f", "store").array("values")
    file.unlink()
    with pytest.raises(FormatError, match="missing or damaged"):
        ArrayFolder(tmp_path / "f", "store").array("values")
    with pytest.raises(FormatError, match="no array 'other'"):
        folder.array("other")


def test_manifests_that_cannot_be_trusted(tmp_path: Path) -> None:
    _write(tmp_path / "f", [1])
    file = tmp_path / "f" / "manifest.json"
    manifest = json.loads(file.read_text())
    for text, message in (
        ("{", "cannot be read"),
        ("[]", "not a largegt store"),
        (json.dumps({**manifest, "version": "2"}), "format version"),
        (json.dumps({**manifest, "version": 2}), "upgrade largegt"),
        (json.dumps({**manifest, "arrays": None}), "incomplete"),
        (json.dumps({**manifest, "arrays": {"../up": {}}}), "no plain name"),
    ):
        file.write_text(text)
        with pytest.raises(FormatError, match=message):
            ArrayFolder(tmp_path / "f", "store")


def test_linked_arrays_and_small_files(tmp_path: Path) -> None:
    first = _write(tmp_path / "f", [1, 2])
    with FolderWriter(tmp_path / "g", "store") as writer:
        writer.link("values", first)
        writer.finish({})
    second = ArrayFolder(tmp_path / "g", "store")
    assert second.checksum("values") == file_checksum(tmp_path / "g" / "values.npy") == first.checksum("values")
    write_text_atomically(tmp_path / "note.txt", "one")
    write_text_atomically(tmp_path / "note.txt", "two")
    assert (tmp_path / "note.txt").read_text() == "two"
    assert left_behind(tmp_path, "f", "g", "note.txt") == []
