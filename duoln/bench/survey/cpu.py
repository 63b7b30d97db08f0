"""How a step and a layer on NumPy, and PyTorch's beside them, use the cores of the machine, as a part of the survey.

A curve of times over threads bends at the number of threads beyond which more threads save less than a quarter of what
they would save if they shared the work evenly.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any

from duoln import runtime
from duoln.bench.comparisons import Comparison
from duoln.bench.survey import cells, steps
from duoln.bench.survey.comparisons import measure, with_peers
from duoln.bench.survey.program import save
from duoln.system import cores

THREADS = (1, 2, 4, 8, 16)
_VARIABLES = ("DUOLN_THREADS", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
_SIDES = ("duoln", "torch loop", steps.EAGER, steps.PEER)
_PATIENCE = 20.0
_LEAST_SAVED = 0.25


def by_threads(comparison: Comparison, counts: Iterable[int]) -> Comparison:
    """The sides of a comparison with each number of threads."""
    entries = [entry._replace(name=f"{entry.name}, {count} thread{'s' if count > 1 else ''}",
                              environment=dict.fromkeys(_VARIABLES, str(count)))
               for count in counts for entry in comparison.entries if entry.name in _SIDES]

    def case(row: Mapping[str, Any]) -> dict[str, Any]:
        known = comparison.case(row)
        threads = int(row["facts"]["flags"][_VARIABLES[0]])
        return {**known, "settings": {**known.get("settings", {}), "threads": threads}}

    return Comparison(f"{comparison.name}, by threads", entries, case)


def bends(cases: Iterable[Mapping[str, Any]]) -> dict[str, int]:
    """For each work and side the number of threads at which its curve bends."""
    curves: dict[str, dict[int, float]] = {}
    for case in cases:
        name = f"{case['op']} {case['pass']}, {case['side'].rpartition(', ')[0]}"
        curves.setdefault(name, {})[case["settings"]["threads"]] = case["median"]
    return {name: bend(times) for name, times in curves.items()}


def bend(times: Mapping[int, float]) -> int:
    """The number of threads beyond which more of them save little."""
    for few, many in pairwise(sorted(times)):
        if times[few] - times[many] < _LEAST_SAVED * times[few] * (1 - few / many):
            return few
    return max(times)


def main(argv: Sequence[str] | None = None) -> int:
    """Time all, and write the record. NumPy computes, whatever the backend of the survey is."""
    args = with_peers("duoln.bench.survey.cpu", __doc__.splitlines()[0], argv)
    step, layer = (steps.QUICK, cells.QUICK) if args.quick else ((steps.WANTED[0],), (cells.COMPILED,))
    wanted = [steps.comparison(step[0], "numpy", args.peer), cells.comparison(*layer[0], "numpy", args.peer)]
    counts = [count for count in THREADS[:2 if args.quick else None] if count <= cores.workers()]
    code = measure(args, "train", runtime.backend("numpy"), [by_threads(each, counts) for each in wanted], _PATIENCE)
    record = json.loads(args.json.read_text(encoding="utf-8"))
    save({**record, "bends": bends(record["cases"])}, args.json)
    return code


if __name__ == "__main__":
    sys.exit(main())
