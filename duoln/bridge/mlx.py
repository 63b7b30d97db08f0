"""duoln inside MLX: pure functions with gradients, and layers as `mlx.nn.Module`.

    from duoln.bridge.mlx import LSTM                   # in the place of mlx.nn.LSTM
    self.lstm = LSTM(400, 400, norm="layer")

Functions and layers work inside `mx.grad`, `mx.compile` and `nn.value_and_grad`. On a Mac they run duoln's Metal
kernels. Gradients are of first order.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import mlx.core as mx
import mlx.nn

from duoln import ops
from duoln.bridge.functions import NORMS, check_norm, over_trees, sequence
from duoln.core import Tensor
from duoln.core.arguments import described, name_of
from duoln.core.gradient import pullback_at
from duoln.core.public_names import only_public
from duoln.core.pytorch_names import hinted
from duoln.errors import DtypeError, GradientError, ShapeError, UsageError
from duoln.ops.recurrent.variants import CELLS, CellName, has_bias, norm_shapes
from duoln.runtime import backend

__all__ = ["GRU", "LSTM", "RNN", "AddLayerNorm", "AddRMSNorm", "LayerNorm", "RMSNorm", "differentiable"]

_FLOATS = {mx.float32, mx.float16, mx.bfloat16, mx.float64}


def differentiable(fn: Callable[..., Any]) -> Callable[..., Any]:
    """A function of MLX's arrays that computes `fn`, a pure function of duoln's tensors, with its gradient.

        >>> norm = differentiable(lambda x, gain: ops.rms_norm(x, gain))
        >>> mx.grad(lambda x: norm(x, gain).sum())(x)

    Arguments and results are trees of dicts, lists and tuples. Every mx.array in the arguments reaches `fn` as a
    duoln.Tensor, everything else as it is. Each tensor of the result is an mx.array. An array that `fn` reads from
    around it has no gradient: duoln.tensor refuses one that MLX traces, `duoln.Tensor(array, backend)` does not check.

    Raises:
        GradientError: for a gradient of a gradient.
    """
    return over_trees(fn, mx.array, apply)


def apply(fn: Callable[..., Sequence[Tensor]], arrays: Sequence[mx.array]) -> list[mx.array]:
    """`fn` of arrays, with the gradient of duoln's rules in the place of that of MLX's operators."""
    pulls: list[Callable[..., Any]] = []
    count = 0
    for k, x in enumerate(arrays):
        if not isinstance(x, mx.array):
            raise DtypeError(f"[bridge] argument {k}: expected an mx.array, found {described(x)}")
    if not arrays:
        return [y.data for y in fn()]
    be = backend("mlx")
    floats = [k for k, x in enumerate(arrays) if x.dtype in _FLOATS]

    def forward(*arrays: mx.array) -> list[mx.array]:
        outputs, pull, tape = pullback_at(floats, fn, [Tensor(x, be) for x in arrays])
        tape.closed = True  # the gradient reads it, and nothing is added to it
        pulls[:] = [pull]
        results = [y.data for y in outputs]
        nonlocal count
        count = len(results)
        return results or [mx.zeros(())]  # MLX ends the process at a function without results

    def back(primals: Any, cotangents: Any, outputs: Any) -> list[mx.array]:
        given = cotangents if isinstance(cotangents, list | tuple) else [cotangents]
        results = [mx.zeros_like(x) for x in (primals if isinstance(primals, list | tuple) else [primals])]
        gradients = _first_order(given, pulls[0](given, keep=True))
        for k, gradient in zip(floats, gradients, strict=True):
            results[k] = gradient
        return results

    call: Any = mx.custom_function(forward)
    call.vjp(back)
    results = list(call(*arrays))
    return results[:count]


def _first_order(given: Sequence[mx.array], gradients: Sequence[mx.array]) -> list[mx.array]:
    """The gradients, whose own gradient is an error."""
    call: Any = mx.custom_function(lambda *arrays: list(arrays[len(given):]))

    def refuse(*_: Any) -> None:
        raise GradientError("[differentiable] a gradient of a gradient is not supported: duoln is first order only")

    call.vjp(refuse)
    return list(call(*given, *gradients))


@lru_cache
def _walk(*settings: Any) -> Callable[..., Sequence[Tensor]]:
    return sequence(*settings)


class _Recurrent:
    """The part of a layer that calls duoln: mixed into the class of mlx.nn that has its weights and their names."""

    cell: CellName
    bias_name = "bias"
    hidden_size: int

    @hinted
    def __init__(self, input_size: int, hidden_size: int, bias: bool = True, *, norm: str = "none",
                 eps: float = 1e-5) -> None:
        super().__init__(input_size, hidden_size, bias)  # type: ignore[call-arg]
        check_norm(type(self).__name__, self.cell, norm)
        self.norm, self.eps = norm, eps
        for name, shape in norm_shapes(self.cell, norm, self.hidden_size).items():
            if name.startswith("gain"):
                setattr(self, NORMS[name][0], mlx.nn.LayerNorm(shape[0], eps))
        if not has_bias(self.cell, norm):
            setattr(self, self.bias_name, None)
        if norm != "none":
            self.bhn = None  # of a GRU, whose reset gate multiplies it

    def _norms(self) -> list[mx.array]:
        places = [NORMS[name] for name in norm_shapes(self.cell, self.norm, self.hidden_size)]
        return [getattr(self, module)[name] for module, name in places]

    def _sequence(self, norm: str, x: mx.array, states: Sequence[mx.array | None], w_x: mx.array, w_h: mx.array,
                  bias: mx.array | None, norms: Sequence[mx.array]) -> list[mx.array]:
        """Hidden states and last states in the form of x, (N, L, D) or (L, D); weights are (gates * H, in)."""
        if x.ndim not in (2, 3) or x.shape[-1] != w_x.shape[1]:
            raise ShapeError(f"[{type(self).__name__}] expected x (N, L, {w_x.shape[1]}) or (L, {w_x.shape[1]}), found "
                             f"shape {x.shape}")
        batch = x.shape[:-2] or (1,)
        whole = x.reshape(*batch, *x.shape[-2:]).swapaxes(0, 1)
        first = [mx.zeros((*batch, self.hidden_size), x.dtype) if s is None else s.reshape(*batch, self.hidden_size)
                 for s in states]
        biases = [mx.zeros(CELLS[self.cell].gates * self.hidden_size, w_x.dtype) if bias is None else bias]
        biases = biases if has_bias(self.cell, norm) else []
        hidden, *last = apply(_walk(self.cell, norm, self.eps, False, bool(biases)),
                              [whole, *first, w_x.T, w_h.T, *biases, *norms])
        return [hidden.swapaxes(0, 1).reshape(*x.shape[:-1], self.hidden_size),
                *(s.reshape(*x.shape[:-2], self.hidden_size) for s in last)]


class LSTM(_Recurrent, mlx.nn.LSTM):
    """`mlx.nn.LSTM` with layer norm, on duoln's kernels (Ba, Kiros, Hinton 2016, eq. 20-22).

    Arguments and parameters are those of mlx.nn.LSTM; `norm` is a variant of `duoln.nn.LSTM` whose parameters are in
    `layernorm_i`, `layernorm_h` and `layernorm_c`. Without a norm the values are those of mlx.nn.LSTM.
    """

    cell = "lstm"

    def __call__(self, x: mx.array, hidden: mx.array | None = None, cell: mx.array | None = None,
                 ) -> tuple[mx.array, mx.array]:
        """The hidden states of all time steps, and the cell of the last one.

        Shape:
            x (N, L, D) or (L, D), hidden and cell (N, H) or (H,) -> (N, L, H) or (L, H), and (N, 1, H) or (1, H).
        """
        y, _, c = self._sequence(self.norm, x, (hidden, cell), self.Wx, self.Wh, self.bias, self._norms())
        return y, mx.expand_dims(c, -2)


class GRU(_Recurrent, mlx.nn.GRU):
    """`mlx.nn.GRU` with layer norm, on duoln's kernels (Ba, Kiros, Hinton 2016, eq. 26-28); see `LSTM`.

    Its norms are "none", "layer", "layer-theano" and "layer-per-gate". The update gate keeps the state, as in MLX.
    """

    cell, bias_name = "gru", "b"

    def __call__(self, x: mx.array, hidden: mx.array | None = None) -> mx.array:
        """The hidden states of all time steps: (N, L, D) or (L, D) -> (N, L, H) or (L, H)."""
        normed, bhn = self.norm != "none", self.get("bhn")
        norm = self.norm if bhn is None else "recurrent-bias"
        norms = [_to_duoln_gates(a, normed) for a in self._norms()] if bhn is None else [bhn]
        b = None if self.b is None else _to_duoln_gates(self.b, not normed)
        of_x, of_h = (_to_duoln_gates(w, not normed) for w in (self.Wx, self.Wh))
        return self._sequence(norm, x, (hidden,), of_x, of_h, b, norms)[0]


def _to_duoln_gates(x: mx.array, turns: bool) -> mx.array:
    """The gates r, z, n along the first axis in duoln's order z, r, n, where the update gate means the opposite."""
    r, z, n = mx.split(x, 3)
    return mx.concatenate([-z if turns else z, r, n])


