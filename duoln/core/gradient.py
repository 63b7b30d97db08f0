"""Gradients of functions of tensors: one call is recorded on a tape, and the tape is read once in reverse order.

Only first-order gradients exist: rules work on native arrays and record nothing, so that a fused gradient is a rule
like any other. A gradient inside a gradient is therefore refused.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from typing import Any

from duoln import tree
from duoln.backends.protocol import REALS, Array
from duoln.core.arguments import check_flag, check_function, check_integer, described, how_to_wrap, name_of
from duoln.core.pytorch_names import hinted
from duoln.core.step.repeated import constant
from duoln.core.tape import Tape
from duoln.core.tensor import Tensor
from duoln.errors import CallError, DtypeError, GradientError, ShapeError

_recording: ContextVar[Callable[..., Any] | None] = ContextVar("duoln_recording", default=None)


def is_recording() -> bool:
    """True if this thread is inside a function whose gradient is being computed."""
    return _recording.get() is not None


def recorded_function() -> Callable[..., Any] | None:
    """That function; None outside of one."""
    return _recording.get()


def pullback(fn: Callable[..., Any], params: Any, *args: Any) -> tuple[Any, Callable[..., Any], Tape]:
    """Run `fn(params, *args)` on a new tape.

    Returns three things: the result of `fn`; a function that takes one native gradient per tensor of the result and
    returns the tree of the parameters' gradients (native arrays), once, or often with `keep=True`; and the tape, which
    the caller closes.
    """
    if is_recording():
        raise GradientError("[value_and_grad] a gradient inside a gradient is not supported: duoln is first "
                            "order only. Compute the inner gradient first, outside the function")
    tape = Tape()
    leaves: list[Tensor] = []

    for place, leaf in enumerate(tree.leaves(params)):
        if not isinstance(leaf, Tensor) or (leaf.data.dtype not in leaf.backend.wide and leaf.dtype not in REALS):
            raise _parameter_error([path for path, _ in tree.items(params)][place], leaf)
        leaves.append(Tensor(leaf.data, leaf.backend, tape.new_place()))
    tracked = tree.unflatten(params, leaves)
    token = _recording.set(fn)
    try:
        result = fn(tracked, *args)
    except BaseException:
        tape.close()  # tensors that `fn` kept must not record on this tape any more
        raise
    finally:
        _recording.reset(token)

    def back(gouts: Sequence[Array | None], keep: bool = False) -> Any:
        seeds = {out.node.place: g for out, g in zip(tensors_of(result), gouts, strict=True)
                 if g is not None and out.node is not None and out.node.tape is tape}
        gradients = tape.backward(leaves[0].backend, seeds, keep) if leaves else []
        return tree.unflatten(params, [
            constant(leaf.backend.zeros(leaf.shape, leaf.dtype)) if g is None else g
            for leaf, g in zip(leaves, gradients, strict=False)
        ])

    return result, back, tape


def pullback_at(places: Sequence[int], fn: Callable[..., Any], args: Sequence[Any],
                ) -> tuple[Any, Callable[..., Any], Tape]:
    """As `pullback`, of `fn(*args)` by the arguments at these places; the others are constants."""
    def of_chosen(chosen: Sequence[Tensor]) -> Any:
        whole = list(args)
        for k, x in zip(places, chosen, strict=True):
            whole[k] = x
        return fn(*whole)

    return pullback(of_chosen, [args[k] for k in places])


def _parameter_error(path: str, leaf: Any) -> DtypeError:
    role = f"parameter '{path}'" if path else "params"
    where = f"[value_and_grad] {role}: expected"
    if isinstance(leaf, Tensor):
        return DtypeError(f"{where} a float dtype, found {leaf.dtype}")
    return DtypeError(f"{where} a duoln.Tensor, found {described(leaf)}; {how_to_wrap(leaf)}")


def _advice(value: Any) -> str:
    """The end of an error about a value that is no tensor."""
    if isinstance(value, tuple | list) and value and isinstance(value[0], Tensor) and value[0].shape == ():
        return "; value_and_grad(fn, has_aux=True) takes a pair (loss, aux)" + (
            "" if len(value) == 2 else ", whose aux may be a tuple")
    return "; does the function lack a return?" if value is None else ""


def tensors_of(result: Any) -> list[Tensor]:
    """The tensors in a tree, in order."""
    return [leaf for leaf in tree.leaves(result) if isinstance(leaf, Tensor)]


class PicklableFunction:
    """A function, and the call `maker(*args)` that made it, of another function first.

    It pickles and copies as this call; Python's closures do not.
    """

    def __init__(self, function: Callable[..., Any], maker: Callable[..., Any], args: tuple[Any, ...]) -> None:
        functools.update_wrapper(self, function)
        self._function, self._made_by = function, (maker, args)

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        return self._function(*args, **kwargs)

    def __get__(self, instance: object, owner: type | None = None) -> Any:
        """The value of an attribute of a class: a function made of a method is made anew of the bound method."""
        maker, (method, *options) = self._made_by
        bound = method.__get__(instance, owner) if hasattr(type(method), "__get__") else method
        if bound is method:
            return self
        made = maker(bound, *options)
        if hasattr(method, "__name__"):  # as Python pickles methods
            made._made_by = getattr, (owner if instance is None else instance, method.__name__)
        return made

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return self._made_by

    def __repr__(self) -> str:
        return f"<function {self._function.__name__}>"


@hinted
def value_and_grad(fn: Callable[..., Any], has_aux: bool = False, argnums: int | tuple[int, ...] = 0,
                   ) -> Callable[..., tuple[Any, Any]]:
    """A function that returns the value of `fn` and its gradient with respect to the first argument.

    `fn(params, *args, **kwargs)` returns a scalar tensor, or `(scalar, aux)` with `has_aux`. The result returns
    `(value, gradients)`, or `((value, aux), gradients)`; gradients have the form, shapes and dtypes of
    `params`. `argnums` is the position of another argument for the gradient, or a tuple of positions, whose gradients
    are a tuple: `value_and_grad(loss, argnums=(0, 1))(params, x)` gives `value, (d_params, d_x)`.

    A parameter that does not affect the value gets a gradient of zeros. Values that leave the call are not
    on the tape. Inside it NumPy's functions refuse tensors that need a gradient, and `float(x)` warns of a constant.
    MLX computes when values are read; the call begins to compute its own, so a loop that reads none keeps one update.

    Raises:
        ShapeError: the value is not a scalar, or `has_aux` is set and the result is not a pair.
        DtypeError: a parameter or the value is not a float tensor.
        CallError: an argument of `argnums` is not given.
        GradientError: the call is inside another gradient.
    """
    check_function("value_and_grad", "fn", fn)
    check_flag("value_and_grad", "has_aux", has_aux)
    places = [check_integer("value_and_grad", "argnums", k, 0)
              for k in (argnums if isinstance(argnums, tuple) else (argnums,))]
    if not places or len(set(places)) < len(places):
        raise CallError(f"[value_and_grad] argnums: expected positions of different arguments, found {argnums}")

    def run(*args: Any, **kwargs: Any) -> tuple[Any, Any]:
        if len(args) <= max(places):
            args, kwargs = _to_positional(fn, max(places), args, kwargs)

        def of_chosen(chosen: Any) -> Any:
            whole = list(args)
            for k, arg in zip(places, chosen if isinstance(argnums, tuple) else (chosen,), strict=True):
                whole[k] = arg
            return fn(*whole, **kwargs)

        result, back, tape = pullback(of_chosen, tuple(args[k] for k in places) if isinstance(argnums, tuple)
                                      else args[places[0]])
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
    return PicklableFunction(run, value_and_grad, (fn, has_aux, argnums))


def _to_positional(fn: Callable[..., Any], last: int, args: tuple[Any, ...], kwargs: dict[str, Any],
                 ) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Arguments of a call, those up to the `last` by position. Raises CallError for one that is not given."""
    names = list(inspect.signature(fn).parameters)[len(args):last + 1]
    absent = next((name for name in names if name not in kwargs), None)
    if absent is not None or len(args) + len(names) <= last:
        raise CallError(f"[value_and_grad] expected argument {last} of {name_of(fn)}, for its gradient, found "
                        f"{len(args)} arguments by position and {', '.join(kwargs) or 'none'} by name")
    return (*args, *(kwargs[name] for name in names)), {k: v for k, v in kwargs.items() if k not in names}


