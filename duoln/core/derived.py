"""A composed rule from a function of tensors. Its gradient comes from the operators that the function calls."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from duoln.backends.protocol import REALS, Array, Backend
from duoln.core.rule import Rule
from duoln.core.tape import Tape
from duoln.core.tensor import Tensor


class _Saved(NamedTuple):
    tape: Tape
    inputs: list[Tensor | None]
    outputs: tuple[Tensor, ...]


def derived(function: Callable[..., Any], name: str = "composed") -> Rule:
    """A rule that runs `function` on tensors, on a tape of its own.

    `function(*tensors, **attrs)` takes the arguments of the op (tensors, None) and returns a tensor or a tuple of
    tensors. The formula is written once, and the tape gives its gradient. A weight that the function uses many times
    costs one product.
    """

    def forward(be: Backend, /, *arrays: Array | None, **attrs: Any) -> tuple[Any, _Saved]:
        tape = Tape()
        inputs = [None if a is None else Tensor(a, be, tape.new_place() if be.dtype(a) in REALS else None)
                  for a in arrays]
        try:
            result = function(*inputs, **attrs)
        finally:
            tape.closed = True  # the records stay, because the gradient reads them
        outputs = result if isinstance(result, tuple) else (result,)
        natives = tuple(o.data for o in outputs)
        return natives if isinstance(result, tuple) else natives[0], _Saved(tape, inputs, outputs)

    def vjp(be: Backend, saved: _Saved, gout: Any, needs: Sequence[bool]) -> list[Array | None]:
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
    return Rule(name, forward, vjp)
