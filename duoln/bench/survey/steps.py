"""Whole training steps, eager and compiled, beside PyTorch's, eager and by `torch.compile`, as a part of the survey.

Where a backend captures a compiled step as a graph, "duoln, compiled" is that graph.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from duoln import runtime
from duoln.bench.comparisons import Comparison
from duoln.bench.survey.comparisons import measure, with_peers
from duoln.bench.turns import Entry

EAGER, COMPILED = "duoln, eager", "duoln, compiled"
PEER, COMPILED_PEER = "torch", "torch, compiled"
_PATIENCE = 60.0


class Step(NamedTuple):
    """A training step of a task."""

    task: str
    variant: str
    batch: int
    preset: str = "paper"
    settings: Mapping[str, Any] = {"source": "made"}

    @property
    def name(self) -> str:
        """The step in words."""
        return f"{self.task} {self.variant}"


WANTED = (Step("mnist", "ln", 128, settings={"source": "made", "rows": 2560}), Step("attentive_reader", "ln", 64),
          Step("draw", "ln", 128))
"""Dense layers; an LSTM over a text, in both directions; 64 time steps of two cells with an attention around them."""
COMPILED_BY_PEER = WANTED[0]
"""What `torch.compile` compiles, too. It needs minutes for the unrolled time steps of the others."""
QUICK = (Step("mnist", "ln", 20, "smoke"),)


def comparison(step: Step, backend: str, peers: Sequence[str]) -> Comparison:
    """The sides of one step."""
    asked: dict[str, Any] = {
        "kind": "step", "task": step.task, "variant": step.variant, "preset": step.preset, "plugins": [step.task],
        "settings": {"batch_size": step.batch, **step.settings}, "backend": backend, "peer": None}
    entries = [Entry(EAGER, {**asked, "form": "eager"}), Entry(COMPILED, {**asked, "form": "compiled"})]
    if "torch" in peers:
        entries.append(Entry(PEER, {**asked, "peer": "torch", "form": "eager"}))
        if step == COMPILED_BY_PEER:
            entries.append(Entry(COMPILED_PEER, {**asked, "peer": "torch", "form": "compiled"}))
    return Comparison(step.name, entries, lambda row: {"op": step.name, "passes": "step", "shape": [step.batch],
                                                       "settings": {"preset": step.preset, **step.settings}})


def main(argv: Sequence[str] | None = None) -> int:
    """Time all steps, and write the record after each."""
    args = with_peers("duoln.bench.survey.steps", __doc__.splitlines()[0], argv)
    wanted = [comparison(step, args.backend, [] if args.quick else args.peer)
              for step in (QUICK if args.quick else WANTED)]
    return measure(args, "train", runtime.backend(args.backend), wanted, _PATIENCE)


if __name__ == "__main__":
    sys.exit(main())
