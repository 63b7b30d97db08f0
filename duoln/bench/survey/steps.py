"""Whole training steps, eager and compiled, beside PyTorch's, eager and by `torch.compile`, as a part of the survey.

Where a backend captures a compiled step as a graph, "duoln, compiled" is that graph.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any, NamedTuple

from duoln import runtime
from duoln.bench import operators
from duoln.bench.records import make_case, make_record, of_row
from duoln.bench.survey.comparisons import Comparison, time_comparisons
from duoln.bench.survey.program import options, save
from duoln.bench.turns import Entry

EAGER, COMPILED = "duoln, eager", "duoln, compiled"
PEER, COMPILED_PEER = "torch", "torch, compiled"
_ROUNDS, _RUNS, _PATIENCE = 5, 2, 60.0


class Step(NamedTuple):
    """A training step of a task."""

    task: str
    variant: str
    batch: int
    preset: str = "paper"

    @property
    def name(self) -> str:
        """The step in words."""
        return f"{self.task} {self.variant}"


WANTED = (Step("mnist", "ln", 128), Step("attentive_reader", "ln", 64), Step("draw", "ln", 128))
"""Dense layers; an LSTM over a text, in both directions; 64 time steps of two cells with an attention around them."""
_QUICK = (Step("mnist", "ln", 20, "smoke"),)


def comparison(step: Step, backend: str, peers: Sequence[str]) -> Comparison:
    """The sides of one step."""
    asked: dict[str, Any] = {
        "kind": "step", "task": step.task, "variant": step.variant, "preset": step.preset,
        "settings": {"batch_size": step.batch}, "backend": backend, "peer": None, "plugins": [step.task]}
    entries = [Entry(EAGER, {**asked, "form": "eager"}), Entry(COMPILED, {**asked, "form": "compiled"})]
    if "torch" in peers:
        entries += [Entry(PEER, {**asked, "peer": "torch", "form": "eager"}),
                    Entry(COMPILED_PEER, {**asked, "peer": "torch", "form": "compiled"})]
    return Comparison(step.name, entries, optional=[entry.name for entry in entries[1:]])


def main(argv: Sequence[str] | None = None) -> int:
    """Time all steps, and write the record after each."""
    parser = options("duoln.bench.survey.steps", __doc__.splitlines()[0])
    parser.add_argument("--peer", action="append", default=[], choices=("torch",))
    args = parser.parse_args(argv)
    backend = runtime.backend(args.backend)
    copy_gbps = operators.measure_copy(backend)["gbps"]
    wanted = _QUICK if args.quick else WANTED
    peers = [] if args.quick else args.peer
    made: list[dict[str, Any]] = []
    missing: dict[str, str] = {}
    comparisons = [comparison(step, args.backend, peers) for step in wanted]
    rounds = 2 if args.quick else _ROUNDS
    for step, timed in zip(wanted, time_comparisons(comparisons, rounds, _RUNS, _PATIENCE, print), strict=True):
        made += [make_case(op=step.name, passes="step", shape=[step.batch], settings={"preset": step.preset},
                           copy_gbps=copy_gbps, runs=_RUNS, **of_row(row)) for row in timed.rows]
        missing |= {f"{timed.comparison.name}, {side}": why for side, why in timed.missing.items()}
        save({**make_record("train", backend, None, copy_gbps, made), "missing": missing}, args.json)
    return 0 if len({case["op"] for case in made}) == len(wanted) else 1


if __name__ == "__main__":
    sys.exit(main())
