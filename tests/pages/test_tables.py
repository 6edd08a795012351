"""Tables in every format, and the ranks in their columns."""

from __future__ import annotations

from largegt.pages.markup import safe
from largegt.pages.tables import Ranked, Table, ranks


def test_tables_in_every_format() -> None:
    table = Table("A & B", ("Model", "100%"), (("a_b|c", Ranked("1.0±0.1", 1)), ("d", "2")))
    assert table.csv() == "Model,100%,place\na_b|c,1.0±0.1,first\nd,2,\n"
    assert "| a_b\\|c | **1.0±0.1** |" in table.markdown()
    latex = table.latex()
    assert r"\caption{A \& B}" in latex
    assert r"a\_b\textbar{}c & \textbf{1.0$\pm$0.1} \\" in latex
    assert latex.count("{") == latex.count("}")


def test_a_cell_of_data_cannot_become_markup() -> None:
    html = Table("<b>", ("Model", "score"), (("<script>", 1), (safe("<i>"), None))).html()
    assert "<script>" not in html
    assert "<caption>&lt;b&gt;</caption>" in html
    assert "&lt;script&gt;" in html


def test_text_shows_the_first_rows() -> None:
    table = Table("Scores", ("Model", "accuracy"), (("mlp", "0.5"), ("largegt", "0.75"), ("sgc", "0.25")))
    lines = table.text(2).splitlines()
    assert lines == ["Scores, the strongest 2 of 3", "Model    accuracy", "mlp           0.5", "largegt      0.75"]


def test_ranks() -> None:
    assert ranks([0.5, 0.7, 0.5, None]) == [2, 1, 2, None]
    assert ranks([0.5, 0.7], -1) == [1, 2]
