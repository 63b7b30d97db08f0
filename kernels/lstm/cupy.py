"""The LSTM on CUDA: one product for all inputs, then one product and one kernel a step, one product per weight after.

Saved for the gradient, per step and row: both sides as products 4 H each, cell, hidden state, and three floats for
each norm: 10 H.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import cupy

from duoln.backends.protocol import Array, Backend
from duoln.core import Rule
from duoln.kernels import launch
from duoln.kernels.recurrent import cuda
from duoln.kernels.recurrent.plan import plan
from duoln.ops import lstm, lstm_cell
from duoln.ops.recurrent.variants import norm_shapes

_VARIANTS = ("none", "layer", "layer-cell", "layer-theano")
_PARAMETERS = ("gain_x", "bias_x", "gain_h", "bias_h")
_COMMON = ("x_side: float32[3], recurrent: float32[3], gain_x: float32[1]?, bias_x: float32[1]?, "
           "gain_h: float32[1]?, bias_h: float32[1]?, bias: float32[1], gain_c: float32[1]?, bias_c: float32[1]?, "
           "mask: bool[2]?, ")
_forward_step = launch.Kernel(
    "lstm/lstm.cu", "lstm_forward", _COMMON + "h: float32[3], c: float32[3], stats: float32[3], step: int32, "
    "steps: int32, batch: int32, hidden: int32, eps: float32")
_backward_step = launch.Kernel(
    "lstm/lstm.cu", "lstm_backward", _COMMON + "c: float32[3], stats: float32[3], g_out: float32[3]?, "
    "dh: float32[2], carry: float32[2]?, dc: float32[2], d_x: float32[3], d_recurrent: float32[3]?, "
    "dz: float32[3]?, d_shown: float32[3]?, step: int32, steps: int32, batch: int32, hidden: int32")


class _Saved(NamedTuple):
    walk: cuda.Walk
    weights: tuple[Array, Array, Array]
    norms: dict[str, Array]
    x_side: Array
    recurrent: Array
    h: Array
    c: Array
    stats: Array
    norm: str


def settings(norm: str) -> dict[str, int]:
    """The macros of a variant."""
    sides = norm in ("layer", "layer-theano")
    return {"NORM_SIDES": int(sides), "NORM_CELL": int(sides or norm == "layer-cell")}


def _parameters(bias: Array, norms: dict[str, Array]) -> tuple[Array | None, ...]:
    return (*(norms.get(name) for name in _PARAMETERS), bias, norms.get("gain_c"), norms.get("bias_c"))


def _forward(be: Backend, x: Array, h: Array, c: Array, w_x: Array, w_h: Array, bias: Array, mask: Array | None,
             *norm_arrays: Array, norm: str, eps: float, reverse: bool,
             **others: Any) -> tuple[tuple[Array, Array, Array], _Saved]:
    steps, (batch, hidden) = x.shape[0], h.shape
    bias, *packed_norms = launch.packed(bias, *norm_arrays)
    norms = dict(zip(norm_shapes("lstm", norm, 1), packed_norms, strict=True))
    walk, p, macros = cuda.Walk.of(x, mask, reverse), plan(hidden), settings(norm)
    x_side = cuda.product(walk.x, w_x, bias if norm == "layer-theano" else None)
    recurrent = cupy.empty_like(x_side)
    hs, cs = cuda.states(h, steps), cuda.states(c, steps)
    stats = cupy.empty((2 * macros["NORM_SIDES"] + macros["NORM_CELL"], steps * batch, 3), dtype=x.dtype)
    grid, block = (-(-batch // p.rows),), (p.threads, p.rows)
    for step in range(steps):
        cupy.matmul(hs[step], w_h, out=recurrent[step])
        _forward_step(grid, block, (x_side, recurrent, *_parameters(bias, norms), walk.mask, hs, cs, stats, step, steps,
                                    batch, hidden, eps), p.macros(**macros))
    saved = _Saved(walk, (w_x, w_h, bias), norms, x_side, recurrent, hs, cs, stats, norm)
    return (walk.in_time(hs[1:]), hs[-1].copy(), cs[-1].copy()), saved


def _vjp(be: Backend, saved: _Saved, gouts: tuple[Array | None, ...], needs: Sequence[bool]) -> list[Array | None]:
    (w_x, w_h, bias), norms, walk = saved.weights, saved.norms, saved.walk
    steps, (batch, hidden) = walk.x.shape[0], saved.h.shape[1:]
    g_out = None if gouts[0] is None else walk.in_time(gouts[0])
    dh, dc = cuda.start(gouts[1], saved.h[0]), cuda.start(gouts[2], saved.c[0])
    carry = None if walk.mask is None else cupy.zeros_like(dh)
    macros, p = settings(saved.norm), plan(hidden)
    d_x = cupy.empty_like(saved.x_side)
    apart = bool(macros["NORM_SIDES"])  # without norms both sides and the gates have one gradient
    d_recurrent, dz = (cupy.empty_like(d_x) if apart else d_x for _ in range(2))
    d_shown = cupy.empty((steps, batch, hidden), dtype=d_x.dtype) if macros["NORM_CELL"] else None
    grid, block = (-(-batch // p.rows),), (p.threads, p.rows)
    w_back = w_h.T
    for step in range(steps - 1, -1, -1):
        _backward_step(grid, block, (saved.x_side, saved.recurrent, *_parameters(bias, norms), walk.mask, saved.c,
                                     saved.stats, g_out, dh, carry, dc, d_x, d_recurrent if apart else None,
                                     dz if apart else None, d_shown, step, steps, batch, hidden), p.macros(**macros))
        cupy.matmul(d_recurrent[step], w_back, out=dh)
    if carry is not None:
        dh += carry
    found = _of_parameters(saved, d_x, dz if apart else None, d_shown)
    d_bias = found.pop("bias")
    return [cuda.input_gradient(d_x, w_x, walk) if needs[0] else None, dh, dc, cuda.weight_gradient(walk.x, d_x),
            cuda.weight_gradient(saved.h[:-1], d_recurrent), d_bias, None, *(found[name] for name in norms)]


def _of_parameters(saved: _Saved, d_x: Array, dz: Array | None, d_shown: Array | None) -> dict[str, Array]:
    """Gradients of the bias and the norms, by name, from all steps at once."""
    found: dict[str, Array] = {}
    if dz is not None:
        found["gain_x"], found["bias_x"] = cuda.gain_and_bias(saved.x_side, saved.stats[0], dz)
        found["gain_h"], found["bias_h"] = cuda.gain_and_bias(saved.recurrent, saved.stats[1], dz)
    if d_shown is not None:
        # A held row's cell is not what was normalised at that step, but its gradient there is zero.
        found["gain_c"], found["bias_c"] = cuda.gain_and_bias(saved.c[1:], saved.stats[-1], d_shown)
    found["bias"] = launch.sum_columns(cuda.rows(d_x)) if dz is None else found["bias_x"]
    if saved.norm == "layer-theano":  # the bias inside the input's norm
        found["bias"] = found["bias"] + launch.sum_columns(cuda.rows(d_x))
    return found


# One step by itself: a walk of one step, whose products are somebody else's ------------------------------

def _cell_forward(be: Backend, side: Array, product: Array, c: Array, bias: Array, *norm_arrays: Array, norm: str,
                  eps: float, **others: Any) -> tuple[tuple[Array, Array], _Saved]:
    batch, hidden = c.shape
    bias, *packed_norms = launch.packed(bias, *norm_arrays)
    norms = dict(zip(norm_shapes("lstm", norm, 1), packed_norms, strict=True))
    p, macros = plan(hidden), settings(norm)
    x_side = cupy.ascontiguousarray(side + bias if norm == "layer-theano" else side)[None]
    recurrent, hs, cs = cupy.ascontiguousarray(product)[None], cuda.states(c, 1), cuda.states(c, 1)
    stats = cupy.empty((2 * macros["NORM_SIDES"] + macros["NORM_CELL"], batch, 3), dtype=side.dtype)
    _forward_step((-(-batch // p.rows),), (p.threads, p.rows), (
        x_side, recurrent, *_parameters(bias, norms), None, hs, cs, stats, 0, 1, batch, hidden, eps),
        p.macros(**macros))
    saved = _Saved(cuda.Walk(x_side, None, False), (bias, bias, bias), norms, x_side, recurrent, hs, cs, stats, norm)
    return (hs[1], cs[1]), saved


def _cell_vjp(be: Backend, saved: _Saved, gouts: tuple[Array | None, Array | None],
              needs: Sequence[bool]) -> list[Array | None]:
    batch, hidden = saved.c.shape[1:]
    dh, dc = (cuda.start(g, saved.c[0]) for g in gouts)
    macros, p = settings(saved.norm), plan(hidden)
    apart = bool(macros["NORM_SIDES"])
    d_x = cupy.empty_like(saved.x_side)
    d_recurrent, dz = (cupy.empty_like(d_x) if apart else d_x for _ in range(2))
    d_shown = cupy.empty((1, batch, hidden), dtype=d_x.dtype) if macros["NORM_CELL"] else None
    _backward_step((-(-batch // p.rows),), (p.threads, p.rows), (
        saved.x_side, saved.recurrent, *_parameters(saved.weights[2], saved.norms), None, saved.c, saved.stats, None,
        dh, None, dc, d_x, d_recurrent if apart else None, dz if apart else None, d_shown, 0, 1, batch, hidden),
        p.macros(**macros))
    found = _of_parameters(saved, d_x, dz if apart else None, d_shown)
    return [d_x[0], d_recurrent[0], dc, found["bias"], *(found[name] for name in saved.norms)]


def attach() -> None:
    """Add the rules to `lstm` and `lstm_cell`."""
    supports = cuda.supports(_VARIANTS)
    lstm.add(Rule("cuda steps", _forward, _vjp, supports), backend="cupy")
    lstm_cell.add(Rule("cuda step", _cell_forward, _cell_vjp, supports), backend="cupy")
