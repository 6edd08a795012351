"""The site: it builds without a warning and without a network, its links work, and what it says can be run.

Code of the pages runs in this process, in an empty folder, in the order it stands there. Numbers of nodes and epochs
are made smaller first; nothing else is changed.
"""

from __future__ import annotations

import ast
import os
import re
import runpy
import shlex
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest

import largegt
from largegt.cli.app import _ORDER
from largegt.config.overrides import describe_settings
from largegt.config.recipes import recipe_names
from largegt.config.schema import IngestConfig, describe_config
from run_helpers import Cli, one_thread  # noqa: F401

pytest.importorskip("mkdocs")

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
SMALLER = {
    "quickstart.md": {"--scale 0.001": "--scale 0.0001", "--epochs 5": "--epochs 1", "--epochs 2": "--epochs 1"},
    "own-data.md": {"--epochs 2": "--epochs 1"},
    "tutorials/engineer.md": {"ACCOUNTS = 6_000": "ACCOUNTS = 240"},
    "tutorials/researcher.md": {"NODES = 3_000": "NODES = 240", "epochs=8": "epochs=2", "(0, 1)": "(0,)"},
    "tutorials/sklearn.md": {"NODES = 2_000": "NODES = 240", "epochs=6": "epochs=2"},
    "tutorials/operator.md": {"NODES = 3_000": "NODES = 240"},
}


