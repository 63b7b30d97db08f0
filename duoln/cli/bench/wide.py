"""`duoln bench wide`: each part that a user meets beside the same in PyTorch or JAX."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from itertools import groupby
from typing import Any

from duoln.bench import text, wide
from duoln.bench.records import of_row, quantiles, ratios
from duoln.bench.turns import Kept
from duoln.bench.wide_rows import EVERY, GROUPS, PEERS
from duoln.cli import console
from duoln.cli.bench.options import add_common, begin, recorded, tables_are_results
from duoln.cli.rows_table import RowsTable
from duoln.errors import DuolnError


def add_kind(kinds: Any) -> None:
    """Add `wide`."""
    parser = kinds.add_parser("wide", help="each part that a user meets, in a row of its own")
    parser.add_argument("rows", nargs="*", metavar="ROW", choices=[*GROUPS, *EVERY, []],
                        help=f"a row or a group ({', '.join(GROUPS)}; default all)")
    parser.add_argument("--peer", action="append", default=[], choices=PEERS)
    add_common(parser, rounds=9, runs=3)
    parser.set_defaults(run=_wide)


def _wide(args: argparse.Namespace) -> int:
    failed = False
    with recorded("wide", args, begin(args)) as timed, Kept() as sides:
        for group, names in groupby(wide.chosen(args.rows), lambda name: EVERY[name].group):
            measured: dict[str, list[dict[str, Any]]] = {}
            for name in names:
                console.say(name)
                try:
                    rows = sides.time(wide.entries(name, args.backend, args.peer),
                                      *wide.turns(name, args.rounds, args.runs))
                except DuolnError as error:
                    console.say(f"{name}: {error}", style="red")
                    failed = True
                    continue
                timed += [wide.case_of(name, of_row(row)) for row in rows]
                measured[name] = rows
            if measured:
                _show(group, measured, args)
    return 1 if failed else 0


def _show(group: str, measured: Mapping[str, list[dict[str, Any]]], args: argparse.Namespace) -> None:
    """A table for each other side; our times alone where there is none."""
    others = dict.fromkeys(row["name"] for rows in measured.values() for row in rows[1:])
    for side in others or ["duoln"]:
        lines = [_line(name, rows[0], row) for name, rows in measured.items() for row in rows if row["name"] == side]
        peaks = any(line[-1] for line in lines)
        headings = ("row", "duoln", side, "ratio", "quartiles", "of least", "of peaks")
        cut = len(headings) if peaks else -1
        console.show(RowsTable(f"{group}, ratio to {side}", headings[:cut], [line[:cut] for line in lines],
                               whole=range(len(headings))), tables_are_results(args))


def _line(name: str, ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> tuple[str, ...]:
    """Medians of the times; the median of the ratios and their quartiles; the ratios of the least times, and of the
    peak memories, where these matter.
    """
    calls = EVERY[name].calls
    low, high = quantiles(ratios(ours, theirs), 0.25, 0.75)
    times = [text.duration(side["median"] / calls) for side in (ours, theirs)]
    peaks = [side["facts"].get("peak_bytes") for side in (ours, theirs)]
    of_peaks = f"{peaks[0] / peaks[1]:.2f}" if EVERY[name].passes == "update" and all(peaks) else ""
    return (name, *times, f"{theirs['ratio']:.2f}", f"{low:.2f}-{high:.2f}",
            f"{min(ours['samples']) / min(theirs['samples']):.2f}", of_peaks)
