"""Text models: embed texts with a sentence-transformers model from a local folder.

Enters: a folder from the user or from a store's manifest. Leaves: the model and the fingerprint of its files.
Nothing is downloaded and no code in the folder runs: only a few module types and safetensors weights are allowed. A
folder from a store's manifest must hold the same model as at ingest, and must be trusted like a URL (urls.py): given
before on this machine, or with --trust-remote. Cost: each process reads the files once for the fingerprint.
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
    """The absolute path of a model folder from the user, after loading it; the folder becomes trusted."""
    path = os.path.abspath(folder)
    load_text_model(path)
    urls.remember(Path(path).as_uri())
    return path


def named_text_model(folder: str, fingerprint: str) -> Any:
    """The model in a folder from a store's manifest."""
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
        _refuse_code(Path(folder))
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
    except Exception as error:  # the library raises many kinds of errors for damaged files
        raise InputError(f"text model {folder} cannot be loaded: {first_line(error)}") from error
    return model, fingerprint


def embeddings(model: Any, texts: list[str]) -> Array:
    """float32 [texts, dims]. Texts are encoded one by one, so that results do not depend on the batch."""
    return np.concatenate([model.encode([text], normalize_embeddings=True) for text in texts])


def _refuse_code(folder: Path) -> None:
    """Refuse a folder that could make the library import or unpickle its own code."""
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
    """Fingerprint of the model files, independent of the folder's path."""
    files = sorted(file for file in folder.rglob("*") if file.suffix in _MODEL_FILES and file.is_file())
    if not any(file.suffix == ".safetensors" for file in files):
        raise ValueError("it has no .safetensors file, and weights of other kinds are not loaded")
    return bytes_checksum(json.dumps([[str(file.relative_to(folder)), file_checksum(file)] for file in files]).encode())
