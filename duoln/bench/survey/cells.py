"""LN-LSTM and LN-GRU beside PyTorch's loop, eager and compiled, and its plain layers, as a part of the survey."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

from duoln import runtime
from duoln.bench import limits, operators, recurrent
from duoln.bench.records import make_case, make_record, of_row
from duoln.bench.survey.comparisons import Comparison, Timed, time_comparisons
from duoln.bench.survey.program import options, save
from duoln.bench.turns import Entry
from duoln.kernels.recurrent import cases
from duoln.kernels.recurrent.cases import Shape

NORM = "layer"
WANTED = (("lstm", Shape(100, 64, 256, 256), False), ("lstm", Shape(100, 64, 256, 256), True),
          ("lstm", Shape(100, 8, 400, 400), False), ("lstm", Shape(100, 8, 400, 400), True),
          ("lstm", Shape(30, 64, 620, 1024), True), ("gru", Shape(100, 64, 256, 256), True),
          ("gru", Shape(30, 64, 620, 1024), True))
"""Cell, shape, and whether the gradient is computed too."""
COMPILED = ("lstm", Shape(100, 8, 400, 400), True)
"""The one whose loop is timed by `torch.compile` too: that takes half a minute to compile."""
_QUICK = (("lstm", Shape(3, 4, 5, 6), True), ("gru", Shape(3, 4, 5, 6), False))
_ROUNDS, _RUNS, _PATIENCE = 5, 2, 40.0
_BY_STEPS = "duoln, by steps"
_COMPILED_LOOP = "torch loop, compiled"


def comparison(cell: str, shape: Shape, backward: bool, backend: str, peers: Sequence[str]) -> Comparison:
    """The sides of one entry of the table."""
    asked = {"kind": "rnn", "cell": cell, "norm": NORM, "shape": list(shape), "backward": backward,
             "backend": backend, "peer": None}
    entries = [Entry("duoln", asked), Entry("our products alone", {**asked, "peer": recurrent.PRODUCTS}, checked=False)]
    if backend == "cupy":  # where the first side walks in one launch
        entries.append(Entry(_BY_STEPS, {**asked, "rule": "cuda steps"}))
    plain = f"torch.nn.{cell.upper()}, no norm"
    if "torch" in peers:
        peer = {**asked, "peer": "torch"}
        entries += [Entry("torch loop", {**peer, "form": "loop"}),
                    Entry(plain, {**peer, "form": "plain"}, checked=False)]
        if (cell, shape, backward) == COMPILED:
            entries.append(Entry(_COMPILED_LOOP, {**peer, "form": "compiled"}))
    name = f"{cell} {NORM} {'x'.join(map(str, shape))} {operators.passes(backward)}"
    return Comparison(name, entries, optional=[entry.name for entry in entries[1:]])


def cases_of(timed: Timed, cell: str, shape: Shape, backward: bool, copy_gbps: float) -> list[dict[str, Any]]:
    """What one comparison gives to the record."""
    return [make_case(op=f"{cell} {NORM}", passes=operators.passes(backward), shape=shape,
                      moved=None if backward else cases.least_bytes(cell, shape),
                      flops=cases.flops(cell, shape, backward), copy_gbps=copy_gbps, rule=row["facts"].get("rule"),
                      source=recurrent.source_of(cell, row["facts"].get("rule")), runs=_RUNS, **of_row(row))
            for row in timed.rows]


def main(argv: Sequence[str] | None = None) -> int:
    """Time all comparisons, and write the record after each."""
    parser = options("duoln.bench.survey.cells", __doc__.splitlines()[0])
    parser.add_argument("--peer", action="append", default=[], choices=("torch",))
    args = parser.parse_args(argv)
    backend = runtime.backend(args.backend)
    wanted = _QUICK if args.quick else WANTED
    comparisons = [comparison(*entry, args.backend, args.peer) for entry in wanted]
    copy_gbps, product = operators.measure_copy(backend)["gbps"], limits.products_gflops(backend)
    made: list[dict[str, Any]] = []
    missing: dict[str, str] = {}
    rounds = 2 if args.quick else _ROUNDS
    for entry, timed in zip(wanted, time_comparisons(comparisons, rounds, _RUNS, _PATIENCE, print), strict=True):
        made += cases_of(timed, *entry, copy_gbps)
        missing |= {f"{timed.comparison.name}, {side}": why for side, why in timed.missing.items()}
        save({**make_record("rnn", backend, None, copy_gbps, made), "product GFLOP/s": product, "missing": missing},
             args.json)
    return 0 if len({(case["op"], case["pass"], str(case["shape"])) for case in made}) == len(wanted) else 1


if __name__ == "__main__":
    sys.exit(main())
