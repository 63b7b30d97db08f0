"""The state of the reproduction in a terminal, as JSON, and as an HTML page, with the paper's figures beside ours."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from duoln.cli.console import number
from duoln.cli.rows_table import RowsTable
from duoln.plugins.paper.contents import Entry
from duoln.plugins.paper.evidence import PROVENANCES, Setting
from duoln.plugins.paper.standing import KINDS, METHOD, VERDICTS, Standing, by_entry, tally
from duoln.runs import html, kept
from duoln.runs.commit import commit_words
from duoln.runs.curve import Curve
from duoln.runs.page import curves
from duoln.runs.series import series_of
from duoln.tasks.task import Task

TITLE = "Layer Normalization, as far as it is reproduced here"


# Terminal ---------------------------------------------------------------------------------------------------

def table(rows: Sequence[Standing]) -> RowsTable:
    """A line for each section and kind of evidence, and below it one for each kind."""
    of_section: dict[tuple[str, str], list[Standing]] = {}
    for row in rows:
        name = f"{row.entry.section} {row.entry.task}" if row.entry.section[:1] == "6" else row.entry.section
        of_section.setdefault((name, row.kind or "-"), []).append(row)
    for of_all in (*KINDS, None):
        of_section["all", of_all or "-"] = [row for row in rows if row.kind == of_all]
    cells = []
    for (name, kind), of_kind in of_section.items():
        counts = {word: sum(row.verdict == word for row in of_kind) for word in VERDICTS}
        seeds = sorted({row.seeded for row in of_kind} - {0})
        cells.append((name, ", ".join(f"{word} {count}" for word, count in counts.items() if count), kind,
                      "-".join(map(str, dict.fromkeys((*seeds[:1], *seeds[-1:]))))))
    return RowsTable(TITLE, ("section", "claims", "evidence", "seeds"), cells, whole=(0, 2))


def lines(entry: Entry, rows: Sequence[Standing]) -> Iterator[str]:
    """The claims of an entry."""
    yield f"{entry.where} ({entry.section}): {entry.shows}"
    settings = ""
    for row in rows:
        yield f"  {row.claim.text}: {row.verdict}{'; ' + row.so_far if row.so_far else ''}"
        for command in row.commands:
            yield f"    to decide it: {command}"
        if row.claim.published:
            yield f"    the paper: {row.claim.published}"
        if row.measured:
            yield f"    ours: {row.figures(number)} ({'; '.join(filter(None, row.basis))})"
        if row.evidence and row.task:
            yield f"    runs: {'; '.join(_folders(row.task, row.evidence.runs))}"
            yield f"    made: {_made(row.evidence.runs)}"
        changed = ", ".join(f"{key} {ours} (paper: {theirs})" for key, (ours, theirs) in row.differs.items())
        if changed:
            yield f"    settings: {'as above' if changed == settings else changed}"
        settings = changed or settings
        if row.missing:
            yield f"    open: {row.missing}"
    if entry.open:
        yield f"  open: {entry.open}"


def _folders(task: Task, runs: Sequence[Curve]) -> Iterator[str]:
    """The folders of runs, each with the runs in it; one that belongs to the task's package begins there."""
    below: dict[Path, dict[str, None]] = {}
    for run in runs:
        below.setdefault(run.path.parent, {})[run.path.name] = None
    package = kept.kept_folder(task).parent
    for folder, names in below.items():
        yield (f"{folder.relative_to(package.parent) if folder.is_relative_to(package) else folder}: "
               f"{', '.join(names)}")


def _made(runs: Sequence[Curve]) -> str:
    """The machines, the hours and the commits of runs."""
    starts = [start for run in runs for start in run.starts]
    machines = dict.fromkeys(start.get("backend", {}).get("device", "a machine not recorded") for start in starts)
    commits = dict.fromkeys(commit_words(start.get("git")) or "not recorded" for start in starts)
    hours = sum(run.points[-1]["wall_s"] for run in runs) / 3600
    return f"on {', '.join(machines)}, {hours:.2g} hours together, commit {', '.join(commits)}"


