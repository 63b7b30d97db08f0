"""A report as one HTML page: for each task a table, its curves, and the settings."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from duoln.pictures import drawing
from duoln.runs import html
from duoln.runs.curves_picture import draw
from duoln.runs.series import Series
from duoln.system.filesystem import temporary_folder
from duoln.tasks.task import Task, claims_of


class Part(NamedTuple):
    """The runs of one task.

    `series` are what the rows and the curves are; `pictures` are files to hold below the curves, of which those in a
    form that browsers do not show are left out.
    """

    task: Task
    series: Sequence[Series]
    pictures: Sequence[Path] = ()

    @property
    def title(self) -> str:
        """The task's, with its place in the paper."""
        return f"{self.task.title}: {self.task.paper}" if self.task.paper else self.task.title


def write_page(parts: Sequence[Part], target: Path, number: Callable[[Any, str], str]) -> Path:
    """Write the page.

    Args:
        parts: one for each task.
        target: the file.
        number: writes a metric in the form of its column.

    Raises:
        CheckpointError: the file cannot be written.
    """
    return html.write(target, "; ".join(part.title for part in parts), [
        text for part in parts for text in _part(part, number)])


def _part(part: Part, number: Callable[[Any, str], str]) -> Iterator[str]:
    task, series, pictures = part
    yield f"<h1>{html.text(part.title)}</h1>"
    for label in dict.fromkeys(c.dataset.label for s in series for c in s.runs):
        yield f"<p>data: {html.text(label)}</p>"
    yield from _results(task, series, number)
    yield "<h2>Curves</h2>"
    yield from curves(task, series)
    for path in pictures:
        if image := html.picture(path):
            yield f"<h2>{html.text(path.name)}</h2>{image}"
    yield from _settings(series)


def _results(task: Task, series: Sequence[Series], number: Callable[[Any, str], str]) -> Iterator[str]:
    settings = list(dict.fromkeys(key for s in series for key in s.differences if key != "epochs"))
    claims = [claims_of(task, s.runs[0].dataset) for s in series]
    claim = ["the paper's claim" if task.paper else "the reference"] if any(claims) else []
    rows = [[s.variant, s.name, *(s.differences.get(key, "") for key in settings),
             *(number(s.length(key), ".10g") for key in ("epoch", "update")),
             *(number(s.figure(c.key), c.form) for c in task.columns), s.time(task.x_axis)[1],
             *(claimed.get(s.variant, "-") for _ in claim)] for s, claimed in zip(series, claims, strict=True)]
    yield "<h2>Results</h2>"
    if task.references and not all(claims):
        yield "<p>Synthetic data: not comparable with the paper.</p>"
    headings = ["variant", "run", *settings, "epochs", "updates", *(c.heading for c in task.columns),
                series[0].time(task.x_axis)[0], *claim]
    yield from html.table(headings, rows)
    yield from (f"<p>{html.text(f'{s.label()}: not the bits of one run: {change}')}</p>"
                for s in series for change in s.changes())
    yield from (f"<p>{html.text(line)}</p>" for s in series for line in s.remarks())


def _settings(series: Sequence[Series]) -> Iterator[str]:
    """All settings, a column for each series; those that differ stand first and are marked."""
    configs = [s.runs[0].config for s in series]
    keys = dict.fromkeys(key for config in configs for key in config)
    rows = [[key, *(str(config.get(key, "not set")) for config in configs)] for key in keys]
    rows.sort(key=lambda row: len(set(row[1:])) < 2)
    differing = [["* " + row[0], *row[1:]] if len(set(row[1:])) > 1 else row for row in rows]
    folders = [["folder", *("; ".join(str(c.path) for c in s.runs) for s in series)]]
    yield "<h2>Settings</h2><p>Settings that differ stand first, with a star.</p>"
    yield from html.table(["", *(s.label() for s in series)], [*differing, *folders])


def curves(task: Task, series: Sequence[Series]) -> Iterator[str]:
    """The curves as a picture, or what is missing to draw them."""
    if drawing.refusal():
        yield f"<p>No curves: {html.text(drawing.refusal())}</p>"
        return
    with temporary_folder() as folder:
        yield html.picture(draw(task, series, folder / "curves.png"))