class Page(HTMLParser):
    """What one built page loads, where it leads, and which anchors it has."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.loads: list[str] = []
        self.links: list[str] = []
        self.anchors: set[str] = set()
        self.nav: set[str] = set()
        self._navs = 0
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = {name: value or "" for name, value in attrs}
        self._navs += tag == "nav"
        self.anchors |= {found[name] for name in ("id", "name") if name in found}
        if tag == "a" and "href" in found:
            self.links.append(found["href"])
            if self._navs:
                self.nav.add(found["href"])
        if tag == "link":
            self.loads.append(found.get("href", ""))
        self.loads += [found[name] for name in ("src", "srcset", "poster", "data") if name in found]
        self.loads += re.findall(r"url\(['\"]?([^'\")]+)", found.get("style", ""))

    def handle_endtag(self, tag: str) -> None:
        self._navs -= tag == "nav"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "-f", str(ROOT / "mkdocs.yml"), "-d", str(out)],
        capture_output=True, text=True, check=False, env=os.environ | {"NO_MKDOCS_2_WARNING": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return out


@pytest.fixture(scope="module")
def pages(site: Path) -> dict[Path, Page]:
    return {file: Page(file.read_text(encoding="utf-8")) for file in sorted(site.rglob("*.html"))}


def test_nothing_is_loaded_from_elsewhere(site: Path, pages: dict[Path, Page]) -> None:
    assert len(pages) > 30
    for file, page in pages.items():
        assert not [url for url in page.loads if re.match(r"(\w+:)?//", url) or url.startswith("http")], file
    for file in site.rglob("*.css"):
        outside = re.findall(r"(?:url\(|@import)\s*['\"]?(?:https?:)?//[^)]*", file.read_text(encoding="utf-8"))
        assert not outside, (file, outside)


def test_every_page_is_in_the_navigation(site: Path, pages: dict[Path, Page]) -> None:
    reached = {(site / urlsplit(href).path).resolve() for href in pages[site / "index.html"].nav if "://" not in href}
    assert {file.resolve() for file in pages} - reached <= {(site / "404.html").resolve()}


def test_links_and_anchors_lead_somewhere(site: Path, pages: dict[Path, Page]) -> None:
    count = 0
    for file, page in pages.items():
        if file.name == "404.html":  # its links are meant for a server's root
            continue
        for href in {*page.links, *page.loads}:
            parts = urlsplit(href)
            if parts.scheme in ("http", "https", "mailto", "data"):
                continue
            target = (file.parent / unquote(parts.path)).resolve() if parts.path else file
            target = target / "index.html" if target.is_dir() else target
            assert target.is_file(), f"{file.relative_to(site)} leads to {href}"
            if parts.fragment and target.suffix == ".html":
                assert unquote(parts.fragment) in pages[site / target.relative_to(site.resolve())].anchors, (file, href)
            count += 1
    assert count > 1000


def text_of(page: Path) -> str:
    import html

    return html.unescape(re.sub(r"<[^>]+>", "", page.read_text(encoding="utf-8")))


def test_the_command_line_is_told_in_full(site: Path, lg: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    shown = text_of(site / "cli.html")
    for verb in _ORDER:
        said = lg(verb, "--help")
        assert said.code == 0
        options = set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", said.out)) - {"--help"}
        part = re.search(rf"largegt {verb}¶(.*?)(?=largegt (?:{'|'.join(_ORDER)})¶|$)", shown, flags=re.DOTALL)
        assert part is not None, verb
        assert not [option for option in options if option not in part[1]], verb


def test_settings_and_recipes_are_told_in_full(site: Path) -> None:
    shown = text_of(site / "settings.html")
    for name, _, text, _ in [*describe_settings(IngestConfig, "ingest."), *describe_config()]:
        assert f"{name} = " in shown
        assert " ".join(text.replace("`", "").split()) in " ".join(shown.split()), name
    for name in recipe_names():
        assert f"\n{name}\n" in shown


def test_every_public_name_is_documented(pages: dict[Path, Page]) -> None:
    shown = "".join(file.read_text(encoding="utf-8") for file in pages if file.parent.name == "api")
    headings = re.sub(r"<[^>]+>", "", "\n".join(re.findall(r"<h2.*?</h2>", shown, flags=re.DOTALL)))
    for name in {*largegt.__all__, *largegt._OF_EXTRAS} - {"__version__"}:
        assert re.search(rf"\blg\.{name}\b", headings), name


def test_parameters_are_a_list(site: Path) -> None:
    """The lines of docstrings that tell of one parameter each (docs/docstrings.py)."""
    shown = (site / "api" / "data.html").read_text(encoding="utf-8")
    for name in ("edges", "nodes", "features", "labels"):
        assert f"<li><code>{name}</code>: " in shown
    assert shown.count("<li><code>edges</code>: .parquet, .csv, .tsv") == 1


def test_pictures_are_those_of_the_script(tmp_path: Path) -> None:
    drawn = runpy.run_path(str(DOCS / "pictures" / "draw.py"))
    drawn["main"](tmp_path)
    page = (DOCS / "how-it-works.md").read_text(encoding="utf-8")
    assert sorted(file.name for file in tmp_path.iterdir()) == sorted(f.name for f in DOCS.glob("pictures/*.svg"))
    for file in tmp_path.iterdir():
        assert f"pictures/{file.name}#only-{file.stem.rpartition('-')[2]}" in page
        assert file.read_text().count("<path") == (DOCS / "pictures" / file.name).read_text().count("<path")


# what the pages say can be run


def blocks(page: str) -> Iterator[tuple[str, str, str]]:
    """(language, file name or "", code) of every block of sh and Python."""
    yield from re.findall(r'^```(sh|python)(?: title="([^"]+)")?\n(.*?)^```', page, flags=re.DOTALL | re.MULTILINE)


@pytest.mark.parametrize("name", SMALLER)
def test_the_code_runs(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lg: Cli) -> None:
    page = (DOCS / name).read_text(encoding="utf-8")
    for large, small in SMALLER[name].items():
        assert large in page
        page = page.replace(large, small)
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    for language, file, code in blocks(page):
        if file:
            Path(file).write_text(code, encoding="utf-8")
        elif language == "python":
            exec(compile(code, name, "exec"), names)
        else:
            for line in code.replace("\\\n", " ").splitlines():
                run_line(line, lg)


def run_line(line: str, lg: Cli) -> None:
    """One line of a shell: ours, or Python with a script; what installs is left to whoever installs."""
    program, *words = shlex.split(line, comments=True)
    assert program in ("largegt", "python", "pip"), line
    if program == "python":
        runpy.run_path(words[0], run_name="__main__")
    elif program == "largegt":
        done = lg(*words)
        assert done.code == 0, f"{line}\n{done.out}\n{done.err}"


# messages


@pytest.mark.parametrize("page", [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted(DOCS.rglob("*.md"))], ids=str)
def test_files_that_a_page_names_exist(page: Path) -> None:
    """Paths are from the project, its package or its page."""
    named = re.findall(r"`((?:[a-z_]+/)+[a-z_0-9]+\.py)`", page.read_text(encoding="utf-8"))
    places = (ROOT, ROOT / "src" / "largegt", page.parent)
    assert [path for path in named if not any((place / path).is_file() for place in places)] == []


def test_names_of_where_things_are_exist() -> None:
    """A row has three cells: what you look for, its files, and names in these files."""
    page = (DOCS / "where-things-are.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| .+ \| (.+) \| (.+) \|$", page, flags=re.MULTILINE)
    found = [tuple(re.findall(r"`([^`]+)`", cell) for cell in row) for row in rows if row[0].startswith("`")]
    assert len(found) > 100
    for files, names in found:
        text = "".join((ROOT / "src" / "largegt" / file).read_text(encoding="utf-8") for file in files)
        assert [name for name in names if not re.search(rf"\b{name}\b", text)] == [], files


@cache
def messages() -> list[str]:
    """Every string of the source, with … for what is put into it."""
    found: list[str] = []
    for file in (ROOT / "src").rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.JoinedStr):
                parts = (part.value if isinstance(part, ast.Constant) else "…" for part in node.values)
                found.append("".join(map(str, parts)))
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                found.append(node.value)
    return found


def quoted() -> list[str]:
    page = (DOCS / "troubleshooting.md").read_text(encoding="utf-8")
    return re.findall(r"^`([^`\n]+)`\n\n:   ", page, flags=re.MULTILINE)


def test_there_are_enough_messages() -> None:
    assert len(quoted()) >= 25


@pytest.mark.parametrize("message", quoted())
def test_messages_are_those_of_the_source(message: str) -> None:
    """… on the page stands for anything; what is between must follow in one string of the source."""
    message = message.replace("run the same command again", "…")  # a constant of errors.py, put into many messages
    pattern = re.compile(".*?".join(map(re.escape, message.strip("… ").split("…"))), flags=re.DOTALL)
    assert any(pattern.search(one) for one in messages())
