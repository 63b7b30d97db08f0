"""Rules from functions of tensors, whose gradient comes from the operators that they call, or is their own."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from duoln import tree
from duoln.backends.protocol import REALS, Array, Backend
from duoln.core.arguments import check_function, described, name_of
from duoln.core.gradient import gradients_like
from duoln.core.op import Op
from duoln.core.pytorch_names import hinted
from duoln.core.rule import Rule
from duoln.core.tape import Tape
from duoln.core.tensor import Tensor
from duoln.errors import CallError, DtypeError


class _Recorded(NamedTuple):
    tape: Tape
    inputs: list[Tensor | None]
    outputs: tuple[Tensor, ...]


def derived(function: Callable[..., Any]) -> Rule:
    """A rule that runs `function` on tensors, on a tape of its own.

    `function(*tensors, **attrs)` takes the arguments of the op (tensors, None) and returns a tensor or a tuple of
    tensors. The formula is written once, and the tape gives its gradient. A weight that the function uses many times
    costs one product.
    """

    def forward(be: Backend, /, *arrays: Array | None, **attrs: Any) -> tuple[Any, _Recorded]:
        tape = Tape()
        inputs = [None if a is None else Tensor(a, be, tape.new_place() if be.dtype(a) in REALS else None)
                  for a in arrays]
        try:
            result = function(*inputs, **attrs)
        finally:
            tape.closed = True  # the records stay, because the gradient reads them
        outputs = result if isinstance(result, tuple) else (result,)
        natives = tuple(o.data for o in outputs)
        return natives if isinstance(result, tuple) else natives[0], _Recorded(tape, inputs, outputs)

    def vjp(be: Backend, saved: _Recorded, gout: Any, needs: Sequence[bool]) -> list[Array | None]:
        gouts = gout if isinstance(gout, tuple) else (gout,)
        seeds: dict[int, Array] = {}
        for out, g in zip(saved.outputs, gouts, strict=True):
            if g is not None and out.node is not None:
                before = seeds.get(out.node.place)  # one tensor may be two outputs
                seeds[out.node.place] = g if before is None else before + g
        gradients = saved.tape.backward(be, seeds, keep=True)
        results: list[Array | None] = []
        for tensor, need in zip(saved.inputs, needs, strict=True):
            if not need or tensor is None or tensor.node is None:
                results.append(None)
                continue
            gradient = gradients[tensor.node.place]
            results.append(be.zeros(tensor.shape, tensor.dtype) if gradient is None else gradient)
        return results

    functools.update_wrapper(forward, function, ("__doc__",), ())  # its signature is the function's
    return Rule("composed", forward, vjp)


class _Saved(NamedTuple):
    back: Callable[..., Any]
    args: tuple[Any, ...]
    outputs: tuple[Tensor, ...]


@hinted
def custom_gradient(function: Callable[..., Any]) -> Callable[..., Any]:
    """Give a function a gradient of its own: it returns its value and the function that computes the gradient.

        >>> @duoln.custom_gradient
        ... def straight_through(x):
        ...     return ops.round(x), lambda g: g
        >>> x = duoln.tensor([0.25, 1.75])
        >>> y, d_x = duoln.value_and_grad(lambda x: (straight_through(x) * x).sum())(x)
        >>> y.item(), d_x.tolist()
        (3.5, [0.25, 3.75])

    `function(*args) -> (y, back)`: the arguments are trees; y is a tensor or a tuple of tensors. `back` gets the
    gradient of y, a tuple if y is one, and returns that of the argument; of several arguments a tuple, with None for
    those without one. Each has the form, shapes and dtypes of its argument. The gradient is of first order: nothing
    within `function` or `back` is recorded. A compiled step takes it in.

    Raises:
        DtypeError: it is no function, or does not return such a pair, or a gradient has another dtype.
        CallError: a call without tensors. ShapeError: a gradient has another form or shape than its argument.
    """
    check_function("custom_gradient", "function", function)
    name = name_of(function)

    def forward(be: Backend, /, *arrays: Array, form: Any) -> tuple[Any, _Saved]:
        args = _insert_tensors(form, iter([Tensor(a, be) for a in arrays]))
        result = function(*args)
        if not isinstance(result, tuple) or len(result) != 2 or not callable(result[1]):
            raise DtypeError(f"[custom_gradient] {name}: expected a pair (y, back), found {described(result)}")
        y, back = result
        outputs = y if isinstance(y, tuple) else (y,)
        for each in outputs:
            if not isinstance(each, Tensor):
                raise DtypeError(f"[custom_gradient] {name}: expected a tensor or a tuple of tensors as y, found "
                                 f"{described(each)}")
        natives = tuple([each.data for each in outputs])
        return natives if isinstance(y, tuple) else natives[0], _Saved(back, args, outputs)

    def vjp(be: Backend, saved: _Saved, gout: Any, needs: Sequence[bool]) -> list[Array | None]:
        of_outputs = [Tensor(be.zeros(y.shape, y.dtype) if g is None else g, be)
                      for y, g in zip(saved.outputs, gout if isinstance(gout, tuple) else (gout,), strict=True)]
        given = saved.back(tuple(of_outputs) if isinstance(gout, tuple) else of_outputs[0])
        gradients = given if len(saved.args) > 1 else (given,)
        if not isinstance(gradients, tuple) or len(gradients) != len(saved.args):
            raise DtypeError(f"[custom_gradient] {name}: expected a tuple of {len(saved.args)} gradients, one for each "
                             f"argument, found {described(given)}")
        native: list[Array | None] = []
        for arg, gradient in zip(saved.args, gradients, strict=True):
            tensors = [x for x in tree.leaves(arg) if isinstance(x, Tensor)]
            native += [None] * len(tensors) if gradient is None else gradients_like("custom_gradient", arg, gradient)
        return [g if need else None for g, need in zip(native, needs, strict=True)]

    op = Op[Any, Any](forward, name=name if name.isidentifier() else "custom_gradient")
    op.add(Rule("composed", forward, vjp))

    @functools.wraps(function)
    def call(*args: Any) -> Any:
        tensors = [x for x in tree.leaves(args) if isinstance(x, Tensor)]
        if not tensors:
            raise CallError(f"[custom_gradient] {name}: expected tensors among the arguments, found none")
        return op.apply(*tensors, form=tree.map(lambda x: _PLACE if isinstance(x, Tensor) else x, args))

    return call


class _Place:
    """Stands for a tensor in the form of the arguments."""


_PLACE = _Place()


def _insert_tensors(form: Any, tensors: Any) -> Any:
    return tree.map(lambda x: next(tensors) if x is _PLACE else x, form)
