"""`compile`: a training step as one function of trees of tensors."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from duoln import tree
from duoln.backends.protocol import Backend
from duoln.core.arguments import check_function, described, how_to_wrap
from duoln.core.miscalled import explained
from duoln.core.step_contract import checked_step
from duoln.core.tensor import Tensor
from duoln.errors import CompileError, MixedBackendError


@explained
def compile(step: Callable[..., Any]) -> Callable[..., Any]:
    """The same step, compiled where the backend can: MLX traces and fuses it, NumPy checks it, CuPy runs it eagerly.

    `step(*trees) -> trees` must be pure: it reads no values on the host, and the same input shapes give the
    same output shapes. Every leaf that goes in or comes out is a tensor; a learning rate is a 0-d tensor,
    because a Python number would become a constant of the first trace.

    Raises:
        DtypeError: `step` is not a function.
        CompileError: a leaf that is not a tensor, or a step that breaks the contract.
        MixedBackendError: the tensors live on different backends.
    """
    check_function("compile", "step", step)
    compiled: dict[str, Callable[..., Any]] = {}

    def run(*args: Any, **named: Any) -> Any:
        if named:
            raise CompileError(f"[compile] expected arguments by position, found {', '.join(named)} by name: a step "
                               "takes trees of tensors in one order")
        backend = _backend_of(args)
        if backend.name not in compiled:
            def native(*natives: Any) -> Any:
                return _unwrap(step(*_wrap(natives, backend)))
            compiled[backend.name] = checked_step(backend.compile(native))
        return _wrap(compiled[backend.name](*_unwrap(args, step)), backend)

    return run


def _wrap(natives: Any, backend: Backend) -> Any:
    return tree.map(lambda x: Tensor(x, backend), natives)


def _unwrap(tensors: Any, step: Callable[..., Any] | None = None) -> Any:
    """The native arrays of a step's result, or of its arguments if the step is given."""
    def unwrap(leaf: Any) -> Any:
        if not isinstance(leaf, Tensor):
            path = next(p for p, known in tree.items(tensors) if known is leaf)
            role = f"result '{path}'" if step is None else _argument(step, path)
            raise CompileError(f"[compile] {role}: expected a duoln.Tensor, found {described(leaf)}; {_remedy(leaf)}")
        return leaf.data

    return tree.map(unwrap, tensors)


def _remedy(leaf: Any) -> str:
    if isinstance(leaf, int | float):
        return f"a number would be a constant of the compiled step: give the 0-d tensor duoln.tensor({leaf!r})"
    if callable(leaf):
        return "a step takes trees of tensors: give duoln.tensor(schedule(update)), not the function"
    return how_to_wrap(leaf)


def _argument(step: Callable[..., Any], path: str) -> str:
    """An argument by its name, with the path inside it: `argument 'params', '0.weight'`."""
    index, _, inside = path.partition(".")
    try:
        names = list(inspect.signature(step).parameters)
    except (TypeError, ValueError):  # a step written in C has no signature
        names = []
    name = names[int(index)] if int(index) < len(names) else index
    return f"argument '{name}'{f', {inside!r}' if inside else ''}"


def _backend_of(args: Any) -> Backend:
    backends = {leaf.backend for leaf in tree.leaves(args) if isinstance(leaf, Tensor)}
    if not backends:
        raise CompileError("[compile] expected tensors among the arguments, found none")
    if len(backends) > 1:
        names = " and ".join(sorted(backend.name for backend in backends))
        raise MixedBackendError(f"[compile] expected one backend, found {names}")
    return backends.pop()
