"""Layer norm and cross-entropy beside a copy and beside PyTorch, `torch.compile` and Liger, as a part of the survey."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.util import find_spec
from typing import Any

from duoln import runtime
from duoln.bench import operators
from duoln.bench.operators import Plan
from duoln.bench.records import make_record
from duoln.bench.subjects import SUBJECTS, Shape
from duoln.bench.survey.program import options, save
from duoln.errors import DuolnError

ROUNDS = 7
LAYER_NORM: tuple[Shape, ...] = ((4096, 2048), (4096, 8192), (4096, 1000), (32, 1024), (4096, 1024), (4096, 4096))
CROSS_ENTROPY: tuple[Shape, ...] = ((128, 10), (4096, 10_000), (4096, 1000))
COMPILED: tuple[Shape, ...] = ((4096, 1024), (4096, 4096), (4096, 1000))
"""The shapes for which `torch.compile` compiles; they come last, since that takes some seconds for each."""
_SMALLER: tuple[Shape, ...] = ((4096, 1000), (32, 1024))
"""For a CPU."""
_QUICK: tuple[Shape, ...] = ((64, 128),)


def plans(backend: str, quick: bool) -> list[Plan]:
    """What is timed, in order."""
    small = _QUICK if quick else _SMALLER
    norms, losses = (LAYER_NORM, CROSS_ENTROPY) if backend == "cupy" and not quick else (small, small)
    return [*operators.make_plans([SUBJECTS["layer_norm"]], norms, False, ["cold"], False),
            *operators.make_plans([SUBJECTS["softmax_cross_entropy"]], losses, False, ["cold"], False)]


def peers_of(plan: Plan, asked: Sequence[str]) -> list[str]:
    """The peers of one plan, of those that are installed."""
    if "torch" not in asked:
        return []
    compiles = [] if plan.shape not in COMPILED else ["torch-compile"]
    liger = ["liger"] if plan.subject.name == "layer_norm" and find_spec("liger_kernel") else []
    return ["torch", *liger, *compiles]


def main(argv: Sequence[str] | None = None) -> int:
    """Time all plans, and write the record after each."""
    parser = options("duoln.bench.survey.operators", __doc__.splitlines()[0])
    parser.add_argument("--peer", action="append", default=[], choices=("torch",))
    args = parser.parse_args(argv)
    backend, rounds = runtime.backend(args.backend), 2 if args.quick else ROUNDS
    copied = operators.measure_copy(backend, rounds)
    cases = [copied]
    missing: dict[str, str] = {}
    for plan in plans(backend.name, args.quick):
        print(plan.name, flush=True)
        lacking: dict[str, str] = {}
        try:
            cases += operators.measure(plan, backend, peers_of(plan, args.peer), rounds, copied["gbps"], lacking)
        except DuolnError as error:
            lacking["duoln"] = str(error)
        missing |= {f"{plan.name}, {peer}": why for peer, why in lacking.items()}
        record: dict[str, Any] = make_record("ops", backend, None, copied["gbps"], cases)
        save({**record, "missing": missing}, args.json)
    return 1 if any(what.endswith(", duoln") for what in missing) else 0


if __name__ == "__main__":
    sys.exit(main())
