"""`duoln bench attention`: scaled dot-product attention, forward and backward, beside a peer."""

from __future__ import annotations

import argparse
from typing import Any

from duoln.bench import attention, operators
from duoln.bench.records import of_row
from duoln.cli import console
from duoln.cli.bench.options import add_common, begin, numbers, recorded, time_sides
from duoln.kernels.attention import cases


def add_kind(kinds: Any) -> None:
    """Add `attention`."""
    parser = kinds.add_parser("attention", help="scaled dot-product attention, forward and backward")
    parser.add_argument("--shape", action="append", type=_shape, metavar="B,H,T,D", help="may be repeated")
    parser.add_argument("--causal", action="store_true", help="each query sees the keys up to its own alone")
    parser.add_argument("--forward", action="store_true", help="forward only (default: forward and backward)")
    parser.add_argument("--peer", action="append", default=[], choices=attention.PEERS)
    add_common(parser, rounds=9, runs=3)
    parser.set_defaults(run=_attention)


def _shape(text: str) -> cases.Shape:
    return cases.Shape(*numbers(text, "B,H,T,D"))


def _attention(args: argparse.Namespace) -> int:
    title = "Forward" if args.forward else "Forward and backward"
    with recorded("attention", args, begin(args)) as timed:
        for shape in dict.fromkeys(args.shape or cases.SHAPES):
            name = f"attention B{shape.batch} H{shape.heads} T{shape.steps} D{shape.width}{', causal' * args.causal}"
            console.say(f"the scores of all queries would take {cases.scores_bytes(shape) / 2 ** 20:.0f} MiB")
            entries = attention.entries(shape, args.causal, not args.forward, args.backend, args.peer)
            rows = time_sides(f"{title}: {name}", entries, args, "ms", 1e3)
            timed += [{"op": f"attention{' causal' * args.causal}", "passes": operators.passes(not args.forward),
                       "shape": shape, "moved": cases.least_bytes(shape) if args.forward else None,
                       "flops": cases.flops(shape, args.causal, not args.forward), "rule": row["facts"].get("rule"),
                       "source": attention.source_of(row["facts"].get("rule")), **of_row(row)} for row in rows]
    return 0
