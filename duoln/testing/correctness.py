"""Whether every rule of a backend computes the right values: `duoln selftest`, with its kernels compiled ahead.

    python -m duoln.testing.correctness --backend cupy --json selftest.json
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from duoln import runtime
from duoln.backends.protocol import Backend
from duoln.bench import machine
from duoln.bench.survey import device
from duoln.bench.survey.compilation import compile_all, of_this_device
from duoln.bench.survey.program import options, save
from duoln.kernels.case_table import RuleCase
from duoln.testing import selftest

_SAVE_SECONDS = 2.0
SMALL_VALUES = 1 << 17


def small_cases(backend: Backend) -> list[RuleCase]:
    """Of each operator, variant and rule the largest case of few values: for tools under which a kernel takes long."""
    few = [case for case in selftest.cases() if selftest.size_of(case) <= SMALL_VALUES]
    return selftest.largest_of_each(few, backend)


def measure(backend: Backend, chosen: Sequence[RuleCase], repeats: int, facts: dict[str, Any], file: Path) -> bool:
    """Run the cases and write the file every few seconds; whether all passed."""
    outcomes: list[selftest.Outcome] = []
    saved = time.monotonic()

    def content(complete: bool) -> dict[str, Any]:
        reports = selftest.by_rule(outcomes)
        return {**facts, "expected cases": len(chosen), "complete": complete, "rules": [r._asdict() for r in reports]}

    save(content(False), file)
    for outcome in selftest.run(backend, chosen, repeats):
        outcomes.append(outcome)
        if time.monotonic() - saved > _SAVE_SECONDS:
            save(content(False), file)
            saved = time.monotonic()
    save(content(True), file)
    return all(outcome.passed or outcome.near for outcome in outcomes)


def main(argv: Sequence[str] | None = None) -> int:
    """Compile, compare, and write the file."""
    parser = options("duoln.testing.correctness", "Every rule of a backend against float64.")
    parser.add_argument("--one-of-each", action="store_true",
                        help="the largest case of each operator, variant and rule")
    parser.add_argument("--small", action="store_true", help="a small case of each operator, variant and rule")
    parser.add_argument("--no-pool", action="store_true", help="each array has memory of its own, for memcheck")
    parser.add_argument("--repeats", type=int, default=2, metavar="N")
    args = parser.parse_args(argv)
    backend = runtime.backend(args.backend)
    if args.no_pool:
        device.allocate_each_array()
    facts: dict[str, Any] = {"backend": machine.backend_facts(backend), "host": machine.host(), **machine.side()}
    every = not (args.one_of_each or args.small or args.quick)
    if every and backend.name == "cupy":
        facts["compilation"] = compile_all(os.cpu_count() or 1, of_this_device())
        save(facts, args.json)
    chosen = small_cases(backend) if args.small else selftest.cases(backend if args.one_of_each or args.quick else None)
    good = measure(backend, chosen, args.repeats, facts, args.json)
    return 0 if good and not facts.get("compilation", {}).get("failures") else 1


if __name__ == "__main__":
    sys.exit(main())
