"""`compile`: a training step as one function of trees of tensors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from duoln import tree
from duoln.backends.protocol import Backend
from duoln.core.arguments import check_function
from duoln.core.step_contract import checked_step
from duoln.core.tensor import Tensor
from duoln.errors import CompileError, MixedBackendError


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

    def run(*args: Any) -> Any:
        backend = _backend_of(args)
        if backend.name not in compiled:
            def native(*natives: Any) -> Any:
                return _unwrap(step(*_wrap(natives, backend)), "result")
            compiled[backend.name] = checked_step(backend.compile(native))
        return _wrap(compiled[backend.name](*_unwrap(args, "argument")), backend)

    return run


def _wrap(natives: Any, backend: Backend) -> Any:
    return tree.map(lambda x: Tensor(x, backend), natives)


def _unwrap(tensors: Any, role: str) -> Any:
    def unwrap(leaf: Any) -> Any:
        if not isinstance(leaf, Tensor):
            path = next(p for p, known in tree.items(tensors) if known is leaf)
            raise CompileError(f"[compile] {role} '{path}': expected a Tensor, found {type(leaf).__name__} "
                               f"({leaf!r:.40}); numbers become 0-d tensors with duoln.tensor(x)")
        return leaf.data

    return tree.map(unwrap, tensors)


def _backend_of(args: Any) -> Backend:
    backends = {leaf.backend for leaf in tree.leaves(args) if isinstance(leaf, Tensor)}
    if not backends:
        raise CompileError("[compile] expected tensors among the arguments, found none")
    if len(backends) > 1:
        names = " and ".join(sorted(backend.name for backend in backends))
        raise MixedBackendError(f"[compile] expected one backend, found {names}")
    return backends.pop()
