"""Text models: the local folder of a sentence-transformers model, which turns texts into vectors.

Enters: a folder that the user gave, or one that a store names. Leaves: the model and the fingerprint of its files.
Nothing is fetched, and no code of the folder runs: its modules are of a short list, its weights safetensors. A folder
that a store names is loaded if it was given on this machine before or with --trust-remote, as URLs are (urls.py), and
if it holds the same model as at ingest. Cost: the files are read once per process for the fingerprint.
"""

from __future__ import annotations

import json
import os
import re
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from largegt.errors import ConfigError, InputError, first_line
from largegt.io import urls
from largegt.io.checksums import bytes_checksum, file_checksum
from largegt.types import Array

_MODULE = re.compile(r"sentence_transformers(\.\w+)*\.(Transformer|Pooling|Dense|Normalize)")
_ACTIVATION = re.compile(r"torch\.nn\.modules\.(activation|linear)\.\w+")
_MODEL_FILES = (".safetensors", ".json", ".txt", ".model")


def given_text_model(folder: str) -> str:
    """The whole path of a model's folder that the user gave, once it was loaded; it is trusted from then on."""
    whole = os.path.abspath(folder)
    load_text_model(whole)
    urls.remember(Path(whole).as_uri())
    return whole


def named_text_model(folder: str, fingerprint: str) -> Any:
    """The model in a folder that a store names."""
    if not urls.is_trusted(Path(os.path.abspath(folder)).as_uri()):
        raise InputError(
            f"the store names the text model {folder}, which was never given on this machine: if you trust this "
            "folder, run the same command with `LARGEGT_TRUST_REMOTE=1`"
        )
    model, found = load_text_model(folder)
    if found != fingerprint:
        raise InputError(
            f"text model {folder} is not the one that the store was made with: put that model back, or ingest again"
        )
    return model


@lru_cache(maxsize=2)
def load_text_model(folder: str) -> tuple[Any, str]:
    """(model, fingerprint) of a local folder, from safetensors files only."""
    if not Path(folder).is_dir():
        raise InputError(
            f"text model {folder}: no such folder; if it was moved, put it or a link to it there, else give the local "
            "folder of a sentence-transformers model"
        )
    try:
        _check_harmless(Path(folder))
        fingerprint = _fingerprint(Path(folder))
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        raise InputError(f"text model {folder} cannot be read: {first_line(error)}") from error
    try:
        from sentence_transformers import SentenceTransformer  # type: ignore[import-not-found,unused-ignore]
    except ImportError:
        raise ConfigError(
            f"text model {folder} needs the package sentence-transformers: pip install 'largegt[text]', or leave "
            "text_model out, and words are hashed"
        ) from None
    try:
        model = SentenceTransformer(
            folder, local_files_only=True, trust_remote_code=False, model_kwargs={"use_safetensors": True}
        )
    except Exception as error:  # whatever the library raises for a damaged file
        raise InputError(f"text model {folder} cannot be loaded: {first_line(error)}") from error
    return model, fingerprint


def embeddings(model: Any, texts: list[str]) -> Array:
    """float32 [texts, dims]; one text at a time, so the bits do not depend on the others."""
    return np.concatenate([model.encode([text], normalize_embeddings=True) for text in texts])


def _check_harmless(folder: Path) -> None:
    """Refuse what could make the library import or unpickle something of the folder's choice."""
    for module in json.loads((folder / "modules.json").read_text(encoding="utf-8")):
        place = folder / module["path"]
        if not _MODULE.fullmatch(module["type"]) or not place.resolve().is_relative_to(folder.resolve()):
            raise ValueError(f"its module {module['type']} is none of Transformer, Pooling, Dense and Normalize")
        if module["type"].endswith(".Dense"):
            config = json.loads((place / "config.json").read_text(encoding="utf-8"))
            if not _ACTIVATION.fullmatch(config.get("activation_function", "torch.nn.modules.activation.Tanh")):
                raise ValueError(f"its activation function {config['activation_function']} is none of torch")
            if not (place / "model.safetensors").is_file():
                raise ValueError(f"{place} has no model.safetensors")
    for file in folder.rglob("*.json"):
        if file.name != "tokenizer.json" and b"trust_remote_code" in file.read_bytes():
            raise ValueError(f"{file.relative_to(folder)} asks to trust code")


def _fingerprint(folder: Path) -> str:
    """Of all files that a model is made of, wherever the folder lies."""
    files = sorted(file for file in folder.rglob("*") if file.suffix in _MODEL_FILES and file.is_file())
    if not any(file.suffix == ".safetensors" for file in files):
        raise ValueError("it has no .safetensors file, and weights of other kinds are not loaded")
    return bytes_checksum(json.dumps([[str(file.relative_to(folder)), file_checksum(file)] for file in files]).encode())
