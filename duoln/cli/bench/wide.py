"""`duoln bench wide`: each part that a user meets beside the same in PyTorch or JAX."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from itertools import groupby
from typing import Any

from duoln.bench import text, wide
from duoln.bench.records import of_row, ratios
from duoln.bench.turns import Kept
from duoln.bench.wide_rows import GROUPS, ROWS
from duoln.cli import console
from duoln.cli.bench.options import add_common, begin, recorded, tables_are_results
from duoln.cli.rows_table import RowsTable
from duoln.errors import DuolnError

_HEADINGS = ("ratio", "quartiles", "of least")


def add_kind(kinds: Any) -> None:
    """Add `wide`."""
    parser = kinds.add_parser("wide", help="each part that a user meets, in a row of its own")
    parser.add_argument("rows", nargs="*", metavar="ROW", choices=[*GROUPS, *ROWS, []],
                        help=f"a row or a group ({', '.join(GROUPS)}; default all)")
    parser.add_argument("--peer", action="append", default=[], choices=wide.PEERS)
    add_common(parser, rounds=9, runs=3)
    parser.set_defaults(run=_wide)


def _wide(args: argparse.Namespace) -> int:
    failed = False
    with recorded("wide", args, begin(args)) as timed, Kept() as sides:
        for group, names in groupby(wide.chosen(args.rows), lambda name: ROWS[name].group):
            measured: dict[str, list[dict[str, Any]]] = {}
            for name in names:
                console.say(name)
                try:
                    rows = sides.time(wide.entries(name, args.backend, args.peer), args.rounds, args.runs)
                except DuolnError as error:
                    console.say(f"{name}: {error}", style="red")
                    failed = True
                    continue
                timed += [wide.case_of(name, of_row(row)) for row in rows]
                measured[name] = rows
            for peer in args.peer or ["duoln"]:
                lines = [_line(name, rows[0], row) for name, rows in measured.items()
                         for row in rows if row["name"] == peer]
                console.show(RowsTable(f"{group}, ratio to {peer}", ("row", "duoln", peer, *_HEADINGS), lines,
                                       whole=range(6)), tables_are_results(args))
    return 1 if failed else 0


def _line(name: str, ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> tuple[str, ...]:
    """Medians of the times, the median of the ratios and their quartiles, and the ratio of the least times."""
    made = ratios(ours, theirs)
    times = [text.duration(side["median"] / ROWS[name].calls) for side in (ours, theirs)]
    return (name, *times, f"{theirs['ratio']:.2f}", f"{made[len(made) // 4]:.2f} - {made[3 * len(made) // 4]:.2f}",
            f"{min(ours['samples']) / min(theirs['samples']):.2f}")
