"""The GRU on CUDA in one launch for all time steps, for sizes whose recurrent weights fit a cluster of blocks.

Saved for the gradient is what the rule by steps saves (`cupy.py`); with norms, h_proj is that of the centred weights.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import cupy

from duoln.backends.protocol import Array, Backend
from duoln.kernels import launch
from duoln.kernels.recurrent import cuda, cuda_walk
from duoln.ops.recurrent.variants import norm_shapes

_PARAMETERS = ("gain_x", "bias_x", "gain_h", "bias_h")
_NORMS = 4
"""Of x_proj and of h_proj, each over z and r and over n."""
_COMMON = ("w_h: float32[2], w_stats: float32[3]?, gain_x: float32[1]?, bias_x: float32[1]?, gain_h: float32[1]?, "
           "bias_h: float32[1]?, mask: bool[2]?, h: float32[3], ")
_forward_walk = cuda_walk.ClusterWalk(
    "gru", "forward", "x_proj: float32[3], " + _COMMON + "h_proj: float32[3], stats: float32[3], time_steps: int32, "
    "batch: int32, eps: float32")
_backward_walk = cuda_walk.ClusterWalk(
    "gru", "backward", "x_proj: float32[3], h_proj: float32[3], " + _COMMON + "stats: float32[3], d_hs: float32[3]?, "
    "dh: float32[2], d_x_proj: float32[3], d_h_proj: float32[3], d_parameters: float32[3]?, time_steps: int32, "
    "batch: int32, limit: float32")


class _Saved(NamedTuple):
    walk: cuda.Walk
    weights: tuple[Array, Array]
    has_bias: bool
    norms: dict[str, Array]
    w_stats: Array | None
    x_proj: Array
    h_proj: Array
    h: Array
    stats: Array
    norm: str

    @property
    def parameters(self) -> tuple[Array | None, ...]:
        """As the kernels take them."""
        return tuple(self.norms.get(name) for name in _PARAMETERS)


def forward(be: Backend, x: Array, h: Array, w_x: Array, w_h: Array, bias: Array | None, mask: Array | None,
            *norm_arrays: Array, norm: str, eps: float, reverse: bool, gradient_limit: float | None,
            **unused: Any) -> tuple[tuple[Array, Array], _Saved]:
    """All hidden states and the last one, (T, B, H) and (B, H), and what the gradient needs."""
    time_steps, (batch, hidden) = x.shape[0], h.shape
    w_h, bias, *packed_norms = launch.packed(w_h, bias, *norm_arrays)
    norms = dict(zip(norm_shapes("gru", norm, 1), packed_norms, strict=True))
    walk = cuda.Walk.of(x, mask, reverse, gradient_limit)
    x_proj = cuda.projection(be, walk.x, w_x, None if norms else bias)
    h_proj, hs = cupy.empty_like(x_proj), cuda.states(h, time_steps)
    stats = cupy.empty((_NORMS if norms else 0, time_steps * batch, 3), dtype=x.dtype)
    w_stats = cuda_walk.statistics("gru", x_proj, w_h, bias, eps, stats[:2]) if norms else None
    saved = _Saved(walk, (w_x, w_h), bias is not None, norms, w_stats, x_proj, h_proj, hs, stats, norm)
    _forward_walk(norm, hidden, batch, (x_proj, w_h, w_stats, *saved.parameters, walk.mask, hs, h_proj, stats,
                                        time_steps, batch, eps), cuda.gate_macros(bool(norms)))
    return (walk.in_time(hs[1:]), hs[-1].copy()), saved


def vjp(be: Backend, saved: _Saved, gouts: tuple[Array | None, ...], needs: Sequence[bool]) -> list[Array | None]:
    """The gradients of all arguments of `forward`, from those of its results."""
    (w_x, w_h), norms, walk = saved.weights, saved.norms, saved.walk
    time_steps, (batch, hidden) = walk.x.shape[0], saved.h.shape[1:]
    d_hs = None if gouts[0] is None else walk.in_time(gouts[0])
    dh = cuda.start(gouts[1], saved.h[0])
    d_x_proj, d_h_proj = cupy.empty_like(saved.x_proj), cupy.empty_like(saved.x_proj)
    kinds = {name: 3 for name in _PARAMETERS if norms}
    sums = cupy.empty((batch, sum(kinds.values()), hidden), dtype=d_x_proj.dtype) if norms else None
    _backward_walk(saved.norm, hidden, batch, (
        saved.x_proj, saved.h_proj, w_h, saved.w_stats, *saved.parameters, walk.mask, saved.h, saved.stats, d_hs, dh,
        d_x_proj, d_h_proj, sums, time_steps, batch, cuda_walk.limit(walk)), cuda.gate_macros(bool(norms)))
    gradients = {} if sums is None else cuda_walk.of_parameters(sums, kinds)
    d_bias = launch.sum_columns(cuda.rows(d_x_proj))[0] if saved.has_bias else None
    return [cuda.input_gradient(d_x_proj, w_x, walk) if needs[0] else None, dh, cuda.weight_gradient(walk.x, d_x_proj),
            cuda.weight_gradient(saved.h[:-1], d_h_proj), d_bias, None, *(gradients[name] for name in norms)]
