"""Explanations as files: a page, a picture or JSON, by the name's ending."""

from __future__ import annotations

import json
from pathlib import Path

from largegt.errors import ConfigError, InputError, disk_errors
from largegt.io.atomic import write_text_atomically
from largegt.io.remote import refuse_url
from largegt.types import PathLike

from .explanation import Explanation

SUFFIXES = (".html", ".svg", ".json")


def check_explanation_file(out: PathLike, overwrite: bool) -> None:
    """Refuse a name that cannot be written, or that is taken, before any work is done."""
    refuse_url(out, "explanations")
    out = Path(out)
    if out.suffix not in SUFFIXES:
        raise ConfigError(f"cannot write {out}: explanations end in {', '.join(SUFFIXES)}")
    if out.is_dir():
        raise InputError(f"{out} is a folder: choose another --out")
    if out.exists() and not overwrite:
        raise InputError(f"{out} already exists: choose another --out, or say --overwrite to replace it")


def write_explanation(found: Explanation, out: PathLike) -> Path:
    """Write it in the form that the name asks for."""
    out = Path(out)
    if out.suffix == ".json":
        text = json.dumps(found.as_dict(), indent=1, default=str) + "\n"
    else:
        text = found.svg() if out.suffix == ".svg" else found.html()
    with disk_errors(out):
        out.parent.mkdir(parents=True, exist_ok=True)
    write_text_atomically(out, text)
    return out
