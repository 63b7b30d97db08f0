"""The GRU on CUDA: one product for all inputs, then one product and one kernel a step, one product per weight after.

Saved for the gradient, per step and row: both sides as products 3 H each, the hidden state, and three floats for
each of four norms: 7 H.
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
from duoln.ops import gru
from duoln.ops.recurrent.variants import norm_shapes

_VARIANTS = ("none", "layer", "layer-theano")
_PARAMETERS = ("gain_x", "bias_x", "gain_h", "bias_h")
_COMMON = ("x_side: float32[3], recurrent: float32[3], gain_x: float32[1]?, bias_x: float32[1]?, "
           "gain_h: float32[1]?, bias_h: float32[1]?, mask: bool[2]?, h: float32[3], stats: float32[3], ")
_SIZES = "step: int32, steps: int32, batch: int32, hidden: int32"
_forward_step = launch.Kernel("gru/gru.cu", "gru_forward", _COMMON + _SIZES + ", eps: float32")
_backward_step = launch.Kernel(
    "gru/gru.cu", "gru_backward", _COMMON + "g_out: float32[3]?, dh: float32[2], carry: float32[2], d_x: float32[3], "
    "d_recurrent: float32[3], dz_x: float32[3]?, dz_h: float32[3]?, " + _SIZES)


class _Saved(NamedTuple):
    walk: cuda.Walk
    weights: tuple[Array, Array]
    has_bias: bool
    norms: dict[str, Array]
    x_side: Array
    recurrent: Array
    h: Array
    stats: Array


def settings(norm: str) -> dict[str, int]:
    """The macros of a variant."""
    return {"NORM_SIDES": int(norm != "none")}


def _forward(be: Backend, x: Array, h: Array, w_x: Array, w_h: Array, bias: Array | None, mask: Array | None,
             *norm_arrays: Array, norm: str, eps: float, reverse: bool,
             **others: Any) -> tuple[tuple[Array, Array], _Saved]:
    steps, (batch, hidden) = x.shape[0], h.shape
    norms = dict(zip(norm_shapes("gru", norm, 1), launch.packed(*norm_arrays), strict=True))
    walk, p, macros = cuda.Walk.of(x, mask, reverse), plan(hidden), settings(norm)
    x_side = cuda.product(walk.x, w_x, bias)
    recurrent, hs = cupy.empty_like(x_side), cuda.states(h, steps)
    stats = cupy.empty((4 * macros["NORM_SIDES"], steps * batch, 3), dtype=x.dtype)
    parameters = [norms.get(name) for name in _PARAMETERS]
    grid, block = (-(-batch // p.rows),), (p.threads, p.rows)
    for step in range(steps):
        cupy.matmul(hs[step], w_h, out=recurrent[step])
        _forward_step(grid, block, (x_side, recurrent, *parameters, walk.mask, hs, stats, step, steps, batch, hidden,
                                    eps), p.macros(**macros))
    saved = _Saved(walk, (w_x, w_h), bias is not None, norms, x_side, recurrent, hs, stats)
    return (walk.in_time(hs[1:]), hs[-1].copy()), saved


def _vjp(be: Backend, saved: _Saved, gouts: tuple[Array | None, ...], needs: Sequence[bool]) -> list[Array | None]:
    (w_x, w_h), norms, walk = saved.weights, saved.norms, saved.walk
    steps, (batch, hidden) = walk.x.shape[0], saved.h.shape[1:]
    g_out = None if gouts[0] is None else walk.in_time(gouts[0])
    dh = cuda.start(gouts[1], saved.h[0])
    carry = cupy.zeros_like(dh)
    p, macros = plan(hidden), {"NORM_SIDES": int(bool(norms))}
    d_x, d_recurrent = cupy.empty_like(saved.x_side), cupy.empty_like(saved.x_side)
    dz_x, dz_h = ((cupy.empty_like(d_x), cupy.empty_like(d_x)) if norms else (None, None))
    parameters = [norms.get(name) for name in _PARAMETERS]
    grid, block = (-(-batch // p.rows),), (p.threads, p.rows)
    w_back = w_h.T
    for step in range(steps - 1, -1, -1):
        _backward_step(grid, block, (saved.x_side, saved.recurrent, *parameters, walk.mask, saved.h, saved.stats, g_out,
                                     dh, carry, d_x, d_recurrent, dz_x, dz_h, step, steps, batch, hidden),
                       p.macros(**macros))
        cupy.matmul(d_recurrent[step], w_back, out=dh)
    dh += carry
    found: dict[str, Array] = {}
    if norms:
        found["gain_x"], found["bias_x"] = _in_parts(saved.x_side, saved.stats[:2], dz_x, hidden)
        found["gain_h"], found["bias_h"] = _in_parts(saved.recurrent, saved.stats[2:], dz_h, hidden)
    d_bias = launch.sum_columns(cuda.rows(d_x)) if saved.has_bias else None
    return [cuda.input_gradient(d_x, w_x, walk) if needs[0] else None, dh, cuda.weight_gradient(walk.x, d_x),
            cuda.weight_gradient(saved.h[:-1], d_recurrent), d_bias, None, *(found[name] for name in norms)]


def _in_parts(side: Array, stats: Array, dz: Array, hidden: int) -> tuple[Array, Array]:
    """Gradients of gain and bias of a side, whose gates and candidate are normalised apart."""
    gates = cuda.gain_and_bias(side, stats[0], dz, 0, 2 * hidden)
    candidate = cuda.gain_and_bias(side, stats[1], dz, 2 * hidden)
    return cupy.concatenate((gates[0], candidate[0])), cupy.concatenate((gates[1], candidate[1]))


def attach() -> None:
    """Add the rule to `gru`."""
    gru.add(Rule("cuda steps", _forward, _vjp, cuda.supports(_VARIANTS)), backend="cupy")
