"""Text from data is shown literally: on a terminal, in a shell, in Markdown and LaTeX."""

from __future__ import annotations

import os
import re
import subprocess

import pytest
from markdown_it import MarkdownIt

from largegt.errors import InputError
from largegt.runtime.text import latex, markdown, printable, quoted

STEERING = ["\x1b[31m", "\x1b]0;title\x07", "\x9b31m", "\x00", "\r", "\x08", "\u202e", "\u2066", "\u200f", "\u2028"]
NAMES = [
    "plain", "two words", "it's", '"q"', "$HOME", "`id`", "$(id)", "a;b", "-x", "--out", "a\nb", "\x1b[31m", "né",
    "back\\slash", "\udcff", "*", "~", "!1", "a'\x07'b",
]  # fmt: skip


@pytest.mark.parametrize("sign", STEERING)
def test_what_steers_a_terminal_is_shown_as_an_escape(sign: str) -> None:
    shown = printable(f"né {sign} 中文")
    assert shown.isprintable()
    assert shown.startswith("né ")
    assert shown.endswith(" 中文")
    assert str(InputError(f"né {sign} 中文")) == shown


def test_letters_keep_their_joiners_and_line_breaks_stay_where_they_may() -> None:
    assert printable("کتاب\u200cخانه\x1b") == "کتاب\u200cخانه\\x1b"
    assert printable("a\nb\x1b", keep="\n") == "a\nb\\x1b"


@pytest.mark.parametrize("name", NAMES)
def test_a_shell_reads_a_quoted_name_back(name: str) -> None:
    word = quoted(name)
    assert word.isprintable()
    assert not word.startswith("-")
    said = subprocess.run(["bash", "-c", f"printf %s {word}"], capture_output=True, check=True).stdout
    assert os.path.normpath(os.fsdecode(said)) == os.path.normpath(name)


@pytest.mark.parametrize(
    "name",
    [
        "<script>alert(1)</script>", "a|b", "`code`", "**bold**", "_x_", "__x__", "a_b", "[link](http://x.example)",
        "![i](x)", "# head", "- item", "1. item", "> quote", "---", "a\\|b", "&lt;", "~~x~~", "<http://x.example>",
        "79.81±0.25", "-5",
    ],
)  # fmt: skip
def test_markdown_shows_a_name_literally(name: str) -> None:
    render = MarkdownIt("commonmark").enable(["table", "strikethrough"]).render
    html = render(f"{markdown(name)}\n\n| head |\n| --- |\n| {markdown(name)} |\n")
    shown = name.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    assert html.startswith(f"<p>{shown}</p>\n<table>")
    assert f"<td>{shown}</td>" in html
    assert "\n" not in markdown("two\nlines")


def test_latex_runs_no_command_of_a_name() -> None:
    assert latex(r"\input{/etc/passwd}") == r"\textbackslash{}input\{/etc/passwd\}"
    assert latex("a_b & 50% ~ ^ $x$ # <") == (r"a\_b \& 50\% \textasciitilde{} \textasciicircum{} \$x\$ \# \textless{}")
    assert latex("1.0±0.1") == r"1.0$\pm$0.1"
    assert not re.search(r"[\x00-\x1f]", latex("a\n\x1b"))
