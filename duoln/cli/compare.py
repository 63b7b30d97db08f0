"""`duoln compare`: the measurements of several machines side by side."""

from __future__ import annotations

import argparse
from typing import Any

from duoln.errors import UsageError
from duoln.system.paths import path_argument


def add_command(commands: Any) -> None:
    """Add `compare` to the command line."""
    versus = commands.add_parser("compare", help="compare files of `duoln bench ... --json FILE` from several machines")
    versus.add_argument("files", nargs="+", type=path_argument, metavar="FILE",
                        help="the others are compared with the first")
    versus.add_argument("--json", action="store_true", help="as one JSON object on stdout")
    versus.set_defaults(run=_compare)


def _compare(args: argparse.Namespace) -> int:
    from duoln.bench import compare as comparing
    from duoln.cli import console
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
