"""`duoln bench eager`: calls without `compile` on small arrays, beside a peer."""

from __future__ import annotations

import argparse
from typing import Any

from duoln.bench import eager
from duoln.bench.records import of_row
from duoln.cli.bench.options import add_common, begin, recorded, time_sides


def add_kind(kinds: Any) -> None:
    """Add `eager`."""
    parser = kinds.add_parser("eager", help="operators on small arrays and a small gradient, without compile")
    parser.add_argument("subjects", nargs="*", metavar="SUBJECT", choices=[*eager.SUBJECTS, []],
                        help=f"of {', '.join(eager.SUBJECTS)} (default all)")
    parser.add_argument("--peer", action="append", default=[], choices=eager.PEERS)
    add_common(parser, rounds=9, runs=5)
    parser.set_defaults(run=_eager)


def _eager(args: argparse.Namespace) -> int:
    with recorded("eager", args, begin(args)) as timed:
        for subject in args.subjects or eager.SUBJECTS:
            entries = eager.entries(subject, args.backend, args.peer)
            title = f"{subject}: {eager.ROWS} x {eager.WIDTH}, a call"
            rows = time_sides(title, entries, args, "us", 1e6 / eager.CALLS)
            timed += [{"op": f"eager {subject}", "passes": "step" if subject == eager.NETWORK else "forward",
                       "shape": (eager.ROWS, eager.WIDTH), "moved": None, "flops": None, "rule": None, "source": None,
                       **of_row(row)} for row in rows]
    return 0
