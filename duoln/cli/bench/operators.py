"""`duoln bench ops`: operators over rows, beside a plain copy."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from duoln.bench import operators, text
from duoln.bench.records import append_timings, make_record
from duoln.bench.subjects import SUBJECTS
from duoln.cli import console
from duoln.cli.bench.options import add_common, begin, numbers, tables_are_results, write_record
from duoln.cli.rows_table import RowsTable


def add_kind(kinds: Any) -> None:
    """Add `ops`."""
    ops = kinds.add_parser("ops", help="operators over rows, beside a plain copy")
    ops.add_argument("--op", action="append", choices=tuple(SUBJECTS), help="may be repeated (default all)")
    ops.add_argument("--shape", action="append", type=_rows_width, metavar="ROWS,WIDTH",
                     help="of every operator; may be repeated (default: each one's table)")
    ops.add_argument("--small", action="store_true", help="the reduced tables, for a CPU")
    ops.add_argument("--forward", action="store_true", help="forward only (default: also forward and backward)")
    ops.add_argument("--cold", action="store_true", help="inputs that are in no cache (default)")
    ops.add_argument("--warm", action="store_true", help="the same inputs every time; with --cold both")
    ops.add_argument("--peer", action="append", default=[], choices=operators.PEERS)
    ops.add_argument("--append", type=Path, metavar="FILE.jsonl", help="add each case as a line of this file")
    add_common(ops, rounds=15)
    ops.set_defaults(run=_ops)


def _rows_width(text: str) -> tuple[int, int]:
    rows, width = numbers(text, "ROWS,WIDTH")
    return rows, width


def _ops(args: argparse.Namespace) -> int:
    caches = [name for name, asked in (("cold", args.cold or not args.warm), ("warm", args.warm)) if asked]
    plans = operators.make_plans([SUBJECTS[name] for name in args.op or SUBJECTS], args.shape, args.small, caches,
                                 args.forward)
    backend = begin(args)
    copied = operators.measure_copy(backend, args.rounds)
    cases = [copied]
    console.say(f"a copy: {copied['gbps']:.1f} GB/s")
    try:
        for k, plan in enumerate(plans):
            console.say(f"{plan.name} ({k + 1} of {len(plans)})")
            cases += operators.measure(plan, backend, list(dict.fromkeys(args.peer)), args.rounds, copied["gbps"])
    finally:  # a case that fails loses no earlier one
        record = make_record("ops", backend, args.label, copied["gbps"], cases)
        if args.append is not None:
            console.say(f"added {append_timings(record, args.append)} lines to {args.append}")
        write_record(record, args.json)
        _show_operators(cases, tables_are_results(args))
    return 0


def _show_operators(cases: Sequence[Mapping[str, Any]], data: bool) -> None:
    for name in SUBJECTS:
        of_one = [case for case in cases if case["op"] == name]
        if of_one:
            title, headings, rows = text.operator_table(of_one)
            console.show(RowsTable(title, headings, rows, whole=range(len(headings))), data)
