"""The LSTM on CUDA in one launch for all time steps, for sizes whose recurrent weights fit a cluster of blocks.

Saved for the gradient is what the rule by steps saves (`cupy.py`); with norms, h_proj is that of the centred weights.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import cupy

from duoln.backends.protocol import Array, Backend
from duoln.kernels import launch
from duoln.kernels.recurrent import cuda, cuda_walk
from duoln.kernels.recurrent.plan import norm_macros
from duoln.ops.recurrent.variants import norm_shapes

_PARAMETERS = ("gain_x", "bias_x", "gain_h", "bias_h")
_COMMON = ("w_h: float32[2], w_stats: float32[3]?, gain_x: float32[1]?, bias_x: float32[1]?, gain_h: float32[1]?, "
           "bias_h: float32[1]?, bias: float32[1], gain_c: float32[1]?, bias_c: float32[1]?, mask: bool[2]?, ")
_forward_walk = cuda_walk.ClusterWalk(
    "lstm", "forward", "x_proj: float32[3], " + _COMMON + "h: float32[3], c: float32[3], h_proj: float32[3], "
    "stats: float32[3], time_steps: int32, batch: int32, eps: float32")
_backward_walk = cuda_walk.ClusterWalk(
    "lstm", "backward", "x_proj: float32[3], h_proj: float32[3], " + _COMMON + "c: float32[3], stats: float32[3], "
    "d_hs: float32[3]?, dh: float32[2], dc: float32[2], d_x_proj: float32[3], d_h_proj: float32[3]?, "
    "d_parameters: float32[3], time_steps: int32, batch: int32, limit: float32")


class _Saved(NamedTuple):
    walk: cuda.Walk
    weights: tuple[Array, Array, Array]
    norms: dict[str, Array]
    w_stats: Array | None
    x_proj: Array
    h_proj: Array
    h: Array
    c: Array
    stats: Array
    norm: str

    @property
    def parameters(self) -> tuple[Array | None, ...]:
        """As the kernels take them."""
        return (*(self.norms.get(name) for name in _PARAMETERS), self.weights[2], self.norms.get("gain_c"),
                self.norms.get("bias_c"))


def forward(be: Backend, x: Array, h: Array, c: Array, w_x: Array, w_h: Array, bias: Array, mask: Array | None,
            *norm_arrays: Array, norm: str, eps: float, reverse: bool, gradient_limit: float | None,
            **unused: Any) -> tuple[tuple[Array, Array, Array], _Saved]:
    """All hidden states and the last states, (T, B, H) and (B, H) twice, and what the gradient needs."""
    time_steps, (batch, hidden) = x.shape[0], h.shape
    w_h, bias, *packed_norms = launch.packed(w_h, bias, *norm_arrays)
    norms = dict(zip(norm_shapes("lstm", norm, 1), packed_norms, strict=True))
    walk, of_norms = cuda.Walk.of(x, mask, reverse, gradient_limit), norm_macros("lstm", norm)
    x_proj = cuda.projection(be, walk.x, w_x)
    h_proj = cupy.empty_like(x_proj)
    hs, cs = cuda.states(h, time_steps), cuda.states(c, time_steps)
    stats = cupy.empty((2 * of_norms["NORM_GATES"] + of_norms["NORM_CELL"], time_steps * batch, 3), dtype=x.dtype)
    w_stats = None
    if of_norms["NORM_GATES"]:
        in_norm = bias if norm == "layer-theano" else None
        w_stats = cuda_walk.statistics("lstm", x_proj, w_h, in_norm, eps, stats[:1])
    saved = _Saved(walk, (w_x, w_h, bias), norms, w_stats, x_proj, h_proj, hs, cs, stats, norm)
    _forward_walk(norm, hidden, batch, (x_proj, w_h, w_stats, *saved.parameters, walk.mask, hs, cs, h_proj, stats,
                                        time_steps, batch, eps), of_norms)
    return (walk.in_time(hs[1:]), hs[-1].copy(), cs[-1].copy()), saved


def vjp(be: Backend, saved: _Saved, gouts: tuple[Array | None, ...], needs: Sequence[bool]) -> list[Array | None]:
    """The gradients of all arguments of `forward`, from those of its results."""
    (w_x, w_h, _), walk = saved.weights, saved.walk
    time_steps, (batch, hidden) = walk.x.shape[0], saved.h.shape[1:]
    d_hs = None if gouts[0] is None else walk.in_time(gouts[0])
    dh, dc = cuda.start(gouts[1], saved.h[0]), cuda.start(gouts[2], saved.c[0])
    of_norms = norm_macros("lstm", saved.norm)
    kinds = {name: 4 for name in ("gain_x", "gain_h") if of_norms["NORM_GATES"]} | {"bias": 4}
    kinds |= {name: 1 for name in ("gain_c", "bias_c") if of_norms["NORM_CELL"]}
    d_x_proj = cupy.empty_like(saved.x_proj)
    d_h_proj = cupy.empty_like(d_x_proj) if of_norms["NORM_GATES"] else d_x_proj
    sums = cupy.empty((batch, sum(kinds.values()), hidden), dtype=d_x_proj.dtype)
    _backward_walk(saved.norm, hidden, batch, (
        saved.x_proj, saved.h_proj, w_h, saved.w_stats, *saved.parameters, walk.mask, saved.c, saved.stats, d_hs, dh,
        dc, d_x_proj, d_h_proj if of_norms["NORM_GATES"] else None, sums, time_steps, batch, cuda_walk.limit(walk)),
        of_norms)
    gradients = cuda_walk.of_parameters(sums, kinds)
    if of_norms["NORM_GATES"]:
        gradients["bias_x"] = gradients["bias_h"] = gradients["bias"]
    if saved.norm == "layer-theano":  # the bias inside the input's norm
        gradients["bias"] = gradients["bias"] + launch.sum_columns(cuda.rows(d_x_proj))[0]
    return [cuda.input_gradient(d_x_proj, w_x, walk) if needs[0] else None, dh, dc,
            cuda.weight_gradient(walk.x, d_x_proj), cuda.weight_gradient(saved.h[:-1], d_h_proj), gradients["bias"],
            None, *(gradients[name] for name in saved.norms)]
