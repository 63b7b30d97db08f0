"""`duoln bench`: one file for each kind of measurement, what they share in `options`, and what was measured before."""

from __future__ import annotations

import argparse
from typing import Any

from duoln.cli import console
from duoln.system.paths import path_argument


def add_command(commands: Any) -> None:
    """Add `bench` to the command line."""
    from duoln.cli.bench import attention, language_model, operators, rnn, survey, train, wide

    bench = commands.add_parser("bench", help="time duoln, beside a peer in the same run")
    kinds = bench.add_subparsers(dest="kind", metavar="KIND", required=True)
    for kind in (operators, wide, train, rnn, attention, language_model, survey):
        kind.add_kind(kinds)
    machines = kinds.add_parser("machines", help="what has been measured on which machine; measures nothing")
    machines.add_argument("files", nargs="*", type=path_argument, metavar="FILE.jsonl",
                          help="lines that `duoln bench ... --append FILE.jsonl` has added")
    machines.set_defaults(run=_machines)


def _machines(args: argparse.Namespace) -> int:
    from duoln.bench import machines
    from duoln.cli.rows_table import RowsTable

    for machine, works in machines.measured(args.files).items():
        headings, rows = machines.table(works)
        console.show(RowsTable(machine, headings, rows, whole=(1, 2)), data=True)
    return 0
