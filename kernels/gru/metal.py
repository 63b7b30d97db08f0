"""The GRU's cell on Apple GPUs: after the product one kernel a step, and one for its gradient."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import mlx.core as mx

from duoln.backends.protocol import Array, Backend
from duoln.kernels import metal
from duoln.kernels.layer_norm.metal import backward as layer_norm_backward
from duoln.kernels.recurrent.plan import plan
from duoln.kernels.recurrent.steps import Gradient, States
from duoln.ops.recurrent.formulas import Settings

_COMMON = ("side: float32[2], recurrent: float32[2], h: float32[2], gain_h: float32[1], bias_h: float32[1], "
           "mask: bool[1]?, ")
_forward = metal.Kernel("gru/gru_forward.metal", _COMMON + "eps: float32")
_backward = metal.Kernel("gru/gru_backward.metal", _COMMON + "stats: float32[3], d_h: float32[2]")


class Kept(NamedTuple):
    """What the gradient of a step needs."""

    side: Array
    recurrent: Array
    h: Array
    mask: Array | None
    stats: Array


def forward(side: Array, recurrent: Array, h: Array, gain_h: Array, bias_h: Array, mask: Array | None,
            eps: float) -> tuple[Array, Kept]:
    """The next hidden state (B, H), from both sides (B, 3H), and what the gradient needs."""
    p = plan(h.shape[1])
    next_h, stats = _forward(len(h), p.threads, (side, recurrent, h, gain_h, bias_h, mask, eps),
                             {"next_h": h.shape, "stats": (2, len(h), 3)}, p.macros())
    return next_h, Kept(side, recurrent, h, mask, stats)


class StepGradient(NamedTuple):
    """Gradients of one step, (B, 3H) and (B, H)."""

    side: Array
    state: Array
    """Of the recurrent side, after its norms."""
    recurrent: Array
    h: Array
    """Of the state before the step, beside the product."""


def backward(kept: Kept, gain_h: Array, bias_h: Array, d_h: Array) -> StepGradient:
    """From the gradient of the next hidden state."""
    p, sides = plan(kept.h.shape[1]), kept.side.shape
    return StepGradient(*_backward(
        len(kept.h), p.threads, (kept.side, kept.recurrent, kept.h, gain_h, bias_h, kept.mask, kept.stats, d_h),
        {"d_side": sides, "d_state": sides, "d_recurrent": sides, "d_before": kept.h.shape}, p.macros()))


class MetalGru:
    """`Steps` of the variants layer and layer-theano."""

    def __init__(self, be: Backend, cell: str, settings: Settings, bias: Array | None,
                 norms: Mapping[str, Array]) -> None:
        self._norms, self._bias, self._eps = norms, bias, settings.eps

    def forward(self, side: Array, product: Array, states: States, keep: Array | None) -> tuple[States, Any]:
        """As in `Steps`."""
        next_h, kept = forward(side, product, states[0], self._norms["gain_h"], self._norms["bias_h"], keep, self._eps)
        return (next_h,), kept

    def backward(self, kept: Any, gradients: list[Array]) -> Gradient:
        """As in `Steps`."""
        found = backward(kept, self._norms["gain_h"], self._norms["bias_h"], gradients[0])
        return Gradient(found.side, found.recurrent, [found.h], found)

    def parameters(self, walked: Sequence[tuple[Any, Any]]) -> list[Array]:
        """As in `Steps`: the input's side has had its own share of the bias and the norms."""
        found = dict(zip(("gain_h", "bias_h"), _of_norms(mx.stack([kept.recurrent for kept, _ in walked]),
                                                         mx.stack([g.state for _, g in walked]), self._eps),
                         strict=True))
        none = [] if self._bias is None else [mx.zeros_like(self._bias)]
        return [*none, *(found.get(name, mx.zeros_like(a)) for name, a in self._norms.items())]


def _of_norms(recurrent: Array, of_state: Array, eps: float) -> tuple[Array, Array]:
    """Gradients of gain and bias of the recurrent side, whose gates and candidate are normalised apart."""
    cut = recurrent.shape[-1] // 3 * 2
    gains: list[Any] = []
    biases: list[Any] = []
    for x, dy in zip(mx.split(recurrent, [cut], axis=-1), mx.split(of_state, [cut], axis=-1), strict=True):
        _, gain, bias = layer_norm_backward(x, None, None, dy, eps, None, (False, True, True))
        gains.append(gain)
        biases.append(bias)
    return mx.concatenate(gains), mx.concatenate(biases)


def differentiable(eps: float = 1e-5) -> Callable[..., Array]:
    """One step for `mx.grad`: (side, recurrent, h, gain_h, bias_h) -> the next h (eq. 26-28).

    Shape:
        side and recurrent (B, 3H), h (B, H), gain_h and bias_h (3H,) -> (B, H).
    """

    @mx.custom_function
    def gru_cell(side: Array, recurrent: Array, h: Array, gain_h: Array, bias_h: Array) -> Array:
        return forward(side, recurrent, h, gain_h, bias_h, None, eps)[0]

    @gru_cell.vjp
    def gru_cell_vjp(primals: Sequence[Array], d_h: Array, new: Array) -> tuple[Array, ...]:
        side, recurrent, h, gain_h, bias_h = primals
        _, kept = forward(side, recurrent, h, gain_h, bias_h, None, eps)
        found = backward(kept, gain_h, bias_h, d_h)
        return found.side, found.recurrent, found.h, *_of_norms(recurrent, found.state, eps)

    function: Any = gru_cell
    return function
