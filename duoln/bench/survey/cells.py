"""LN-LSTM and LN-GRU beside PyTorch's loop, eager and compiled, and its plain layers, as a part of the survey."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any

from duoln import runtime
from duoln.bench import limits, operators, recurrent
from duoln.bench.comparisons import Comparison
from duoln.bench.survey.comparisons import measure, with_peers
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
QUICK = (("lstm", Shape(3, 4, 5, 6), True), ("gru", Shape(3, 4, 5, 6), False))
_PATIENCE = 40.0
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

    def case(row: Mapping[str, Any]) -> dict[str, Any]:
        rule = row["facts"].get("rule")
        return {"op": f"{cell} {NORM}", "passes": operators.passes(backward), "shape": shape, "rule": rule,
                "moved": None if backward else cases.least_bytes(cell, shape),
                "flops": cases.flops(cell, shape, backward), "source": recurrent.source_of(cell, rule)}

    return Comparison(name, entries, case)


def main(argv: Sequence[str] | None = None) -> int:
    """Time all comparisons, and write the record after each."""
    args = with_peers("duoln.bench.survey.cells", __doc__.splitlines()[0], argv)
    backend = runtime.backend(args.backend)
    wanted = [comparison(*entry, args.backend, args.peer) for entry in (QUICK if args.quick else WANTED)]
    return measure(args, "rnn", backend, wanted, _PATIENCE, **{"product GFLOP/s": limits.products_gflops(backend)})


if __name__ == "__main__":
    sys.exit(main())
