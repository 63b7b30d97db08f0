"""`compile`: a training step as one function of trees of tensors."""

from __future__ import annotations

import functools
import inspect
import statistics
import warnings
from collections.abc import Callable, Sequence
from functools import partial
from types import MethodType
from typing import Any, NamedTuple, Never

from duoln import tree
from duoln.backends.protocol import Array, Backend
from duoln.core.arguments import check_function, described, how_to_wrap
from duoln.core.donation import arrays_of_step, compiled_step, is_donated, mark_donated
from duoln.core.gradient import is_recording, recorded_function
from duoln.core.op import is_composed_only, is_watched
from duoln.core.pytorch_names import hinted
from duoln.core.step.repeated import recordings
from duoln.core.step.replay import Bindable, Replay
from duoln.core.step.telling import Profile, Table, explained
from duoln.core.step.variables import variables
from duoln.core.step_contract import MAX_INPUT_FORMS, builder, form, reader
from duoln.core.tensor import Tensor
from duoln.errors import CompileError, CompileWarning, MixedBackendError, UsageError

_MANY_FORMS = (f"a compiled step has seen more than {MAX_INPUT_FORMS} different forms of input: it runs as it is for "
               "all others; give it arrays of few different shapes")


@hinted
def compile(step: Any = ..., *, static: str | Sequence[str] = ()) -> Callable[..., Any]:
    """The same step, faster: MLX traces and fuses it, NumPy and CuPy replay the operators that it ran.

    Arguments named in `static`, such as flags, are no tensors: each value has a compiled step of its own. Without a
    step this is a decorator, `@duoln.compile(static="training")`.

    `step(*trees) -> trees` must be pure: it reads no values on the host, and the same input shapes give the
    same output shapes. Every leaf that goes in or comes out is a tensor; a learning rate is a 0-d tensor,
    because a Python number would become a constant. The step itself runs two or three times for inputs of one form;
    later calls repeat its operators only. So `print` is not repeated, and what else Python reads is a constant: give
    tensors as arguments, and return what is to be kept. A CompileWarning names a variable that changes, at the latest
    when the calls have doubled, and the step then runs as it is; the guide lists what is not seen.

    Within a gradient a compiled function runs as it is, because the gradient needs its operators: compile the whole
    step, with the gradient in it.

    Raises:
        DtypeError: `step` is not a function.
        CompileError: a leaf that is not a tensor, a static argument that is not hashable or that the step has not, or a
            step that breaks the contract.
        MixedBackendError: the tensors live on different backends.
    """
    if step is ...:
        return functools.partial(compile, static=static)
    check_function("compile", "step", step)
    return Compiled(step, (static,) if isinstance(static, str) else tuple(static))


_SELF = "argument 'self'"
_BOUND_AT_ONCE, _PATIENCE = 2, 8
"""Forms that are bound to a table at once, and the calls of a later one before it is: a step over texts has many forms,
and to bind one takes as long as some of its calls.
"""
_FIRST_LOOK = 4
"""Calls of a form until its variables are looked at again, and so after twice as many, and so on."""
_MOST_RECENT = 2
"""Forms that a call tries before it looks among all: the one of training, and that of a last batch or of evaluation."""