class RNN(_Recurrent, mlx.nn.RNN):
    """`mlx.nn.RNN` with tanh and layer norm, on duoln's kernels (Ba, Kiros, Hinton 2016, eq. 4); see `LSTM`."""

    cell = "rnn"

    @hinted
    def __init__(self, input_size: int, hidden_size: int, bias: bool = True, nonlinearity: Any = None, *,
                 norm: str = "none", eps: float = 1e-5) -> None:
        if nonlinearity not in (None, mx.tanh, mlx.nn.tanh):
            raise UsageError(f"[RNN] nonlinearity: expected tanh, found {name_of(nonlinearity)}")
        super().__init__(input_size, hidden_size, bias, norm=norm, eps=eps)

    def __call__(self, x: mx.array, hidden: mx.array | None = None) -> mx.array:
        """The hidden states of all time steps: (N, L, D) or (L, D) -> (N, L, H) or (L, H)."""
        return self._sequence(self.norm, x, (hidden,), self.Wxh, self.Whh, self.bias, self._norms())[0]


def _normalised(norm: Any, operator: Callable[..., Any], *arrays: mx.array) -> list[mx.array]:
    """The results of an operator of the arrays and a norm's parameters."""
    def call(*tensors: Tensor) -> Sequence[Tensor]:
        y = operator(*tensors, eps=norm.eps)
        return y if isinstance(y, tuple) else (y,)

    return apply(call, [*arrays, *(norm[name] for name in ("weight", "bias") if name in norm)])


