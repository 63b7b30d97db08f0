"""`duoln paper`: every figure, table and claim of the paper, with our evidence for it and the verdict.

`contents` is the list of what the paper contains; `standing` says how far our runs reproduce each entry.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from duoln.cli import facts
from duoln.errors import UsageError
from duoln.system.filesystem import check_regular
from duoln.system.paths import path_argument
from duoln.tasks import Command, hookimpl

if TYPE_CHECKING:
    from duoln.plugins.paper.standing import Standing
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
    from duoln.plugins.paper import page
    from duoln.plugins.paper.standing import by_entry, standings
    from duoln.tasks.registry import Registry

    if args.html is not None and args.html.suffix.lower() not in _PAGES:
        raise UsageError(f"[paper] expected a page's name, which ends in {' or '.join(_PAGES)}; found {args.html}")
    registry = Registry(asked=args.plugins)
    rows, refused = standings(registry, args.runs or _kept(registry))
    if not any(row.evidence for row in rows):
        console.say("no runs that decide a claim: it wants runs of all the variants that it compares, with one "
                    "setting; --runs names the folder of your runs")
    for line in refused:
        console.say(f"left out: {line}", style="yellow")
    rows = _asked_for(rows, args.section, args.verdict)
    if args.html is not None:
        check_regular(args.html)
        console.say(f"wrote {page.write_page(rows, args.html)}")
    if args.json:
        tables = [table._asdict() for entry in registry.tasks.values() for table in entry.task.reference_tables()]
        console.put_json({**page.document(rows), "refused": refused, "tables": tables})
    elif args.html is None and not (args.section or args.verdict):
        console.show(page.table(rows), data=True)
        console.say("the claims of a section: duoln paper 6.5; of a verdict: --verdict holds; all, with curves: --html "
                    "FILE.html")
    elif args.html is None:
        for line in (line for entry, of_entry in by_entry(rows) for line in page.lines(entry, of_entry)):
            console.put(line)
        if not rows:
            where = f" of section {args.section}" if args.section else ""
            console.put(f"no claim{where} has the verdict {args.verdict!r}")
    return 0


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
    of_tasks = [kept.kept_folder(entry.task) for entry in registry.tasks.values()]
    folders = [_RUNS, *of_tasks, KEPT, *map(Path, records or ())]
    return [folder for folder in folders if folder.is_dir()]


@hookimpl
def duoln_commands() -> list[Command]:
    """The command `paper`."""
    return [Command("paper", "every figure, table and claim of the paper, our evidence, the verdict", _add_options,
                    _paper)]
