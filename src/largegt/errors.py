"""The errors a user can meet. Each message is one line: what was wrong, what was found, what to do next.

The command line prints a `LargeGTError` as that one line and exits with code 2. Anything else that escapes is a bug
of ours and keeps its traceback.
"""

from __future__ import annotations

import errno
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from difflib import get_close_matches
from pathlib import Path


class LargeGTError(Exception):
    """Base of every error that is the user's to mend."""


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


def nearest(name: str, known: Iterable[str]) -> str:
    """` (did you mean 'x'?)` for the closest known name, or an empty string: glue it behind a message."""
    close = get_close_matches(name, list(known), n=1, cutoff=0.5)
    return f" (did you mean {close[0]!r}?)" if close else ""


@contextmanager
def disk_errors(path: str | Path) -> Iterator[None]:
    """Turn the operating system's refusals while writing below `path` into one-line errors."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise DiskError(
                f"no space left on the disk that holds {path}: free some or write elsewhere, "
                "then run the same command again"
            ) from error
        if error.errno in (errno.EACCES, errno.EROFS, errno.EPERM):
            raise DiskError(f"cannot write to {path}: {error.strerror}; choose another folder with --out") from error
        raise
