"""The errors a user can get. Each message is one line: what is wrong, what was found, what to do next.

The command line prints a `LargeGTError` as that one line and exits with code 2. Any other uncaught exception is a bug
of ours and keeps its traceback.
"""

from __future__ import annotations

import errno
import os
import re
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from difflib import get_close_matches
from pathlib import Path

from largegt.io.urls import redacted
from largegt.runtime.text import printable

_MAX_LENGTH = 1200


class LargeGTError(Exception):
    """Base class of the errors that a user can fix."""

    def __str__(self) -> str:
        """One printable line of limited length, whatever names and values it contains, without logins in URLs."""
        text = printable(redacted(super().__str__()))
        if len(text) > _MAX_LENGTH:
            text = f"{text[: _MAX_LENGTH // 2]} … {text[-_MAX_LENGTH // 2 :]}"
        return text


class InputError(LargeGTError):
    """The input data cannot be used: a missing file, a wrong column, an id out of range."""


class ConfigError(LargeGTError):
    """A setting is unknown, out of range, or does not fit the data."""


class FormatError(LargeGTError):
    """A folder is not a store, preparation or run, is damaged, or has a newer format."""


class DiskError(LargeGTError):
    """A write failed: the disk is full, read-only or broken."""


def first_line(error: BaseException) -> str:
    """The first line of an error's message; the name of its class if there is no message."""
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__


_LESS_MEMORY = "give a smaller `memory`, or close other programs"
_MEMORY_ADVICE = {
    **dict.fromkeys(("ingest", "append", "generate", "datasets", "predict", "embed", "explain"), _LESS_MEMORY),
    "prepare": f"{_LESS_MEMORY}; a smaller prepare.local_nodes.k takes less",
    **dict.fromkeys(("evaluate", "report", "inspect"), "close other programs"),
}
_MEMORY_OF_TRAINING = "a smaller train.batch_size, model.hidden_dim or prepare.local_nodes.k takes less"


def machine_refusal(error: Exception, verb: str = "") -> str:
    """A line for errors of the system: an invalid path, too little memory (with advice for the command `verb`), a full
    disk behind standard output, no more threads. Empty for any other error."""
    if isinstance(error, OSError) and error.errno in _NO_PATH and error.filename is not None:
        return str(InputError(f"{error.filename}: {os.strerror(error.errno or 0)}; give another path"))
    if isinstance(error, OSError) and error.errno in _FULL:  # writes to files are under `disk_errors`
        return f"cannot write the output: {os.strerror(error.errno)}; free some space or send it elsewhere"
    if isinstance(error, UnicodeEncodeError) and error.reason == "surrogates not allowed":
        part = str(error.object)[max(0, error.start - 60) : error.end + 30]
        return str(InputError(f"a path or name is not valid UTF-8 (… {part} …): rename it"))
    if _is_out_of_threads(error):
        return "the system refuses another thread or process: end other programs, or raise the limit (ulimit -u)"
    if isinstance(error, RuntimeError) and str(error).startswith("cannot cache function"):
        return "numba finds no folder for what it compiles: set NUMBA_CACHE_DIR to one that you may write to"
    is_memory = isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError"
    if is_memory or re.search("can't allocate memory|failed to map segment", str(error)):
        advice = _MEMORY_ADVICE.get(verb, _MEMORY_OF_TRAINING)
        return str(InputError(f"not enough memory ({first_line(error)}): {advice}"))
    return ""


def _is_out_of_threads(error: Exception) -> bool:
    if isinstance(error, BlockingIOError):  # fork
        return error.filename is None
    return isinstance(error, RuntimeError) and "can't start new thread" in str(error)


def nearest(name: str, known: Iterable[str]) -> str:
    """` (did you mean 'x'?)` for the closest known name, to append to a message; an empty string without one."""
    close = get_close_matches(name, list(known), n=1, cutoff=0.5)
    return f" (did you mean {close[0]!r}?)" if close else ""


AGAIN = "run the same command again"
_NO_PATH = (
    errno.ENAMETOOLONG, errno.ENOTDIR, errno.EISDIR, errno.ELOOP, errno.EACCES, errno.EPERM, errno.EROFS, errno.EIO,
)  # fmt: skip
_FULL, _FORBIDDEN = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG), (errno.EACCES, errno.EROFS, errno.EPERM)


@contextmanager
def disk_errors(path: str | Path, num_bytes: int = 0) -> Iterator[None]:
    """Turn system errors while writing below `path` into one-line errors, with `num_bytes` as the size of the write."""
    try:
        yield
    except LargeGTError:
        raise
    except Exception as error:
        code = _error_number(error)
        if code in _FULL:
            raise DiskError(
                f"no space left on the disk that holds {path}{_room(Path(path), num_bytes)}: free some or write "
                f"elsewhere, then {AGAIN}"
            ) from error
        if code in _FORBIDDEN:
            raise DiskError(
                f"cannot write to {path}: {os.strerror(code)}; make it writable or choose another folder, then {AGAIN}"
            ) from error
        raise


def _error_number(error: Exception) -> int:
    """The system's error number, also from the text of errors without one, such as those of safetensors and NumPy."""
    if isinstance(error, OSError) and error.errno:
        return error.errno
    text = str(error)
    if isinstance(error, OSError) and re.fullmatch(r"\d+ requested and \d+ written", text):
        return errno.ENOSPC
    found = re.search(r"\(os error (\d+)\)", text)
    return int(found[1]) if found else full_disk(text)


def full_disk(text: str) -> int:
    """The error number of a message about a full disk or a file size limit; 0 for any other message."""
    return next((code for code in _FULL if os.strerror(code) in text), 0)


def _room(path: Path, num_bytes: int) -> str:
    """` (3.0 MiB are needed, 12.0 KiB are free)`, without unknown parts."""
    from largegt.runtime.memory import format_bytes

    needed = [f"{format_bytes(num_bytes)} are needed"] if num_bytes else []
    try:
        existing = next(folder for folder in (path, *path.absolute().parents) if folder.exists())
        needed.append(f"{format_bytes(shutil.disk_usage(existing).free)} are free")
    except OSError:
        pass
    return f" ({', '.join(needed)})" if needed else ""
