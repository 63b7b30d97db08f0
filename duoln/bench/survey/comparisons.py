"""What the parts of a survey share that compare our side with others."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

from duoln.backends.protocol import Backend
from duoln.bench import operators
from duoln.bench.comparisons import Comparison, time_comparisons
from duoln.bench.records import make_case, make_record, of_row
from duoln.bench.survey.program import options, save

_ROUNDS, _RUNS = 5, 2


def with_peers(module: str, what: str, argv: Sequence[str] | None) -> argparse.Namespace:
    """The options of a part that has peers."""
    parser = options(module, what)
    parser.add_argument("--peer", action="append", default=[], choices=("torch",))
    return parser.parse_args(argv)


def measure(args: argparse.Namespace, kind: str, backend: Backend, comparisons: Sequence[Comparison], patience: float,
            **facts: Any) -> int:
    """Time all comparisons and write the record after each; the exit code is 0 if our side of each of them ran.

    Args:
        args: the options of the part.
        kind: of the record.
        backend: ours.
        comparisons: what to time.
        patience: seconds for which a side may prepare itself.
        facts: what the record has besides.
    """
    copy_gbps = operators.measure_copy(backend)["gbps"]
    made: list[dict[str, Any]] = []
    missing: dict[str, str] = {}
    good = True
    for timed in time_comparisons(comparisons, 2 if args.quick else _ROUNDS, _RUNS, patience):
        made += [make_case(copy_gbps=copy_gbps, runs=_RUNS, **timed.comparison.case(row), **of_row(row))
                 for row in timed.rows]
        missing |= {f"{timed.comparison.name}, {side}": why for side, why in timed.missing.items()}
        good = good and bool(timed.rows)
        save({**make_record(kind, backend, None, copy_gbps, made), **facts, "missing": missing}, args.json)
    return 0 if good else 1
