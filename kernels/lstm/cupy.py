"""The LSTM on CUDA: one product for all inputs, one product and one kernel per time step, and one product per weight.

Saved for the gradient, per time step and row: x_proj and h_proj 4 H each, cell, hidden state, and three floats for
each norm: 10 H. In 16 bits x_proj, h_proj and the hidden state take half the bytes; the cell, which adds up over time,
is float32.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Sequence
from functools import reduce
from typing import Any, NamedTuple

import cupy

from duoln.backends.protocol import Array, Backend
from duoln.core import Rule
from duoln.core.storage import converted, in_float32
from duoln.kernels import launch
from duoln.kernels.lstm import cuda_walk
from duoln.kernels.recurrent import cuda
from duoln.kernels.recurrent.cells import bounds_unmasked
from duoln.kernels.recurrent.cuda_walk import supports as fits_cluster
from duoln.kernels.recurrent.plan import norm_macros
from duoln.ops import lstm, lstm_cell
from duoln.ops.recurrent.variants import norm_shapes
from duoln.system import cublas

_VARIANTS = ("none", "layer", "layer-cell", "layer-theano")
_PARAMETERS = ("gain_x", "bias_x", "gain_h", "bias_h")
_NORM_PARAMETERS = (*_PARAMETERS, "gain_c", "bias_c")
_STORED, _CELL_STORED = (0, 3, 4), (0, 1)
"""What may be stored in 16 bits: x, w_x and w_h; of a cell x_proj and h_proj."""
_CELL_BIAS = 3
"""The place of the bias among the arrays of `lstm_cell`; the parameters of the norms follow it."""
_POOLED_VALUES = 1 << 24
"""So many values of x_proj are merged at once for the gradients of parameters that many time steps share."""
_COMMON = ("x_proj: storage[3], h_proj: storage[3], gain_x: float32[1]?, bias_x: float32[1]?, "
           "gain_h: float32[1]?, bias_h: float32[1]?, bias: float32[1], gain_c: float32[1]?, bias_c: float32[1]?, "
           "mask: bool[2]?, ")
_forward_step = cuda.TimeStep("lstm", "forward", _COMMON + "h: storage[3], c: float32[3], stats: float32[3], "
                              "time_step: int32, time_steps: int32, batch: int32, hidden: int32, eps: float32")
_backward_step = cuda.TimeStep(
    "lstm", "backward", _COMMON + "c: float32[3], stats: float32[3], d_hs: storage[3]?, dh: float32[2], "
    "carry: float32[2]?, dc: float32[2], d_x_proj: storage[3], d_h_proj: storage[3]?, d_gates: storage[3]?, "
    "d_c_norm: float32[3]?, time_step: int32, time_steps: int32, batch: int32, hidden: int32")


class _Saved(NamedTuple):
    walk: cuda.Walk
    weights: tuple[Array, Array, Array]
    norms: dict[str, Array]
    x_proj: Array
    h_proj: Array
    h: Array
    c: Array
    stats: Array
    norm: str


_Use = tuple[_Saved, tuple[Array | None, Array | None]]
"""A call of a cell: what it saved, and the gradients of its states."""


def _parameters(bias: Array, norms: dict[str, Array]) -> tuple[Array | None, ...]:
    return (*(norms.get(name) for name in _PARAMETERS), bias, norms.get("gain_c"), norms.get("bias_c"))


def _forward(be: Backend, x: Array, h: Array, c: Array, w_x: Array, w_h: Array, bias: Array, mask: Array | None,
             *norm_arrays: Array, norm: str, eps: float, reverse: bool,
             gradient_limit: float | None, **unused: Any) -> tuple[tuple[Array, Array, Array], _Saved]:
    time_steps, (batch, hidden) = x.shape[0], h.shape
    bias, *packed_norms = launch.packed(bias, *norm_arrays)
    norms = dict(zip(norm_shapes("lstm", norm, 1), packed_norms, strict=True))
    walk, macros = cuda.Walk.of(x, mask, reverse, gradient_limit), norm_macros("lstm", norm)
    x_proj = cuda.projection(be, walk.x, w_x, bias if norm == "layer-theano" else None)
    h_proj = cupy.empty_like(x_proj)
    hs, cs = cuda.states(converted(be, h, be.dtype(x)), time_steps), cuda.states(c, time_steps)
    stats = cupy.empty((2 * macros["NORM_GATES"] + macros["NORM_CELL"], time_steps * batch, 3), dtype=c.dtype)
    step = _forward_step.bind(hidden, batch, (x_proj, h_proj, *_parameters(bias, norms), walk.mask, hs, cs, stats, 0,
                                              time_steps, batch, hidden, eps), macros)
    multiply = cublas.TimeProducts(hs, w_h, h_proj)
    for t in range(time_steps):
        multiply(t)
        step(t)
    saved = _Saved(walk, (w_x, w_h, bias), norms, x_proj, h_proj, hs, cs, stats, norm)
    return (walk.in_time(hs[1:]), cuda.last(be, hs), cs[-1].copy()), saved


def _vjp(be: Backend, saved: _Saved, gouts: tuple[Array | None, ...], needs: Sequence[bool]) -> list[Array | None]:
    (w_x, w_h, bias), norms, walk = saved.weights, saved.norms, saved.walk
    time_steps, (batch, hidden) = walk.x.shape[0], saved.h.shape[1:]
    d_hs = None if gouts[0] is None else walk.in_time(gouts[0])
    dh, dc = cuda.start(gouts[1], saved.h[0]), cuda.start(gouts[2], saved.c[0])
    carry = None if walk.mask is None else cupy.zeros_like(dh)
    macros = norm_macros("lstm", saved.norm)
    d_x_proj = cupy.empty_like(saved.x_proj)
    apart = bool(macros["NORM_GATES"])  # without norms x_proj, h_proj and the gates have one gradient
    d_h_proj, d_gates = (cupy.empty_like(d_x_proj) if apart else d_x_proj for _ in range(2))
    d_c_norm = cupy.empty((time_steps, batch, hidden), dtype=dc.dtype) if macros["NORM_CELL"] else None
    step = _backward_step.bind(hidden, batch, (
        saved.x_proj, saved.h_proj, *_parameters(bias, norms), walk.mask, saved.c, saved.stats, d_hs, dh, carry, dc,
        d_x_proj, d_h_proj if apart else None, d_gates if apart else None, d_c_norm, 0, time_steps, batch, hidden),
        macros)
    multiply = cublas.TimeProducts(d_h_proj, w_h.T, dh)
    for t in range(time_steps - 1, -1, -1):
        step(t)
        multiply(t)
        walk.bound(dh, dc)
    if carry is not None:
        dh += carry
    gradients = _of_parameters(saved, d_x_proj, d_gates if apart else None, d_c_norm)
    d_bias = gradients.pop("bias")
    return [cuda.input_gradient(d_x_proj, w_x, walk) if needs[0] else None, dh, dc,
            cuda.weight_gradient(walk.x, d_x_proj), cuda.weight_gradient(saved.h[:-1], d_h_proj), d_bias, None,
            *(gradients[name] for name in norms)]


def _of_parameters(saved: _Saved, d_x_proj: Array, d_gates: Array | None, d_c_norm: Array | None) -> dict[str, Array]:
    """Gradients of the bias and the norms, by name, from all time steps at once."""
    gradients: dict[str, Array] = {}
    if d_gates is not None:
        gradients["gain_x"], gradients["bias_x"] = cuda.gain_and_bias(saved.x_proj, saved.stats[0], d_gates)
        gradients["gain_h"], gradients["bias_h"] = cuda.gain_and_bias(saved.h_proj, saved.stats[1], d_gates)
    if d_c_norm is not None:
        # The cell of a masked row is not the one normalised at this time step, but its gradient here is zero.
        gradients["gain_c"], gradients["bias_c"] = cuda.gain_and_bias(saved.c[1:], saved.stats[-1], d_c_norm)
    gradients["bias"] = launch.sum_columns(cuda.rows(d_x_proj))[0] if d_gates is None else gradients["bias_x"]
    if saved.norm == "layer-theano":  # the bias inside the input's norm
        gradients["bias"] = gradients["bias"] + launch.sum_columns(cuda.rows(d_x_proj))[0]
    return gradients


# `lstm_cell`: one time step; the caller computes the products ----------------------------------------------

def _cell_forward(be: Backend, x_proj: Array, h_proj: Array, c: Array, bias: Array, *norm_arrays: Array, norm: str,
                  eps: float, **unused: Any) -> tuple[tuple[Array, Array], _Saved]:
    batch, hidden = c.shape
    bias, *packed_norms = launch.packed(bias, *norm_arrays)
    norms = dict(zip(norm_shapes("lstm", norm, 1), packed_norms, strict=True))
    macros = norm_macros("lstm", norm)
    if norm == "layer-theano":
        x_proj = in_float32(be, x_proj, lambda proj: proj + bias)
    x_proj = cupy.ascontiguousarray(x_proj)[None]
    h_proj, cs = cupy.ascontiguousarray(h_proj)[None], cuda.states(c, 1)
    hs = cupy.empty(cs.shape, dtype=x_proj.dtype)  # the kernel reads the first state of masked rows only
    stats = cupy.empty((2 * macros["NORM_GATES"] + macros["NORM_CELL"], batch, 3), dtype=c.dtype)
    _forward_step.bind(hidden, batch, (x_proj, h_proj, *_parameters(bias, norms), None, hs, cs, stats, 0, 1, batch,
                                       hidden, eps), macros)()
    saved = _Saved(cuda.Walk(x_proj, None, False, None), (bias, bias, bias), norms, x_proj, h_proj, hs, cs, stats, norm)
    return (hs[1], cs[1]), saved


def _cell_vjp(be: Backend, saved: _Saved, gouts: tuple[Array | None, Array | None],
              needs: Sequence[bool]) -> list[Array | None]:
    d_x_proj, d_h_proj, dc, d_gates, d_c_norm = _cell_gradient(be, saved, gouts)
    gradients: dict[str, Array] = {}
    if any(needs[_CELL_BIAS:]):
        gradients = _of_parameters(saved, d_x_proj, d_gates, d_c_norm)
    return [d_x_proj[0], d_h_proj[0], dc, *(gradients.get(name) for name in ("bias", *saved.norms))]


def _cell_gradient(be: Backend, saved: _Saved, gouts: tuple[Array | None, Array | None],
                   ) -> tuple[Array, Array, Array, Array | None, Array | None]:
    """Gradients of x_proj, h_proj and the cell before the time step, then those after the norms of gates and cell."""
    batch, hidden = saved.x_proj.shape[1], saved.c.shape[2]
    d_h = converted(be, gouts[0], "float32")
    dh = cupy.zeros((batch, hidden), dtype=saved.c.dtype) if d_h is None else cupy.ascontiguousarray(d_h)
    dc = cuda.start(gouts[1], dh)
    macros = norm_macros("lstm", saved.norm)
    apart = bool(macros["NORM_GATES"])
    d_x_proj = cupy.empty_like(saved.x_proj)
    d_h_proj, d_gates = (cupy.empty_like(d_x_proj) if apart else d_x_proj for _ in range(2))
    d_c_norm = cupy.empty((1, batch, hidden), dtype=dc.dtype) if macros["NORM_CELL"] else None
    _backward_step.bind(hidden, batch, (
        saved.x_proj, saved.h_proj, *_parameters(saved.weights[2], saved.norms), None, saved.c, saved.stats, None,
        dh, None, dc, d_x_proj, d_h_proj if apart else None, d_gates if apart else None, d_c_norm, 0, 1, batch, hidden),
        macros)()
    return d_x_proj, d_h_proj, dc, d_gates if apart else None, d_c_norm


def _cell_pooled(place: int) -> Callable[..., Array]:
    """The gradient of the bias or of a norm's parameter that many time steps share.

    The cell's kernel runs again, for many time steps at once: a launch costs more than what it computes for one.
    """

    def gradient(be: Backend, uses: Sequence[_Use]) -> Array:
        parts = []
        for merged, gouts in _few(be, uses):
            d_x_proj, _, _, d_gates, d_c_norm = _cell_gradient(be, merged, gouts)
            name = ("bias", *merged.norms)[place - _CELL_BIAS]
            parts.append(_of_parameters(merged, d_x_proj, d_gates, d_c_norm)[name])
        return reduce(operator.add, parts)

    return gradient


def _few(be: Backend, uses: Sequence[_Use]) -> Iterator[_Use]:
    """As few calls as can be: those that have all parameters in common are merged, up to some size."""
    alike: dict[tuple[Any, ...], list[_Use]] = {}
    for use in uses:
        saved = use[0]
        parameters = (saved.weights[2], *saved.norms.values())
        alike.setdefault((saved.norm, *(launch.address(p) for p in parameters)), []).append(use)
    for some in alike.values():
        count = max(_POOLED_VALUES // max(some[0][0].x_proj.size, 1), 1)
        for k in range(0, len(some), count):
            yield _merged(be, some[k:k + count])


def _merged(be: Backend, uses: Sequence[_Use]) -> _Use:
    """Several time steps as one, with the rows of all."""
    if len(uses) == 1:
        return uses[0]
    saved, first = [s for s, _ in uses], uses[0][0]
    x_proj, h_proj, c, stats = (be.concat(arrays, 1) for arrays in zip(*(
        (s.x_proj, s.h_proj, s.c, s.stats) for s in saved), strict=True))
    gouts = []
    for like, *each in zip((first.h[0], first.c[0]), *(g for _, g in uses), strict=True):
        none = cupy.zeros_like(like) if any(g is None for g in each) else None
        gouts.append(be.concat([none if g is None else g for g in each]))
    return first._replace(x_proj=x_proj, h_proj=h_proj, c=c, stats=stats), (gouts[0], gouts[1])


def attach() -> None:
    """Add the rules to `lstm` and `lstm_cell`."""
    supports = cuda.supports(_VARIANTS)
    of_steps = bounds_unmasked("lstm", supports)
    lstm.add(Rule("cuda steps", _forward, _vjp, of_steps, stored=_STORED), backend="cupy")
    lstm.add(Rule("cuda walk", cuda_walk.forward, cuda_walk.vjp, fits_cluster("lstm", of_steps)), backend="cupy")
    pooled = {place: _cell_pooled(place) for place in range(_CELL_BIAS, _CELL_BIAS + 1 + len(_NORM_PARAMETERS))}
    lstm_cell.add(Rule("cuda step", _cell_forward, _cell_vjp, supports, pooled, stored=_CELL_STORED), backend="cupy")
