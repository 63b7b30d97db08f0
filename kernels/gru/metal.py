"""The GRU's cell on Apple GPUs: one kernel computes a time step after its product, and one computes its gradient."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, cast

import mlx.core as mx

from duoln.backends.protocol import Array, Backend
from duoln.kernels import metal
from duoln.kernels.norm.metal import backward as layer_norm_backward
from duoln.kernels.norm.metal import refusal as layer_norm_refusal
from duoln.kernels.recurrent.plan import METAL_LADDER, Plan
from duoln.kernels.recurrent.steps import Gradient, States
from duoln.ops.recurrent.formulas import Settings

_COMMON = ("x_gates: float32[2], h_proj: float32[2], h: float32[2], gain_h: float32[1], bias_h: float32[1], "
           "mask: bool[1]?, ")
_forward = metal.Kernel("gru/gru_forward.metal", _COMMON + "eps: float32")
_backward = metal.Kernel("gru/gru_backward.metal", _COMMON + "stats: float32[3], d_h: float32[2]")


class Kept(NamedTuple):
    """The arrays that the gradient of a time step needs."""

    x_gates: Array
    h_proj: Array
    h: Array
    mask: Array | None
    stats: Array


def forward(x_gates: Array, h_proj: Array, h: Array, gain_h: Array, bias_h: Array, mask: Array | None,
            eps: float) -> tuple[Array, Kept]:
    """The next hidden state (B, H), from x_gates and h_proj (B, 3H), and what the gradient needs."""
    p = Plan(*_layouts.plan(h.shape[1]))
    next_h, stats = _forward(len(h), p.threads, (x_gates, h_proj, h, gain_h, bias_h, mask, eps),
                             {"next_h": h.shape, "stats": (2, len(h), 3)}, p.macros())
    return next_h, Kept(x_gates, h_proj, h, mask, stats)


class StepGradient(NamedTuple):
    """Gradients of one time step, (B, 3H) and (B, H)."""

    x_gates: Array
    h_gates: Array
    """The gradient after the norms of h_proj."""
    h_proj: Array
    h: Array
    """The gradient of the state before the time step, without the part that comes through h_proj."""


def backward(kept: Kept, gain_h: Array, bias_h: Array, d_h: Array) -> StepGradient:
    """The gradients of one time step, from the gradient of the next hidden state."""
    p, wide = Plan(*_layouts.plan(kept.h.shape[1])), kept.x_gates.shape
    return StepGradient(*_backward(
        len(kept.h), p.threads, (kept.x_gates, kept.h_proj, kept.h, gain_h, bias_h, kept.mask, kept.stats, d_h),
        {"d_x_gates": wide, "d_h_gates": wide, "d_h_proj": wide, "d_h_before": kept.h.shape}, p.macros()))


def _trial(hidden: int) -> list[Array]:
    """A time step of one masked row of zeros, forward and back."""
    row, gates = mx.zeros((1, hidden)), mx.zeros((1, 3 * hidden))
    next_h, kept = forward(gates, gates, row, gates[0], gates[0], mx.zeros((1,), mx.bool_), 1e-5)
    return [next_h, *backward(kept, gates[0], gates[0], row)]


_layouts = metal.Layouts(METAL_LADDER, _trial)


def refusal(hidden: int, norm: str) -> str | None:
    """Why the pipelines of this device do not allow the kernels; None if they do."""
    of_two, of_new = (layer_norm_refusal(width, True, mx.float32) for width in (2 * hidden, hidden))
    return _layouts.refusal(hidden) or of_two or of_new


class MetalGru:
    """`Steps` of the variants layer and layer-theano."""

    def __init__(self, be: Backend, cell: str, settings: Settings, bias: Array | None,
                 norms: Mapping[str, Array]) -> None:
        self._norms, self._bias, self._eps = norms, bias, settings.eps

    def forward(self, x_gates: Array, h_proj: Array, states: States, mask: Array | None) -> tuple[States, Any]:
        """As in `Steps`."""
        gain_h, bias_h = self._norms["gain_h"], self._norms["bias_h"]
        next_h, kept = forward(x_gates, h_proj, states[0], gain_h, bias_h, mask, self._eps)
        return (next_h,), kept

    def backward(self, kept: Any, gradients: list[Array]) -> Gradient:
        """As in `Steps`."""
        own = backward(kept, self._norms["gain_h"], self._norms["bias_h"], gradients[0])
        return Gradient(own.x_gates, own.h_proj, [own.h], own)

    def parameters(self, walked: Sequence[tuple[Any, Any]]) -> list[Array]:
        """As in `Steps`, without the gradients that the bias and the norms of the input get through x_gates."""
        h_proj = mx.stack([kept.h_proj for kept, _ in walked])
        d_h_gates = mx.stack([own.h_gates for _, own in walked])
        gradients = dict(zip(("gain_h", "bias_h"), _of_norms(h_proj, d_h_gates, self._eps), strict=True))
        d_bias = [] if self._bias is None else [mx.zeros_like(self._bias)]
        return [*d_bias, *(gradients.get(name, mx.zeros_like(a)) for name, a in self._norms.items())]


def _of_norms(h_proj: Array, d_h_gates: Array, eps: float) -> tuple[Array, Array]:
    """Gradients of gain and bias of h_proj; one norm is over z and r, a second one over n."""
    cut = h_proj.shape[-1] // 3 * 2
    d_gains: list[Any] = []
    d_biases: list[Any] = []
    for x, dy in zip(mx.split(h_proj, [cut], axis=-1), mx.split(d_h_gates, [cut], axis=-1), strict=True):
        _, d_gain, d_bias = layer_norm_backward(x, None, None, dy, eps, None, (False, True, True))
        d_gains.append(d_gain)
        d_biases.append(d_bias)
    return mx.concatenate(d_gains), mx.concatenate(d_biases)


def differentiable(eps: float = 1e-5) -> Callable[..., Array]:
    """One time step for `mx.grad` (eq. 26-28): x_gates, h_proj, h and the norms' parameters -> the next h.

    Shape:
        x_gates and h_proj (B, 3H), h (B, H), gain_h and bias_h (3H,) -> (B, H).
    """

    @mx.custom_function
    def gru_cell(x_gates: Array, h_proj: Array, h: Array, gain_h: Array, bias_h: Array) -> Array:
        return forward(x_gates, h_proj, h, gain_h, bias_h, None, eps)[0]

    @gru_cell.vjp
    def gru_cell_vjp(primals: Sequence[Array], d_h: Array, new: Array) -> tuple[Array, ...]:
        x_gates, h_proj, h, gain_h, bias_h = primals
        _, kept = forward(x_gates, h_proj, h, gain_h, bias_h, None, eps)
        d = backward(kept, gain_h, bias_h, d_h)
        return d.x_gates, d.h_proj, d.h, *_of_norms(h_proj, d.h_gates, eps)

    return cast(Callable[..., Array], gru_cell)
