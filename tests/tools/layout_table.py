"""The table of layouts: every array of a case and every incoming gradient in each layout, in turn and all at once.

What is checked is the first rule that takes such arrays: values and gradients against the composed rule on
plain arrays, to the bit when the gradient is asked for again (so that nothing saved was overwritten), and without a
write to what it was given, which NumPy's views refuse.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from layouts import ANYWHERE, OF_NUMPY, PLAIN, Layout, layouts_of
from zeros import values

from duoln import ops
from duoln.backends.protocol import Array, Backend
from duoln.core import Op, Rule
from duoln.kernels.registry import Case, every_case
from duoln.testing.closeness import check_close, tolerance

Host = np.ndarray | None
_SMALL = 3000
"""Values of a case."""
_GRADIENTS = 8.0
"""A gradient adds up what forward rounded: so many times the tolerance of values."""


class Result(NamedTuple):
    """Outputs and gradients, on the host; None where there is no gradient."""

    outs: list[np.ndarray]
    gradients: list[Host]


class Placing(NamedTuple):
    """Which layout each array has, and each incoming gradient."""

    name: str
    arrays: tuple[Layout, ...]
    gouts: tuple[Layout, ...]

    @property
    def same_values(self) -> bool:
        """True if the case is still the same numbers."""
        return all(layout.same_values for layout in (*self.arrays, *self.gouts))


class Subject:
    """One case of an operator of `module`: its plain arrays, its incoming gradients, and what the composed rule makes of them."""

    def __init__(self, rule_case: Case, backend: Backend, module: Any = ops) -> None:
        self.case, self.backend = rule_case, backend
        self.op: Op[..., Any] = getattr(module, rule_case.op)
        self.arrays: list[Host] = [None if a is None else np.asarray(a) for a in rule_case.inputs]
        self.needs = tuple(a is not None and a.dtype.kind == "f" for a in self.arrays)
        composed = self.op.rules(backend.name)[-1]
        out, _ = composed.forward(backend, *self._plain(self.arrays), **rule_case.attrs)
        self.several = isinstance(out, tuple)
        rng = np.random.default_rng(7)
        self.gouts: list[np.ndarray] = [] if composed.vjp is None else [
            rng.standard_normal(o.shape).astype(np.float32) for o in (out if self.several else (out,))]
        self._expected = self._run(composed, self._plain(self.arrays), self._plain(self.gouts))

    def _plain(self, arrays: Sequence[Host]) -> list[Array | None]:
        return [None if a is None else self.backend.asarray(a) for a in arrays]

    def placings(self) -> Iterator[Placing]:
        """One array or gradient in one layout, the others plain; and all of them in one."""
        values = [*self.arrays, *self.gouts]
        possible = [[] if a is None else layouts_of(a, self.backend.name) for a in values]
        for i, layouts in enumerate(possible):
            for layout in layouts:
                yield self._placing(f"array {i}" if i < len(self.arrays) else f"gradient {i - len(self.arrays)}", layout,
                                    [layout if k == i else PLAIN for k in range(len(values))])
        for layout in (*ANYWHERE, *OF_NUMPY):
            if sum(layout in some for some in possible) > 1:
                yield self._placing("all", layout, [layout if layout in some else PLAIN for some in possible])

    def _placing(self, which: str, layout: Layout, layouts: Sequence[Layout]) -> Placing:
        cut = len(self.arrays)
        return Placing(f"{self.case}: {which} {layout}", tuple(layouts[:cut]), tuple(layouts[cut:]))

    def check(self, placing: Placing) -> str:
        """Raises AssertionError unless the rule is right in these layouts; the rule that ran."""
        backend, place = self.backend, self._placer
        views, gouts = place(self.arrays, placing.arrays), place(self.gouts, placing.gouts)
        expected = self._expected
        if not placing.same_values:
            plain, plain_gouts = ([None if v is None else np.ascontiguousarray(backend.to_numpy(v)).reshape(v.shape)
                                  for v in given] for given in (views, gouts))
            expected = self._run(self.op.rules(backend.name)[-1], self._plain(plain), self._plain(plain_gouts))
        rule = self._chosen(views)
        mine = self._run(rule, views, gouts)
        limit = tolerance("float32", self.case.length)
        for which, times in (("outs", 1.0), ("gradients", _GRADIENTS)):
            triples = zip(*(getattr(result, which) for result in (mine, expected, self._expected)), strict=True)
            for k, (a, b, usual) in enumerate(triples):
                if b is not None:
                    _check_like(a, b, usual, times * limit, f"{placing.name}, '{rule.name}': {which} {k}")
        return rule.name

    def _chosen(self, views: Sequence[Array | None]) -> Rule:
        """The first rule that takes these arrays, however few values they have."""
        return next(rule for rule in self.op.rules(self.backend.name)
                    if rule.supports is None or rule.supports(self.backend, *views, **self.case.attrs) is None)

    def refusals(self, placing: Placing) -> str:
        """Why no fused rule runs in these layouts."""
        views, (*fused, _) = self._placer(self.arrays, placing.arrays), self.op.rules(self.backend.name)
        return "; ".join(str(rule.supports and rule.supports(self.backend, *views, **self.case.attrs)) for rule in fused)

    def _placer(self, arrays: Sequence[Host], layouts: Sequence[Layout]) -> list[Array | None]:
        return [None if a is None else layout.place(self.backend, a) for a, layout in zip(arrays, layouts, strict=True)]

    def _run(self, rule: Rule, arrays: Sequence[Array | None], gouts: Sequence[Array | None]) -> Result:
        backend = self.backend
        out, saved = rule.forward(backend, *arrays, **self.case.attrs)
        outs = [backend.to_numpy(o) for o in (out if self.several else (out,))]
        if rule.vjp is None:
            return Result(outs, [])
        first, second = ([None if g is None or not need else backend.to_numpy(g) for g, need in zip(
            rule.vjp(backend, saved, tuple(gouts) if self.several else gouts[0], self.needs), self.needs, strict=True)]
            for _ in range(2))
        for k, (a, b) in enumerate(zip(first, second, strict=True)):
            assert a is None or (b is not None and np.array_equal(a, b, equal_nan=True)), \
                f"{self.case}, '{rule.name}': gradient {k} differs when it is asked for again"
        return Result(outs, first)


def _check_like(mine: Host, expected: np.ndarray, usual: np.ndarray, limit: float, what: str) -> None:
    """`usual` is the same value of the case as it was made: one value along an axis can leave nothing but rounding."""
    assert mine is not None and mine.dtype == expected.dtype, f"{what}: expected {expected.dtype}, found {mine!r}"
    scale, usual_scale = (max(float(np.abs(a).max(initial=0)), 1e-30) for a in (expected, usual))
    check_close(mine, expected, limit * max(usual_scale / scale, 1.0), what)


def layout_cases() -> Iterator[Case]:
    """The cases of every test run: those of the registry with few values; also with arrays that a rule may overwrite."""
    for case in map(_forgiving, every_case()):
        if case.layouts:
            yield case
            if "donate" in case.attrs:
                yield case._replace(label=f"{case.label}, donated", attrs={**case.attrs, "donate": True})


def long_layout_cases() -> list[Case]:
    """The cases of the long run: the smaller of the others."""
    others = [case for case in every_case() if not case.layouts and not case.misaligned]
    return [_forgiving(case) for case, size in zip(others, values(others), strict=True) if size < _SMALL]


def _forgiving(case: Case) -> Case:
    """With an epsilon under which rows of one value, all mean and no deviation, show no more than rounding."""
    return case._replace(attrs={**case.attrs, "eps": 0.1}) if "eps" in case.attrs else case


class Tally:
    """Counts of cases of each operator, and of those that a fused rule ran; and the reasons why it did not run the others."""

    def __init__(self) -> None:
        self.cases: dict[str, int] = {}
        self.fused: dict[str, int] = {}
        self.refusals: set[str] = set()

    def run(self, rule_cases: Sequence[Case], backend: Backend, module: Any = ops) -> None:
        """Check every placing of every case of operators of `module`.

        Raises:
            AssertionError: a rule is wrong in a layout; the message names the case, the layout and the rule.
        """
        for rule_case in rule_cases:
            subject = Subject(rule_case, backend, module)
            for placing in subject.placings():
                try:
                    rule = subject.check(placing)
                except Exception as error:
                    raise AssertionError(f"{placing.name}: {type(error).__name__}: {error}") from error
                self.cases[rule_case.op] = self.cases.get(rule_case.op, 0) + 1
                self.fused[rule_case.op] = self.fused.get(rule_case.op, 0) + (rule != "composed")
                if rule == "composed":
                    self.refusals.add(subject.refusals(placing))