@hinted
def vjp(fn: Callable[..., Any], *args: Any) -> tuple[Any, Callable[[Any], tuple[Any, ...]]]:
    """The result of `fn(*args)`, and the function that gives the gradients of the arguments from that of the result.

    The name stands for vector-Jacobian product. Arguments and result are trees; every float tensor in the arguments has
    a gradient, with its shape and dtype. What is no float tensor, such as an index or a number, is a constant, and has
    None in its place.

        >>> x, w = duoln.tensor([[1.0, 2.0]]), duoln.tensor([[3.0], [4.0]])
        >>> y, back = duoln.vjp(ops.matmul, x, w)
        >>> d_x, d_w = back(duoln.tensor([[1.0]]))
        >>> d_x.tolist(), d_w.tolist()
        ([[3.0, 4.0]], [[1.0], [2.0]])

    `back` can be called several times. It keeps what the gradient needs until it is dropped. A tensor of the result
    without a gradient gets None.

    Raises:
        GradientError: the call is inside another gradient.
        ShapeError, DtypeError: raised by `back` where its argument has not the form, shapes and dtypes of the result.
    """
    check_function("vjp", "fn", fn)
    leaves = tree.leaves(args)
    floats = [k for k, leaf in enumerate(leaves) if isinstance(leaf, Tensor) and leaf.dtype in REALS]
    result, pull, tape = pullback_at(floats, lambda *whole: fn(*tree.unflatten(args, whole)), leaves)
    tape.closed = True  # the records stay for `back`, but nothing is added to them
    result = tree.map(lambda x: Tensor(x.data, x.backend) if isinstance(x, Tensor) else x, result)

    def back(gradient: Any) -> tuple[Any, ...]:
        gradients = list[Tensor | None]([None] * len(leaves))
        for k, native in zip(floats, pull(gradients_like("vjp", result, gradient), keep=True), strict=True):
            gradients[k] = Tensor(native, leaves[k].backend)
        whole: tuple[Any, ...] = tree.unflatten(args, gradients)
        return whole

    return result, back


