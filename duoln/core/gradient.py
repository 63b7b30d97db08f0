"""Gradients of functions of tensors: one call is recorded on a tape, and the tape is read once in reverse order.

Only first-order gradients exist: rules work on native arrays and record nothing, so that a fused gradient is a rule
like any other. A gradient inside a gradient is therefore refused.
"""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from typing import Any

from duoln import tree
from duoln.backends.protocol import REALS, Array
from duoln.core.arguments import check_flag, check_function, described, how_to_wrap, name_of
from duoln.core.made import Made
from duoln.core.miscalled import explained
from duoln.core.repeated import constant
from duoln.core.tape import Tape
from duoln.core.tensor import Tensor
from duoln.errors import DtypeError, GradientError, ShapeError

_recording: ContextVar[bool] = ContextVar("duoln_recording", default=False)


def is_recording() -> bool:
    """Whether this thread is inside a function whose gradient is being computed."""
    return _recording.get()


def pullback(fn: Callable[..., Any], params: Any, *args: Any) -> tuple[Any, Callable[[list[Array | None]], Any], Tape]:
    """Run `fn(params, *args)` on a new tape.

    Returns three things: the result of `fn`; a function that takes one native gradient per tensor of the result and
    returns the tree of the parameters' gradients (native arrays); and the tape, which the caller closes.
    """
    if is_recording():
        raise GradientError("[value_and_grad] a gradient inside a gradient is not supported: duoln is first "
                            "order only. Compute the inner gradient first, outside the function")
    tape = Tape()
    leaves: list[Tensor] = []

    def track(path: str, leaf: Any) -> Tensor:
        if not isinstance(leaf, Tensor):
            raise DtypeError(f"[value_and_grad] parameter '{path}': expected a duoln.Tensor, found "
                             f"{described(leaf)}; {how_to_wrap(leaf)}")
        if leaf.dtype not in REALS:
            raise DtypeError(f"[value_and_grad] parameter '{path}': expected a float dtype, found {leaf.dtype}")
        tracked = Tensor(leaf.data, leaf.backend, tape.new_place())
        leaves.append(tracked)
        return tracked

    tracked = tree.unflatten(params, [track(path, leaf) for path, leaf in tree.items(params)])
    token = _recording.set(True)
    try:
        result = fn(tracked, *args)
    except BaseException:
        tape.close()  # tensors that `fn` kept must not record on this tape any more
        raise
    finally:
        _recording.reset(token)

    def back(gouts: list[Array | None]) -> Any:
        seeds = {out.node.place: g for out, g in zip(tensors_of(result), gouts, strict=True)
                 if g is not None and out.node is not None and out.node.tape is tape}
        gradients = tape.backward(leaves[0].backend, seeds) if leaves else []
        return tree.unflatten(params, [
            constant(leaf.backend.zeros(leaf.shape, leaf.dtype)) if g is None else g
            for leaf, g in zip(leaves, gradients, strict=False)
        ])

    return result, back, tape


def _advice(value: Any) -> str:
    """The end of an error about a value that is no tensor."""
    if isinstance(value, tuple | list) and value and isinstance(value[0], Tensor) and value[0].shape == ():
        return "; value_and_grad(fn, has_aux=True) takes a pair (loss, aux)" + (
            "" if len(value) == 2 else ", whose aux may be a tuple")
    return "; does the function lack a return?" if value is None else ""


def tensors_of(result: Any) -> list[Tensor]:
    """The tensors in a tree, in order."""
    return [leaf for leaf in tree.leaves(result) if isinstance(leaf, Tensor)]


@explained
def value_and_grad(fn: Callable[..., Any], has_aux: bool = False) -> Callable[..., tuple[Any, Any]]:
    """A function that returns the value of `fn` and its gradient with respect to the first argument.

    `fn(params, *args, **kwargs)` returns a scalar tensor, or `(scalar, aux)` with `has_aux`. The result returns
    `(value, gradients)`, or `((value, aux), gradients)`; gradients have the form, shapes and dtypes of
    `params`. A parameter that does not affect the value gets a gradient of zeros. Values that leave the call are not
    on the tape. Inside it NumPy's functions refuse tensors that need a gradient, and `float(x)` warns of a constant.
    MLX computes when values are read; the call begins to compute its own, so a loop that reads none keeps one update.

    Raises:
        ShapeError: the value is not a scalar, or `has_aux` is set and the result is not a pair.
        DtypeError: a parameter or the value is not a float tensor.
        GradientError: the call is inside another gradient.
    """
    check_function("value_and_grad", "fn", fn)
    check_flag("value_and_grad", "has_aux", has_aux)

    def run(params: Any, *args: Any, **kwargs: Any) -> tuple[Any, Any]:
        result, back, tape = pullback(lambda p: fn(p, *args, **kwargs), params)
        try:
            if has_aux and not (isinstance(result, tuple) and len(result) == 2):
                raise ShapeError(f"[value_and_grad] expected a pair (value, aux) of a function with has_aux, "
                                 f"found {described(result)}")
            value, aux = result if has_aux else (result, None)
            if not isinstance(value, Tensor) or value.shape != ():
                actual = (f"shape {value.shape}; ops.mean(loss) makes one of it" if isinstance(value, Tensor) else
                          f"{described(value)}{_advice(value)}")
                raise ShapeError(f"[value_and_grad] expected a scalar tensor as the value, found {actual}")
            if value.dtype not in REALS:
                raise DtypeError(f"[value_and_grad] expected a float value, found {value.dtype}: it has no gradient")
            backend = value.backend
            tensors = tensors_of(result)
            one = constant(backend.ones((), value.dtype))
            seeds: list[Array | None] = [one if t is value else None for t in tensors]
            gradients = tree.map(lambda g: Tensor(g, backend), back(seeds))
            if backend.lazy:  # a loop that reads no value would keep the batches and operations of all its updates
                backend.begin([value.data, *[g.data for g in tree.leaves(gradients)]])
        finally:
            tape.close()
        value = Tensor(value.data, backend)
        if not has_aux:
            return value, gradients
        return (value, tree.map(lambda x: Tensor(x.data, x.backend) if isinstance(x, Tensor) else x, aux)), gradients

    run.__name__ = run.__qualname__ = f"value_and_grad({name_of(fn)})"
    return Made(explained(run), value_and_grad, (fn, has_aux))
