"""The output for people: progress, tables, colours. Only this module and `rows_table` use rich.

stdout is for data, stderr for remarks. On a terminal, progress is a bar; in a pipe, it is a plain line every few
seconds. rich respects `NO_COLOR` and the width of the terminal. A result that stdout does not take is an OutputError.
"""

from __future__ import annotations

import os
import re
import textwrap
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

from rich.console import Console, ConsoleOptions, RenderableType
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn
from rich.segment import Segment
from rich.text import Text

from duoln.cli import streams
from duoln.cli.rows_table import RowsTable
from duoln.data import json_text
from duoln.runs.series import Range
from duoln.system.visible import visible
from duoln.tasks.events import Evaluation, Listener, RunStart, Update
from duoln.tasks.task import Task, claims_of
from duoln.tasks.values import Column, Dataset, split_columns
from duoln.training.memory import format_bytes

_PLAIN_SECONDS = 5.0
_BAR_SECONDS = 0.1


class _Plain(Console):
    """Rich's console for texts from any source: it reads no markup in them and shows control characters by `visible`.

    All output passes through this class, so that no other code has to care about it.
    """

    def __init__(self, file: Any) -> None:
        super().__init__(file=file, highlight=False, markup=False, emoji=False, _environ=_environment())

    def render_str(self, text: str, **options: Any) -> Text:
        """A text before its width is measured."""
        return super().render_str(visible(text), **options)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterator[Segment]:
        """All segments of the output; rich's own commands to the terminal are marked as such."""
        for segment in super().render(renderable, options):
            yield segment if segment.control else segment._replace(text=visible(segment.text))


def _environment() -> dict[str, str]:
    """The variables that rich reads, without a width or height that is no number from 20 on."""
    return {key: value for key, value in os.environ.items()
            if not key.endswith(("COLUMNS", "LINES")) or re.fullmatch("[2-9][0-9]|[1-9][0-9]{2,3}", value)}


talk = _Plain(streams.RemarkStream())
"""stderr: progress, remarks and errors."""


def say(text: str, style: str = "") -> None:
    """One remark on stderr. On a terminal, lines longer than it is wide are broken between words.

    A line that begins with four spaces is a command or a text of a program, and stays whole.
    """
    lines = [text]
    if talk.is_terminal:
        lines = [line if line.startswith("    ") else textwrap.fill(
            line, talk.width, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False)
            for line in text.splitlines()]
    talk.print("\n".join(lines), style=style or None, soft_wrap=True)


def put(text: str, style: str = "") -> None:
    """One or more lines of the result, on stdout."""
    if style:
        _Plain(streams.Results()).print(text, style=style, soft_wrap=True)
    else:
        streams.Results().write(f"{visible(text)}\n")


def put_json(value: Any) -> None:
    """The result as one JSON document on stdout."""
    streams.Results().write(f"{json_text.dumps(value)}\n")


def show(table: RenderableType, data: bool = False) -> None:
    """A table on stderr, or on stdout if it is the result."""
    (_Plain(streams.Results()) if data else talk).print(table)


def show_page(text: str) -> None:
    """A page of Markdown on stdout: set in type on a terminal, else as it is."""
    out = _Plain(streams.Results())
    if out.is_terminal:
        from rich.markdown import Markdown  # takes a while to load

        out.print(Markdown(text, code_theme="ansi_dark", hyperlinks=False))
    else:
        put(text.rstrip())


def tell(text: str, data: bool) -> None:
    """One or more lines on stdout if they are the result, else on stderr, where a JSON document is the result."""
    put(text) if data else say(text)


def width() -> int:
    """The number of columns that a table on stdout may have; 0 if stdout is not a terminal."""
    out = _Plain(streams.Results())
    return out.width if out.is_terminal else 0


def number(value: Any, form: str) -> str:
    """A metric as text; tiny values in powers of ten. That of several runs is their median, and the range below it, and
    the number of runs in which it is NaN.
    """
    if isinstance(value, Range):
        of_numbers = f"{number(value.median, form)}\n{number(value.low, form)}-{number(value.high, form)}"
        return of_numbers + (f"\n{value.nan} NaN" if value.nan else "")
    if not isinstance(value, int | float):
        return "-"
    if form == ".4f" and 0 < abs(value) < 5e-4:
        return f"{value:.1e}"
    return format(value, form)


