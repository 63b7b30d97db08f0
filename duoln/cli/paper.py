"""`duoln paper`: every figure, table and numbered claim of the paper, the command for it, and the results so far."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from duoln.cli import facts

if TYPE_CHECKING:
    from duoln.paper.standing import Run, Standing
    from duoln.tasks.task import Task

_RUNS = Path("runs")
_WIDE = 140
"""On a terminal with at least so many columns the result is a table; on a narrower one and in a pipe it is lines."""


def add_command(commands: Any) -> None:
    """Add `paper` to the command line."""
    paper = commands.add_parser("paper", help="every figure, table and claim of the paper, and the results so far")
    paper.add_argument("--runs", action="append", type=Path, metavar="DIR",
                       help="runs to look in, or one run; may be repeated (default: runs, and those kept beside tasks)")
    facts.add_plugin_option(paper)
    paper.add_argument("--json", action="store_true", help="as one JSON object on stdout")
    paper.set_defaults(run=_paper)


def _paper(args: argparse.Namespace) -> int:
    from duoln.cli import console
    from duoln.paper.standing import standings
    from duoln.runs import kept
    from duoln.tasks.registry import Registry

    registry = Registry(asked=args.plugins)
    kept_here = [kept.home(entry.task) for entry in registry.tasks.values()]
    folders = args.runs or [*([_RUNS] if _RUNS.is_dir() else []), *(folder for folder in kept_here if folder.is_dir())]
    if not folders:
        console.say(f"no folder {_RUNS} here, and no results are kept; name the folder of your runs with --runs")
    standings_known, refused = standings(registry, folders)
    for line in refused:
        console.say(f"left out: {line}", style="yellow")
    if args.json:
        console.put_json({"paper": [_as_json(s) for s in standings_known], "refused": refused})
    elif console.width() >= _WIDE:
        console.show(console.rows_table("Layer Normalization, as far as it is reproduced here",
                                        ("where", "claim, and the command", "the paper's", "ours", "data", "open"),
                                        [row for s in _numbered(standings_known) for row in _rows(*s)]), data=True)
    else:
        for s, first in _numbered(standings_known):
            for line in _lines(s, first):
                console.put(line)
    return 0


def _numbered(standings_known: Sequence[Standing]) -> Iterator[tuple[Standing, str]]:
    """Each entry, and the earlier entry that already shows the runs of its task, if there is one."""
    seen: dict[str, str] = {}
    for s in standings_known:
        yield s, seen.get(s.entry.task, "")
        if s.variants:
            seen.setdefault(s.entry.task, s.entry.where)


def _rows(s: Standing, first: str) -> Iterator[tuple[str, ...]]:
    """A row for the entry, and one for each variant."""
    claim = s.entry.claim + (f"\n$ {s.command}" if s.command else "")
    ours = f"the runs of {first}" if first else s.finding.summary if s.finding else ""
    yield (f"{s.entry.where}\n({s.entry.section})", claim, "", ours, s.provenance or "", "; ".join(s.open))
    for variant in () if first else s.variants:
        run = variant.run
        yield ("", "", f"{variant.name}: {variant.reference}",
               f"{_figures(s.task, run)}\n{_length(run)}" if run else "-", run.dataset.label if run else "", "")


def _lines(s: Standing, first: str) -> Iterator[str]:
    yield f"{s.entry.where} ({s.entry.section}): {s.entry.claim}"
    if s.command:
        yield f"  $ {s.command}"
    if s.finding:
        yield f"  ours: {s.finding.summary} ({s.finding.path})"
    if first:
        yield f"  ours: the runs of {first}"
    for variant in () if first else s.variants:
        yield f"  {variant.name}, the paper: {variant.reference or '-'}"
        if variant.run:
            run = variant.run
            yield f"  {variant.name}, ours: {_figures(s.task, run)} ({run.dataset.label}; {_length(run)}; {run.path})"
            if run.differs:
                changed = ", ".join(f"{key} {ours} (paper: {theirs})" for key, (ours, theirs) in run.differs.items())
                yield f"    settings: {changed}"
    for line in s.open:
        yield f"  open: {line}"


def _figures(task: Task | None, run: Run) -> str:
    from duoln.cli import console

    columns = task.columns if task else ()
    return ", ".join(f"{c.heading} {console.number(run.figures[c.key], c.form)}" for c in columns
                     if c.key in run.figures) or "no figure of the task's"


def _length(run: Run) -> str:
    words = [f"{run.epoch:g} epoch{'' if run.epoch == 1 else 's'}", f"{run.step} updates", run.time[:10]]
    return ", ".join(filter(None, words))


def _as_json(s: Standing) -> dict[str, Any]:
    return {
        "where": s.entry.where, "section": s.entry.section, "claim": s.entry.claim, "command": s.command,
        "task": s.entry.task or None, "provenance": s.provenance, "open": s.open,
        "finding": None if s.finding is None else {**s.finding._asdict(), "path": str(s.finding.path)},
        "variants": [{"variant": v.name, "paper": v.reference, "ours": None if v.run is None else {
            **v.run._asdict(), "path": str(v.run.path), "dataset": v.run.dataset._asdict()}} for v in s.variants]}
