"""The tanh RNN on CUDA: one product for all inputs, a product and a kernel per time step, and one product per weight.

Saved for the gradient, per time step and row: the sum of x_proj and h_proj, the hidden state, and three floats: 2 H.
Both may be stored in 16 bits; the state is tanh of the sum as it is stored.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import cupy

from duoln.backends.protocol import Array, Backend
from duoln.core import Rule
from duoln.core.storage import converted
from duoln.kernels import launch
from duoln.kernels.recurrent import cuda
from duoln.kernels.recurrent.cells import bounds_unmasked
from duoln.kernels.recurrent.cuda_walk import supports as fits_cluster
from duoln.kernels.recurrent.plan import RNN_WIDE, plan
from duoln.kernels.rnn import cuda_walk
from duoln.ops import rnn
from duoln.system import cublas

_VARIANTS = ("none", "layer")
_STORED = (0, 2, 3)
"""What may be stored in 16 bits: x, w_x and w_h."""
_SIZES = "time_step: int32, time_steps: int32, batch: int32, hidden: int32"
_forward_step = launch.stored_kernels(
    "rnn/rnn.cu", "rnn_forward", "sums: storage[3], h_proj: float32[2], gain: float32[1]?, bias: float32[1]?, "
    "mask: bool[2]?, h: storage[3], stats: float32[2], " + _SIZES + ", eps: float32")
_backward_step = launch.stored_kernels(
    "rnn/rnn.cu", "rnn_backward", "sums: storage[3], gain: float32[1]?, bias: float32[1]?, mask: bool[2]?, "
    "stats: float32[2], d_hs: storage[3]?, dh: float32[2], carry: float32[2]?, d_sums: storage[3], "
    "d_gates: storage[3]?, " + _SIZES)


class _Saved(NamedTuple):
    walk: cuda.Walk
    weights: tuple[Array, Array]
    norms: tuple[Array, ...]
    sums: Array
    h: Array
    stats: Array


def _forward(be: Backend, x: Array, h: Array, w_x: Array, w_h: Array, bias: Array | None, mask: Array | None,
             *norms: Array, norm: str, eps: float, reverse: bool, gradient_limit: float | None,
             **unused: Any) -> tuple[tuple[Array, Array], _Saved]:
    time_steps, (batch, hidden) = x.shape[0], h.shape
    walk, p = cuda.Walk.of(x, mask, reverse, gradient_limit), plan(hidden, RNN_WIDE)
    macros = cuda.gate_macros(norm != "none")
    sums = cuda.projection(be, walk.x, w_x, bias)
    norms = launch.packed(*norms)
    h_proj, hs = cupy.empty(h.shape, dtype=h.dtype), cuda.states(converted(be, h, be.dtype(x)), time_steps)
    stats = cupy.empty((time_steps * batch * macros["NORM_GATES"], 3), dtype=h.dtype)
    grid, block = p.launch(batch)
    step = _forward_step[sums.dtype].bind(
        grid, block, (sums, h_proj, *(norms or (None, None)), walk.mask, hs, stats, 0, time_steps, batch, hidden, eps),
        p.macros(**macros, **launch.storage_macro(sums)), varying="time_step")
    multiply = cublas.TimeProducts(hs, w_h, h_proj)
    for t in range(time_steps):
        multiply(t)
        step(t)
    return (walk.in_time(hs[1:]), cuda.last(be, hs)), _Saved(walk, (w_x, w_h), norms, sums, hs, stats)


def _vjp(be: Backend, saved: _Saved, gouts: tuple[Array | None, ...], needs: Sequence[bool]) -> list[Array | None]:
    (w_x, w_h), norms, walk = saved.weights, saved.norms, saved.walk
    time_steps, (batch, hidden) = walk.x.shape[0], saved.h.shape[1:]
    d_hs = None if gouts[0] is None else walk.in_time(gouts[0])
    dh = cuda.start(gouts[1], saved.h[0])
    carry = None if walk.mask is None else cupy.zeros_like(dh)
    p, macros = plan(hidden, RNN_WIDE), cuda.gate_macros(bool(norms))
    d_sums = cupy.empty_like(saved.sums)
    d_gates = cupy.empty_like(d_sums) if norms else None
    grid, block = p.launch(batch)
    step = _backward_step[d_sums.dtype].bind(grid, block, (
        saved.sums, *(norms or (None, None)), walk.mask, saved.stats, d_hs, dh, carry, d_sums, d_gates, 0, time_steps,
        batch, hidden), p.macros(**macros, **launch.storage_macro(d_sums)), varying="time_step")
    multiply = cublas.TimeProducts(d_sums, w_h.T, dh)
    for t in range(time_steps - 1, -1, -1):
        step(t)
        multiply(t)
        walk.bound(dh)
    if carry is not None:
        dh += carry
    d_norms = cuda.gain_and_bias(saved.sums, saved.stats, d_gates) if norms else ()
    d_bias = None if norms else launch.sum_columns(cuda.rows(d_sums))[0]
    return [cuda.input_gradient(d_sums, w_x, walk) if needs[0] else None, dh, cuda.weight_gradient(walk.x, d_sums),
            cuda.weight_gradient(saved.h[:-1], d_sums), d_bias, None, *d_norms]


def attach() -> None:
    """Add the rules to `rnn`."""
    of_steps = bounds_unmasked("rnn", cuda.supports(_VARIANTS))
    rnn.add(Rule("cuda steps", _forward, _vjp, of_steps, stored=_STORED), backend="cupy")
    rnn.add(Rule("cuda walk", cuda_walk.forward, cuda_walk.vjp, fits_cluster("rnn", of_steps)), backend="cupy")
