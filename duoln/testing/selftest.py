"""Checks every fused rule of a backend against float64, on this machine.

    for outcome in selftest.run(backend, selftest.cases()): ...

Each case of `kernels.cases` goes through every fused rule that takes it, forward and backward, and through the composed
rule in float64 NumPy; and a second time, to check that it repeats to the bit.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from duoln import ops, runtime
from duoln.backends.protocol import Array, Backend
from duoln.core import Op, Rule
from duoln.kernels.case_table import RuleCase, rule_cases
from duoln.testing import tolerance

_GRADIENTS = 4.0
"""A gradient adds up the rounding errors of the forward pass, so its tolerance is larger by this number."""


class Outcome(NamedTuple):
    """The outcome of one case."""

    case: RuleCase
    rule: str
    """The rule that ran; "composed" where no other supports the case."""
    error: float
    """The largest error of a value or gradient, divided by the allowed error; above 1 the case failed."""
    worst: str
    """The name of that value or gradient."""
    repeats: bool
    """Whether all runs were equal to the bit."""
    problem: str = ""
    """The exception in words; empty if there was none."""

    @property
    def passed(self) -> bool:
        """Whether the values are right and repeat to the bit."""
        return not self.problem and self.error <= 1 and self.repeats


def run(backend: Backend, chosen: Iterable[RuleCase], repeats: int = 2) -> Iterator[Outcome]:
    """The outcome of every case and rule, one by one; the others run also if one raises an error."""
    for case in chosen:
        try:
            every = rules(case, backend)
        except Exception as error:  # of what a rule says that it supports
            yield _raised(case, "", error)
            continue
        for rule in every:
            try:
                yield prove(case, backend, repeats, rule)
            except Exception as error:  # a kernel that does not compile or launch is an outcome, too
                yield _raised(case, rule.name, error)


def _raised(case: RuleCase, rule: str, error: Exception) -> Outcome:
    lines = str(error).splitlines()
    return Outcome(case, rule, np.inf, "", False, f"{type(error).__name__}: {lines[0] if lines else ''}")


def rules(case: RuleCase, backend: Backend) -> list[Rule]:
    """The fused rules that take a case, in the order in which they are tried; the composed one where none does."""
    op: Op[..., Any] = getattr(ops, case.op)
    natives = _natives(case, backend)
    *fused, composed = op.rules(backend.name)
    return [r for r in fused if r.supports is None or r.supports(backend, *natives, **case.attrs) is None] or [composed]


def prove(case: RuleCase, backend: Backend, repeats: int = 2, rule: Rule | None = None) -> Outcome:
    """Run one case on a backend, `repeats` times, by a rule, or by the one that the backend would choose."""
    op: Op[..., Any] = getattr(ops, case.op)
    natives = _natives(case, backend)
    rule = rule or op.select(backend, natives, case.attrs)
    first = _values(backend, rule, natives, case)
    numpy = runtime.backend("numpy")
    exact = [a.astype(np.float64) if a is not None and a.dtype.kind == "f" else a for a in case.inputs]
    expected = _values(numpy, op.rules("numpy")[-1], exact, case)
    error, worst = 0.0, "nothing"
    for name, wide in expected.items():
        share = _error(first[name], wide) / tolerance("float32", case.length)
        share /= _GRADIENTS if name.startswith("gradient") else 1
        if not share <= error:
            error, worst = share, name
    same = all(_equal(first, _values(backend, rule, natives, case)) for _ in range(repeats - 1))
    return Outcome(case, rule.name, error, worst, same)


def _equal(first: dict[str, np.ndarray], again: dict[str, np.ndarray]) -> bool:
    return all(np.array_equal(values, again[name], equal_nan=True) for name, values in first.items())


def _natives(case: RuleCase, backend: Backend) -> list[Array | None]:
    return [None if a is None else _native(backend, a, case.misaligned) for a in case.inputs]


def _native(backend: Backend, host: np.ndarray, misaligned: bool) -> Array:
    if not misaligned or host.dtype != np.float32:
        return backend.asarray(host)
    padded = backend.asarray(np.concatenate((np.zeros(1, np.float32), host.reshape(-1))))
    return backend.reshape(padded[1:], host.shape)


def _values(backend: Backend, rule: Rule, natives: Sequence[Array | None], case: RuleCase,
            ) -> dict[str, np.ndarray]:
    """Outputs, and gradients of a weighted sum of them, by name."""
    out, saved = rule.forward(backend, *natives, **case.attrs)
    outs = out if isinstance(out, tuple) else (out,)
    values = {f"output {k}": backend.to_numpy(o) for k, o in enumerate(outs)}
    if rule.vjp is None:
        return values
    rng = np.random.default_rng(1)
    dtype = backend.dtype(outs[0])
    gouts = tuple(backend.asarray(rng.standard_normal(o.shape), dtype) for o in outs)
    needs = [a is not None and a.dtype.kind == "f" for a in case.inputs]
    gradients = rule.vjp(backend, saved, gouts if isinstance(out, tuple) else gouts[0], needs)
    return values | {f"gradient {k}": backend.to_numpy(g) for k, (g, need) in
                     enumerate(zip(gradients, needs, strict=True)) if need}


def _error(actual: np.ndarray, expected: np.ndarray) -> float:
    """The largest difference, as a share of the largest value; infinite for other shapes or values not finite."""
    if actual.shape != expected.shape:
        return np.inf
    if not expected.size:
        return 0.0
    difference = np.max(np.abs(actual.astype(np.float64) - expected))
    return float(difference / max(float(np.max(np.abs(expected))), 1e-30)) if np.isfinite(difference) else np.inf


def cases(one_of_each: bool = False) -> list[RuleCase]:
    """All cases, or the largest of each operator and variant."""
    everything = rule_cases()
    return largest_of_each(everything) if one_of_each else everything


def largest_of_each(chosen: Iterable[RuleCase]) -> list[RuleCase]:
    """The largest case of each operator and variant among some cases."""
    largest: dict[tuple[str, Any], RuleCase] = {}
    for case in chosen:
        key = (case.op, case.attrs.get("norm"))
        if key not in largest or size_of(case) > size_of(largest[key]):
            largest[key] = case
    return list(largest.values())


def size_of(case: RuleCase) -> int:
    """The number of values that a case takes."""
    return sum(a.size for a in case.inputs if a is not None)


class RuleReport(NamedTuple):
    """The outcome of all cases of one rule."""

    op: str
    rule: str
    cases: int
    error: float
    """The largest error, divided by the allowed error."""
    worst: str
    """The case of the largest error."""
    repeats: bool
    failures: list[str]
    """One line for each case that failed."""


def by_rule(outcomes: Iterable[Outcome]) -> list[RuleReport]:
    """Outcomes gathered by operator and rule, in the order in which they first ran."""
    groups: dict[tuple[str, str], list[Outcome]] = {}
    for outcome in outcomes:
        groups.setdefault((outcome.case.op, outcome.rule), []).append(outcome)
    reports = []
    for (op, rule), group in groups.items():
        worst = max(group, key=lambda o: o.error)
        failures = [f"{o.case}: {o.problem or f'{o.worst}, {o.error:.3g} of what is allowed'}"
                    f"{'' if o.repeats or o.problem else ', and two runs differ'}" for o in group if not o.passed]
        reports.append(RuleReport(op, rule or "none ran", len(group), worst.error,
                                  f"{worst.case.label}, {worst.worst}", all(o.repeats for o in group), failures))
    return reports