class LayerNorm(mlx.nn.LayerNorm):
    """`mlx.nn.LayerNorm` on duoln's kernels. Shape: x (..., dims) -> the same."""

    def __call__(self, x: mx.array) -> mx.array:
        """The normalised values."""
        return _normalised(self, ops.layer_norm, x)[0]


class RMSNorm(mlx.nn.RMSNorm):
    """`mlx.nn.RMSNorm` on duoln's kernels. Shape: x (..., dims) -> the same."""

    def __call__(self, x: mx.array) -> mx.array:
        """The normalised values."""
        return _normalised(self, ops.rms_norm, x)[0]


class AddLayerNorm(mlx.nn.LayerNorm):
    """The layer norm of a sum and the sum itself. Shape: x and residual (..., dims) -> two arrays like x."""

    def __call__(self, x: mx.array, residual: mx.array) -> tuple[mx.array, mx.array]:
        """The normalised sum, and the sum."""
        y, total = _normalised(self, ops.add_layer_norm, x, residual)
        return y, total


class AddRMSNorm(mlx.nn.RMSNorm):
    """The RMS norm of a sum and the sum itself. Shape: x and residual (..., dims) -> two arrays like x."""

    def __call__(self, x: mx.array, residual: mx.array) -> tuple[mx.array, mx.array]:
        """The normalised sum, and the sum."""
        y, total = _normalised(self, ops.add_rms_norm, x, residual)
        return y, total


only_public(globals())
