"""`duoln bench rnn`: recurrent layers, forward and backward, beside a peer."""

from __future__ import annotations

import argparse
from typing import Any

from duoln.bench import recurrent
from duoln.cli.bench.options import add_common, begin, numbers, recorded, time_sides
from duoln.kernels.recurrent import cases
from duoln.ops.recurrent.variants import check_variant


def add_kind(kinds: Any) -> None:
    """Add `rnn`."""
    rnn = kinds.add_parser("rnn", help="recurrent layers, forward and backward")
    rnn.add_argument("--cell", action="append", choices=("rnn", "lstm", "gru"), help="may be repeated (default lstm)")
    rnn.add_argument("--norm", action="append", metavar="NAME", help="may be repeated (default layer)")
    rnn.add_argument("--shape", action="append", type=_recurrent_shape, metavar="T,B,IN,H", help="may be repeated")
    rnn.add_argument("--forward", action="store_true", help="forward only (default: forward and backward)")
    rnn.add_argument("--peer", action="append", default=[], choices=recurrent.PEERS)
    add_common(rnn, rounds=9, runs=3)
    rnn.set_defaults(run=_rnn)


def _recurrent_shape(text: str) -> cases.Shape:
    return cases.Shape(*numbers(text, "T,B,IN,H"))


def _rnn(args: argparse.Namespace) -> int:
    chosen = list(dict.fromkeys((cell, norm, shape) for cell in args.cell or ["lstm"]
                                for norm in args.norm or ["layer"] for shape in args.shape or cases.SHAPES))
    for cell, norm, _ in chosen:
        check_variant(cell, norm)
    title = "Forward" if args.forward else "Forward and backward"
    with recorded("rnn", args, begin(args)) as timed:
        for cell, norm, shape in chosen:
            name = f"{cell} {norm} T{shape.steps} B{shape.batch} in{shape.n_in} H{shape.hidden}"
            entries = recurrent.entries(cell, norm, shape, not args.forward, args.backend, args.peer)
            rows = time_sides(f"{title}: {name}", entries, args, "us a time step", 1e6 / shape.steps)
            timed += [recurrent.case_of(cell, norm, shape, not args.forward, row) for row in rows]
    return 0
