"""`duoln paper`: every figure, table and claim of the paper, with our evidence for it and the verdict."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from duoln.cli import facts
from duoln.errors import UsageError
from duoln.system.filesystem import check_regular
from duoln.system.paths import path_argument
from duoln.tasks import Command

if TYPE_CHECKING:
    from duoln.cli.rows_table import RowsTable
    from duoln.plugins.paper.contents import Entry
    from duoln.plugins.paper.evidence import Evidence
    from duoln.plugins.paper.standing import Standing
    from duoln.runs.curve import Curve
    from duoln.tasks.registry import Registry

_RUNS = Path("runs")
_PAGES = (".html", ".htm")


def _add_options(paper: argparse.ArgumentParser) -> None:
    paper.add_argument("section", nargs="?", metavar="SECTION",
                       help="the claims of a section, such as 6 or 6.5 (default: a line for each section)")
    paper.add_argument("--runs", action="append", type=path_argument, metavar="DIR",
                       help="runs to look in, or one run; may be repeated (default: runs, and what is kept beside the "
                            "code)")
    paper.add_argument("--verdict", metavar="WORDS", help="the claims with this verdict, such as 'does not hold'")
    paper.add_argument("--html", type=path_argument, metavar="FILE.html",
                       help="write one page that any browser opens: the paper's figures beside ours")
    facts.add_plugin_option(paper)
    paper.add_argument("--json", action="store_true", help="as one JSON object on stdout")


def _paper(args: argparse.Namespace) -> int:
    from duoln.cli import console
    from duoln.plugins.paper.standing import by_entry, standings, tally
    from duoln.tasks.registry import Registry

    if args.html is not None and args.html.suffix.lower() not in _PAGES:
        raise UsageError(f"[paper] expected a page's name, which ends in {' or '.join(_PAGES)}; found {args.html}")
    registry = Registry(asked=args.plugins)
    folders = args.runs or _kept(registry)
    rows, refused = standings(registry, folders)
    if not any(row.evidence for row in rows):
        console.say("no runs that decide a claim: it wants runs of all the variants that it compares, with one "
                    "setting; --runs names the folder of your runs")
    for line in refused:
        console.say(f"left out: {line}", style="yellow")
    rows = _asked_for(rows, args.section, args.verdict)
    if args.html is not None:
        from duoln.plugins.paper.page import write_page

        check_regular(args.html)
        console.say(f"wrote {write_page(rows, args.html, console.number)}")
    if args.json:
        tasks = [entry.task for entry in registry.tasks.values()]
        console.put_json({"paper": [_as_json(row) for row in rows], "verdicts": tally(rows), "refused": refused,
                          "tables": [table._asdict() for task in tasks for table in task.reference_tables()]})
    elif args.html is None and not (args.section or args.verdict):
        console.show(_index(rows), data=True)
        console.say("the claims of a section: duoln paper 6.5; of a verdict: --verdict holds; all, with curves: --html "
                    "FILE.html")
    elif args.html is None:
        for entry, of_entry in by_entry(rows):
            for line in _lines(entry, of_entry):
                console.put(line)
        if not rows:
            where = f" of section {args.section}" if args.section else ""
            console.put(f"no claim{where} has the verdict {args.verdict!r}")
    return 0


def _index(rows: Sequence[Standing]) -> RowsTable:
    """A line for each section and kind of evidence, and below it one for each kind."""
    from duoln.cli.rows_table import RowsTable
    from duoln.plugins.paper.page import TITLE
    from duoln.plugins.paper.standing import KINDS

    of_section: dict[tuple[str, str], list[Standing]] = {}
    for row in rows:
        name = f"{row.entry.section} {row.entry.task}" if row.entry.section[:1] == "6" else row.entry.section
        of_section.setdefault((name, row.kind or "-"), []).append(row)
    for of_all in (*KINDS, None):
        of_section["all", of_all or "-"] = [row for row in rows if row.kind == of_all]
    cells = []
    for (name, kind), of_kind in of_section.items():
        seeds = sorted({row.seeded for row in of_kind} - {0})
        cells.append((name, _counts(of_kind), kind, "-".join(map(str, dict.fromkeys((*seeds[:1], *seeds[-1:]))))))
    return RowsTable(TITLE, ("section", "claims", "evidence", "seeds"), cells, whole=(0, 2))


def _counts(rows: Sequence[Standing]) -> str:
    """The number of claims with each verdict."""
    from duoln.plugins.paper.standing import VERDICTS

    counts = {word: sum(row.verdict == word for row in rows) for word in VERDICTS}
    return ", ".join(f"{word} {count}" for word, count in counts.items() if count)


def _asked_for(rows: Sequence[Standing], section: str | None, verdict: str | None) -> list[Standing]:
    """The claims of a section, with the sections inside it, and of a verdict.

    Raises:
        UsageError: no claim is of this section, or there is no such verdict.
    """
    from duoln.core.arguments import did_you_mean
    from duoln.plugins.paper.standing import VERDICTS

    if verdict is not None and verdict not in VERDICTS:
        raise UsageError(f"[paper] --verdict: expected one of {', '.join(map(repr, VERDICTS))}; found {verdict!r}"
                         f"{did_you_mean(verdict, VERDICTS)}")
    of_section = [row for row in rows if section is None or f"{row.entry.section}.".startswith(f"{section}.")]
    if not of_section:
        known = dict.fromkeys(row.entry.section for row in rows)
        raise UsageError(f"[paper] expected one of the sections {', '.join(known)}, or what one begins "
                         f"with; found {section!r}")
    return [row for row in of_section if verdict in (None, row.verdict)]


def _kept(registry: Registry) -> list[Path]:
    """The user's runs, and the runs and findings that are kept beside the code, those of examples too."""
    from duoln.plugins.paper.evidence import KEPT
    from duoln.runs import kept

    examples = find_spec("duoln.examples")
    records = examples.submodule_search_locations if examples else None
    folders = [_RUNS, *(kept.home(entry.task) for entry in registry.tasks.values()), KEPT, *map(Path, records or ())]
    return [folder for folder in folders if folder.is_dir()]