class Compiled:
    """A compiled step: it is called as the step itself."""

    def __init__(self, step: Callable[..., Any], static: tuple[str, ...] = ()) -> None:
        functools.update_wrapper(self, step)  # its name, its signature and its text
        self._step, self._static = step, frozenset(static)
        self._signature, self._names = _signature(step), _names(step)
        known = [] if self._signature is None else list(self._signature.parameters)
        for name in self._static.difference(known):
            raise CompileError(f"[compile] static: expected names of the step's arguments, {', '.join(known)}; found "
                               f"{name!r}")
        self._of_given: dict[Any, Compiled] = {}
        """Steps for arguments that are static or given by name."""
        self._latest = self
        self._of_forms: dict[str, dict[Any, _FormStep]] = {}
        self._recent: tuple[_CachedProgram, ...] = ()

    def __call__(self, /, *args: Any, **named: Any) -> Any:
        if named or self._static:
            step, trees = self._specialize(args, named)
            return step(*trees)
        step = self._step
        repeats = not (is_recording() or recordings or is_watched())
        if repeats:
            for proved in self._recent:
                read = proved.read(args) if proved.is_composed == is_composed_only() else None
                if read is not None:
                    return proved.of_form.repeat(proved.run, read)
        leaves: list[Any] = []
        given = form(args, leaves)
        backend = _backend_of(leaves, args, step)
        if is_recording() or any([leaf.node is not None and leaf._is_recorded() for leaf in leaves]):
            return step(*args)  # the gradient around it records its operators
        of_forms = self._of_forms.setdefault(backend.name, {})
        if given not in of_forms:
            if len(of_forms) >= MAX_INPUT_FORMS:
                warnings.warn(_MANY_FORMS, CompileWarning, stacklevel=2)
                return step(*args)
            of_forms[given] = _FormStep(step, args, backend, _PATIENCE if len(of_forms) >= _BOUND_AT_ONCE else 0)
        of_form = of_forms[given]
        latest = of_form.proved(args, leaves) if repeats else None
        if latest is None:
            return of_form.repeat(of_form.replay, leaves)
        self._recent = (latest, *[proved for proved in self._recent if proved is not latest][:_MOST_RECENT - 1])
        return of_form.repeat(latest.run, leaves)

    def _specialize(self, args: tuple[Any, ...], named: dict[str, Any]) -> tuple[Callable[..., Any], list[Any]]:
        """The step for these static arguments, compiled, and its other arguments, all by position."""
        more = [f"argument{k}" for k in range(len(self._names), len(args))]
        given = [*zip([*self._names, *more], args), *named.items()]  # noqa: B905  # of all names, or fewer
        names = tuple([name for name, _ in given])
        static = tuple([(name, type(x), x) for name, x in given if name in self._static])
        trees = [x for name, x in given if name not in self._static]
        try:
            step = self._of_given.get((names, static))
        except TypeError:
            raise CompileError("[compile] static: expected values that are hashable, found "
                               f"{', '.join(f'{name}={x!r:.40}' for name, _, x in static)}") from None
        if step is None:
            if self._signature is not None:
                self._signature.bind(*args, **named)  # Python's own error for a wrong call
            plain = _bind_static(self._step, names, len(args), {name: x for name, _, x in static})
            if len(self._of_given) >= MAX_INPUT_FORMS:
                warnings.warn(_MANY_FORMS, CompileWarning, stacklevel=3)
                return plain, trees
            step = self._of_given[names, static] = Compiled(plain)
        self._latest = step
        return step, trees

    def explain(self) -> str:
        """The lines that the latest form of the step runs: kernels, NumPy's functions, and rules that Python runs.

        Raises:
            UsageError: the step has not been called three times with arguments of one form, or is not bound: on NumPy
                alone steps are, where kernels are compiled.
        """
        return explained(self._table().rows)

    def profile(self, /, *args: Any, calls: int = 5, **named: Any) -> Profile:
        """The time of each line, the median of some calls with copies of these arguments; print it, or `save` it.

        Raises:
            UsageError: as `explain`, or the arguments have another form.
        """
        table, proved = self._table(), self._latest._recent[0]
        read = proved.read(tuple(self._specialize(args, named)[1]) if named or self._static else args)
        if read is None:
            raise UsageError("[compile] profile: expected arguments of the form that the step was called with last")
        natives = [x.data for x in read]
        timed = [table.profile(natives) for _ in range(calls)]
        return Profile(table.rows, [statistics.median(of_row) for of_row in zip(*timed, strict=True)])

    def _table(self) -> Table:
        recent = self._latest._recent
        run = recent[0].run if recent else None
        table: Table | None = run.table() if isinstance(run, Bindable) else None
        if table is None:
            raise UsageError("[compile] expected a step that has been called three times with arguments of one form, "
                             "on NumPy with compiled kernels; found one that is not bound")
        return table

    def __get__(self, instance: object, owner: type | None = None) -> Any:
        return self if instance is None else MethodType(self, instance)  # as a function in a class

    def __deepcopy__(self, memo: dict[int, Any]) -> Compiled:
        return self

    def __reduce__(self) -> Never:
        raise CompileError("[compile] expected what can be pickled, found a compiled step; pickle the step itself, and "
                           "compile it where it is loaded")


class _CachedProgram(NamedTuple):
    """A step for arguments of one form and layout, for which it repeats its operators."""

    read: Callable[[Any], list[Tensor] | None]
    """The arguments' leaves; None for arguments of another form or layout, see `step_contract.reader`."""
    is_composed: bool
    """True if it repeats composed rules only."""
    run: Callable[..., list[Array]]
    of_form: _FormStep


