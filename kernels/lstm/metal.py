"""The LSTM's cell on Apple GPUs: after the product one kernel a step, and one for its gradient."""

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

_COMMON = ("side: float32[2], recurrent: float32[2], c: float32[2], gain_h: float32[1]?, bias_h: float32[1]?, "
           "gain_c: float32[1], bias_c: float32[1], mask: bool[1]?, ")
_forward = metal.Kernel("lstm/lstm_forward.metal", _COMMON + "h: float32[2]?, eps: float32")
_backward = metal.Kernel("lstm/lstm_backward.metal", _COMMON + "stats: float32[3], d_h: float32[2], d_c: float32[2]")


class Parameters(NamedTuple):
    """Of the norms; the first two are None where the recurrent side is not normalised (eq. 29-31)."""

    gain_h: Array | None
    bias_h: Array | None
    gain_c: Array
    bias_c: Array


class Kept(NamedTuple):
    """What the gradient of a step needs."""

    side: Array
    recurrent: Array
    c: Array
    mask: Array | None
    stats: Array


def forward(side: Array, recurrent: Array, h: Array, c: Array, p: Parameters, mask: Array | None,
            eps: float) -> tuple[Array, Array, Kept]:
    """The next hidden state and cell (B, H), from both sides (B, 4H), and what the gradient needs."""
    batch, hidden = c.shape
    with_side = p.gain_h is not None
    threads, macros = _macros(hidden, with_side)
    next_h, next_c, stats = _forward(
        batch, threads, (side, recurrent, c, *p, mask, None if mask is None else h, eps),
        {"next_h": c.shape, "next_c": c.shape, "stats": (1 + with_side, batch, 3)}, macros)
    return next_h, next_c, Kept(side, recurrent, c, mask, stats)


class StepGradient(NamedTuple):
    """Gradients of one step, (B, 4H) and (B, H)."""

    side: Array
    """After the norm of the recurrent side too."""
    recurrent: Array
    shown: Array
    """After the norm of the cell."""
    c: Array
    held: Array | None
    """Of the state before the step beside the product, with a mask."""


def backward(kept: Kept, p: Parameters, d_h: Array, d_c: Array) -> StepGradient:
    """From the gradients of the next hidden state and cell."""
    batch, hidden = kept.c.shape
    with_side = p.gain_h is not None
    threads, macros = _macros(hidden, with_side)
    outputs = {"d_side": kept.side.shape, "d_shown": kept.c.shape, "d_before": kept.c.shape}
    if with_side:
        outputs["d_recurrent"] = kept.side.shape
    if kept.mask is not None:
        outputs["d_held"] = kept.c.shape
    found = dict(zip(outputs, _backward(
        batch, threads, (kept.side, kept.recurrent, kept.c, *p, kept.mask, kept.stats, d_h, d_c), outputs,
        macros), strict=True))
    return StepGradient(found["d_side"], found.get("d_recurrent", found["d_side"]), found["d_shown"],
                        found["d_before"], found.get("d_held"))


def _macros(hidden: int, with_side: bool) -> tuple[int, dict[str, int]]:
    p = plan(hidden)
    return p.threads, p.macros(NORM_SIDE=int(with_side))


class MetalLstm:
    """`Steps` of the variants layer, layer-theano and layer-cell."""

    def __init__(self, be: Backend, cell: str, settings: Settings, bias: Array | None,
                 norms: Mapping[str, Array]) -> None:
        self._p = Parameters(norms.get("gain_h"), norms.get("bias_h"), norms["gain_c"], norms["bias_c"])
        self._names, self._norms, self._bias, self._eps = list(norms), norms, bias, settings.eps

    def forward(self, side: Array, product: Array, states: States, keep: Array | None) -> tuple[States, Any]:
        """As in `Steps`."""
        next_h, next_c, kept = forward(side, product, states[0], states[1], self._p, keep, self._eps)
        return (next_h, next_c), (kept, next_c)

    def backward(self, kept: Any, gradients: list[Array]) -> Gradient:
        """As in `Steps`."""
        found = backward(kept[0], self._p, gradients[0], gradients[1])
        before = mx.zeros_like(found.c) if found.held is None else found.held
        return Gradient(found.side, found.recurrent, [before, found.c], found)

    def parameters(self, walked: Sequence[tuple[Any, Any]]) -> list[Array]:
        """As in `Steps`: the input's side has had its own share of the bias and the norms."""
        found: dict[str, Array] = {}
        of_side = mx.stack([g.side for _, g in walked])
        if self._p.gain_h is not None:
            recurrent = mx.stack([kept.recurrent for (kept, _), _ in walked])
            found["gain_h"], found["bias_h"] = _of_norm(recurrent, of_side, self._eps)
        # A held row's cell is not what was normalised at that step, but its gradient there is zero.
        cells, shown = mx.stack([next_c for (_, next_c), _ in walked]), mx.stack([g.shown for _, g in walked])
        found["gain_c"], found["bias_c"] = _of_norm(cells, shown, self._eps)
        none = [] if self._bias is None else [mx.zeros_like(self._bias)]
        return [*none, *(found.get(name, mx.zeros_like(self._norms[name])) for name in self._names)]


def _of_norm(x: Array, dy: Array, eps: float) -> tuple[Array, Array]:
    """Gradients of a norm's gain and bias from all steps at once."""
    _, gain, bias = layer_norm_backward(x, None, None, dy, eps, None, (False, True, True))
    assert gain is not None and bias is not None
    return gain, bias


def differentiable(eps: float = 1e-5) -> Callable[..., tuple[Array, Array]]:
    """One step for `mx.grad`: (side, recurrent, h, c, gain_h, bias_h, gain_c, bias_c) -> the next h and c (eq. 20-22).

    Shape:
        side and recurrent (B, 4H), h and c (B, H), gain_h and bias_h (4H,), gain_c and bias_c (H,) -> (B, H) each.
    """

    @mx.custom_function
    def lstm_cell(side: Array, recurrent: Array, h: Array, c: Array, *norms: Array) -> tuple[Array, Array]:
        return forward(side, recurrent, h, c, Parameters(*norms), None, eps)[:2]

    @lstm_cell.vjp
    def lstm_cell_vjp(primals: Sequence[Array], gradients: Sequence[Array], new: Sequence[Array]) -> tuple[Array, ...]:
        side, recurrent, h, c, *norms = primals
        p = Parameters(*norms)
        _, next_c, kept = forward(side, recurrent, h, c, p, None, eps)
        found = backward(kept, p, *gradients)
        return (found.side, found.recurrent, mx.zeros_like(h), found.c, *_of_norm(recurrent, found.side, eps),
                *_of_norm(next_c, found.shown, eps))

    function: Any = lstm_cell
    return function
