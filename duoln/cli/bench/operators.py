"""`duoln bench ops`: operators over rows, beside a plain copy."""

from __future__ import annotations

import argparse
import time
from collections.abc import Mapping, Sequence
from typing import Any

from duoln.bench import operators, text
from duoln.bench.records import make_record
from duoln.bench.subjects import Subject, every_subject
from duoln.cli import console
from duoln.cli.bench.options import add_common, begin, numbers, tables_are_results, write_record
from duoln.cli.rows_table import RowsTable
from duoln.core.arguments import did_you_mean
from duoln.errors import UsageError
from duoln.kernels.registry import registered, timed


def add_kind(kinds: Any) -> None:
    """Add `ops`."""
    ops = kinds.add_parser("ops", help="operators over rows, beside a plain copy")
    ops.add_argument("--op", action="append", metavar="NAME",
                     help=f"{', '.join(timed())}, copy, or one that a plug-in registers; may be repeated (default all)")
    sizes = ops.add_mutually_exclusive_group()
    sizes.add_argument("--shape", action="append", type=_rows_width, metavar="ROWS,WIDTH",
                       help="of every operator, instead of each one's table; may be repeated")
    sizes.add_argument("--small", action="store_true", help="the small tables (default on a CPU)")
    sizes.add_argument("--full", action="store_true", help="the full tables (default on a GPU); six minutes on a CPU")
    ops.add_argument("--forward", action="store_true", help="forward only (default: also forward and backward)")
    ops.add_argument("--cold", action="store_true", help="inputs that are in no cache (default)")
    ops.add_argument("--warm", action="store_true", help="the same inputs every time; with --cold both")
    ops.add_argument("--peer", action="append", default=[], choices=operators.PEERS)
    add_common(ops, rounds=15)
    ops.set_defaults(run=_ops)


def _rows_width(text: str) -> tuple[int, int]:
    rows, width = numbers(text, "ROWS,WIDTH")
    return rows, width


def _ops(args: argparse.Namespace) -> int:
    chosen = _chosen(args.op)
    caches = [name for name, asked in (("cold", args.cold or not args.warm), ("warm", args.warm)) if asked]
    peers = list(dict.fromkeys(args.peer))
    backend = begin(args)
    small = args.small or (operators.on_cpu(backend) and not args.full)
    plans = operators.make_plans(chosen, args.shape, small, caches, args.forward)
    copy = operators.Yardstick(backend)
    copied = copy.gbps(args.rounds)
    console.say(f"100% is {operators.copy_words(copied, copy.rule, backend)}")
    cases: list[dict[str, Any]] = []
    started = time.monotonic()
    try:
        for k, plan in enumerate(plans):
            console.say(f"{plan.name} ({k + 1} of {len(plans)}{_remaining(k, len(plans), time.monotonic() - started)})")
            cases += operators.measure(plan, backend, peers, args.rounds, copy.gbps())
    finally:  # a case that fails loses no earlier one
        of_copy = copy.case()
        cases = [of_copy, *cases]
        write_record(make_record("ops", backend, args.label, of_copy["gbps"], cases), args)
        _show_operators(cases, tables_are_results(args))
    return 0


def _chosen(names: Sequence[str] | None) -> list[Subject]:
    known = every_subject()
    for name in names or ():
        if name not in known:
            reason = "; it is registered without a timing: register(op, cases, timed)" if name in registered() else \
                did_you_mean(name, known)
            raise UsageError(f"[bench] --op: expected one of {', '.join(known)}; found {name!r}{reason}")
    return [known[name] for name in names or known]


def _remaining(done: int, planned: int, seconds: float) -> str:
    """The time that the rest will take, estimated from the mean time of the cases so far."""
    if not done:
        return ""
    left = seconds / done * (planned - done)
    return f", about {left:.0f} s left" if left < 95 else f", about {left / 60:.0f} minutes left"


def _show_operators(cases: Sequence[Mapping[str, Any]], data: bool) -> None:
    for name in every_subject():
        of_one = [case for case in cases if case["op"] == name]
        if of_one:
            title, headings, rows = text.operator_table(of_one)
            console.show(RowsTable(title, headings, rows, whole=range(len(headings))), data)
