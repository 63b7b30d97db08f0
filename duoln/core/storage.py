"""16 bits are storage; arithmetic is float32.

An array of 16 bits that a rule does not take as it is stored is widened to float32, which is exact. The rule computes
in float32, and its results and gradients are rounded once, to the dtypes in which they are stored.

A rule says which of its arrays it also takes in 16 bits (`Rule.stored`), and an op says in which dtypes its results are
stored (`Op.like`). Such a rule rounds the results that are stored like these arrays; the rest it gives in float32.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterator, Sequence
from itertools import combinations
from typing import Any

from duoln.backends.protocol import REALS, STORAGE, Array, Backend
from duoln.core.rule import Rule
from duoln.errors import DtypeError

MIXED = [{"float32", dtype} for dtype in STORAGE]
"""The pairs of different float dtypes that an op takes together."""
EVERY = range(sys.maxsize)
"""`Rule.stored` of a rule that takes any number of arrays, all as they are stored."""
Dtypes = tuple[str | None, ...]
Like = tuple[int | None, ...]


def common_dtype(name: str, dtypes: Sequence[str | None]) -> str:
    """The dtype of a result of floats of several dtypes: float32 for float32 beside one dtype of 16 bits.

    Raises:
        DtypeError: the dtypes do not belong together.
    """
    distinct = list(dict.fromkeys(dtype for dtype in dtypes if dtype in REALS))
    for first, second in combinations(distinct, 2):
        if {first, second} not in MIXED:
            raise DtypeError(f"[{name}] expected one float dtype, found {first} and {second}; convert with astype")
    assert distinct[0] is not None
    return distinct[0] if len(distinct) == 1 else "float32"


def converted(be: Backend, x: Any, dtype: str | None) -> Any:
    """The array in that dtype; what has it already, what is no array, and every array for None stay as they are."""
    if dtype is None or not hasattr(x, "dtype") or be.dtype(x) == dtype:
        return x
    return be.astype(x, dtype)


def in_float32(be: Backend, x: Array, function: Callable[[Array], Array]) -> Array:
    """`function(x)`, computed in float32 and stored as `x` is, if `x` is stored in 16 bits."""
    dtype = be.dtype(x)
    return be.astype(function(be.astype(x, "float32")), dtype) if dtype in STORAGE else function(x)


def candidates(name: str, be: Backend, rules: Sequence[Rule], like: Like | None, natives: Sequence[Any],
               ) -> Iterator[tuple[Rule, list[Any]]]:
    """The rules for arrays of which some are stored in 16 bits, in the order of trial, with the arrays that each gets.

    First come the rules that take such arrays as they are stored, then all rules, in float32.

    Raises:
        DtypeError: the dtypes do not belong together.
    """
    dtypes = tuple([be.dtype(x) if hasattr(x, "dtype") else None for x in natives])
    common = common_dtype(name, dtypes)
    outputs = (common,) if like is None else tuple([None if k is None else dtypes[k] for k in like])
    narrow = next(dtype for dtype in dtypes if dtype in STORAGE)
    for rule in rules:
        kept = [k for k, dtype in enumerate(dtypes) if k in rule.stored and dtype in REALS]
        if kept and all(dtypes[k] == narrow for k in kept):
            wide = tuple([dtype if dtype in STORAGE and k not in rule.stored else None
                          for k, dtype in enumerate(dtypes)])
            rounded: Dtypes | None = None if like is None else tuple([
                dtype if k is not None and k not in rule.stored and dtype in STORAGE else None
                for k, dtype in zip(like, outputs, strict=True)])
            yield _casting_rule(rule, rule.name, wide, rounded), _widened(be, natives, wide)
    wide = tuple([dtype if dtype in STORAGE else None for dtype in dtypes])
    arrays = _widened(be, natives, wide)
    for rule in rules:
        rounded = tuple([dtype if dtype in STORAGE else None for dtype in outputs])
        yield _casting_rule(rule, f"{rule.name}, in float32", wide, rounded), arrays


def _widened(be: Backend, natives: Sequence[Any], stored: Dtypes) -> list[Any]:
    return [x if dtype is None else be.astype(x, "float32") for x, dtype in zip(natives, stored, strict=True)]


def _casting_rule(rule: Rule, name: str, inputs: Dtypes, outputs: Dtypes | None) -> Rule:
    """The rule for arrays that are stored in other dtypes than it takes. The same arguments give the same object.

    Args:
        rule: the rule.
        name: of the rule for these arrays.
        inputs: for each array the dtype in which it is stored, if the rule takes it in float32; else None.
        outputs: the dtype to which each result is rounded, the last one for all that follow; a result is left as the
            rule gives it for None. None instead of the tuple: the rule gives and takes all as it is stored.
    """
    if not any(outputs or ()) and not any(inputs):
        return rule
    if (name, inputs, outputs) not in rule.fitted:
        rule.fitted[name, inputs, outputs] = _make_casting_rule(rule, name, inputs, outputs)
    return rule.fitted[name, inputs, outputs]


def _make_casting_rule(rule: Rule, name: str, inputs: Dtypes, outputs: Dtypes | None) -> Rule:
    def forward(be: Backend, /, *arrays: Any, **attrs: Any) -> Any:
        computed: Any = rule.forward(be, *_widened(be, arrays, inputs), **attrs)
        if outputs is None or not isinstance(computed, tuple) or len(computed) != 2:
            return computed  # the op explains what is no pair
        out, saved = computed
        if not isinstance(out, tuple):
            return _rounded(be, out, outputs[0]), saved
        return tuple([_rounded(be, o, to(k)) for k, o in enumerate(out)]), saved

    def to(k: int) -> str | None:
        return outputs[min(k, len(outputs) - 1)] if outputs else None

    def widened_gout(be: Backend, gout: Any) -> Any:
        if not isinstance(gout, tuple):
            return gout if to(0) is None else _gradient_to_float32(be, gout)
        return tuple([g if to(k) is None else _gradient_to_float32(be, g) for k, g in enumerate(gout)])

    def vjp(be: Backend, saved: Any, gout: Any, needs: Sequence[bool]) -> Any:
        assert rule.vjp is not None
        gradients = rule.vjp(be, saved, widened_gout(be, gout), needs)
        if not isinstance(gradients, tuple | list) or len(gradients) != len(inputs):
            return gradients  # the tape explains it
        return [converted(be, g, dtype) for g, dtype in zip(gradients, inputs, strict=True)]

    def pooled(argument: int) -> Callable[..., Array]:
        def of_uses(be: Backend, uses: Sequence[tuple[Any, Any]]) -> Array:
            wide = [(saved, widened_gout(be, gout)) for saved, gout in uses]
            return converted(be, rule.pooled[argument](be, wide), inputs[argument])

        return of_uses

    forward.__dict__.update(getattr(rule.forward, "__dict__", {}))
    forward.__module__ = rule.forward.__module__
    forward.__signature__ = inspect.signature(rule.forward)  # type: ignore[attr-defined]  # what checks and errors show
    vjp.__wrapped__ = rule.vjp  # type: ignore[attr-defined]
    return Rule(name, forward, None if rule.vjp is None else vjp, rule.supports, {k: pooled(k) for k in rule.pooled},
                least=rule.least)


def _rounded(be: Backend, x: Array, dtype: str | None) -> Array:
    """A result of floats in the dtype in which it is stored; other results stay as they are."""
    return be.astype(x, dtype) if dtype is not None and be.dtype(x) == "float32" else x


def _gradient_to_float32(be: Backend, gradient: Array | None) -> Array | None:
    return be.astype(gradient, "float32") if gradient is not None and be.dtype(gradient) in STORAGE else gradient
