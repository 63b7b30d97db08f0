"""One time step of a layer outside of a gradient, such as a token that is sampled: bound once, then run by addresses.

What is bound are the addresses of the parameters, never what was computed from them, so a parameter that is changed in
place needs nothing. One that is another tensor, or has other memory, is bound anew.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch.autograd import forward_ad

from duoln import ops
from duoln.bridge.torch.arrays import backend_for, natives_of
from duoln.core.gradient import is_recording
from duoln.core.op import is_unobserved
from duoln.ops.recurrent.variants import CELLS, has_bias, norm_shapes

_DTYPES = (torch.float32, torch.float64)


class _Parameter(NamedTuple):
    """A parameter, where its module has it, and its place in memory."""

    owner: dict[str, torch.Tensor]
    name: str
    tensor: torch.Tensor
    place: tuple[Any, ...]

    @classmethod
    def of(cls, module: torch.nn.Module, name: str) -> _Parameter | None:
        """None for what is no parameter of the module, as where it is computed from others."""
        owner: Any = module._parameters
        tensor = owner.get(name)
        return None if type(tensor) is not torch.nn.Parameter else cls(owner, name, tensor, _place(tensor))

    def is_there(self) -> bool:
        return self.owner.get(self.name) is self.tensor and _place(self.tensor) == self.place


def _place(x: torch.Tensor) -> tuple[Any, ...]:
    return x.data_ptr(), x.shape, x.stride(), x.dtype


class _Bound(NamedTuple):
    run: Callable[..., None] | None
    """A function of the addresses of x, the bias, the states before and after; None if the step cannot be bound."""
    parameters: list[_Parameter]
    biases: list[_Parameter]
    zeros: torch.Tensor | None
    """The bias of a cell that has one, for a layer without."""

    def bias(self) -> torch.Tensor | None:
        """The sum of the biases, as they are now."""
        if not self.biases:
            return self.zeros
        return sum((each.tensor for each in self.biases[1:]), start=self.biases[0].tensor)


class Steps:
    """The bound steps of a layer. A copy of the layer begins without any."""

    def __init__(self) -> None:
        self._bound: dict[tuple[int, int], _Bound] = {}

    def __reduce__(self) -> tuple[type[Steps], tuple[()]]:
        return Steps, ()

    def run(self, layer: Any, x: torch.Tensor, first: Sequence[torch.Tensor],
            ) -> tuple[torch.Tensor, tuple[torch.Tensor, ...]] | None:
        """The outputs and the last states of one time step; None where the layer has to be called in the general way.

        Shape:
            x (1, B, in), states (layers, B, hidden) -> (1, B, hidden), states.
        """
        dtype = x.dtype
        if torch.is_grad_enabled() or dtype not in _DTYPES or not is_unobserved() or is_recording() \
                or torch.jit.is_tracing() or torch.is_autocast_enabled("cpu") or forward_ad._current_level >= 0:
            return None
        for tensor in (x, *first):
            if type(tensor) is not torch.Tensor or tensor.dtype is not dtype or not tensor.is_contiguous() \
                    or tensor.device.type != "cpu":
                return None
        batch, hidden = x.shape[1], layer.hidden_size
        after = tuple([torch.empty((layer.num_layers, batch, hidden), dtype=dtype) for _ in first])
        inputs, places, distance = x, [s.data_ptr() for s in (*first, *after)], batch * hidden * x.element_size()
        for k in range(layer.num_layers):
            bound = self._bound.get((k, batch))
            if bound is None or not all([p.is_there() for p in (*bound.parameters, *bound.biases)]):
                bound = self._bound[k, batch] = _bind(layer, k, inputs, first)
            if bound.run is None:
                return None
            bias = bound.bias()
            bound.run(inputs.data_ptr(), None if bias is None else bias.data_ptr(), *[p + k * distance for p in places])
            inputs = after[0][k:k + 1]
        return inputs.clone(), after


def _bind(layer: Any, k: int, x: torch.Tensor, first: Sequence[torch.Tensor]) -> _Bound:
    """The step of a layer's part. What does not fit is left to the general way, which says so."""
    part, wide, hidden = layer._parts[k][0], CELLS[layer.cell].gates * layer.hidden_size, layer.hidden_size
    named = [(layer, name) for name in part.weights]
    named += [(getattr(layer, module), name) for module, name in part.norms]
    of_biases = [(layer, name) for name in part.biases]
    shapes = [(wide, x.shape[2]), (wide, hidden), *norm_shapes(layer.cell, layer.norm, hidden).values()]
    if layer._has_recurrent_bias:
        named.append(of_biases.pop())
        shapes.append((wide,))
    parameters, biases = ([p for p in map(_Parameter.of, *zip(*names, strict=True)) if p is not None] if names else []
                          for names in (named, of_biases))
    shapes += [(wide,)] * len(biases)
    fit = [tuple(p.tensor.shape) for p in (*parameters, *biases)] == shapes and all(
        p.tensor.dtype is x.dtype and p.tensor.device.type == "cpu" for p in (*parameters, *biases))
    if not fit or len(layer._parts[k]) > 1:
        return _Bound(None, parameters, biases, None)
    zeros = torch.zeros(wide, dtype=x.dtype) if has_bias(layer.cell, layer.norm) else None
    (w_x, w_h), norms = [p.tensor.t() for p in parameters[:2]], [p.tensor for p in parameters[2:]]
    be = backend_for("cpu")
    arrays = natives_of("argument", [x, *(s[k] for s in first), w_x, w_h, zeros, None, *norms], be)
    norm = "recurrent-bias" if layer._has_recurrent_bias else layer.norm
    attrs = {"norm": norm, "eps": layer.eps, "reverse": False, "gradient_limit": None}
    return _Bound(getattr(ops, layer.cell).bind(be, arrays, attrs, theirs=True), parameters, biases, zeros)