# JSON -------------------------------------------------------------------------------------------------------

def document(rows: Sequence[Standing]) -> dict[str, Any]:
    """The claims, and the number of each verdict."""
    return {"paper": [_claim(row) for row in rows], "verdicts": tally(rows)}


def _claim(row: Standing) -> dict[str, Any]:
    rule, evidence, finding = row.claim.rule, row.evidence, row.finding
    return {
        "where": row.entry.where, "section": row.entry.section, "shows": row.entry.shows, "claim": row.claim.text,
        "rule": None if rule is None else rule.words, "verdict": row.verdict, "kind": row.kind,
        "so_far": row.so_far or None, "published": row.claim.published or None, "commands": row.commands,
        "task": row.entry.task or None, "references": dict(row.task.references) if row.task else {},
        "figures": [figure._asdict() for figure in row.measured],
        "evidence": None if evidence is None else {
            "dataset": evidence.dataset._asdict(), "updates": evidence.shortest.points[-1]["update"],
            "paper_updates": evidence.length.at(evidence.shortest.config["batch_size"]),
            "length_source": evidence.length.source, "share": evidence.share, "seeds": list(evidence.seeds),
            "runs": [{"path": str(run.path), "variant": run.variant, "seed": run.config["seed"]}
                     for run in evidence.runs]},
        "settings": row.differs, "open": [remark for remark in (row.missing, row.entry.open) if remark],
        "finding": None if finding is None else {
            "path": str(finding.path), **{key: finding.content[key] for key in ("time", "summary")}}}


# Page -------------------------------------------------------------------------------------------------------

def write_page(rows: Sequence[Standing], target: Path) -> Path:
    """Write the page.

    Raises:
        CheckpointError: the file cannot be written.
    """
    return html.write(target, TITLE, [
        f"<h1>{html.text(TITLE)}</h1>", *_index(rows),
        "<h2>Verdicts by evidence</h2>", *html.table(("evidence", *VERDICTS), [
            (kind, *map(str, counts.values())) for kind, counts in tally(rows).items()]),
        "<h2>How a verdict is made</h2>", *(f"<p>{html.text(paragraph)}</p>" for paragraph in METHOD),
        *(part for place, (entry, of_entry) in enumerate(by_entry(rows))
          for part in _section(place, entry, of_entry))])


def _index(rows: Sequence[Standing]) -> Iterator[str]:
    """A line for each claim, with a link to its section."""
    yield '<div class="wide"><table><thead><tr><th>claim</th><th>verdict</th><th>where</th></tr></thead><tbody>'
    for place, (entry, of_entry) in enumerate(by_entry(rows)):
        where = f'<a href="#entry-{place}">{html.text(f"{entry.where} ({entry.section})")}</a>'
        for row in of_entry:
            yield f"<tr><td>{html.text(row.claim.text)}</td><td>{html.text(row.verdict)}</td><td>{where}</td></tr>"
    yield "</tbody></table></div>"


def _section(place: int, entry: Entry, rows: Sequence[Standing]) -> Iterator[str]:
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
    for printed in task.reference_tables():
        if printed.where == entry.where:
            yield f"<h3>The paper's {html.text(printed.where)}</h3>"
            yield from html.table(printed.headings, printed.rows)
    if not entry.curves:
        return
    yield "<h3>The paper's</h3>"
    yield from html.table(("variant", "the paper"), list(task.references.items()))
    yield "<h3>Ours</h3>"
    for settings in _runs_to_draw(task, rows):
        runs = [run for setting in settings for run in setting.runs.values()]
        batch = settings[0].config["batch_size"]
        yield f"<p>{html.text(settings[0].dataset.label)}, batch {batch}</p>"
        yield from curves(task, series_of(task, runs, "seed"))
    if not rows[0].settings:
        yield "<p>No runs yet.</p>"
        if task.reference_curves():
            yield from curves(task, [])


def _runs_to_draw(task: Task, rows: Sequence[Standing]) -> list[list[Setting]]:
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
