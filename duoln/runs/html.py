"""The frame of an HTML page that loads nothing from elsewhere: head, tables and pictures.

Names, labels and settings come from files: they stand in a page as escaped text. A policy in the page's head allows no
script and no connection.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Iterable, Iterator, Sequence
from html import escape
from pathlib import Path

from duoln.system.filesystem import make_folder, write_own
from duoln.system.visible import visible

_FIGURE = re.compile(r"-|NaN|[-+]?(\d[-+\d.,e%]*|nan%?|inf%?)")
"""A word of a cell of numbers: a number or a range; a dash where there is none."""
_IMAGES = {".png": "image/png", ".svg": "image/svg+xml"}
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
_STYLE = """
:root { color-scheme: light dark; }
body { font: 15px/1.45 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem;
       overflow-wrap: break-word; }
h1 { font-size: 1.3rem; }
h2 { font-size: 1.05rem; margin-top: 2rem; }
h3 { font-size: 0.95rem; margin: 1.2rem 0 0.3rem; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td { text-align: left; padding: 0.2rem 0.8rem 0.2rem 0; border-bottom: 1px solid #8886; vertical-align: top; }
.figures { text-align: right; white-space: nowrap; }
img { max-width: 100%; background: #fff; }
"""


def write(target: Path, title: str, body: Iterable[str]) -> Path:
    """Write a page.

    Args:
        target: the file.
        title: its name.
        body: all of it, as HTML.

    Raises:
        CheckpointError: the file cannot be written.
    """
    page = "\n".join([
        "<!doctype html>", '<html lang="en"><head><meta charset="utf-8">',
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">',
        '<meta name="viewport" content="width=device-width">', f"<title>{text(title)}</title>",
        f"<style>{_STYLE}</style></head><body>", *body, "</body></html>", ""])
    make_folder(target.parent)
    write_own(target, page.encode())
    return target


def text(value: object) -> str:
    """A text, escaped and visible."""
    return escape(visible(str(value)), quote=True)


def picture(path: Path) -> str:
    """The picture itself, because a page loads nothing; empty for a form that browsers do not show."""
    form = _IMAGES.get(path.suffix.lower())
    data = base64.b64encode(path.read_bytes()).decode() if form else ""
    return f'<p><img alt="{text(path.name)}" src="data:{form};base64,{data}"></p>' if form else ""


def table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    """A table of texts; a cell may have several lines. Columns of numbers stand to the right."""
    rows = list(rows)
    columns = list(zip(*rows, strict=True)) or [()] * len(headings)
    places = [' class="figures"' if all(map(_FIGURE.fullmatch, " ".join(column).split())) else "" for column in columns]
    yield '<div class="wide"><table><thead><tr>'
    yield "".join(f"<th{place}>{text(heading)}</th>" for heading, place in zip(headings, places, strict=True))
    yield "</tr></thead><tbody>"
    for row in rows:
        cells = ("<br>".join(map(text, cell.split("\n"))) for cell in row)
        yield f"<tr>{''.join(f'<td{place}>{cell}</td>' for cell, place in zip(cells, places, strict=True))}</tr>"
    yield "</tbody></table></div>"
