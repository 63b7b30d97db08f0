"""`duoln bench`, and `duoln compare`, which compares its records."""

from __future__ import annotations

import argparse
from typing import Any

from duoln.cli import console
from duoln.errors import UsageError
from duoln.system.paths import path_argument


def add_command(commands: Any) -> None:
    """Add `bench` and `compare` to the command line."""
    from duoln.cli.bench import rows, survey

    bench = commands.add_parser("bench", help="time duoln, beside a peer in the same run")
    kinds = bench.add_subparsers(dest="kind", metavar="KIND", required=True)
    rows.add_groups(kinds)
    survey.add_kind(kinds)
    machines = kinds.add_parser("machines", help="what has been measured on which machine; measures nothing")
    machines.add_argument("files", nargs="*", type=path_argument, metavar="FILE.jsonl",
                          help="lines that `duoln bench ... --append FILE.jsonl` has added: these alone are shown")
    machines.set_defaults(run=_machines)

    versus = commands.add_parser("compare", help="compare files of `duoln bench ... --json FILE` from several machines")
    versus.add_argument("files", nargs="+", type=path_argument, metavar="FILE",
                        help="the others are compared with the first")
    versus.add_argument("--json", action="store_true", help="as one JSON object on stdout")
    versus.set_defaults(run=_compare)


def _machines(args: argparse.Namespace) -> int:
    from duoln.bench import machines
    from duoln.cli.rows_table import RowsTable

    for machine, works in machines.measured(args.files).items():
        headings, rows = machines.table(works)
        console.show(RowsTable(machine, headings, rows, whole=(1, 2)), data=True)
    return 0


def _compare(args: argparse.Namespace) -> int:
    from duoln.bench import compare as comparing
    from duoln.cli.rows_table import RowsTable

    for path in args.files:
        if path.is_dir():
            raise UsageError(f"{path}: expected a file of `duoln bench ... --json FILE`, found a folder; for runs: "
                             f"duoln report {' '.join(map(str, args.files))}")
    comparison = comparing.compare(args.files)
    if args.json:
        console.put_json(comparison.as_json())
        return 0
    for title, headings, rows in (comparing.groups_table(comparison), comparing.table(comparison)):
        console.show(RowsTable(title, headings, rows, whole=[0]), data=True)
    for line in comparing.remarks(comparison):
        console.put(line)
    return 0
