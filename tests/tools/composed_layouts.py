"""A case of the table of operators with each array in each layout: the composed rule gives the same results."""

import numpy as np
from layouts import PLAIN, Layout, layouts_of
from ops.cases import Case

from duoln import runtime
from duoln.backends.protocol import FLOATS, Backend
from duoln.core import Tensor
from duoln.core.gradient import pullback, tensors_of
from duoln.core.op import composed_only
from duoln.testing.closeness import check_close, tolerance

MOST_VALUES = 700
"""Of one array: beyond, a case is for the long run."""


class Laid:
    """One case of the table, with what it gives on plain arrays."""

    def __init__(self, case: Case, backend: Backend) -> None:
        self.case, self.backend = case, backend
        self.values = [np.asarray(a, np.float32) if np.asarray(a).dtype.kind == "f" else np.asarray(a)
                       for a in case.inputs(np.random.default_rng(5))]
        self.floats = [i for i, a in enumerate(self.values) if a.dtype.kind == "f"] if case.differentiable else []
        self.gouts: list[np.ndarray | None] = []
        self.plain = self.results([PLAIN] * len(self.values), None)
        self.gouts = [_gout(k, a) for k, a in enumerate(self.plain[0])]
        self.plain = self.results([PLAIN] * len(self.values), PLAIN)

    def results(self, layouts: list[Layout], incoming: Layout | None,
                values: list[np.ndarray] | None = None) -> tuple[list[np.ndarray], list[np.ndarray]]:
        """Outputs, and gradients where `incoming` is the layout of what comes in."""
        placed = [Tensor(layout.place(self.backend, a), self.backend)
                  for layout, a in zip(layouts, values or self.values, strict=True)]

        def call(params: list[Tensor]) -> object:
            full = list(placed)
            for i, p in zip(self.floats, params, strict=True):
                full[i] = p
            return self.case.fn(*full)

        outs, back, tape = pullback(call, [placed[i] for i in self.floats])
        values_out = [self.backend.to_numpy(o.data) for o in tensors_of(outs)]
        gradients: list[np.ndarray] = []
        if incoming is not None and self.floats:
            given = [None if g is None else _fitting(incoming, g).place(self.backend, g) for g in self.gouts]
            gradients = [self.backend.to_numpy(g) for g in back(given)]
        tape.closed = True
        return values_out, gradients

    def check(self, which: int, layout: Layout) -> None:
        """Array `which` in that layout, and what comes in too."""
        layouts = [layout if i == which else PLAIN for i in range(len(self.values))]
        expected = self.plain
        if not layout.same_values:
            again = [np.ascontiguousarray(self.backend.to_numpy(one.place(self.backend, a))).reshape(a.shape)
                     for one, a in zip(layouts, self.values, strict=True)]
            before, self.gouts = self.gouts, [None if g is None else np.array(_fitting(layout, g).place(self.backend, g))
                                              for g in self.gouts]
            expected = self.results([PLAIN] * len(layouts), PLAIN, again)
            self.gouts = before
        limit = tolerance("float32", self.case.length)
        for kind, times, mine, theirs, usual in zip(("output", "gradient"), (1, 4), self.results(layouts, layout), expected,
                                                     self.plain, strict=True):
            for k, (a, b, c) in enumerate(zip(mine, theirs, usual, strict=True)):
                what = f"{self.case}: array {which} {layout}: {kind} {k}"
                assert a.dtype == b.dtype, what
                scale, usual_scale = (max(_largest(x), 1e-30) for x in (b, c))
                check_close(a, b, times * limit * max(usual_scale / scale, 1.0), what)


def _largest(x: np.ndarray) -> float:
    return float(np.abs(x[np.isfinite(x)]).max(initial=0)) if x.dtype.kind == "f" else 1.0


def _gout(k: int, out: np.ndarray) -> np.ndarray | None:
    return np.random.default_rng(k).standard_normal(out.shape).astype(np.float32) if out.dtype.name in FLOATS else None


def _fitting(layout: Layout, values: np.ndarray) -> Layout:
    return layout if layout in layouts_of(values, "numpy") else PLAIN


def is_small(case: Case) -> bool:
    return max(np.size(a) for a in case.inputs(np.random.default_rng(5))) <= MOST_VALUES


def check_layouts(cases: list[Case]) -> int:
    """Check every array of every case in every layout; how many checks there were."""
    backend, count = runtime.backend("numpy"), 0
    with composed_only(), np.errstate(all="ignore"):
        for case in cases:
            laid = Laid(case, backend)
            for which, values in enumerate(laid.values):
                for layout in layouts_of(values, "numpy"):
                    laid.check(which, layout)
                    count += 1
    return count