def gradients_like(name: str, result: Any, gradient: Any) -> list[Array | None]:
    """The native gradients of the tensors of a tree. Raises for a tree of them that does not fit."""
    expected, given = dict(tree.items(result)), dict(tree.items(gradient))
    tree.combine(tree.map(lambda _: None, result), gradient)  # refuses other forms, but for None in a branch's place
    if not given.keys() <= expected.keys():
        forms = (", ".join(path or "one tensor" for path in paths) or "nothing" for paths in (expected, given))
        raise ShapeError("[{}] gradient: expected the form {}; found {}".format(name, *forms))
    return [_gradient_of(name, path, x, given.get(path)) for path, x in expected.items() if isinstance(x, Tensor)]


def _gradient_of(name: str, path: str, x: Tensor, gradient: Any) -> Array | None:
    where = f"[{name}] gradient{f' of {path!r}' if path else ''}: expected"
    if gradient is None:
        return None
    if not isinstance(gradient, Tensor):
        raise DtypeError(f"{where} a tensor or None, found {described(gradient)}; {how_to_wrap(gradient)}")
    if gradient.shape != x.shape:
        raise ShapeError(f"{where} shape {x.shape}, found {gradient.shape}")
    if (gradient.dtype, gradient.backend.name) != (x.dtype, x.backend.name):
        raise DtypeError(f"{where} {x.dtype} on {x.backend.name}, found {gradient.dtype} on "
                         f"{gradient.backend.name}")
    return gradient.data
