"""Checks every fused rule of a backend against float64, on this machine.

    for outcome in selftest.run(backend, selftest.cases()): ...

Each case goes through every fused rule that takes it, forward and backward, and through the composed rule
in float64; and a second time, to check that it repeats to the bit.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from math import prod, sqrt
from typing import Any, NamedTuple

import numpy as np

from duoln import runtime
from duoln.backends.protocol import STORAGE, Array, Backend
from duoln.core import Rule
from duoln.kernels.registry import Case, every_case, operator, registered, registered_cases
from duoln.tasks.registry import load_plugins
from duoln.testing.closeness import tolerance

_GRADIENTS = 4.0
"""A gradient adds up the rounding errors of the forward pass, so its tolerance is larger by this number."""
_NEAR = 1.5
"""Up to here an error may come from a device's own functions; above it something is wrong."""
_NO_MEMORY = re.compile("OutOfMemory|MemoryError|out of memory|cudaErrorMemoryAllocation|ALLOC_FAILED|NOT_INITIALIZED")
"""The words of CuPy, CUDA and cuBLAS for it."""
_MANY = 1 << 20
"""Values of a case above which CUDA computes its reference faster than the host."""


class Outcome(NamedTuple):
    """The outcome of one case by one rule, or of a check of the device, as plain data for other processes."""

    op: str
    """Empty for a check of the device."""
    case: str
    """The name of the case or of the check."""
    stored: str
    variant: str
    """The `norm` of a recurrent layer; else empty."""
    rule: str
    """The rule that ran; "composed" where no other supports the case, empty where none ran."""
    error: float
    """The largest error of a value or gradient, divided by the allowed error; above 1 the case is not passed."""
    worst: str
    """The name of that value or gradient."""
    repeats: bool
    """True if all runs were equal to the bit."""
    problem: str = ""
    """The exception in words, with the whole of a compiler's log; empty if there was none."""
    answer: str = ""
    """The words of a check that is right."""

    @property
    def passed(self) -> bool:
        """True if the values are right and repeat to the bit."""
        return not self.problem and self.error <= 1 and self.repeats

    @property
    def near(self) -> bool:
        """True if the error is a little above what is allowed, as another device's rounding may be."""
        return not self.problem and self.repeats and 1 < self.error <= _NEAR

    @property
    def right(self) -> bool:
        """True if nothing is wrong with the rule or the device."""
        return self.passed or self.near

    @property
    def says_nothing(self) -> bool:
        """True if it says nothing about the rule: the device had no memory left, which other programs use too."""
        return _NO_MEMORY.search(self.problem) is not None

    @property
    def words(self) -> str:
        """The outcome in words."""
        words = self.problem or self.answer or f"{self.worst}, {self.error:.3g} of what is allowed"
        return words + ("" if self.repeats or self.problem else ", and two runs differ")

    @classmethod
    def of(cls, case: Case, rule: str, error: float, worst: str, repeats: bool, problem: str = "") -> Outcome:
        """The outcome of this case."""
        return cls(case.op, str(case), case.stored, case.attrs.get("norm", ""), rule, error, worst, repeats, problem)

    @classmethod
    def of_check(cls, name: str, answer: str = "", problem: str = "") -> Outcome:
        """The outcome of a check of the device."""
        return cls("", name, "float32", "", "", np.inf if problem else 0.0, "", not problem, problem, answer)


def run(backend: Backend, chosen: Iterable[Case], repeats: int = 2,
        begun: Callable[[Case, Rule], None] = lambda case, rule: None, named: str | None = None,
        ) -> Iterator[Outcome]:
    """The outcome of every case and rule, one by one; the others run also if one raises an error.

    Args:
        backend: where to.
        chosen: the cases.
        repeats: runs of each, which must be equal to the bit.
        begun: is told what begins.
        named: only the rules of this name; by default all.
    """
    for case in chosen:
        try:
            every = rules(case, backend)
        except Exception as error:  # of what a rule says that it supports
            yield _raised(case, "", error)
            continue
        for rule in every if named is None else [r for r in every if r.name == named]:
            begun(case, rule)
            yield prove_or_say(case, backend, repeats, rule)


def prove_or_say(case: Case, backend: Backend, repeats: int, rule: Rule) -> Outcome:
    """Call `prove`; an error is an outcome too, for example of a kernel that does not compile or launch."""
    try:
        return prove(case, backend, repeats, rule)
    except Exception as error:
        return _raised(case, rule.name, error)