class _FormStep:
    """A step for arguments of one form."""

    def __init__(self, step: Callable[..., Any], args: Any, backend: Backend, patience: int) -> None:
        self._step, self._backend = step, backend
        self._arguments = tree.map(lambda _: 0, args)
        self._form: Any = None
        self._build: Any = None
        """The function that makes the tree of the result; known after the first call, as `_form`."""
        self.replay = Replay(self._run, backend, partial(variables, step), patience)
        self._donated: list[int] = []
        """The numbers of the leaves that the step donates to an optimizer; known after the first call."""
        self._proved: dict[Any, _CachedProgram] = {}
        """By the layout of the arguments."""
        self._calls, self._look = 0, _FIRST_LOOK

    def repeat(self, run: Callable[..., list[Array]], leaves: list[Tensor]) -> Any:
        """The step's result, from a function that computes it on native arrays."""
        self._calls += 1
        if self._calls >= self._look:
            self._look *= 2
            self.replay.check_variables(self._calls)
        if self.replay.changed:
            run = self.replay.step
        results = run(*arrays_of_step(leaves, self._donated))
        if self._donated:
            mark_donated([leaves[k] for k in self._donated])
        if self._backend.lazy:  # as `value_and_grad`
            self._backend.begin(results)
        return self._build(results)

    def proved(self, args: Any, leaves: list[Tensor]) -> _CachedProgram | None:
        """The program for such arguments; None before two calls have been recorded."""
        layout = self.replay.layout([x.data for x in leaves])
        if layout not in self._proved and (run := self.replay.proved.get(layout)) is not None:
            self._proved[layout] = _CachedProgram(reader(args, self._backend), is_composed_only(), run, self)
        return self._proved.get(layout)

    def _run(self, *natives: Array) -> list[Array]:
        backend = self._backend
        given = [Tensor(x, backend) for x in natives]
        token = compiled_step.set(self._step)
        try:
            result = self._step(*tree.unflatten(self._arguments, given))
        finally:
            compiled_step.reset(token)
        self._donated = [k for k, x in enumerate(given) if is_donated(x)]
        if result is None:
            raise CompileError("[compile] expected a tree of tensors as the result, found None; does the step lack a "
                               "return?")
        leaves: list[Any] = []
        actual = form(result, leaves)
        for leaf in leaves:
            if not isinstance(leaf, Tensor):
                raise CompileError(f"[compile] result '{_path(result, leaf)}': {_leaf_error(leaf)}")
            if leaf._is_recorded():
                raise CompileError(f"[compile] result '{_path(result, leaf)}': expected a value of this step alone, "
                                   "found one of a gradient that is still being computed in another thread")
        if self._form is None:
            self._form, self._build = actual, builder(tree.map(lambda _: 0, result), backend)
        elif actual != self._form:
            raise CompileError(f"[compile] the step's result changed form: expected {self._form}, found {actual}")
        return [leaf.data for leaf in leaves]


def _signature(step: Callable[..., Any]) -> inspect.Signature | None:
    """The signature of a function; None of one written in C."""
    try:
        return inspect.signature(step)
    except (TypeError, ValueError):
        return None


def _names(step: Callable[..., Any]) -> list[str]:
    """The names of the arguments that a call may give by position."""
    signature = _signature(step)
    return [] if signature is None else [name for name, each in signature.parameters.items()
                                         if each.kind in (each.POSITIONAL_ONLY, each.POSITIONAL_OR_KEYWORD)]


def _bind_static(step: Callable[..., Any], names: tuple[str, ...], by_position: int, static: dict[str, Any],
              ) -> Callable[..., Any]:
    """A function of trees of tensors alone, by position: the step with these static arguments, and with the arguments
    behind the first `by_position` by name.
    """

    @functools.wraps(step)
    def of_trees(*trees: Any) -> Any:
        rest = iter(trees)
        whole = [static[name] if name in static else next(rest) for name in names]
        return step(*whole[:by_position], **dict(zip(names[by_position:], whole[by_position:], strict=True)))

    of_trees.__signature__ = inspect.Signature([  # type: ignore[attr-defined]  # what errors name
        inspect.Parameter(name, inspect.Parameter.POSITIONAL_ONLY) for name in names if name not in static])
    return of_trees


def running_function() -> Callable[..., Any] | None:
    """The function of the compiled step, or else of the gradient, that this thread computes; None outside of both."""
    step = compiled_step.get()
    return recorded_function() if step is None else step


def _backend_of(leaves: list[Any], args: Any, step: Callable[..., Any]) -> Backend:
    """The backend of the arguments' leaves, which must be tensors."""
    if not any(isinstance(leaf, Tensor) for leaf in leaves):
        raise CompileError("[compile] expected tensors among the arguments, found none")
    backend: Backend | None = None
    for leaf in leaves:
        if not isinstance(leaf, Tensor):
            argument = _argument(step, _path(args, leaf))
            text = _leaf_error(leaf) if argument != _SELF else (
                f"expected trees of tensors, found a method of {described(leaf)}; compile the bound method, as in "
                "self.step = duoln.compile(self.step), and call it when the object no longer changes")
            raise CompileError(f"[compile] {argument}: {text}")
        if backend is None:
            backend = leaf.backend
        elif leaf.backend is not backend:
            names = " and ".join(sorted({t.backend.name for t in leaves if isinstance(t, Tensor)}))
            raise MixedBackendError(f"[compile] expected one backend, found {names}")
    assert backend is not None
    return backend


def _path(root: Any, leaf: Any) -> str:
    return next(path for path, known in tree.items(root) if known is leaf)


def _leaf_error(leaf: Any) -> str:
    return f"expected a duoln.Tensor, found {described(leaf)}; {_remedy(leaf)}"


def _remedy(leaf: Any) -> str:
    if isinstance(leaf, int | float):
        return f"a number would be a constant of the compiled step: give the 0-d tensor duoln.tensor({leaf!r})"
    if callable(leaf):
        return "a step takes trees of tensors: give duoln.tensor(schedule(update)), not the function"
    return how_to_wrap(leaf)


def _argument(step: Callable[..., Any], path: str) -> str:
    """An argument by its name, with the path inside it: `argument 'params', '0.weight'`."""
    index, _, inside = path.partition(".")
    names = _names(step)
    name = names[int(index)] if int(index) < len(names) else index
    return f"argument '{name}'{f', {inside!r}' if inside else ''}"
