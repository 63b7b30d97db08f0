"""The state of the reproduction as one HTML page: the paper's figures and tables beside ours."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from duoln.plugins.paper.contents import Entry
from duoln.plugins.paper.evidence import PROVENANCES, Setting
from duoln.plugins.paper.standing import METHOD, VERDICTS, Standing, by_entry, tally
from duoln.runs import html
from duoln.runs.page import curves
from duoln.runs.series import series_of
from duoln.tasks.task import Task

TITLE = "Layer Normalization, as far as it is reproduced here"


def write_page(rows: Sequence[Standing], target: Path, number: Callable[[Any, str], str]) -> Path:
    """Write the page.

    Args:
        rows: the claims.
        target: the file.
        number: writes a figure in a form.

    Raises:
        CheckpointError: the file cannot be written.
    """
    return html.write(target, TITLE, [
        f"<h1>{html.text(TITLE)}</h1>", *_index(rows),
        "<h2>Verdicts by evidence</h2>", *html.table(("evidence", *VERDICTS), [
            (kind, *map(str, counts.values())) for kind, counts in tally(rows).items()]),
        "<h2>How a verdict is made</h2>", *(f"<p>{html.text(paragraph)}</p>" for paragraph in METHOD),
        *(part for place, (entry, of_entry) in enumerate(by_entry(rows))
          for part in _section(place, entry, of_entry, number))])


def _index(rows: Sequence[Standing]) -> Iterator[str]:
    """A line for each claim, with a link to its section."""
    yield '<div class="wide"><table><thead><tr><th>claim</th><th>verdict</th><th>where</th></tr></thead><tbody>'
    for place, (entry, of_entry) in enumerate(by_entry(rows)):
        where = f'<a href="#entry-{place}">{html.text(f"{entry.where} ({entry.section})")}</a>'
        for row in of_entry:
            yield f"<tr><td>{html.text(row.claim.text)}</td><td>{html.text(row.verdict)}</td><td>{where}</td></tr>"
    yield "</tbody></table></div>"


def _section(place: int, entry: Entry, rows: Sequence[Standing],
             number: Callable[[Any, str], str]) -> Iterator[str]:
    yield f'<h2 id="entry-{place}">{html.text(f"{entry.where} ({entry.section})")}</h2>'
    yield f"<p>Shown there: {html.text(entry.shows)}.</p>"
    if entry.open:
        yield f"<p>Open: {html.text(entry.open)}.</p>"
    yield from html.table(
        ("claim", "verdict", "the paper's", "ours", "data", "length", "seeds", "rule, and command"),
        [(row.claim.text, "\n".join(filter(None, [row.verdict, row.so_far])), row.claim.published or "-",
          row.figures(number) or row.missing, *(words or "-" for words in row.basis),
          "\n".join([*([row.claim.rule.words] if row.claim.rule else []),
                     *(f"to decide it: {command}" for command in row.commands)])) for row in rows])
    differing = list(dict.fromkeys(  # claims of one entry may rest on runs of several settings
        (key, str(ours), str(theirs)) for row in rows for key, (ours, theirs) in row.differs.items()))
    if differing:
        yield "<h3>Settings that are not the paper's</h3>"
        yield from html.table(("setting", "ours", "the paper's"), differing)
    task = rows[0].task
    if task is not None:
        yield from _of_task(entry, task, rows)


def _of_task(entry: Entry, task: Task, rows: Sequence[Standing]) -> Iterator[str]:
    """The paper's table, and for a figure its curves beside ours."""
    for table in task.reference_tables():
        if table.where == entry.where:
            yield f"<h3>The paper's {html.text(table.where)}</h3>"
            yield from html.table(table.headings, table.rows)
    if not entry.curves:
        return
    yield "<h3>The paper's</h3>"
    yield from html.table(("variant", "the paper"), list(task.references.items()))
    yield "<h3>Ours</h3>"
    for settings in _drawn(task, rows):
        runs = [run for setting in settings for run in setting.runs.values()]
        batch = settings[0].config["batch_size"]
        yield f"<p>{html.text(settings[0].dataset.label)}, batch {batch}</p>"
        yield from curves(task, series_of(task, runs, "seed"))
    if not rows[0].settings:
        yield "<p>No runs yet.</p>"
        if task.reference_curves():
            yield from curves(task, [])


def _drawn(task: Task, rows: Sequence[Standing]) -> list[list[Setting]]:
    """Runs that are drawn together, because only their variants differ: those with a run that is behind a verdict.

    Where no run decides anything, those on the best data with the most variants.
    """
    of_variants = {key for overrides in task.variants.values() for key in overrides}
    groups: dict[str, list[Setting]] = {}
    for setting in rows[0].settings:
        common = sorted((key, value) for key, value in setting.config.items() if key not in of_variants)
        groups.setdefault(repr((setting.dataset, common)), []).append(setting)
    deciding = {id(setting) for row in rows if row.evidence for setting in row.evidence.settings}
    order = list(task.variants)
    for group in groups.values():
        group.sort(key=lambda setting: order.index(setting.variant))
    drawn = [group for group in groups.values() if deciding.intersection(map(id, group))]
    return drawn or sorted(groups.values(), key=lambda group: (
        -PROVENANCES.index(group[0].dataset.provenance), len({setting.variant for setting in group})))[-1:]