def _raised(case: Case, rule: str, error: Exception) -> Outcome:
    return Outcome.of(case, rule, np.inf, "", False, f"{type(error).__name__}: {error}")


def of_plugins() -> list[Case]:
    """The cases of the operators that plug-ins register."""
    load_plugins()
    return registered_cases()


def every_device_case() -> list[Case]:
    """The cases that prove rules on a GPU, those of the net first; plug-ins bring some for their own operators."""
    own = [case for case in every_case() if case.net]
    return sorted([*own, *every_case(gpu=True), *of_plugins()], key=lambda case: not case.net)


def rules(case: Case, backend: Backend) -> list[Rule]:
    """The fused rules that take a case, in the order in which they are tried; the composed one where none does.

    Of a case in 16 bits those that take its arrays as they are stored; there may be none.
    """
    *fused, composed = operator(case.op).rules(backend.name)
    if case.stored != "float32":
        fused = [rule for rule in fused if rule.stored]
    taken = [rule for rule in fused if rule.supports is None
             or rule.supports(backend, *_natives(case, backend, rule), **case.attrs) is None]
    return taken or ([composed] if case.stored == "float32" else [])


def prove(case: Case, backend: Backend, repeats: int = 2, rule: Rule | None = None) -> Outcome:
    """Run one case on a backend, `repeats` times, by a rule, or by the one that the backend would choose.

    Raises:
        LookupError: no rule takes the arrays of a case in 16 bits as they are stored.
    """
    rule = rule or next(iter(rules(case, backend)), None)
    if rule is None:
        raise LookupError(f"[selftest] {case}: expected a rule that takes {case.stored}, found none of {backend.name}")
    natives = _natives(case, backend, rule)
    results, gouts = _results(backend, rule, natives, case)
    first = {name: backend.to_numpy(x) for name, x in results.items()}
    where = backend if backend.name == "cupy" and size_of(case) > _MANY else runtime.backend("numpy")
    composed = operator(case.op).rules(where.name)[-1]
    seen = [_rounded(a, case.stored) if a is not None and _is_stored(case, rule, k) else a
            for k, a in enumerate(case.inputs)]
    exact = [None if a is None else where.asarray(a.astype(np.float64) if a.dtype.kind == "f" else a) for a in seen]
    expected, _ = _results(where, composed, exact, case, gouts)
    error, worst = 0.0, "nothing"
    for name, wide in expected.items():
        share = _error(where, results[name] if where is backend else first[name], wide) / _allowed(case)
        share /= _GRADIENTS if name.startswith("gradient") else 1
        if not share <= error:
            error, worst = share, name
    again = (_results(backend, rule, natives, case)[0] for _ in range(repeats - 1))
    same = all(np.array_equal(first[name], backend.to_numpy(x), equal_nan=True)
               for run_again in again for name, x in run_again.items())
    return Outcome.of(case, rule.name, error, worst, same)


def _allowed(case: Case) -> float:
    """The error allowed in float32; in 16 bits also the roundings that follow each other, which are independent."""
    wide = tolerance("float32", case.length)
    return wide + sqrt(case.roundings) * (tolerance(case.stored, case.length) - wide)


def _is_stored(case: Case, rule: Rule, k: int) -> bool:
    """True if a rule gets array k of a case in 16 bits."""
    given = case.inputs[k]
    return case.stored != "float32" and k in rule.stored and given is not None and given.dtype.kind == "f"


def _rounded(values: np.ndarray, dtype: str) -> np.ndarray:
    """Values that a dtype of 16 bits holds, in float32."""
    numpy = runtime.backend("numpy")
    return numpy.to_numpy(numpy.asarray(values, dtype)).astype(np.float32)


def _natives(case: Case, backend: Backend, rule: Rule) -> list[Array | None]:
    dtypes = (case.stored if _is_stored(case, rule, k) else None for k in range(len(case.inputs)))
    return [None if a is None else _native(backend, a, case.misaligned, dtype)
            for a, dtype in zip(case.inputs, dtypes, strict=True)]


def _native(backend: Backend, host: np.ndarray, misaligned: bool, dtype: str | None = None) -> Array:
    if not misaligned or host.dtype != np.float32:
        return backend.asarray(host, dtype)
    padded = backend.asarray(np.concatenate((np.zeros(1, np.float32), host.reshape(-1))), dtype)
    return backend.reshape(padded[1:], host.shape)


