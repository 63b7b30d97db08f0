"""The tanh RNN on CUDA in one launch for all time steps, for sizes whose recurrent weights fit a cluster of blocks.

Saved for the gradient is what the rule by steps saves (`cupy.py`); with a norm, the sums are those without their mean.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import cupy

from duoln.backends.protocol import Array, Backend
from duoln.kernels import launch
from duoln.kernels.recurrent import cuda, cuda_walk

_forward_walk = cuda_walk.ClusterWalk(
    "rnn", "forward", "sums: float32[3], w_h: float32[2], w_stats: float32[3]?, x_stats: float32[3], "
    "gain: float32[1]?, bias: float32[1]?, mask: bool[2]?, h: float32[3], stats: float32[2], time_steps: int32, "
    "batch: int32, eps: float32")
_backward_walk = cuda_walk.ClusterWalk(
    "rnn", "backward", "sums: float32[3], w_h: float32[2], w_stats: float32[3]?, gain: float32[1]?, bias: float32[1]?, "
    "mask: bool[2]?, stats: float32[2], d_hs: float32[3]?, dh: float32[2], d_sums: float32[3], "
    "d_parameters: float32[3]?, time_steps: int32, batch: int32, limit: float32")


class _Saved(NamedTuple):
    walk: cuda.Walk
    weights: tuple[Array, Array]
    parameters: tuple[Array | None, ...]
    """Gain and bias of the norm, or None twice."""
    w_stats: Array | None
    sums: Array
    h: Array
    stats: Array
    norm: str


def forward(be: Backend, x: Array, h: Array, w_x: Array, w_h: Array, bias: Array | None, mask: Array | None,
            *norms: Array, norm: str, eps: float, reverse: bool, gradient_limit: float | None,
            **unused: Any) -> tuple[tuple[Array, Array], _Saved]:
    """All hidden states and the last one, (T, B, H) and (B, H), and what the gradient needs."""
    time_steps, (batch, hidden) = x.shape[0], h.shape
    w_h, *parameters = launch.packed(w_h, *(norms or (None, None)))
    walk, rows = cuda.Walk.of(x, mask, reverse, gradient_limit), time_steps * batch
    sums, hs = cuda.projection(be, walk.x, w_x, bias), cuda.states(h, time_steps)
    x_stats, stats = (cupy.empty((1, rows * bool(norms), 3), dtype=x.dtype) for _ in range(2))
    w_stats = cuda_walk.statistics("rnn", sums, w_h, None, eps, x_stats) if norms else None
    saved = _Saved(walk, (w_x, w_h), tuple(parameters), w_stats, sums, hs, stats[0], norm)
    _forward_walk(norm, hidden, batch, (sums, w_h, w_stats, x_stats, *parameters, walk.mask, hs, saved.stats,
                                        time_steps, batch, eps), cuda.gate_macros(bool(norms)))
    return (walk.in_time(hs[1:]), hs[-1].copy()), saved


def vjp(be: Backend, saved: _Saved, gouts: tuple[Array | None, ...], needs: Sequence[bool]) -> list[Array | None]:
    """The gradients of all arguments of `forward`, from those of its results."""
    (w_x, w_h), walk, normed = saved.weights, saved.walk, saved.norm != "none"
    time_steps, (batch, hidden) = walk.x.shape[0], saved.h.shape[1:]
    d_hs = None if gouts[0] is None else walk.in_time(gouts[0])
    dh, d_sums = cuda.start(gouts[1], saved.h[0]), cupy.empty_like(saved.sums)
    kinds = {"gain": 1, "bias": 1} if normed else {}
    of_rows = cupy.empty((batch, len(kinds), hidden), dtype=d_sums.dtype) if normed else None
    _backward_walk(saved.norm, hidden, batch, (
        saved.sums, w_h, saved.w_stats, *saved.parameters, walk.mask, saved.stats, d_hs, dh, d_sums, of_rows,
        time_steps, batch, cuda_walk.limit(walk)), cuda.gate_macros(normed))
    d_norms = () if of_rows is None else tuple(cuda_walk.of_parameters(of_rows, kinds).values())
    d_bias = None if normed else launch.sum_columns(cuda.rows(d_sums))[0]
    return [cuda.input_gradient(d_sums, w_x, walk) if needs[0] else None, dh, cuda.weight_gradient(walk.x, d_sums),
            cuda.weight_gradient(saved.h[:-1], d_sums), d_bias, None, *d_norms]
