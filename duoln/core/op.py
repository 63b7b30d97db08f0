"""Operators and their rules.

An `Op` is a name, a signature and a set of rules. A `Rule` is a pair of functions on native arrays: one computes the
value, the other computes the gradient from what the first one saved. Each op has one rule, `composed`, that every
backend can run, and a backend may have faster rules. The op picks the rule, so the author of a rule never writes a
fallback.

    @op("x: real[*shape] -> like x")
    def tanh(x: Tensor) -> Tensor:
        '''Hyperbolic tangent.'''

    def tanh_forward(be, x):
        y = be.tanh(x)
        return y, y                                    # the value, and what the gradient needs

    def tanh_vjp(be, y, gout, needs):
        return (gout * (1 - y * y),)

    tanh.add(Rule("composed", tanh_forward, tanh_vjp))

The declaration has the arguments' kinds and axes (`core.spec`); annotations have what an attribute may be. Both are
checked before the function runs. A function whose body is its docstring needs no more. Another one has conditions or
other operators, and ends with `return NAME.apply(...)`.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from math import inf
from typing import Any, Generic, ParamSpec, TypeVar, overload

import numpy as np

from duoln.backends.protocol import NAMES, REALS, STORAGE, Backend
from duoln.core.arguments import check_function, described, how_to_wrap, kind_name, name_of
from duoln.core.call import compile_call, compile_check
from duoln.core.pytorch_names import add_hint
from duoln.core.rule import Rule, checked_rule
from duoln.core.spec import Spec
from duoln.core.step.repeated import note_thread_uses, recordings
from duoln.core.storage import candidates, common_dtype
from duoln.core.tape import Record, Tape
from duoln.core.tensor import Tensor
from duoln.errors import DtypeError, DuolnError, GradientError, MixedBackendError, UsageError

P = ParamSpec("P")
R = TypeVar("R")

_composed_only: ContextVar[bool] = ContextVar("composed_only", default=os.environ.get("DUOLN_RULES") == "composed")
packages: set[str] = set()
"""The modules outside of duoln that have made operators in this process."""
_watch: ContextVar[Callable[[Op[..., Any], Rule], Rule] | None] = ContextVar("watch", default=None)


def composed_only() -> contextlib.AbstractContextManager[None]:
    """Within this context every op of this thread runs its composed rule, as under DUOLN_RULES=composed."""
    return context_value(_composed_only, True)


def each_rule(through: Callable[[Op[..., Any], Rule], Rule]) -> contextlib.AbstractContextManager[None]:
    """Within this context `through(op, rule)` replaces every rule that an op of this thread picks.

    Of several such contexts the innermost is asked first; those around it get the rule that it returns.
    """
    around = _watch.get()
    return replace_rules(through if around is None else lambda op, rule: around(op, through(op, rule)))


def replace_rules(through: Callable[[Op[..., Any], Rule], Rule]) -> contextlib.AbstractContextManager[None]:
    """As `each_rule`, but contexts around it are not asked."""
    return context_value(_watch, through)


def is_composed_only() -> bool:
    """True if ops of this thread run their composed rules only."""
    return _composed_only.get()


def is_watched() -> bool:
    """True if this thread is within `each_rule`."""
    return _watch.get() is not None


def is_unobserved() -> bool:
    """True if nothing in this thread watches operators, records them or chooses other rules for them."""
    return not (_composed_only.get() or _watch.get() is not None or recordings)


@contextlib.contextmanager
def context_value(variable: ContextVar[Any], value: Any) -> Iterator[None]:
    """Within this context the variable has this value."""
    token = variable.set(value)
    try:
        yield
    finally:
        variable.reset(token)


class Op(Generic[P, R]):
    """An operator on tensors. A call checks the arguments, picks a rule and records itself on a tape.

    Args:
        function: its signature is that of the operator; its body is described above.
        spec: the declaration of arrays, in the language of `core.spec`; None where the function checks all itself.
            A result that is `like` an array is stored in its dtype if that has 16 bits, another one in float32, and
            without declared results all are stored in 16 bits if all float arrays are.
        name, doc: name and docstring of the op; by default those of the function.
    """

    def __init__(self, function: Callable[P, R], spec: str | None = None, name: str | None = None,
                 doc: str | None = None) -> None:
        check_function("op", "function", function)
        if not (name or name_of(function)).isidentifier():
            raise UsageError(f"[op] expected a function with a name, as def makes it, found {name_of(function)}")
        self.function = function
        self.spec = None if spec is None else Spec.of_operator(spec, function)
        self.like = None if self.spec is None else self.spec.like
        self._composed: Rule | None = None
        self._rules: dict[str, list[Rule]] = {}
        self._least: dict[str, int] = {}
        """The least number of values for which a backend has a rule other than the composed one."""
        self.__module__ = function.__module__
        self.is_own = (function.__module__ or "").partition(".")[0] == "duoln"
        """True if it is one of duoln's, whose code every run has."""
        if not self.is_own:
            packages.add(function.__module__ or "")
        self.__doc__ = doc or function.__doc__
        if name is not None:
            function.__name__ = function.__qualname__ = name  # Python's own errors about arguments name it
        self.name = self.__name__ = self.__qualname__ = function.__name__
        self.__wrapped__ = function  # inspect.signature reads the signature from this attribute
        self._run: Callable[P, R] = self._compile_call
        self.check: Callable[..., None] = self._compile_check
        """Checks arrays by the declaration, for a function that changes them first. It raises as `Spec.check`."""

    def _compile_call(self, /, *args: P.args, **kwargs: P.kwargs) -> R:
        """The first call makes the function that runs in all calls: to make those of all operators takes too long."""
        self._run = compile_call(self)
        return self._run(*args, **kwargs)

    def __call__(self, /, *args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return self._run(*args, **kwargs)
        except TypeError as error:
            add_hint(error, self.function)
            raise

    def _compile_check(self, *args: Tensor | None) -> None:
        self.check = compile_check(self)
        self.check(*args)

    def __get__(self, instance: object, owner: type | None = None) -> Op[P, R]:
        """The op itself, also as an attribute of a class. With this method `help(op)` counts it as a routine, and shows
        its signature.
        """
        return self

    def __reduce__(self) -> str:
        """The name under which its module has it, as for a function: a copy, or what a pickle loads, is the op."""
        return self.name

    def __repr__(self) -> str:
        return f"<op {self.name}>"

    # Rules ----------------------------------------------------------------------------------------
    def add(self, rule: Rule, backend: str | None = None) -> None:
        """Register a rule: the composed rule if `backend` is None, else a rule of that backend, tried newest first."""
        if not isinstance(rule, Rule):
            raise DtypeError(f"[{self.name}] add: expected a Rule, found {described(rule)}")
        if backend is not None and backend not in NAMES:
            raise UsageError(f"[{self.name}] add: expected a backend of {', '.join(NAMES)}, found {described(backend)}")
        if backend is None:
            self._composed = rule
        else:
            self._rules.setdefault(backend, []).insert(0, rule)
            self._least[backend] = min(self._least.get(backend, rule.least), rule.least)

    @property
    def has_rules(self) -> bool:
        """True if rules compute it; the body of another one has operators that do."""
        return self._composed is not None

    def rules(self, backend: str) -> list[Rule]:
        """The rules of this op on one backend, in the order in which they are tried."""
        if self._composed is None:
            raise DuolnError(f"[{self.name}] has no composed rule")
        fused = [] if _composed_only.get() else self._rules.get(backend, [])
        return [*fused, self._composed]

    def select(self, backend: Backend, arrays: Sequence[Any], attrs: Mapping[str, Any]) -> Rule:
        """The rule that runs on these native arrays."""
        is_narrow = any(getattr(x, "dtype", None) in backend.narrow for x in arrays)
        if is_narrow:
            return self._select_narrow(backend, arrays, attrs)
        return self._select_wide(backend, arrays, attrs, _size(arrays))

    def bind(self, backend: Backend, arrays: Sequence[Any], attrs: Mapping[str, Any], **options: Any,
             ) -> Callable[..., None] | None:
        """The function that the rule for checked native arrays gives for calls by address, see `Rule.bind`; or None.

        It stands for calls while `is_unobserved()`. The options are the rule's own.
        """
        rule = self.select(backend, arrays, attrs)
        return None if rule.bind is None else rule.bind(backend, *arrays, **attrs, **options)

    def _select_narrow(self, backend: Backend, arrays: Sequence[Any], attrs: Mapping[str, Any]) -> Rule:
        """The rule that runs on these arrays, of which some have 16 bits."""
        rules = self.rules(backend.name)
        return next(rule for rule, given in candidates(self.name, backend, rules, self.like, arrays)
                    if self._refusal(rule, backend, given, attrs) is None)

    def _select_wide(self, backend: Backend, arrays: Sequence[Any], attrs: Mapping[str, Any], size: int) -> Rule:
        """The rule that runs on these arrays, none of which has 16 bits, and the largest of which has `size` values."""
        if not _composed_only.get():
            for rule in self._rules.get(backend.name, ()):
                if rule.least > size:
                    continue
                if rule.supports is not None:
                    reason = rule.supports(backend, *arrays, **attrs)
                    if reason is not None:
                        if reason.__class__ is not str:
                            raise self._supports_error(rule, reason)
                        continue
                if backend.proofs is None or backend.proofs.refusal(self.name, rule, arrays, attrs) is None:
                    return rule
        if self._composed is None:
            raise DuolnError(f"[{self.name}] has no composed rule")
        return self._composed

    def _refusal(self, rule: Rule, backend: Backend, arrays: Sequence[Any], attrs: Mapping[str, Any]) -> str | None:
        """The reason why the rule cannot run on these arrays, or must not run on this device; None if it can."""
        if rule.least > _size(arrays):
            return f"it is for at least {rule.least} values"
        if rule.supports is not None:
            reason = rule.supports(backend, *arrays, **attrs)
            if reason is not None:
                if not isinstance(reason, str):
                    raise self._supports_error(rule, reason)
                return reason
        if backend.proofs is None or (self._composed is not None and rule.name == self._composed.name):
            return None
        return backend.proofs.refusal(self.name, rule, arrays, attrs)

    def _supports_error(self, rule: Rule, reason: object) -> DtypeError:
        return DtypeError(f"[{self.name}] rule '{rule.name}': expected of supports None, or a text that says why the "
                          f"rule cannot run; found {described(reason)}")

    def explain(self, /, *args: P.args, **kwargs: P.kwargs) -> list[tuple[str, str]]:
        """The rules that a call with these arguments would try: pairs (rule, verdict), in order.

        A verdict is "runs" or the reason why the rule cannot run. The arguments are checked, and defaults are filled
        in, as in a call; no rule runs.

        Raises:
            UsageError: the operator needs no rule for these arguments. The rest as a call.
        """
        try:
            with each_rule(self._stop_rule):
                self(*args, **kwargs)
        except _RuleStop as call:
            backend, natives, attrs = call.args
        else:
            raise UsageError(f"[{self.name}] explain: expected arguments that a rule computes with, found some for "
                             "which none is needed")
        verdicts = []
        rules = self.rules(backend.name)
        is_narrow = any(getattr(x, "dtype", None) in backend.narrow for x in natives)
        for rule, given in (candidates(self.name, backend, rules, self.like, natives) if is_narrow else
                            [(rule, natives) for rule in rules]):
            reason = self._refusal(rule, backend, given, attrs)
            verdicts.append((rule.name, reason or "runs"))
            if reason is None:
                break
        return verdicts

    def _stop_rule(self, op: Op[..., Any], rule: Rule) -> Rule:
        """In the place of a rule of this op, one that stops the call and keeps its arguments."""
        def forward(be: Backend, /, *natives: Any, **attrs: Any) -> tuple[Any, Any]:
            raise _RuleStop(be, natives, attrs)

        return Rule(rule.name, forward, rule.vjp) if op is self else rule

    # Application ----------------------------------------------------------------------------------
    def apply(self, /, *args: Tensor | float | None, **attrs: Any) -> R:
        """Run the op's rule on checked arguments; the public function of each op ends with this call.

        Raises:
            MixedBackendError, DtypeError: the tensors do not belong together.
            GradientError: a gradient is needed and the rule has none, or the tensors belong to two gradients.
        """
        backend: Backend | None = None
        tape: Tape | None = None
        natives: list[Any] = []
        dtype = None
        is_mixed = False
        size = 0
        for arg in args:
            if not isinstance(arg, Tensor):
                if arg is not None and not isinstance(arg, int | float):
                    raise DtypeError(f"[{self.name}] expected a duoln.Tensor, found {kind_name(type(arg))}; "
                                     f"{how_to_wrap(arg)}")
                natives.append(arg)
                continue
            native = arg.data
            natives.append(native)
            size = max(size, native.size)
            if backend is None:
                backend, dtype = arg.backend, native.dtype
            elif arg.backend is not backend:
                raise MixedBackendError(f"[{self.name}] expected one backend, found "
                                        f"{backend.name} and {arg.backend.name}")
            elif native.dtype != dtype and (native.dtype in backend.wide or native.dtype in backend.narrow):
                if dtype in backend.wide or dtype in backend.narrow:
                    is_mixed = True
                else:
                    dtype = native.dtype
            node = arg.node
            if node is not None and not node.tape.closed:
                if tape is not None and tape is not node.tape:
                    raise GradientError(
                        f"[{self.name}] expected tensors of one gradient, found those of two gradients that are still "
                        "being computed; pass stop_gradient(x) of the one that is a constant here")
                tape = node.tape
        if backend is None:
            raise DtypeError(f"[{self.name}] expected a duoln.Tensor among the arguments, found none")
        if dtype in backend.narrow or (is_mixed and self._has_narrow(args)):
            rule = self._select_narrow(backend, natives, attrs)
        elif size < self._least.get(backend.name, inf) and self._composed is not None:
            rule = self._composed
        else:
            rule = self._select_wide(backend, natives, attrs, size)
        if backend.lazy:
            backend.join()
        watch = _watch.get()
        if watch is not None:
            rule = watch(self, rule)
        if recordings:
            note_thread_uses(natives)
        try:
            computed = rule.forward(backend, *natives, **attrs)
        except FloatingPointError:
            # The program told NumPy to raise. A value too near 0 for its dtype is 0, as if it had not; all else is
            # raised again. To set NumPy's state before every rule would take a tenth of the time of a small one.
            with np.errstate(under="ignore"):
                computed = rule.forward(backend, *natives, **attrs)
        if not isinstance(computed, tuple) or len(computed) != 2:
            raise UsageError(f"[{self.name}] rule '{rule.name}': expected the pair (value, what the gradient needs) of "
                             f"forward, found {described(computed)}")
        out, saved = computed
        if not self.is_own:
            rule = checked_rule(self.name, self.like, rule, natives, out)
        if tape is not None:
            if rule.vjp is not None:
                result: R = _record(tape, rule, args, out, saved, backend)
                return result
            self._check_constant(rule, out, backend)
        made: Any = tuple([Tensor(o, backend) for o in out]) if isinstance(out, tuple) else Tensor(out, backend)
        return made  # type: ignore[no-any-return]

    def _check_constant(self, rule: Rule, out: Any, backend: Backend) -> None:
        """Raises GradientError for floats of a rule without a gradient; the result of a comparison is a constant."""
        if any(backend.dtype(o) in REALS for o in (out if isinstance(out, tuple) else (out,))):
            raise GradientError(f"[{self.name}] rule '{rule.name}' has no gradient; pass it stop_gradient(x)")

    def _has_narrow(self, args: Sequence[Any]) -> bool:
        """True if a tensor has 16 bits. Raises DtypeError if the float dtypes do not belong together."""
        dtypes = [a.dtype for a in args if isinstance(a, Tensor)]
        if any(dtype in REALS for dtype in dtypes):
            common_dtype(self.name, dtypes)
        return any(dtype in STORAGE for dtype in dtypes)


def _size(natives: Sequence[Any]) -> int:
    """The number of values of the largest array."""
    return max([getattr(x, "size", 0) for x in natives], default=0)


class _RuleStop(BaseException):
    """A call that stopped before its rule, with what the rule would get. No operator may catch it as an error."""


def _record(tape: Tape, rule: Rule, args: Sequence[Any], out: Any, saved: Any, backend: Backend) -> Any:
    """Record one call of an op on the tape; returns the outputs as tensors with places on it."""
    uses, inputs = tape.uses, list[int | None]()
    for a in args:
        node = a.node if isinstance(a, Tensor) else None
        if node is None or node.tape.closed:
            inputs.append(None)
        else:
            inputs.append(node.place)
            uses[node.place] += 1
    if not isinstance(out, tuple):
        node = tape.new_place()
        tape.records.append(Record(rule, saved, inputs, (node.place,), False))
        return Tensor(out, backend, node)
    nodes = [tape.new_place() for _ in out]
    tape.records.append(Record(rule, saved, inputs, [n.place for n in nodes], True))
    return tuple([Tensor(o, backend, node) for o, node in zip(out, nodes, strict=True)])


@overload
def op(function: Callable[P, R]) -> Op[P, R]: ...
@overload
def op(function: str) -> Callable[[Callable[P, R]], Op[P, R]]: ...
def op(function: Callable[..., Any] | str) -> Any:
    """Make an operator: `@op("x: real[*shape] -> like x")` above its function, see `Op`.

    `@op` alone is for a function that checks its arguments itself and ends with `return NAME.apply(...)`.
    """
    if callable(function):
        return Op(function)
    if not isinstance(function, str):
        raise DtypeError("[op] expected a declaration such as 'x: real[*shape] -> like x', found "
                         f"{described(function)}")
    return lambda plain: Op(plain, function)
