"""`duoln bench rnn` and `duoln bench attention`: a layer over shapes, forward and backward, beside a peer."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from itertools import product
from typing import Any

from duoln.bench import attention, operators, recurrent
from duoln.bench.records import of_row
from duoln.cli import console
from duoln.cli.bench.options import add_common, begin, numbers, recorded, time_sides
from duoln.kernels.attention import cases as attention_cases
from duoln.kernels.recurrent import cases as recurrent_cases
from duoln.ops.recurrent.variants import check_variant


def add_kind(kinds: Any) -> None:
    """Add `rnn` and `attention`."""
    rnn = kinds.add_parser("rnn", help="recurrent layers, forward and backward")
    rnn.add_argument("--cell", action="append", choices=("rnn", "lstm", "gru"), help="may be repeated (default lstm)")
    rnn.add_argument("--norm", action="append", metavar="NAME", help="may be repeated (default layer)")
    _add_options(rnn, _rnn, "T,B,IN,H", recurrent_cases.Shape, recurrent.PEERS)
    of_attention = kinds.add_parser("attention", help="scaled dot-product attention, forward and backward")
    of_attention.add_argument("--causal", action="store_true", help="each query sees the keys up to its own alone")
    _add_options(of_attention, _attention, "B,H,T,D", attention_cases.Shape, attention.PEERS)


def _add_options(parser: argparse.ArgumentParser, run: Callable[[argparse.Namespace], int], axes: str,
                 shape: Callable[..., Any], peers: Sequence[str]) -> None:
    parser.add_argument("--shape", action="append", type=lambda text: shape(*numbers(text, axes)), metavar=axes,
                        help="may be repeated")
    parser.add_argument("--forward", action="store_true", help="forward only (default: forward and backward)")
    parser.add_argument("--peer", action="append", default=[], choices=peers)
    add_common(parser, rounds=9, runs=3)
    parser.set_defaults(run=run)


def _title(args: argparse.Namespace, name: str) -> str:
    return f"{'Forward' if args.forward else 'Forward and backward'}: {name}"


def _rnn(args: argparse.Namespace) -> int:
    chosen = list(dict.fromkeys(product(args.cell or ["lstm"], args.norm or ["layer"],
                                        args.shape or recurrent_cases.SHAPES)))
    for cell, norm, _ in chosen:
        check_variant(cell, norm)
    with recorded("rnn", args, begin(args)) as timed:
        for cell, norm, shape in chosen:
            name = f"{cell} {norm} T{shape.steps} B{shape.batch} in{shape.n_in} H{shape.hidden}"
            entries = recurrent.entries(cell, norm, shape, not args.forward, args.backend, args.peer)
            rows = time_sides(_title(args, name), entries, args, "us a time step", 1e6 / shape.steps)
            timed += [recurrent.case_of(cell, norm, shape, not args.forward, row) for row in rows]
    return 0


def _attention(args: argparse.Namespace) -> int:
    cases = attention_cases
    with recorded("attention", args, begin(args)) as timed:
        for shape in dict.fromkeys(args.shape or cases.SHAPES):
            name = f"attention B{shape.batch} H{shape.heads} T{shape.steps} D{shape.width}{', causal' * args.causal}"
            console.say(f"the scores of all queries would take {cases.scores_bytes(shape) / 2 ** 20:.0f} MiB")
            entries = attention.entries(shape, args.causal, not args.forward, args.backend, args.peer)
            rows = time_sides(_title(args, name), entries, args, "ms", 1e3)
            timed += [{"op": f"attention{' causal' * args.causal}", "passes": operators.passes(not args.forward),
                       "shape": shape, "moved": cases.least_bytes(shape) if args.forward else None,
                       "flops": cases.flops(shape, args.causal, not args.forward), "rule": row["facts"].get("rule"),
                       "source": attention.source_of(row["facts"].get("rule")), **of_row(row)} for row in rows]
    return 0
