"""URLs: allowed schemes, trusted URLs, and redacted display.

Stores may be at URLs of a few schemes, tables also on web servers. All other URLs are refused before fsspec gets them:
fsspec chains URLs with `::`, and some of its file systems run templates or read other files that a URL names.

A URL that is read from a folder is trusted only if the user gave the same URL on this machine before, or sets
LARGEGT_TRUST_REMOTE (`--trust-remote`). URLs from the user are saved in `trusted-urls.txt` in the settings folder:
$LARGEGT_CONFIG, else $XDG_CONFIG_HOME/largegt, else ~/.config/largegt.

This module imports the package only inside functions, so that `errors` can import it.
"""

from __future__ import annotations

import os
import re
from contextlib import suppress
from pathlib import Path

STORES = ("s3", "gs", "gcs", "az", "abfs", "abfss")
"""Schemes of stores."""
TABLES = (*STORES, "http", "https")
"""Schemes of tables."""
_PATHS = ("file", "local")
_AZURE = ("az", "abfs", "abfss")  # container@account is a place there, not a login
_LOGIN_VARIABLES = {
    "s3": "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE",
    "gs": "GOOGLE_APPLICATION_CREDENTIALS",
    "gcs": "GOOGLE_APPLICATION_CREDENTIALS",
    **dict.fromkeys(_AZURE, "AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY"),
}
_URL = re.compile(r"([^/]{2,}?):/+(.+)", re.DOTALL)  # Path("s3://b/g") keeps one slash
_AFTER_SCHEME = re.compile(r"(:/+)(\S+)")
_SECRET_VALUE = re.compile(r"([?&][^=&\s]*(?:pass|secret|token|sig|key|cred|auth)[^=&\s]*=)[^&\s'\")]+", re.IGNORECASE)
_given: set[str] = set()
"""URLs that the user gave in this process."""


def parts(place: str | Path) -> tuple[str, str] | None:
    """The scheme and the rest of a URL; None for a path. `file://` URLs are `("file", …)`."""
    found = _URL.fullmatch(str(place))
    return (found[1], found[2]) if found else None


def is_url(place: str | Path) -> bool:
    """Whether `place` has the form of a URL, other than `file://`. The URL need not be valid."""
    found = parts(place)
    return found is not None and found[0] not in _PATHS


def fault(url: str, schemes: tuple[str, ...] = STORES) -> str | None:
    """Why a URL is refused; None if it may be opened."""
    scheme, _, rest = url.partition("://")
    if scheme not in schemes:
        return f"{url} cannot be opened: give a path or a URL that begins with {', '.join(f'{s}://' for s in schemes)}"
    if "::" in url:
        return f"{url} cannot be opened: a URL with '::' in it is a chain of URLs, which is refused"
    if not url.isprintable() or {".", ".."} & set(rest.split("/")):
        return f"{url} cannot be opened: it has '.' or '..' as a name, or characters that cannot be printed"
    if scheme in STORES and redacted(url) != url:
        return f"{url} has credentials in it: leave them out, and set {_LOGIN_VARIABLES[scheme]}"
    return None


def redacted(text: str) -> str:
    """The text with logins and secret parameters of URLs replaced by `***`."""
    return _AFTER_SCHEME.sub(_redact, text)


def _redact(found: re.Match[str]) -> str:
    slashes, rest = found[1], found[2]
    login, at, place = rest.rpartition("@")  # split at the last @: a password may contain / and @
    has_login = at and set(":@") & set(rest.partition("/")[0])
    if has_login and not (":" not in login and found.string[: found.start()].endswith(_AZURE)):
        rest = f"***@{place}"
    return slashes + _SECRET_VALUE.sub(r"\1***", rest)


# trust


def remember(url: str) -> None:
    """Save that the user gave this URL, unless all URLs are trusted or the settings folder is not writable."""
    if url in _given or _trusts_all():
        return
    _given.add(url)
    from largegt.errors import LargeGTError

    from .atomic import write_text_atomically

    with suppress(OSError, RuntimeError, LargeGTError):  # RuntimeError: no home folder
        if url not in (trusted := _trusted_urls()):
            _trusted_file().parent.mkdir(parents=True, exist_ok=True)
            write_text_atomically(_trusted_file(), "".join(f"{line}\n" for line in [*trusted, url]))


def is_trusted(url: str) -> bool:
    """Whether a URL that is read from a folder may be opened."""
    if url in _given or _trusts_all():
        return True
    with suppress(OSError, RuntimeError):
        return url in _trusted_urls()
    return False


def _trusts_all() -> bool:
    return os.environ.get("LARGEGT_TRUST_REMOTE", "") not in ("", "0")


def _trusted_file() -> Path:
    home = os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config"
    return Path(os.environ.get("LARGEGT_CONFIG") or Path(home) / "largegt") / "trusted-urls.txt"


def _trusted_urls() -> list[str]:
    file = _trusted_file()
    return file.read_text(encoding="utf-8", errors="replace").splitlines() if file.is_file() else []