class ProgressDisplay(Listener):
    """The progress of one run: a bar on a terminal, else a line every few seconds, and a line for each evaluation.

    Args:
        columns: the metrics of an evaluation.
        x_axis: whether its line has the epoch or the update.
        name: what the run is called, at the start of each line; by default as its variant.
    """

    def __init__(self, columns: Sequence[Column], x_axis: Literal["epoch", "update"] = "epoch", name: str = "") -> None:
        self.columns, self.x_axis, self.name = split_columns(columns)[0], x_axis, name
        self._last_update = 0
        self._bar: Progress | None = None
        self._id: TaskID | None = None
        self._said = 0.0
        self._weights = 0

    def on_start(self, event: RunStart) -> None:
        self.name = self.name or event.variant
        self._last_update, self._weights = event.last_update, event.parameters
        for line in event.mended:
            say(f"{self.name}: {line}", style="yellow")
        for line in event.refused:
            say(f"{self.name}: refused {line}", style="yellow")
        if event.is_finished:
            say(f"{self.name}: is finished, after update {event.first_update}; a larger --epochs goes on")
        elif event.first_update:
            say(f"{self.name}: goes on after update {event.first_update}")
        for change in event.changes:
            say(f"{self.name}: {change}", style="yellow")
        if talk.is_terminal and not talk.is_dumb_terminal and event.first_update < event.last_update:
            self._bar = Progress(TextColumn("{task.description}", markup=False), BarColumn(bar_width=None),
                                 MofNCompleteColumn(), TimeRemainingColumn(), TextColumn("left"), console=talk,
                                 transient=True)
            self._id = self._bar.add_task(self.name, total=event.last_update, completed=event.first_update)
            self._bar.start()
        self._said = time.monotonic()

    def on_memory(self, step_bytes: int) -> None:
        say(f"{self.name}: {self._weights:,} weights; an update takes about {format_bytes(step_bytes)} of memory")

    def on_update(self, event: Update) -> None:
        now = time.monotonic()
        if now - self._said < (_BAR_SECONDS if self._bar else _PLAIN_SECONDS):
            return
        self._said = now
        if self._bar is not None and self._id is not None:
            text = visible(f"{self.name}  loss {event.loss:.4f}")
            self._bar.update(self._id, completed=event.update, description=text)
        else:
            say(f"{self.name}: update {event.update}/{self._last_update}  loss {event.loss:.4f}")

    def on_evaluation(self, event: Evaluation) -> None:
        figures = "  ".join(f"{c.heading} {number(event.values.get(c.key), c.form)}" for c in self.columns)
        when = f"epoch {round(event.epoch, 3):g}" if self.x_axis == "epoch" else f"update {event.update}"
        say(f"{self.name}: {when}  {figures}")
        self._said = time.monotonic()

    def on_end(self, status: str, result: Mapping[str, Any]) -> None:
        if self._bar is not None:
            self._bar.stop()
            self._bar = None


def show_results(task: Task, dataset: Dataset, results: Sequence[Mapping[str, Any]],
                 told_apart: Mapping[str, Sequence[str]] | None = None, data: bool = True) -> None:
    """The measured figures beside the task's references; every row names data that are not the original.

    Properties that all runs share are printed below the table.

    Args:
        task, dataset, results: of the runs.
        told_apart: columns that tell results of one variant apart, by heading.
        data: the table is the result, for stdout; else a JSON document is, and the table goes to stderr.
    """
    claimed = claims_of(task, dataset)
    metrics, levels = split_columns(task.columns)
    length, unit = ("updates", "update") if task.x_axis == "update" else ("epochs", "epoch")
    same = {key: len({r[key] for r in results}) == 1 for key in ("batch_size", length)}
    texts = {"variant": [r["variant"] for r in results], **(told_apart or {})}
    if dataset.provenance != "original":
        texts["data"] = [dataset.provenance] * len(results)
    figures = [(heading, [count(r[key]) for r in results])
               for key, heading in (("batch_size", "batch"), (length, f"{unit}s")) if not same[key]]
    figures += [(c.heading, [number(r.get(c.key), c.form) for r in results]) for c in metrics]
    figures.append(("ms/update", [f"{1e3 * r['seconds_per_update']:.1f}" for r in results])
                   if task.x_axis == "update" else
                   ("s/epoch", [f"{r['seconds_per_epoch']:.2f}" for r in results]))
    claims = [("the paper's claim" if task.paper else "reference", [claimed.get(r["variant"], "-") for r in results])]
    columns = [*texts.items(), *figures, *(claims if claimed else [])]
    of = "" if claimed or not task.references else "; synthetic data: not comparable with the paper"
    title = f"{task.title} ({task.paper}{of})" if task.paper else task.title
    places = range(len(texts), len(texts) + len(figures))
    show(RowsTable(title, [heading for heading, _ in columns], list(zip(*(cells for _, cells in columns), strict=True)),
                   whole=range(places.stop), right=places), data)
    common = [f"data: {dataset.label}"]
    if results and same["batch_size"]:
        common.append(f"batch {results[0]['batch_size']}")
    if results and same[length]:
        common.append(f"{count(results[0][length])} {unit}{'' if results[0][length] == 1 else 's'}")
    common += [f"{c.heading} {number(results[0].get(c.key), c.form)}" for c in levels if results]
    tell("\n".join([", ".join(common), *changes_in(results)]), data)


def changes_in(results: Sequence[Mapping[str, Any]]) -> list[str]:
    """A line for each part of a run's identity that was not the same in all its updates."""
    return [f"{r['variant']}: not the bits of one run: {change}" for r in results for change in r.get("changes", ())]


def count(value: float | Range) -> str:
    """A number of epochs, updates or examples; epochs may be a fraction. A Range is written like `number`."""
    if isinstance(value, Range):
        return f"{count(value.median)}\n{count(value.low)}-{count(value.high)}"
    return f"{value}" if isinstance(value, int) else f"{round(value, 3):g}"
