"""Operators and their rules.

An `Op` is a name, a signature and a set of rules. A `Rule` is a pair of functions on native arrays: the
value, and its gradient from what the value left behind. Each op has one rule, `composed`, that every
backend can run; a backend may have faster ones. The op picks, so a rule's author never writes a fallback.

    @op
    def tanh(x: Tensor) -> Tensor:
        '''Hyperbolic tangent.'''
        return tanh.apply(x)

    def tanh_forward(be, x):
        y = be.tanh(x)
        return y, y                                    # the value, and what the gradient needs

    def tanh_vjp(be, y, gout, needs):
        return (gout * (1 - y * y),)

    tanh.add(Rule("composed", tanh_forward, tanh_vjp))
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, Generic, ParamSpec, TypeVar

from duoln.backends.protocol import FLOATS, Array, Backend
from duoln.core.tape import record, tape_of
from duoln.core.tensor import Tensor
from duoln.errors import DtypeError, DuolnError, GradientError, MixedBackendError

P = ParamSpec("P")
R = TypeVar("R")

Forward = Callable[..., tuple[Any, Any]]
Vjp = Callable[..., Sequence[Array | None]]


@dataclass(frozen=True, eq=False)
class Rule:
    """How an op is computed: a value and its vector-Jacobian product, on native arrays.

    Attributes:
        forward: `forward(backend, *arrays, **attrs) -> (out, saved)`; `out` is an array or a tuple of them.
        vjp: `vjp(backend, saved, gout, needs) -> gradients`, one per array argument, None where `needs` is
            False. `gout` is a tuple where `out` is one, with None for outputs that nothing used. None for
            an op without a derivative.
        supports: `supports(backend, *arrays, **attrs)`: None, or the reason why this rule cannot run.
        pooled: for argument i, `pooled[i](backend, [(saved, gout), ...]) -> gradient` of an argument that
            was used many times: one large product instead of many small ones.
        remark: `remark(backend)`: what `duoln doctor --ops` has to say of this rule on this machine.

    A rule never writes into its inputs, `saved` or `gout`.
    """

    name: str
    forward: Forward
    vjp: Vjp | None = None
    supports: Callable[..., str | None] | None = None
    pooled: Mapping[int, Callable[..., Array]] = field(default_factory=dict)
    remark: Callable[[Backend], str] | None = None


_composed_only: ContextVar[bool] = ContextVar("composed_only", default=os.environ.get("DUOLN_RULES") == "composed")
_watch: ContextVar[Callable[[Op[..., Any], Rule], Rule] | None] = ContextVar("watch", default=None)


def composed_only() -> contextlib.AbstractContextManager[None]:
    """Within it every op of this thread runs its composed rule, as under DUOLN_RULES=composed."""
    return _held(_composed_only, True)


def each_rule(through: Callable[[Op[..., Any], Rule], Rule]) -> contextlib.AbstractContextManager[None]:
    """Within it every rule that an op of this thread picks is replaced by `through(op, rule)`."""
    return _held(_watch, through)


@contextlib.contextmanager
def _held(variable: ContextVar[Any], value: Any) -> Iterator[None]:
    token = variable.set(value)
    try:
        yield
    finally:
        variable.reset(token)


class Op(Generic[P, R]):
    """An operator on tensors. Calling it checks the arguments, picks a rule, and records the step on a tape."""

    def __init__(self, function: Callable[P, R]) -> None:
        self.name = function.__name__
        self.function = function
        self._composed: Rule | None = None
        self._rules: dict[str, list[Rule]] = {}
        for attribute in ("__module__", "__name__", "__qualname__", "__doc__"):
            setattr(self, attribute, getattr(function, attribute))
        self.__wrapped__ = function  # inspect.signature follows it

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        return self.function(*args, **kwargs)

    def __repr__(self) -> str:
        return f"<op {self.name}>"

    # Rules ----------------------------------------------------------------------------------------
    def add(self, rule: Rule, backend: str | None = None) -> None:
        """Register a rule: the composed one without `backend`, else one tried on that backend, newest first."""
        if backend is None:
            self._composed = rule
        else:
            self._rules.setdefault(backend, []).insert(0, rule)

    def rules(self, backend: str) -> list[Rule]:
        """The rules of this op on one backend, in the order in which they are tried."""
        if self._composed is None:
            raise DuolnError(f"[{self.name}] has no composed rule")
        fast = [] if _composed_only.get() else self._rules.get(backend, [])
        return [*fast, self._composed]

    def select(self, backend: Backend, arrays: Sequence[Any], attrs: Mapping[str, Any]) -> Rule:
        """The rule that runs these native arrays."""
        if not _composed_only.get():
            for rule in self._rules.get(backend.name, ()):
                if rule.supports is None or rule.supports(backend, *arrays, **attrs) is None:
                    return rule
        if self._composed is None:
            raise DuolnError(f"[{self.name}] has no composed rule")
        return self._composed

    def explain(self, *args: Tensor | float | None, **attrs: Any) -> list[tuple[str, str]]:
        """Pairs (rule, verdict) in the order tried: "runs", or the reason why not."""
        backend = next(a.backend for a in args if isinstance(a, Tensor))
        natives = [a.data if isinstance(a, Tensor) else a for a in args]
        verdicts = []
        for rule in self.rules(backend.name):
            reason = rule.supports(backend, *natives, **attrs) if rule.supports else None
            verdicts.append((rule.name, reason or "runs"))
            if reason is None:
                break
        return verdicts

    # Application ----------------------------------------------------------------------------------
    def apply(self, *args: Tensor | float | None, **attrs: Any) -> Any:
        """Run the op's rule on checked arguments; what the public function of each op ends with.

        Raises:
            MixedBackendError, DtypeError: the tensors do not belong together.
            GradientError: a gradient is wanted through a rule that has none, or the tensors belong to two gradients.
        """
        backend = self._check(args)
        natives = [a.data if isinstance(a, Tensor) else a for a in args]
        rule = self.select(backend, natives, attrs)
        watch = _watch.get()
        if watch is not None:
            rule = watch(self, rule)
        out, saved = rule.forward(backend, *natives, **attrs)
        tape = tape_of(self.name, args)
        if tape is not None and rule.vjp is None:
            if any(backend.dtype(o) in FLOATS for o in (out if isinstance(out, tuple) else (out,))):
                raise GradientError(f"[{self.name}] rule '{rule.name}' has no gradient; pass it stop_gradient(x)")
            tape = None  # a comparison: its result is a constant
        if tape is None:
            return tuple(Tensor(o, backend) for o in out) if isinstance(out, tuple) else Tensor(out, backend)
        return record(tape, rule, args, out, saved, backend)

    def _check(self, args: Sequence[Any]) -> Backend:
        backend: Backend | None = None
        float_dtype = None
        for arg in args:
            if isinstance(arg, Tensor):
                if backend is None:
                    backend = arg.backend
                elif arg.backend is not backend:
                    raise MixedBackendError(f"[{self.name}] expected one backend, found "
                                            f"{backend.name} and {arg.backend.name}")
                dtype = backend.dtype(arg.data)
                if dtype in FLOATS:
                    if float_dtype is None:
                        float_dtype = dtype
                    elif dtype != float_dtype:
                        raise DtypeError(f"[{self.name}] expected one float dtype, found {float_dtype} and {dtype}")
            elif arg is not None and not isinstance(arg, int | float):
                raise DtypeError(f"[{self.name}] expected a duoln.Tensor, found {type(arg).__module__}."
                                 f"{type(arg).__qualname__}; wrap it with duoln.tensor(x)")
        if backend is None:
            raise DtypeError(f"[{self.name}] expected a duoln.Tensor among the arguments, found none")
        return backend


def op(function: Callable[P, R]) -> Op[P, R]:
    """Make an operator of a function that checks its arguments and ends with `return NAME.apply(...)`."""
    return Op(function)
