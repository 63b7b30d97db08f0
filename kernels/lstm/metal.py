"""The LSTM's cell on Apple GPUs: one kernel computes a time step after its product, and one computes its gradient."""

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

_COMMON = ("x_gates: float32[2], h_proj: float32[2], c: float32[2], gain_h: float32[1]?, bias_h: float32[1]?, "
           "gain_c: float32[1], bias_c: float32[1], mask: bool[1]?, ")
_forward = metal.Kernel("lstm/lstm_forward.metal", _COMMON + "h: float32[2]?, eps: float32")
_backward = metal.Kernel("lstm/lstm_backward.metal", _COMMON + "stats: float32[3], d_h: float32[2], d_c: float32[2]")


class Parameters(NamedTuple):
    """The parameters of the norms; the first two are None if h_proj is not normalised (eq. 29-31)."""

    gain_h: Array | None
    bias_h: Array | None
    gain_c: Array
    bias_c: Array


class Kept(NamedTuple):
    """The arrays that the gradient of a time step needs."""

    x_gates: Array
    h_proj: Array
    c: Array
    mask: Array | None
    stats: Array


def forward(x_gates: Array, h_proj: Array, h: Array, c: Array, p: Parameters, mask: Array | None,
            eps: float) -> tuple[Array, Array, Kept]:
    """The next hidden state and cell (B, H), from x_gates and h_proj (B, 4H), and what the gradient needs."""
    batch, hidden = c.shape
    norm_h = p.gain_h is not None
    threads, macros = _macros(hidden, norm_h)
    next_h, next_c, stats = _forward(
        batch, threads, (x_gates, h_proj, c, *p, mask, None if mask is None else h, eps),
        {"next_h": c.shape, "next_c": c.shape, "stats": (1 + norm_h, batch, 3)}, macros)
    return next_h, next_c, Kept(x_gates, h_proj, c, mask, stats)


class StepGradient(NamedTuple):
    """Gradients of one time step, (B, 4H) and (B, H)."""

    x_gates: Array
    """It is also the gradient after the norm of h_proj."""
    h_proj: Array
    c_norm: Array
    c: Array
    """The gradient of the cell before the time step."""
    h_masked: Array | None
    """The gradient of the hidden state before the time step, for masked rows; None without a mask."""


def backward(kept: Kept, p: Parameters, d_h: Array, d_c: Array) -> StepGradient:
    """The gradients of one time step, from those of the next hidden state and cell."""
    batch, hidden = kept.c.shape
    norm_h = p.gain_h is not None
    threads, macros = _macros(hidden, norm_h)
    outputs = {"d_x_gates": kept.x_gates.shape, "d_c_norm": kept.c.shape, "d_c_before": kept.c.shape}
    if norm_h:
        outputs["d_h_proj"] = kept.x_gates.shape
    if kept.mask is not None:
        outputs["d_h_masked"] = kept.c.shape
    gradients = dict(zip(outputs, _backward(
        batch, threads, (kept.x_gates, kept.h_proj, kept.c, *p, kept.mask, kept.stats, d_h, d_c), outputs,
        macros), strict=True))
    d_x_gates = gradients["d_x_gates"]
    return StepGradient(d_x_gates, gradients.get("d_h_proj", d_x_gates), gradients["d_c_norm"], gradients["d_c_before"],
                        gradients.get("d_h_masked"))


def _trial(hidden: int, norm_h: bool) -> list[Array]:
    """A time step of one masked row of zeros, forward and back."""
    row, gates, mask = mx.zeros((1, hidden)), mx.zeros((1, 4 * hidden)), mx.zeros((1,), mx.bool_)
    of_h = gates[0] if norm_h else None
    p = Parameters(of_h, of_h, row[0], row[0])
    *states, kept = forward(gates, gates, row, row, p, mask, 1e-5)
    return [*states, *(a for a in backward(kept, p, row, row) if a is not None)]


_layouts = metal.Layouts(METAL_LADDER, _trial)


def refusal(hidden: int, norm: str) -> str | None:
    """Why the pipelines of this device do not allow the kernels of this variant; None if they do."""
    of_gates, of_cell = (layer_norm_refusal(width, True, mx.float32) for width in (4 * hidden, hidden))
    return _layouts.refusal(hidden, norm != "layer-cell") or of_gates or of_cell


