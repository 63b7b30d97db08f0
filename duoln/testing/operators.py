"""The checks of operators and of rules."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from duoln import runtime
from duoln.backends.protocol import REALS, STORAGE, Backend
from duoln.core import Op, Rule, Tensor, composed_only
from duoln.core.op import each_rule
from duoln.core.storage import candidates
from duoln.errors import CallError
from duoln.testing.closeness import check_close, tolerance
from duoln.testing.gradients import gradcheck, projected_gradients


def check_op(fn: Callable[..., Any], inputs: Sequence[np.ndarray], reference: Callable[..., Any],
             backend: Backend | str, length: int = 1, differentiable: bool = True, dtype: str = "float32",
             attrs: Mapping[str, Any] | None = None) -> None:
    """Check values, shapes, dtypes and all gradients of `fn` on one backend: of an operator of yours by its composed
    rule, and by the rule that runs.

    Values are compared with `reference(*inputs in float64)`. Gradients in float64 on NumPy are compared with central
    differences; those of any other backend or dtype are compared with the float64 ones as well.

    Args:
        fn: takes tensors, gives a tensor or a tuple of tensors.
        inputs: arrays; float ones are cast to `dtype`, int and bool ones are passed as they are.
        reference: plain NumPy, from the equation.
        backend: where to check, a backend or its name.
        length: how many values the longest reduction adds up.
        differentiable: whether to check gradients.
        dtype: "float32" or "float64"; or "float16" or "bfloat16", in which values are stored: the reference then gets
            the rounded inputs, and a result may be float32.
        attrs: what `fn` and `reference` get by name, as `attrs={"slope": 0.1}`.

    Raises:
        CallError: `fn` does not take the attributes.
        AssertionError, GradientError: a value, shape, dtype or gradient is wrong.
    """
    backend = runtime.backend_of("check_op", backend)
    if isinstance(fn, Op) and not fn.is_own and fn.has_rules and fn.rules(backend.name)[:-1]:
        with composed_only():  # the rule that all others are compared with
            check_op(fn, inputs, reference, backend, length, differentiable, dtype, attrs)
    wide = [_exact(a, dtype) if a.dtype.kind == "f" else a for a in inputs]
    limit = tolerance(dtype, length)
    tensors = [Tensor(backend.asarray(a, dtype if a.dtype.kind == "f" else None), backend) for a in wide]
    op = fn
    if attrs:
        fn, reference = partial(fn, **attrs), partial(reference, **attrs)
    outs = fn(*tensors)
    expected = reference(*wide)
    for k, (out, plain) in enumerate(zip(_as_tuple(outs), _as_tuple(expected), strict=True)):
        value = np.asarray(plain)
        if value.dtype.kind == "f" and out.dtype != dtype and not (dtype in STORAGE and out.dtype == "float32"):
            raise AssertionError(f"output {k}: expected dtype {dtype}, found {out.dtype}")
        check_close(out.numpy(), value, limit, f"output {k} on {backend.name}")
    if not differentiable:
        return
    numpy = runtime.backend("numpy")
    exact = [Tensor(numpy.asarray(a), numpy) for a in wide]
    if any(a.dtype in REALS for a in exact):
        gradcheck(fn, *exact)
    mine_of = _gradients(fn, tensors)  # of another shape or dtype than their arrays they are refused
    if isinstance(op, Op) and not op.is_own:
        _check_rule_that_runs(op, tensors, attrs or {}, length, dtype)
    if backend.name == "numpy" and dtype == "float64":
        return
    for k, (mine, theirs) in enumerate(zip(mine_of, _gradients(fn, exact), strict=True)):
        check_close(mine, theirs, 4 * limit, f"gradient of float input {k} on {backend.name}")


def _check_rule_that_runs(op: Op[..., Any], tensors: Sequence[Tensor], attrs: Mapping[str, Any], length: int,
                          dtype: str) -> None:
    """`check_rule` of the rule that these arguments reach, and on NumPy its outputs of arrays in Fortran's order.

    Raises:
        AssertionError: a check fails.
    """
    called: list[tuple[Rule, tuple[Any, ...], dict[str, Any]]] = []

    def noted(each: Op[..., Any], rule: Rule) -> Rule:
        def forward(be: Backend, /, *natives: Any, **given: Any) -> Any:
            called.append((rule, natives, given))
            return rule.forward(be, *natives, **given)

        return replace(rule, forward=forward) if each is op else rule

    with each_rule(noted):
        op(*tensors, **attrs)
    if not called:  # its body made of other operators
        return
    (rule, natives, given), backend = called[0], tensors[0].backend
    check_rule(op, rule, [None if a is None else backend.to_numpy(a) for a in natives], backend, given, length, dtype)
    if backend.name == "numpy":
        turned = [None if a is None else np.asfortranarray(a) for a in natives]
        both = [_as_tuple(rule.forward(backend, *arrays, **given)[0]) for arrays in (natives, turned)]
        for k, (a, b) in enumerate(zip(*both, strict=True)):
            check_close(backend.to_numpy(b), backend.to_numpy(a), tolerance("float32", 1),
                        f"[{op.name}] output {k} of arrays in Fortran's order")


def _exact(a: np.ndarray, dtype: str) -> np.ndarray:
    """The values in float64, after they have been rounded to a dtype of storage."""
    numpy = runtime.backend("numpy")
    return numpy.to_numpy(numpy.asarray(a, dtype) if dtype in STORAGE else a).astype(np.float64)


def _as_tuple(x: Any) -> tuple[Any, ...]:
    return x if isinstance(x, tuple) else (x,)


def _gradients(fn: Callable[..., Any], args: Sequence[Tensor]) -> list[np.ndarray]:
    """The gradients of sum(w * outputs); w is the same on every backend."""
    floats = [i for i, a in enumerate(args) if a.dtype in REALS]
    backend = args[0].backend
    gradients, _ = projected_gradients(fn, args, floats, np.random.default_rng(1))
    for g, i in zip(gradients, floats, strict=True):
        if backend.dtype(g) != args[i].dtype or tuple(g.shape) != args[i].shape:
            raise AssertionError(f"gradient of input {i}: expected {args[i].dtype} of shape {args[i].shape}, "
                                 f"found {backend.dtype(g)} of shape {g.shape}")
    return [backend.to_numpy(g) for g in gradients]


def check_rule(op: Op[Any, Any], rule: Rule, inputs: Sequence[np.ndarray | None], backend: Backend | str,
               attrs: Mapping[str, Any] | None = None, length: int = 1, dtype: str = "float32") -> None:
    """Check a fast rule: values, saved state and gradients against the composed rule, for every set of needs.

    Also check that it repeats to the bit, a second gradient from the same saved values too, and that it does not change
    its inputs or `gout`.

    Args:
        op: the operator.
        rule: its fast rule.
        inputs: the rule's arrays; None for one that is left out.
        backend: where to check, a backend or its name.
        attrs: the rule's attributes; those that are left out have the defaults of the operator's signature.
        length: how many values the longest reduction adds up.
        dtype: "float16" or "bfloat16" to store in it the float arrays that the rule takes so (`Rule.stored`).

    Raises:
        CallError: an attribute or array is missing and has no default.
        AssertionError: a check fails, or `supports` refuses these inputs, so that nothing was checked.
    """
    backend = runtime.backend_of("check_rule", backend)
    attrs = _with_defaults(op, rule, len(inputs), attrs or {})
    natives = [None if a is None else
               backend.asarray(a, dtype if dtype in STORAGE and a.dtype.kind == "f" and i in rule.stored else None)
               for i, a in enumerate(inputs)]
    before = [None if a is None else backend.to_numpy(a) for a in natives]
    refusal = rule.supports(backend, *natives, **attrs) if rule.supports else None
    if refusal:
        raise AssertionError(f"[{op.name}] rule '{rule.name}' refuses these inputs: {refusal}")
    composed = op.rules(backend.name)[-1]
    if dtype in STORAGE:
        *_, (composed, _) = candidates(op.name, backend, [composed], op.like, natives)
    kinds = {a.dtype.name for a in inputs if a is not None and a.dtype.kind == "f"}
    limit = tolerance(dtype if dtype in STORAGE else kinds.pop(), length)
    out, saved = rule.forward(backend, *natives, **attrs)
    _check_unchanged(op, rule, backend, natives, before, "input")
    expected, their_saved = composed.forward(backend, *natives, **attrs)
    again, _ = rule.forward(backend, *natives, **attrs)
    for k, (a, b, c) in enumerate(zip(_as_tuple(out), _as_tuple(expected), _as_tuple(again), strict=True)):
        _check_dtypes(backend, a, b, f"[{op.name}] output {k}")
        check_close(backend.to_numpy(a), backend.to_numpy(b), limit, f"[{op.name}] output {k}")
        _check_bits(backend, a, c, f"[{op.name}] output {k} of a second run")
    if rule.vjp is None or composed.vjp is None:
        return
    rng = np.random.default_rng(2)
    gouts = tuple(backend.asarray(rng.standard_normal(o.shape), backend.dtype(o)) for o in _as_tuple(out))
    gout = gouts if isinstance(out, tuple) else gouts[0]
    kept = [backend.to_numpy(g) for g in gouts]
    floats = [a is not None and a.dtype.kind == "f" for a in inputs]
    everything = composed.vjp(backend, their_saved, gout, tuple(floats))
    _check_unchanged(op, composed, backend, gouts, kept, "gout")
    for needs in [tuple(floats), *(tuple(i == j and f for j, f in enumerate(floats)) for i in range(len(floats)))]:
        if not any(needs):
            continue
        mine = rule.vjp(backend, saved, gout, needs)
        second = rule.vjp(backend, saved, gout, needs)
        _check_unchanged(op, rule, backend, gouts, kept, "gout")
        for k, (a, b, c, need) in enumerate(zip(mine, everything, second, needs, strict=True)):
            if not need:
                continue
            _check_dtypes(backend, a, b, f"[{op.name}] gradient {k}")
            check_close(backend.to_numpy(a), backend.to_numpy(b), 8 * limit, f"[{op.name}] gradient {k}, needs {needs}")
            _check_bits(backend, a, c, f"[{op.name}] gradient {k} of a second run")
    _check_unchanged(op, rule, backend, natives, before, "input")


def _check_unchanged(op: Op[Any, Any], rule: Rule, backend: Backend, arrays: Sequence[Any],
                     before: Sequence[np.ndarray | None], role: str) -> None:
    """Raises AssertionError for an array that is not as it was."""
    for k, (array, old) in enumerate(zip(arrays, before, strict=True)):
        if old is not None and not np.array_equal(backend.to_numpy(array), old, equal_nan=True):
            raise AssertionError(f"[{op.name}] rule '{rule.name}' wrote into its {role} {k}")


def _with_defaults(op: Op[Any, Any], rule: Rule, count: int, attrs: Mapping[str, Any]) -> dict[str, Any]:
    """The attributes of a rule with `count` arrays, with the defaults of the operator's signature.

    Raises:
        CallError: the rule wants one that has no default, or more arrays.
    """
    defaults = {p.name: p.default for p in inspect.signature(op).parameters.values() if p.default is not p.empty}
    wanted = [p for p in inspect.signature(rule.forward).parameters.values()
              if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    of_tensors = hasattr(rule.forward, "__wrapped__")  # a derived rule's function has no backend
    arrays = count if of_tensors else count + 1
    whole = dict(attrs)
    for position, parameter in enumerate(wanted):
        if (position < arrays and parameter.kind is not parameter.KEYWORD_ONLY) or parameter.name in whole:
            continue
        if parameter.name in defaults:
            whole[parameter.name] = defaults[parameter.name]
        elif parameter.default is parameter.empty:
            raise CallError(f"[{op.name}] rule '{rule.name}': expected {parameter.name!r}, which has no default, found "
                            f"{count} arrays and the attributes {', '.join(attrs) or 'none'}; give "
                            f"{{{parameter.name!r}: ...}} as attrs, or an array more")
    return whole


def _check_dtypes(backend: Backend, a: Any, b: Any, what: str) -> None:
    if a is None:
        raise AssertionError(f"{what}: expected an array, found None")
    if backend.dtype(a) != backend.dtype(b):
        raise AssertionError(f"{what}: expected dtype {backend.dtype(b)}, found {backend.dtype(a)}")


def _check_bits(backend: Backend, a: Any, b: Any, what: str) -> None:
    if not np.array_equal(backend.to_numpy(a), backend.to_numpy(b), equal_nan=True):
        raise AssertionError(f"{what} differs from the first")
