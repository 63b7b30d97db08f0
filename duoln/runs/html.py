"""The frame of an HTML page that loads nothing from elsewhere: head, tables, and curves that answer to the pointer.

Names, labels and settings come from files: they stand in a page as escaped text, and in the data of its script as JSON
without `<`, `>` and `&`; the script writes them as text, never as markup. A policy in the page's head allows no script
but this one, by its hash, and no connection.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from html import escape
from importlib.resources import files
from pathlib import Path
from typing import Any

from duoln.data import strictjson
from duoln.system.filesystem import make_folder, write_own
from duoln.system.visible import visible

_FIGURE = re.compile(r"-|NaN|[-+]?(\d[-+\d.,e%]*|nan%?|inf%?)")
"""A word of a cell of numbers: a number or a range; a dash where there is none."""
_IMAGES = {".png": "image/png", ".svg": "image/svg+xml"}


def write(target: Path, title: str, body: Iterable[str]) -> Path:
    """Write a page.

    Args:
        target: the file.
        title: its name.
        body: all of it, as HTML.

    Raises:
        CheckpointError: the file cannot be written.
    """
    parts = files("duoln.runs")
    script = parts.joinpath("page.js").read_text(encoding="utf-8")
    css = parts.joinpath("page.css").read_text(encoding="utf-8")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'; img-src data:"
    page = "\n".join([
        "<!doctype html>", '<html lang="en"><head><meta charset="utf-8">',
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">',
        '<meta name="viewport" content="width=device-width">', f"<title>{text(title)}</title>",
        f"<style>{css}</style></head><body>", *body,
        "<noscript><p>The curves need JavaScript; the tables do not.</p></noscript>",
        f"<script>{script}</script>", "</body></html>", ""])
    make_folder(target.parent)
    write_own(target, page.encode())
    return target


def text(value: object) -> str:
    """A text, escaped and visible."""
    return escape(visible(str(value)), quote=True)


def pictures(paths: Iterable[Path]) -> Iterator[str]:
    """The pictures themselves, because a page loads nothing. Those in a form that browsers do not show are left out."""
    for path in paths:
        if path.suffix.lower() in _IMAGES:
            data = base64.b64encode(path.read_bytes()).decode()
            name = text(path.name)
            yield f'<h2>{name}</h2><img alt="{name}" src="data:{_IMAGES[path.suffix.lower()]};base64,{data}">'


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


def curves(panels: Mapping[str, Any]) -> str:
    """The place where the script draws panels of curves, and their data; see `duoln.runs.page.panels`."""
    return f'<div class="curves"><script type="application/json">{_json(panels)}</script></div>'


def _json(value: Any) -> str:
    characters = strictjson.dumps(value)
    return characters.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")