def _macros(hidden: int, norm_h: bool) -> tuple[int, dict[str, int]]:
    p = Plan(*_layouts.plan(hidden, norm_h))
    return p.threads, p.macros(NORM_H=int(norm_h))


class MetalLstm:
    """`Steps` of the variants layer, layer-theano and layer-cell."""

    def __init__(self, be: Backend, cell: str, settings: Settings, bias: Array | None,
                 norms: Mapping[str, Array]) -> None:
        self._p = Parameters(norms.get("gain_h"), norms.get("bias_h"), norms["gain_c"], norms["bias_c"])
        self._names, self._norms, self._bias, self._eps = list(norms), norms, bias, settings.eps

    def forward(self, x_gates: Array, h_proj: Array, states: States, mask: Array | None) -> tuple[States, Any]:
        """As in `Steps`."""
        next_h, next_c, kept = forward(x_gates, h_proj, states[0], states[1], self._p, mask, self._eps)
        return (next_h, next_c), (kept, next_c)

    def backward(self, kept: Any, gradients: list[Array]) -> Gradient:
        """As in `Steps`."""
        own = backward(kept[0], self._p, gradients[0], gradients[1])
        d_h = mx.zeros_like(own.c) if own.h_masked is None else own.h_masked
        return Gradient(own.x_gates, own.h_proj, [d_h, own.c], own)

    def parameters(self, walked: Sequence[tuple[Any, Any]]) -> list[Array]:
        """As in `Steps`, without the gradients that the bias and the norms of the input get through x_gates."""
        gradients: dict[str, Array] = {}
        if self._p.gain_h is not None:
            h_proj = mx.stack([kept.h_proj for (kept, _), _ in walked])
            d_x_gates = mx.stack([own.x_gates for _, own in walked])
            gradients["gain_h"], gradients["bias_h"] = _of_norm(h_proj, d_x_gates, self._eps)
        # The cell of a masked row is not the one normalised at this time step, but its gradient here is zero.
        cells = mx.stack([next_c for (_, next_c), _ in walked])
        d_c_norm = mx.stack([own.c_norm for _, own in walked])
        gradients["gain_c"], gradients["bias_c"] = _of_norm(cells, d_c_norm, self._eps)
        d_bias = [] if self._bias is None else [mx.zeros_like(self._bias)]
        return [*d_bias, *(gradients.get(name, mx.zeros_like(self._norms[name])) for name in self._names)]


def _of_norm(x: Array, dy: Array, eps: float) -> tuple[Array, Array]:
    """Gradients of a norm's gain and bias from all time steps at once."""
    _, d_gain, d_bias = layer_norm_backward(x, None, None, dy, eps, None, (False, True, True))
    assert d_gain is not None and d_bias is not None
    return d_gain, d_bias


def differentiable(eps: float = 1e-5) -> Callable[..., tuple[Array, Array]]:
    """One time step for `mx.grad` (eq. 20-22): x_gates, h_proj, h, c and the norms' parameters -> the next h and c.

    Shape:
        x_gates and h_proj (B, 4H), h and c (B, H), gain_h and bias_h (4H,), gain_c and bias_c (H,) -> (B, H) each.
    """

    @mx.custom_function
    def lstm_cell(x_gates: Array, h_proj: Array, h: Array, c: Array, *norms: Array) -> tuple[Array, Array]:
        return forward(x_gates, h_proj, h, c, Parameters(*norms), None, eps)[:2]

    @lstm_cell.vjp
    def lstm_cell_vjp(primals: Sequence[Array], gradients: Sequence[Array], new: Sequence[Array]) -> tuple[Array, ...]:
        x_gates, h_proj, h, c, *norms = primals
        p = Parameters(*norms)
        _, next_c, kept = forward(x_gates, h_proj, h, c, p, None, eps)
        d = backward(kept, p, *gradients)
        return (d.x_gates, d.h_proj, mx.zeros_like(h), d.c, *_of_norm(h_proj, d.x_gates, eps),
                *_of_norm(next_c, d.c_norm, eps))

    return cast(Callable[..., tuple[Array, Array]], lstm_cell)
