"""A report as one HTML page: table, curves that answer to the pointer, settings. It loads nothing from elsewhere.

Names, labels and settings come from files: they stand in the page as escaped text, and in the data of its script as
JSON without `<`, `>` and `&`; the script writes them as text, never as markup. A policy in the page's head allows no
script but this one, by its hash, and no connection.
"""

from __future__ import annotations

import base64
import hashlib
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from html import escape
from importlib.resources import files
from pathlib import Path
from typing import Any

from duoln.data import strictjson
from duoln.runs.curves_picture import lines_of, losses
from duoln.runs.series import Point, Series, metric
from duoln.system.filesystem import make_folder, write_own
from duoln.system.visible import visible
from duoln.tasks.task import Task
from duoln.tasks.values import Column, split_columns

_IMAGES = {".png": "image/png", ".svg": "image/svg+xml"}


def write_page(task: Task, series: Sequence[Series], target: Path, number: Callable[[Any, str], str],
               pictures: Sequence[Path] = ()) -> Path:
    """Write the page.

    Args:
        task: the runs' task.
        series: what the rows and the curves are.
        target: the file.
        number: writes a metric in the form of its column.
        pictures: files to hold below the curves; those in a form that browsers do not show are left out.

    Raises:
        CheckpointError: the file cannot be written.
    """
    parts = files("duoln.runs")
    script = parts.joinpath("page.js").read_text(encoding="utf-8")
    css = parts.joinpath("page.css").read_text(encoding="utf-8")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    title = f"{task.title}: {task.paper}" if task.paper else task.title
    policy = f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'; img-src data:"
    page = "\n".join([
        "<!doctype html>", '<html lang="en"><head><meta charset="utf-8">',
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">',
        '<meta name="viewport" content="width=device-width">', f"<title>{_html(title)}</title>",
        f"<style>{css}</style></head><body>", f"<h1>{_html(title)}</h1>",
        *(f"<p>data: {_html(label)}</p>" for label in dict.fromkeys(
            c.dataset.label for s in series for c in s.runs)),
        *_results(task, series, number), '<div id="panels"></div>',
        "<noscript><p>The curves need JavaScript; the tables do not.</p></noscript>", *_pictures(pictures),
        *_settings(series),
        f'<script type="application/json" id="data">{_json(_panels(task, series))}</script>',
        f"<script>{script}</script>", "</body></html>", ""])
    make_folder(target.parent)
    write_own(target, page.encode())
    return target


def _html(text: object) -> str:
    return escape(visible(str(text)), quote=True)


def _json(value: Any) -> str:
    text = strictjson.dumps(value)
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")


def _table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    yield '<div class="wide"><table><thead><tr>'
    yield "".join(f"<th>{_html(heading)}</th>" for heading in headings)
    yield "</tr></thead><tbody>"
    for row in rows:
        yield f"<tr>{''.join(f'<td>{_html(cell)}</td>' for cell in row)}</tr>"
    yield "</tbody></table></div>"


def _results(task: Task, series: Sequence[Series], number: Callable[[Any, str], str]) -> Iterator[str]:
    settings = list(dict.fromkeys(key for s in series for key in s.differences))
    claim = [] if not task.references else ["the paper's claim" if task.paper else "the reference"]
    rows = [[s.variant, s.name, *(s.differences.get(key, "") for key in settings), f"{s.runs[0].last['epoch']:g}",
             str(s.runs[0].last["step"]), *(number(s.figure(c.key), c.form) for c in task.columns),
             *(task.references.get(s.variant, "-") for _ in claim)] for s in series]
    yield "<h2>Results</h2>"
    yield from _table(["variant", "run", *settings, "epochs", "updates", *(c.heading for c in task.columns), *claim],
                      rows)


def _pictures(paths: Sequence[Path]) -> Iterator[str]:
    """The pictures themselves, because the page loads nothing."""
    for path in paths:
        if path.suffix.lower() in _IMAGES:
            data = base64.b64encode(path.read_bytes()).decode()
            name = _html(path.name)
            yield f'<h2>{name}</h2><img alt="{name}" src="data:{_IMAGES[path.suffix.lower()]};base64,{data}">'


def _settings(series: Sequence[Series]) -> Iterator[str]:
    """All settings, a column for each series; those that differ stand first and are marked."""
    configs = [s.runs[0].config for s in series]
    keys = dict.fromkeys(key for config in configs for key in config)
    rows = [[key, *(str(config.get(key, "not set")) for config in configs)] for key in keys]
    rows.sort(key=lambda row: len(set(row[1:])) < 2)
    differing = [["* " + row[0], *row[1:]] if len(set(row[1:])) > 1 else row for row in rows]
    folders = [["folder", *("; ".join(str(c.path) for c in s.runs) for s in series)]]
    yield "<h2>Settings</h2><p>Settings that differ stand first, with a star.</p>"
    yield from _table(["", *(s.label() for s in series)], [*differing, *folders])


def _panels(task: Task, series: Sequence[Series]) -> dict[str, Any]:
    """What the script draws: for each column of the task the lines of all series."""
    lines = lines_of(task, series)
    metrics, _ = split_columns(task.columns)
    panels = [_panel(column, {label: s.points(metric(column.key, task.x_axis)) for label, (s, _) in lines.items()})
              for column in metrics]
    if task.x_axis == "step":
        of_training = {label: s.points(losses) for label, (s, _) in lines.items()}
        panels.insert(0, _panel(Column("", "training loss"), of_training))
    return {"axis": "updates" if task.x_axis == "step" else "epoch",
            "lines": [{"label": visible(label), "colour": look.colour, "dashes": look.dashes}
                      for label, (_, look) in lines.items()],
            "panels": panels}


def _panel(column: Column, points: Mapping[str, Sequence[Point]]) -> dict[str, Any]:
    finite = {label: [p for p in line if all(map(math.isfinite, p))] for label, line in points.items()}
    values = [value for line in finite.values() for p in line for value in (p.low, p.high)]
    return {"heading": visible(column.heading), "percent": column.form.endswith("%"),
            "logarithmic": bool(values) and 0 < 10 * min(values) <= max(values),
            "lines": [[list(p) for p in line] for line in finite.values()]}
