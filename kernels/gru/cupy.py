"""The GRU on CUDA: one product for all inputs, one product and one kernel per time step, and one product per weight.

Saved for the gradient, per time step and row: x_proj and h_proj 3 H each, the hidden state, and three floats for
each of four norms: 7 H. In 16 bits x_proj and h_proj take half the bytes; the state, which adds up over time, is
float32, and kept a second time as the products take it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import cupy

from duoln.backends.protocol import Array, Backend
from duoln.core import Rule
from duoln.kernels import launch
from duoln.kernels.gru import cuda_walk
from duoln.kernels.recurrent import cuda
from duoln.kernels.recurrent.cells import bounds_unmasked
from duoln.kernels.recurrent.cuda_walk import supports as fits_cluster
from duoln.ops import gru
from duoln.ops.recurrent.variants import norm_shapes
from duoln.system import cublas

_VARIANTS = ("none", "layer", "layer-theano")
_STORED = (0, 2, 3)
"""What may be stored in 16 bits: x, w_x and w_h."""
_PARAMETERS = ("gain_x", "bias_x", "gain_h", "bias_h")
_COMMON = ("x_proj: storage[3], h_proj: storage[3], gain_x: float32[1]?, bias_x: float32[1]?, "
           "gain_h: float32[1]?, bias_h: float32[1]?, mask: bool[2]?, h: float32[3], ")
_SIZES = "time_step: int32, time_steps: int32, batch: int32, hidden: int32"
_forward_step = cuda.TimeStep(
    "gru", "forward", _COMMON + "h_stored: storage[3]?, stats: float32[3], " + _SIZES + ", eps: float32")
_backward_step = cuda.TimeStep(
    "gru", "backward", _COMMON + "stats: float32[3], d_hs: storage[3]?, dh: float32[2], carry: float32[2], "
    "d_x_proj: storage[3], d_h_proj: storage[3], d_x_gates: storage[3]?, d_h_gates: storage[3]?, " + _SIZES)


class _Saved(NamedTuple):
    walk: cuda.Walk
    weights: tuple[Array, Array]
    has_bias: bool
    norms: dict[str, Array]
    x_proj: Array
    h_proj: Array
    h: Array
    h_stored: Array
    stats: Array


def _forward(be: Backend, x: Array, h: Array, w_x: Array, w_h: Array, bias: Array | None, mask: Array | None,
             *norm_arrays: Array, norm: str, eps: float, reverse: bool,
             gradient_limit: float | None, **unused: Any) -> tuple[tuple[Array, Array], _Saved]:
    time_steps, (batch, hidden) = x.shape[0], h.shape
    norms = dict(zip(norm_shapes("gru", norm, 1), launch.packed(*norm_arrays), strict=True))
    walk, macros = cuda.Walk.of(x, mask, reverse, gradient_limit), cuda.gate_macros(norm != "none")
    x_proj = cuda.projection(be, walk.x, w_x, bias)
    h_proj, hs = cupy.empty_like(x_proj), cuda.states(h, time_steps)
    apart = be.dtype(x) != "float32"
    h_stored = cuda.states(be.astype(h, be.dtype(x)), time_steps) if apart else hs
    stats = cupy.empty((4 * macros["NORM_GATES"], time_steps * batch, 3), dtype=h.dtype)
    parameters = [norms.get(name) for name in _PARAMETERS]
    step = _forward_step.bind(hidden, batch, (x_proj, h_proj, *parameters, walk.mask, hs, h_stored if apart else None,
                                              stats, 0, time_steps, batch, hidden, eps), macros)
    multiply = cublas.TimeProducts(h_stored, w_h, h_proj)
    for t in range(time_steps):
        multiply(t)
        step(t)
    saved = _Saved(walk, (w_x, w_h), bias is not None, norms, x_proj, h_proj, hs, h_stored, stats)
    return (walk.in_time(h_stored[1:]), hs[-1].copy()), saved


def _vjp(be: Backend, saved: _Saved, gouts: tuple[Array | None, ...], needs: Sequence[bool]) -> list[Array | None]:
    (w_x, w_h), norms, walk = saved.weights, saved.norms, saved.walk
    time_steps, (batch, hidden) = walk.x.shape[0], saved.h.shape[1:]
    d_hs = None if gouts[0] is None else walk.in_time(gouts[0])
    dh = cuda.start(gouts[1], saved.h[0])
    carry = cupy.zeros_like(dh)
    macros = cuda.gate_macros(bool(norms))
    d_x_proj, d_h_proj = cupy.empty_like(saved.x_proj), cupy.empty_like(saved.x_proj)
    d_x_gates, d_h_gates = ((cupy.empty_like(d_x_proj), cupy.empty_like(d_x_proj)) if norms else (None, None))
    parameters = [norms.get(name) for name in _PARAMETERS]
    step = _backward_step.bind(hidden, batch, (
        saved.x_proj, saved.h_proj, *parameters, walk.mask, saved.h, saved.stats, d_hs, dh, carry, d_x_proj, d_h_proj,
        d_x_gates, d_h_gates, 0, time_steps, batch, hidden), macros)
    multiply = cublas.TimeProducts(d_h_proj, w_h.T, dh)
    for t in range(time_steps - 1, -1, -1):
        step(t)
        multiply(t)
        if walk.limit is not None:
            dh += carry
            carry.fill(0)
            walk.bound(dh)
    dh += carry
    d_norms: dict[str, Array] = {}
    if norms:
        d_norms["gain_x"], d_norms["bias_x"] = _in_parts(saved.x_proj, saved.stats[:2], d_x_gates, hidden)
        d_norms["gain_h"], d_norms["bias_h"] = _in_parts(saved.h_proj, saved.stats[2:], d_h_gates, hidden)
    d_bias = launch.sum_columns(cuda.rows(d_x_proj))[0] if saved.has_bias else None
    return [cuda.input_gradient(d_x_proj, w_x, walk) if needs[0] else None, dh, cuda.weight_gradient(walk.x, d_x_proj),
            cuda.weight_gradient(saved.h_stored[:-1], d_h_proj), d_bias, None, *(d_norms[name] for name in norms)]


def _in_parts(proj: Array, stats: Array, d_gates: Array, hidden: int) -> tuple[Array, Array]:
    """Gradients of gain and bias of x_proj or h_proj; one norm is over z and r, a second one over n."""
    d_zr = cuda.gain_and_bias(proj, stats[0], d_gates, 0, 2 * hidden)
    d_n = cuda.gain_and_bias(proj, stats[1], d_gates, 2 * hidden)
    return cupy.concatenate((d_zr[0], d_n[0])), cupy.concatenate((d_zr[1], d_n[1]))


def attach() -> None:
    """Add the rules to `gru`."""
    of_steps = bounds_unmasked("gru", cuda.supports(_VARIANTS))
    gru.add(Rule("cuda steps", _forward, _vjp, of_steps, stored=_STORED), backend="cupy")
    gru.add(Rule("cuda walk", cuda_walk.forward, cuda_walk.vjp, fits_cluster("gru", of_steps)), backend="cupy")
