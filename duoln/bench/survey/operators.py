"""Norms and cross-entropy beside a copy and beside PyTorch, `torch.compile` and Liger, as a part of the survey."""

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

ROUNDS = 5
SHAPES: tuple[tuple[str, Shape], ...] = (
    ("layer_norm", (4096, 4096)), ("layer_norm", (4096, 8192)), ("softmax_cross_entropy", (4096, 10_000)),
    ("layer_norm", (4096, 2048)), ("layer_norm", (4096, 1000)), ("layer_norm", (32, 1024)),
    ("softmax_cross_entropy", (128, 10)), ("rms_norm", (4096, 4096)), ("add_layer_norm", (4096, 4096)),
    ("layer_norm", (4099, 1001)), ("layer_norm", (199, 65_536)), ("layer_norm", (37, 262_144)),
    ("layer_norm", (4099, 257)), ("layer_norm", (199, 16_385)), ("layer_norm", (1, 131_072)),
    ("layer_norm", (4096, 1024)), ("softmax_cross_entropy", (4096, 1000)))
"""In the order of their worth: the largest first, and after them rows and widths of quack's tests."""
COMPILED = SHAPES[-2:]
"""What `torch.compile` compiles, too. It comes last, since that takes some seconds for each."""
_SMALLER: tuple[tuple[str, Shape], ...] = (
    ("layer_norm", (4096, 1000)), ("layer_norm", (32, 1024)), ("add_layer_norm", (4096, 1000)),
    ("softmax_cross_entropy", (4096, 1000)))
"""For another device than an NVIDIA GPU."""
_QUICK: tuple[tuple[str, Shape], ...] = (
    ("layer_norm", (64, 128)), ("add_rms_norm", (64, 128)), ("softmax_cross_entropy", (64, 128)))


def plans(backend: str, quick: bool) -> list[Plan]:
    """What is timed, in order."""
    wanted = _QUICK if quick else SHAPES if backend == "cupy" else _SMALLER
    return [plan for name, shape in wanted
            for plan in operators.make_plans([SUBJECTS[name]], [shape], False, ["cold"], False)]


def peers_of(plan: Plan, asked: Sequence[str]) -> list[str]:
    """The peers of one plan, of those that are installed."""
    if "torch" not in asked:
        return []
    compiles = ["torch-compile"] if (plan.subject.name, plan.shape) in COMPILED else []
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
            timed = operators.measure(plan, backend, peers_of(plan, args.peer), rounds, copied["gbps"], lacking)
            cases += timed
            lacking |= {f"{case['side']} in a graph": case["no_event_seconds"] for case in timed
                        if "no_event_seconds" in case}
        except Exception as error:  # of a kernel, or of CuPy where memory is out; the next plan may run
            lacking["duoln"] = f"{type(error).__name__}: {error}"
        missing |= {f"{plan.name}, {peer}": why for peer, why in lacking.items()}
        record: dict[str, Any] = make_record("ops", backend, None, copied["gbps"], cases)
        save({**record, "missing": missing}, args.json)
    return 1 if any(what.endswith(", duoln") for what in missing) else 0


if __name__ == "__main__":
    sys.exit(main())
