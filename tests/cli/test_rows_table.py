"""Tables of text on terminals of every width: nothing is cut."""

import io

import pytest

from duoln.cli import console
from duoln.cli.rows_table import RowsTable

HEADINGS = ("case", "side", "time", "+-", "duoln / side", "")
ROWS = [("fwd 4096x1000", "torch as installed", "733 us", "1%", "1.00", "least"),
        ("fwd+bwd 4096x1000", "duoln", "1.86 ms", "12%", "0.9 (0.8)", "")]
LONG = "it is for weights of at least 65536 values, and this one has 9"


def _drawn(monkeypatch, width, table):
    out = console._Plain(io.StringIO())
    out._width = width
    monkeypatch.setattr(console, "talk", out)
    console.show(table)
    return out.file.getvalue()


@pytest.mark.parametrize("width", [*range(20, 121), 500])
def test_no_figure_is_cut(width, monkeypatch):
    text = _drawn(monkeypatch, width, RowsTable("Layer norm", HEADINGS, ROWS, whole=range(len(HEADINGS))))
    assert "\u2026" not in text and all(len(line) <= width for line in text.splitlines())
    assert width < 26 or all(cell in text for row in ROWS for cell in row)
    assert ("\u2503" in text) == (width >= 78), "a table if there is room for it"


@pytest.mark.parametrize("width", range(30, 121, 5))
def test_long_cells_are_broken_between_words(width, monkeypatch):
    text = _drawn(monkeypatch, width, RowsTable("Rules", ("operator", "numpy"), [("linear", "compiled"), ("matmul", LONG)]))
    assert "\u2026" not in text
    assert all(word in text for word in ("operator", "linear", "compiled", *LONG.split()))
    assert (LONG in text) == (width >= 3 + len("operator") + 3 + len(LONG) + 1)


def test_cells_of_several_lines(monkeypatch):
    rows = [("a", "0.5\n0.4-0.6"), ("b", "0.7")]
    wide, narrow = (_drawn(monkeypatch, width, RowsTable("t", ("name", "of-one-long-word"), rows)) for width in (60, 20))
    assert "0.4-0.6" in wide and "0.5, 0.4-0.6" not in wide
    assert "of-one-long-word: 0.5, 0.4-0.6" in " ".join(narrow.split()) and "\u2503" not in narrow
