"""container/ and docs/container.md, as far as they can be checked without a container engine: each file that is copied
is there and reaches the build, and every pip command is one that this pip takes."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from fnmatch import fnmatch
from pathlib import Path

import pytest
from typer.main import get_command

from largegt.cli import app

ROOT = Path(__file__).parent.parent
CONTAINER = ROOT / "container"
PAGE = (ROOT / "docs" / "container.md").read_text(encoding="utf-8")


def instructions() -> list[tuple[str, str]]:
    """(instruction, rest) of every one, its lines joined."""
    text = (CONTAINER / "Containerfile").read_text(encoding="utf-8")
    text = re.sub(r"^\s*#.*\n", "", text, flags=re.MULTILINE)
    lines = re.sub(r"\\\n\s*", " ", text).splitlines()
    return [(line.split()[0], line.partition(" ")[2].strip()) for line in lines if line.strip()]


def of(name: str) -> list[str]:
    return [rest for instruction, rest in instructions() if instruction == name]


def test_it_is_made_of_known_instructions_and_plain_images() -> None:
    known = {"FROM", "ARG", "WORKDIR", "COPY", "RUN", "ENV", "USER", "ENTRYPOINT", "CMD"}
    assert {name for name, _ in instructions()} <= known
    assert of("FROM") == ["python:3.12-slim AS build", "python:3.12-slim"]
    assert of("ENTRYPOINT") == ['["largegt"]']
    assert of("WORKDIR")[-1] == "/work"


def test_what_is_copied_is_there_and_not_ignored() -> None:
    rules = (CONTAINER / "Containerfile.dockerignore").read_text(encoding="utf-8").splitlines()
    assert "*" in rules, "nothing else travels"
    for rest in of("COPY"):
        words = shlex.split(rest)
        if words[0].startswith("--from="):
            assert f"AS {words[0].removeprefix('--from=')}" in " ".join(of("FROM"))
            continue
        for source in words[:-1]:
            assert (ROOT / source).exists(), source
            assert f"!{source}" in rules, f"{source} would not reach the build"


def test_the_build_has_what_the_wheel_needs() -> None:
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    copied = [word for rest in of("COPY") for word in shlex.split(rest)]
    assert "README.md" in copied, "pyproject.toml names it"
    assert 'readme = "README.md"' in project
    assert "src" in copied
    backend = re.findall(r'requires = \["(hatchling[^"]*)"\]', project)[0]
    assert f"'{backend}'" in of("RUN")[0]


def test_it_runs_as_somebody_who_may_write_what_numba_keeps() -> None:
    names = [name for name, _ in instructions()]
    assert of("USER") == ["largegt"]
    assert names.index("USER") > max(at for at, name in enumerate(names) if name == "RUN")
    folders = re.findall(r"(\w+)=(/cache/\S+)", " ".join(of("ENV")))
    assert dict(folders)["NUMBA_CACHE_DIR"] == "/cache/numba"
    made = " ".join(of("RUN"))
    assert "chmod -R a+rwX /cache" in made
    for _, folder in folders:
        assert folder in made


def test_the_shell_and_pip_understand_every_run() -> None:
    for rest in of("RUN"):
        subprocess.run(["sh", "-n", "-c", rest], check=True)
        for command in re.findall(r"pip ((?:wheel|install) [^&;|]*)", rest):
            options = {word for word in shlex.split(command) if word.startswith("-")}
            verb = command.split()[0]
            known = subprocess.run([sys.executable, "-m", "pip", verb, "--help"], capture_output=True, text=True).stdout
            for option in options:
                assert re.search(rf"(^|[\s,]){re.escape(option)}\b", known), option


@pytest.mark.parametrize("name", ["__pycache__", "kernels.cpython-312.pyc"])
def test_no_leftovers_travel(name: str) -> None:
    rules = (CONTAINER / "Containerfile.dockerignore").read_text(encoding="utf-8").splitlines()
    inside = f"src/largegt/preprocessing/__pycache__/{name}" if "." in name else f"src/largegt/preprocessing/{name}"
    assert any(fnmatch(inside, f"{rule}*") for rule in rules if rule.startswith("**/"))


def test_the_page_names_what_there_is() -> None:
    arguments = {rest.partition("=")[0] for rest in of("ARG")}
    assert set(re.findall(r"--build-arg '?(\w+)=", PAGE)) == arguments
    verbs = re.findall(r" largegt ([a-z]+)", " ".join(re.findall(r"docker run .*", PAGE)))
    assert verbs
    assert set(verbs) <= set(get_command(app).commands)
    assert f":{of('WORKDIR')[-1]}" in PAGE
