"""Fuzzing a stranger's folders (`hostile`): a run and its store with links in odd places, JSON of the wrong types whose
checksums fit, and paths where names and versions belong.

Each verb that reads or writes them ends well or with one line, and a folder outside stays as it is."""

from __future__ import annotations

import hashlib
import os
import random
import re
import shutil
from collections.abc import Sequence
from pathlib import Path

import torch

from largegt.config.schema import Config
from largegt.training.trainer import train

from .cases import ACCEPTED, REFUSED, Wrong
from .command_line import call, judge
from .folders import SMALL, harm_json, small_store

_KEY = "0123456789abcdef"
_VERBS = (
    ("inspect", "run", "--verify"), ("inspect", "store", "--verify", "--json"), ("inspect", "run", "--json"),
    ("clean", "store", "--json"), ("clean", "store", "--drop", "run"), ("clean", "store", "--dry-run", "--json"),
    ("prepare", "store", "--recipe", "run/config.toml", "--json"), ("train", "--resume", "--out", "run", "--json"),
    ("train", "store", "--recipe", "run/config.toml", "--out", "run", "--overwrite"), ("evaluate", "run", "--json"),
    ("predict", "run", "--out", "p.csv"), ("append", "store", "--edges", "e.csv", "--json"),
    ("ingest", "e.csv", "--nodes", "n.csv", "--out", "store", "--overwrite", "--json"),
)  # fmt: skip
_PLANTED = (
    "run/checkpoints", "run/tensorboard", "run/.metrics.json.partial-PID", "run/.model.safetensors.partial",
    "run/checkpoints/.last.pt.partial", "store/prepared", "store/versions", "store/refs", ".store.partial",
    ".store.lock", ".run.lock", "store/refs/KEY.json", "store/versions/KEY.json", "store/prepared/KEY",
    "store/prepared/tokens", "store/prepared/tokens/KEY", "store/prepared/tokens/.KEY.partial",
    "store/labels-KEY.npy", "store/.manifest.json.partial-PID", "run/.checksums.json.partial-PID",
)  # fmt: skip
_PATHS = ("../outside", "/etc/passwd", "../../../../etc", "..", "", ".", "outside\0", f"../outside/{_KEY}", "a/b", "*")


class HostileTarget:
    """A run and its store, of which a stranger has made some part."""

    def __init__(self, folder: Path) -> None:
        torch.set_num_threads(1)
        self._whole, self._here = folder / "whole", folder / "here"
        store = small_store(self._whole / "store")
        train(store, Config.from_recipe("default", SMALL), self._whole / "run")
        small_store(self._whole / "store", shift=1.0, overwrite=True)
        (self._whole / "e.csv").write_text("source,target\nn1,n2\nn2,n3\n")
        (self._whole / "n.csv").write_text("id,x,label\nn1,0.1,a\nn2,0.2,b\nn3,0.3,a\n")
        for name in (_KEY, f"tokens/{_KEY}"):
            (self._whole / "outside" / name).mkdir(parents=True)
            (self._whole / "outside" / name / "manifest.json").write_text("{}")
            (self._whole / "outside" / name / f"values-{_KEY}.npy").write_bytes(b"theirs")
        for name in (f"{_KEY}.json", "last.pt", f"labels-{_KEY}.npy", "progress.json", "secret"):
            (self._whole / "outside" / name).write_text("theirs")
        call(["evaluate", str(self._whole / "run"), "--json"])  # compiles before time counts

    def run(self, rng: random.Random, steps: Sequence[random.Random]) -> str:
        os.chdir(self._whole.parent)
        shutil.rmtree(self._here, ignore_errors=True)
        shutil.copytree(self._whole, self._here, symlinks=True)
        os.chdir(self._here)
        for step in steps:
            _harm(step)
        before = _tree(Path("outside"))
        verdict = ACCEPTED
        for verb in rng.sample(_VERBS, 2):
            arguments = list(verb)
            code, out, err = call(arguments)
            if _tree(Path("outside")) != before:
                raise Wrong(f"something outside was changed: by {arguments}")
            if (code == 1 and "--verify" in arguments) or judge(arguments, code, out, err) == REFUSED:
                verdict = REFUSED
        return verdict


def _harm(rng: random.Random) -> None:
    kind = rng.randrange(5)
    if kind == 0:  # a link of a name that will be written
        _plant(Path(rng.choice(_PLANTED).replace("KEY", _own_key(rng)).replace("PID", str(os.getpid()))), rng)
    elif kind == 1:  # a link in the place of anything
        known = sorted(path for part in ("run", "store") for path in Path(part).rglob("*"))
        _plant(rng.choice(known), rng)
    elif kind == 2:
        names = [*Path("store").glob("*.json"), *Path("store").glob("*/*.json"), *Path("store").rglob("manifest.json")]
        harm_json(rng.choice(sorted({*names, Path("run/metrics.json"), Path("run/checksums.json")})), rng)
    elif kind == 3:  # a path in the place of a version or a store
        config = Path("run/config.toml")
        if config.is_file():
            key = rng.choice(("fingerprint", "store", "absolute"))
            other = f'{key} = "{rng.choice(_PATHS)}"'
            config.write_text(re.sub(rf'^{key} = ".*"$', lambda _: other, config.read_text(), flags=re.MULTILINE))
            Path("run/checksums.json").unlink(missing_ok=True)
    elif not Path("run/metrics.jsonl").is_dir():
        line = rng.choice(('{"epoch": "x"}', "[]", "3", '{"epoch": {}}', "null", '{"epoch": 1, "train": 3}'))
        Path("run/metrics.jsonl").write_text(line + "\n")
        Path("run/checksums.json").unlink(missing_ok=True)


def _own_key(rng: random.Random) -> str:
    """The name of something that is there, or of nothing."""
    found = [_KEY, *(path.name for path in Path("store/prepared").glob("*/*") if len(path.name) == 16)]
    return rng.choice(sorted(found))


def _plant(place: Path, rng: random.Random) -> None:
    if not place.parent.is_dir():
        return
    if place.is_dir() and not place.is_symlink():
        shutil.rmtree(place)
    place.unlink(missing_ok=True)
    names = ("outside", "outside/secret", f"outside/{_KEY}", "outside/nothing", "outside/last.pt", "store", "run")
    target = Path(rng.choice(names)).absolute()
    if rng.random() < 0.1:
        place.mkdir()
    else:
        place.symlink_to(target)


def _tree(folder: Path) -> dict[str, str]:
    return {
        str(item): hashlib.sha256(item.read_bytes()).hexdigest() if item.is_file() else "folder"
        for item in sorted(folder.rglob("*"))
    }
