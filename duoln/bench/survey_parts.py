"""The parts of a survey that measure; `duoln.testing.prover` has those that compare values.

    python -m duoln.bench.survey_parts --what ops --backend cupy --json ops.json

A part times rows and writes its record after each. What cannot run is told there with its reason.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.util import find_spec
from typing import Any

from duoln import runtime
from duoln.bench import groups
from duoln.bench.device import LIMITS
from duoln.bench.running import Bench, Plan
from duoln.bench.survey import options, save
from duoln.bench.turns import SidePool

_PATIENCE, _TURN_SECONDS = 60.0, 20.0
"""Seconds for which a side may load its libraries, which takes long from a disk that nobody has read, or prepare
itself; and those of its runs of a turn."""
_RUNS = 1
_MIDDLE, _HANDWRITING, _SENTENCES = (100, 64, 256, 256), (100, 8, 400, 400), (30, 64, 620, 1024)
_LAYERS = (("lstm", _MIDDLE, False), ("lstm", _MIDDLE, True), ("lstm", _HANDWRITING, False),
           ("lstm", _HANDWRITING, True), ("lstm", _SENTENCES, True), ("gru", _MIDDLE, True), ("gru", _SENTENCES, True))
"""Cell, shape, and whether the gradient is computed too."""
_COMPILED_LAYER = ("lstm", _HANDWRITING, True)
"""The one whose loop is timed by `torch.compile` too: that takes half a minute to compile."""
_STEPS: tuple[tuple[str, int, dict[str, Any]], ...] = (
    ("mnist", 128, {"rows": 2560}), ("attentive_reader", 64, {}), ("draw", 128, {}))
"""Dense layers; an LSTM over a text, in both directions; 64 time steps of two cells with an attention around them.
`torch.compile` needs minutes for the unrolled time steps of the last two."""


def plans(what: str, backend: str, quick: bool, torch: bool) -> list[Plan]:
    """The rows of a part, the most important first; the limits of a device last, because they may end its context."""
    if what == "ops":
        limits = LIMITS if backend == "cupy" else ()
        return [*_ops(backend, quick, torch), *(Plan("device", {"name": name}) for name in limits)]
    made = []
    if what == "rnn":
        for cell, shape, backward in (("lstm", (3, 4, 5, 6), True), ("gru", (3, 4, 5, 6), False)) if quick else _LAYERS:
            peers = ["products", *(["steps"] if backend == "cupy" else []), *(["torch"] if torch else [])]
            peers += ["torch-compile"] if torch and (cell, shape, backward) == _COMPILED_LAYER else []
            made.append(Plan("rnn", {"cell": cell, "norm": "layer", "shape": shape, "backward": backward}, peers))
        return made
    for task, batch, more in (("mnist", 20, {}),) if quick else _STEPS:
        settings = {"batch_size": batch, "source": "made", **more}
        peers = ["eager", *(["torch"] if torch and not quick else [])]
        peers += ["torch-compile"] if torch and not quick and task == "mnist" else []
        made.append(Plan("train", {"task": task, "variant": "ln", "preset": "smoke" if quick else "paper",
                                   "settings": settings, "plugins": [task]}, peers))
    return made


def _ops(backend: str, quick: bool, torch: bool) -> list[Plan]:
    """On an NVIDIA GPU each operator's shapes of a device, the first ones first, those to compile last."""
    chosen = []
    for name, timed in groups.operators().items():
        shapes = (timed.on_device or timed.shapes) if backend == "cupy" else timed.small[:1]
        for k, shape in enumerate([(64, 128)] if quick else shapes):
            compiles = len(timed.on_device) > 1 and shape == timed.on_device[-1]
            peers = ["torch", *(["torch-compile"] if compiles else [])] if torch else []
            chosen.append((compiles, k, name, shape, peers))
    chosen.sort(key=lambda one: one[:2])
    return [Plan("ops", {"op": name, "shape": shape, "backward": backward}, peers)
            for _, _, name, shape, peers in chosen for backward in (False, True)]


def main(argv: Sequence[str] | None = None) -> int:
    """Time the rows of one part; the exit code is 0 if our side of each of them ran."""
    parser = options("duoln.bench.survey_parts", __doc__.splitlines()[0])
    parser.add_argument("--what", required=True, choices=("ops", "rnn", "steps"))
    args = parser.parse_args(argv)
    backend = runtime.backend(args.backend)
    wanted = plans(args.what, backend.name, args.quick, find_spec("torch") is not None)
    with SidePool(_PATIENCE, _TURN_SECONDS) as sides:
        kind = "train" if args.what == "steps" else args.what
        bench = Bench(kind, backend, lambda line: print(line, flush=True), None, sides)
        bench.time(wanted, 2 if args.quick else 5, _RUNS, lambda record: save(record, args.json))
    return 0 if bench.error is None else 1


if __name__ == "__main__":
    sys.exit(main())