def _results(backend: Backend, rule: Rule, natives: Sequence[Array | None], case: Case,
             gouts: Sequence[np.ndarray] | None = None) -> tuple[dict[str, Array], Sequence[np.ndarray]]:
    """Outputs, and gradients of a weighted sum of them, by name; and the weights, which are made if none are given."""
    out, saved = rule.forward(backend, *natives, **case.attrs)
    outs = out if isinstance(out, tuple) else (out,)
    values = {f"output {k}": o for k, o in enumerate(outs)}
    if gouts is None:
        rng = np.random.default_rng(1)
        gouts = [_weights(rng, o.shape, backend.dtype(o)) for o in outs]
    if rule.vjp is None:
        return values, gouts
    given = tuple(backend.asarray(g, backend.dtype(o)) for g, o in zip(gouts, outs, strict=True))
    needs = [a is not None and a.dtype.kind == "f" for a in case.inputs]
    gradients = rule.vjp(backend, saved, given if isinstance(out, tuple) else given[0], needs)
    by_name = {f"gradient {k}": g for k, (g, need) in enumerate(zip(gradients, needs, strict=True)) if need}
    return values | by_name, gouts


def _weights(rng: np.random.Generator, shape: Sequence[int], dtype: str) -> np.ndarray:
    values = rng.standard_normal(shape).astype(np.float32)
    return _rounded(values, dtype) if dtype in STORAGE else values


def _error(where: Backend, actual: Array, expected: Array) -> float:
    """The largest difference, as a share of the largest value; infinite for other shapes or values not finite."""
    if actual.shape != expected.shape:
        return np.inf
    if not prod(expected.shape):
        return 0.0
    difference, largest = (float(where.to_numpy(where.max(where.abs(x)))) for x in (
        where.astype(actual, "float64") - expected, expected))
    return difference / max(largest, 1e-30) if np.isfinite(difference) else np.inf


def cases(one_of_each: Backend | None = None) -> list[Case]:
    """The cases for any machine, those of plug-ins too; or the largest of each operator, variant and rule of a
    backend.
    """
    every = [*every_case(), *(case for case in of_plugins() if not case.gpu)]
    return every if one_of_each is None else largest_of_each(every, one_of_each)


def chosen(backend: Backend, one_of_each: bool) -> Iterator[Case]:
    """The cases of `duoln selftest`, for a GPU those of a device too, or one of each."""
    yield from (case for case in cases(backend if one_of_each else None) if not case.cpu or backend.name == "numpy")
    if backend.proofs is not None and not one_of_each:
        yield from (*every_case(gpu=True), *(case for case in of_plugins() if case.gpu))


def untried(backend: Backend, reports: Iterable[RuleReport]) -> list[str]:
    """The rules of operators that plug-ins register of which no case has tried the rule."""
    tried = {(report.op, report.rule) for report in reports}
    return [f"{name}, rule '{rule.name}'" for name, known in registered().items()
            for rule in known.op.rules(backend.name)[:-1] if (name, rule.name) not in tried]


def largest_of_each(chosen: Iterable[Case], backend: Backend) -> list[Case]:
    """The largest case of each operator, variant and rule of a backend among some cases."""
    largest: dict[tuple[str, Any, str], Case] = {}
    for case in chosen:
        for rule in rules(case, backend):
            key = (case.op, case.attrs.get("norm"), rule.name)
            if key not in largest or size_of(case) > size_of(largest[key]):
                largest[key] = case
    return list({str(case): case for case in largest.values()}.values())


def size_of(case: Case) -> int:
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
    """A text for each case that failed."""
    near: list[str]
    """The same for each that missed what is allowed by little."""


def by_rule(outcomes: Iterable[Outcome]) -> list[RuleReport]:
    """Outcomes gathered by operator and rule, in the order in which they first ran."""
    groups: dict[tuple[str, str], list[Outcome]] = {}
    for outcome in outcomes:
        groups.setdefault((outcome.op, outcome.rule), []).append(outcome)
    reports = []
    for (op, rule), group in groups.items():
        worst = max(group, key=lambda o: o.error)
        reports.append(RuleReport(op, rule or "none ran", len(group), worst.error,
                                  f"{worst.case}, {worst.worst}", all(o.repeats for o in group),
                                  [f"{o.case}: {o.words}" for o in group if not o.right],
                                  [f"{o.case}: {o.words}" for o in group if o.near]))
    return reports