def _lines(entry: Entry, rows: Sequence[Standing]) -> Iterator[str]:
    from duoln.cli import console

    yield f"{entry.where} ({entry.section}): {entry.shows}"
    settings = ""
    for row in rows:
        yield f"  {row.claim.text}: {row.verdict}{'; ' + row.so_far if row.so_far else ''}"
        for command in row.commands:
            yield f"    to decide it: {command}"
        if row.claim.published:
            yield f"    the paper: {row.claim.published}"
        if row.measured:
            yield f"    ours: {row.figures(console.number)} ({'; '.join(filter(None, row.basis))})"
        if row.evidence:
            yield f"    runs: {'; '.join(_folders(row))}"
            yield f"    made: {_made(row.evidence.runs)}"
        changed = ", ".join(f"{key} {ours} (paper: {theirs})" for key, (ours, theirs) in row.differs.items())
        if changed:
            yield f"    settings: {'as above' if changed == settings else changed}"
        settings = changed or settings
        if row.missing:
            yield f"    open: {row.missing}"
    if entry.open:
        yield f"  open: {entry.open}"


def _made(runs: Sequence[Curve]) -> str:
    """The machines, the hours and the commits of runs."""
    from duoln.runs.commit import commit_words

    starts = [start for run in runs for start in run.starts]
    machines = dict.fromkeys(start.get("backend", {}).get("device", "a machine not recorded") for start in starts)
    commits = dict.fromkeys(commit_words(start.get("git")) or "not recorded" for start in starts)
    hours = sum(run.points[-1]["wall_s"] for run in runs) / 3600
    return f"on {', '.join(machines)}, {hours:.2g} hours together, commit {', '.join(commits)}"


def _folders(row: Standing) -> Iterator[str]:
    """The folders of a claim's runs, each with the runs in it; one that belongs to the task's package begins there."""
    from duoln.runs import kept

    below: dict[Path, dict[str, None]] = {}
    for run in row.evidence.runs if row.evidence else ():
        below.setdefault(run.path.parent, {})[run.path.name] = None
    package = kept.home(row.task).parent if row.task else None
    for folder, names in below.items():
        inside = package is not None and folder.is_relative_to(package)
        yield f"{folder.relative_to(package.parent) if package and inside else folder}: {', '.join(names)}"


def _as_json(row: Standing) -> dict[str, Any]:
    rule = row.claim.rule
    return {
        "where": row.entry.where, "section": row.entry.section, "shows": row.entry.shows, "claim": row.claim.text,
        "rule": None if rule is None else rule.words, "verdict": row.verdict, "kind": row.kind,
        "so_far": row.so_far or None, "published": row.claim.published or None, "commands": row.commands,
        "task": row.entry.task or None, "references": dict(row.task.references) if row.task else {},
        "figures": [figure._asdict() for figure in row.measured],
        "evidence": _evidence(row.evidence) if row.evidence else None, "settings": row.differs, "open": row.open,
        "finding": None if row.finding is None else {
            "path": str(row.finding.path), **{key: row.finding.content[key] for key in ("time", "summary")}}}


def _evidence(evidence: Evidence) -> dict[str, Any]:
    run = evidence.shortest
    return {"dataset": evidence.dataset._asdict(), "updates": run.points[-1]["update"],
            "paper_updates": evidence.length.at(run.config["batch_size"]), "length_source": evidence.length.source,
            "share": evidence.share, "seeds": list(evidence.seeds),
            "runs": [{"path": str(curve.path), "variant": curve.variant, "seed": curve.config["seed"]}
                     for curve in evidence.runs]}


COMMAND = Command("paper", "every figure, table and claim of the paper, our evidence, the verdict", _add_options,
                  _paper)
