"""`duoln bench machines`: what has been measured so far, and what a reader adds."""

from __future__ import annotations

import argparse
from typing import Any

from duoln.bench.records import check_target
from duoln.cli import console
from duoln.cli.rows_table import RowsTable
from duoln.pictures.drawing import check_picture
from duoln.system.paths import path_argument


def add_kind(kinds: Any) -> None:
    """Add `machines`."""
    parser = kinds.add_parser("machines", help="what has been measured on which machine; measures nothing")
    parser.add_argument("files", nargs="*", type=path_argument, metavar="FILE.jsonl",
                        help="lines that `duoln bench ... --append FILE.jsonl` has added")
    parser.add_argument("--plot", type=path_argument, metavar="FILE.png", help="also draw it (needs matplotlib)")
    parser.set_defaults(run=_machines)


def _machines(args: argparse.Namespace) -> int:
    from duoln.bench import machines

    if args.plot is not None:
        check_target(args.plot)
        check_picture(args.plot)
    measured = machines.measured(args.files)
    if args.plot is not None:
        from duoln.bench.machines_picture import draw

        console.say(f"wrote {draw(measured, args.plot)}")
    for machine, works in measured.items():
        headings, rows = machines.table(works)
        console.show(RowsTable(machine, headings, rows, whole=(1, 2)), data=True)
    return 0
