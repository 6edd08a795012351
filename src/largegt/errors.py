"""The errors a user can meet. Each message is one line: what was wrong, what was found, what to do next.

The command line prints a `LargeGTError` as that one line and exits with code 2. Anything else that escapes is a bug
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

_LONGEST = 1200


class LargeGTError(Exception):
    """Base of every error that is the user's to mend."""

    def __str__(self) -> str:
        """One line of moderate length that a terminal can show, however odd the names and values in it. Logins in URLs
        are left out."""
        text = printable(redacted(super().__str__()))
        if len(text) > _LONGEST:
            text = f"{text[: _LONGEST // 2]} … {text[-_LONGEST // 2 :]}"
        return text


class InputError(LargeGTError):
    """The data given to us cannot be used as it is: a missing file, a wrong column, an id out of range."""


class ConfigError(LargeGTError):
    """A setting is unknown, out of its range, or does not fit the data."""


class FormatError(LargeGTError):
    """A folder of ours cannot be read: not ours, damaged, or written by a newer version."""


class DiskError(LargeGTError):
    """The disk said no: full, read-only or failing."""


def first_line(error: BaseException) -> str:
    """What an error says, in one line; its kind when it says nothing."""
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
    """A line for what is neither the input's fault nor ours: a path that the system will not have, memory that it does
    not have, with advice for the command `verb`, no room for what we print, no thread. Empty for any other error."""
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
    """` (did you mean 'x'?)` for the closest known name, or an empty string: glue it behind a message."""
    close = get_close_matches(name, list(known), n=1, cutoff=0.5)
    return f" (did you mean {close[0]!r}?)" if close else ""


AGAIN = "run the same command again"
_NO_PATH = (
    errno.ENAMETOOLONG, errno.ENOTDIR, errno.EISDIR, errno.ELOOP, errno.EACCES, errno.EPERM, errno.EROFS, errno.EIO,
)  # fmt: skip
_FULL, _FORBIDDEN = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG), (errno.EACCES, errno.EROFS, errno.EPERM)


@contextmanager
def disk_errors(path: str | Path, num_bytes: int = 0) -> Iterator[None]:
    """Turn the operating system's refusals while writing below `path` into one-line errors, which say how much was to
    be written where `num_bytes` is known."""
    try:
        yield
    except LargeGTError:
        raise
    except Exception as error:
        code = _refusal(error)
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


def _refusal(error: Exception) -> int:
    """The system's error number; also behind errors that do not carry it, as those of safetensors and NumPy."""
    if isinstance(error, OSError) and error.errno:
        return error.errno
    text = str(error)
    if isinstance(error, OSError) and re.fullmatch(r"\d+ requested and \d+ written", text):
        return errno.ENOSPC
    found = re.search(r"\(os error (\d+)\)", text)
    return int(found[1]) if found else full_disk(text)


def full_disk(text: str) -> int:
    """The error number of a message about a full disk or a file that may not grow; 0 for another message."""
    return next((code for code in _FULL if os.strerror(code) in text), 0)


def _room(path: Path, num_bytes: int) -> str:
    """` (3.0 MiB are needed, 12.0 KiB are free)`, as far as it is known."""
    from largegt.runtime.memory import format_bytes

    needed = [f"{format_bytes(num_bytes)} are needed"] if num_bytes else []
    try:
        there = next(folder for folder in (path, *path.absolute().parents) if folder.exists())
        needed.append(f"{format_bytes(shutil.disk_usage(there).free)} are free")
    except OSError:
        pass
    return f" ({', '.join(needed)})" if needed else ""
