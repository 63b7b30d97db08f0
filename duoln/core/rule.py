"""A rule: how an op is computed on native arrays, forward and backward."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from duoln.backends.protocol import Array, Backend
from duoln.core.arguments import check_function, described
from duoln.errors import DtypeError, GradientError, ShapeError

Forward = Callable[..., tuple[Any, Any]]
Vjp = Callable[..., Sequence[Array | None]]


@dataclass(frozen=True, eq=False)
class Rule:
    """A way to compute an op: its value and its vector-Jacobian product, on native arrays.

    Attributes:
        forward: `forward(backend, *arrays, **attrs) -> (out, saved)`; `out` is an array or a tuple of them.
        vjp: `vjp(backend, saved, gout, needs) -> gradients`, one per array argument, None where `needs` is
            False. `gout` is a tuple if `out` is one, with None for outputs that nothing used. A function that names
            attributes after a star, `vjp(backend, saved, gout, needs, *, slope)`, gets those of the call. `vjp` is None
            for an op without a derivative.
        supports: `supports(backend, *arrays, **attrs)`: None, or the reason why this rule cannot run.
        pooled: for argument i, `pooled[i](backend, [(saved, gout), ...]) -> gradient` of an argument that
            was used many times: one large product instead of many small ones.
        stored: the numbers of the arrays that the rule also takes as they are stored in 16 bits, all in one dtype. It
            then gives results that the op stores like these arrays, and gradients of these arrays, in that dtype, and
            gets the gradients of those results so. All other arrays, results and gradients are float32.
        remark: `remark(backend)`: the note that `duoln doctor --ops` prints about this rule on this machine, or None.
        factors: for argument i, a matrix, `factors[i](backend, saved, gout) -> (left, right)`: its gradient is
            `left.T @ right`, and a compiled step need not write it out; see `Factors`.
        takes_factors: whether `forward` takes `Factors` in the place of an array.
        bind: `bind(backend, *arrays, **attrs)`: a function that computes what `forward` would, of the addresses of the
            arrays that change between calls; or None. A rule says which these are.
        least: the number of values of the largest array below which another rule takes less time.

    A rule never writes into its inputs or `gout`. A second gradient from the same `saved` has the same bits as the
    first, so a rule may overwrite only what it can compute again.
    """

    name: str
    forward: Forward
    vjp: Vjp | None = None
    supports: Callable[..., str | None] | None = None
    pooled: Mapping[int, Callable[..., Array]] = field(default_factory=dict)
    remark: Callable[[Backend], str | None] | None = None
    stored: Container[int] = ()
    factors: Mapping[int, Callable[..., tuple[Array, Array]]] = field(default_factory=dict)
    takes_factors: bool = False
    least: int = 0
    bind: Callable[..., Callable[..., None] | None] | None = None
    fitted: dict[Any, Rule] = field(default_factory=dict, init=False, repr=False)
    """This rule for arrays of 16 bits, by their dtypes; see `storage`."""

    def __post_init__(self) -> None:
        if not isinstance(self.name, str):
            raise DtypeError(f"[Rule] name: expected a text, found {described(self.name)}")
        check_function("Rule", "forward", self.forward)
        for role, function in (("vjp", self.vjp), ("supports", self.supports), ("remark", self.remark)):
            if function is not None:
                check_function("Rule", role, function)
        code = getattr(self.vjp, "__code__", None)
        if code is not None and code.co_kwonlyargcount:
            self._keep_attributes(code.co_varnames[code.co_argcount:code.co_argcount + code.co_kwonlyargcount])

    def _keep_attributes(self, names: tuple[str, ...]) -> None:
        """Let the attributes of a call reach the vjp that names them. They travel beside what `forward` saves, so that
        other rules and the tape need not know of them.
        """
        forward, vjp, pooled = self.forward, self.vjp, self.pooled
        required = set(names) - set(getattr(vjp, "__kwdefaults__", None) or ())

        def keeping(be: Backend, /, *arrays: Array | None, **attrs: Any) -> Any:
            absent = sorted(required - attrs.keys())
            if absent:
                raise GradientError(f"[vjp] rule '{self.name}': expected attributes that the operator's apply gives, "
                                    f"{', '.join(attrs) or 'none'}; found {absent[0]!r} among the vjp's")
            computed: Any = forward(be, *arrays, **attrs)
            if not isinstance(computed, tuple) or len(computed) != 2:
                return computed  # the op explains it
            return computed[0], (computed[1], {name: attrs[name] for name in names if name in attrs})

        def given(be: Backend, kept: tuple[Any, dict[str, Any]], gout: Any, needs: Sequence[bool]) -> Any:
            saved, attrs = kept
            assert vjp is not None
            return vjp(be, saved, gout, needs, **attrs)

        def of_uses(function: Callable[..., Array]) -> Callable[..., Array]:
            return lambda be, uses: function(be, [(saved, gout) for (saved, _), gout in uses])

        def of_use(function: Callable[..., tuple[Array, Array]]) -> Callable[..., tuple[Array, Array]]:
            return lambda be, kept, gout: function(be, kept[0], gout)

        keeping.__signature__ = inspect.signature(forward)  # type: ignore[attr-defined]  # what checks read
        given.__wrapped__ = vjp  # type: ignore[attr-defined]  # what errors show
        for field_name, value in (("forward", keeping), ("vjp", given),
                                  ("pooled", {i: of_uses(function) for i, function in pooled.items()}),
                                  ("factors", {i: of_use(function) for i, function in self.factors.items()})):
            object.__setattr__(self, field_name, value)


def checked_rule(name: str, likes: Sequence[int | None] | None, rule: Rule, natives: Sequence[Any], out: Any) -> Rule:
    """The rule of another package's operator for one call, after a check of its results; it checks its gradients too.

    Raises:
        GradientError: by the rule's vjp, for a gradient of another shape or dtype than its array.
        ShapeError: a result is not like the array of which the declaration says so.
    """
    outs = out if isinstance(out, tuple) else (out,)
    for k, (made, place) in enumerate(zip(outs, likes or (), strict=False)):
        like = None if place is None else natives[place]
        if like is not None and _shape_and_dtype(made) != _shape_and_dtype(like):
            raise ShapeError(f"[{name}] rule '{rule.name}': expected output {k} like array {place}, "
                             f"{_array_words(like)}; found {_array_words(made)}")
    vjp = rule.vjp
    if vjp is None or rule.pooled:
        return rule

    def checked_vjp(be: Backend, saved: Any, gout: Any, needs: Sequence[bool]) -> Any:
        gradients = vjp(be, saved, gout, needs)
        if isinstance(gradients, tuple | list) and len(gradients) == len(natives):  # else the tape explains it
            for k, (x, gradient, need) in enumerate(zip(natives, gradients, needs, strict=True)):
                if need and _shape_and_dtype(gradient) != _shape_and_dtype(x):
                    raise GradientError(f"[{name}] rule '{rule.name}': expected as gradient {k} one like its array, "
                                        f"{_array_words(x)}; found {_array_words(gradient)}")
        return gradients

    return replace(rule, vjp=checked_vjp)


def _shape_and_dtype(x: Any) -> tuple[Any, Any]:
    """Shape and dtype of a native array; of anything else what tells it from one."""
    if not hasattr(x, "nbytes"):
        return None, type(x)
    return tuple(x.shape), x.dtype


def _array_words(x: Any) -> str:
    shape, dtype = _shape_and_dtype(x)
    return described(x) if shape is None else f"{getattr(dtype, 'name', dtype)} of shape {shape}"
