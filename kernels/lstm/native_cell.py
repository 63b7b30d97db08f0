"""One time step of an LSTM after its products, compiled: each row is read once, and six numbers are kept for it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from duoln.backends.protocol import Array, Backend
from duoln.core import Rule
from duoln.kernels import native
from duoln.kernels.lstm.parameters import VARIANTS, Parameters, norm_gradients, parameters
from duoln.kernels.product.multiply import column_sums
from duoln.kernels.recurrent import positions as walks
from duoln.kernels.recurrent.positions import Units
from duoln.kernels.recurrent.supports import supports_compiled
from duoln.ops.recurrent.variants import GATES, norm_shapes

_FILE = "lstm/cell.cpp"
_GATES = GATES["lstm"]

_SHARED = ("x_proj: real[2], h_proj: real[2], c: real[2], gain_x: real[1]?, gain_h: real[1]?, bias: real[1], "
           "gain_c: real[1]?, bias_c: real[1]?, inner_bias: real[1]?, c_new: real[2], norms: real[2], batch: int64, "
           "hidden: int64, eps: float64, variant: int32, threads: int32")
_step = native.Function(_FILE, "lstm_cell_forward", f"{_SHARED}, h_new: real[2]")
_step_back = native.Function(_FILE, "lstm_cell_backward", f"{_SHARED}, d_h: real[2]?, d_c: real[2]?, "
                             "d_x_proj: real[2], d_h_proj: real[2], d_c_before: real[2], d_bias: real[2], "
                             "d_gain_x: real[2]?, d_gain_h: real[2]?, d_gain_c: real[2]?, d_bias_c: real[2]?")


class _Saved(NamedTuple):
    x_proj: Array
    h_proj: Array
    c: Array
    parameters: Parameters
    c_new: Array
    norms: Array
    """(B, 9): of each norm the mean, what rounding left of it, and rstd."""
    units: Units
    norm: str
    eps: float

    def shared(self) -> tuple[Any, ...]:
        """The arguments that both directions share."""
        return (self.x_proj, self.h_proj, self.c, *self.parameters, self.c_new, self.norms, *self.c.shape, self.eps,
                VARIANTS[self.norm], native.threads_for(self.x_proj.nbytes))


def _forward(be: Backend, x_proj: Array, h_proj: Array, c: Array, bias: Array, *norm_arrays: Array, norm: str,
             eps: float) -> tuple[tuple[Array, Array], _Saved]:
    units = Units.of(_GATES, c.shape[1], c.dtype)
    norms = dict(zip(norm_shapes("lstm", norm, 1), norm_arrays, strict=True))
    x_proj, h_proj, c = (np.ascontiguousarray(a) for a in (x_proj, h_proj, c))
    saved = _Saved(x_proj, h_proj, c, parameters(units, bias, norms, norm), np.empty_like(c),
                   np.empty((len(c), 9), c.dtype), units, norm, eps)
    h_new = np.empty_like(c)
    _step(*saved.shared(), h_new)
    return (h_new, saved.c_new), saved


def _vjp(be: Backend, saved: _Saved, gouts: tuple[Array | None, Array | None],
         needs: Sequence[bool]) -> list[Array | None]:
    units, blocks = saved.units, -(-len(saved.c) // walks.ROW_BLOCK)
    normed, cell = saved.parameters.gain_x is not None, saved.parameters.gain_c is not None
    d_x_proj, d_c_before = np.empty_like(saved.x_proj), np.empty_like(saved.c)
    d_h_proj = np.empty_like(saved.x_proj) if normed else d_x_proj
    d_bias, *d_gains = np.zeros((3 if normed else 1, blocks, _GATES * units.stride), saved.c.dtype)
    d_gain_x, d_gain_h = d_gains if normed else (None, None)
    d_gain_c, d_bias_c = np.zeros((2, blocks, units.stride), saved.c.dtype) if cell else (None, None)
    d_h, d_c = (None if d is None else np.ascontiguousarray(d) for d in gouts)
    _step_back(*saved.shared(), d_h, d_c, d_x_proj, d_h_proj, d_c_before, d_bias, d_gain_x, d_gain_h, d_gain_c,
               d_bias_c)
    d_norms = norm_gradients(units, d_bias, d_gain_x, d_gain_h, d_gain_c, d_bias_c)
    d_b = d_norms["bias_x"]
    if saved.norm == "layer-theano":  # the bias is inside the input's norm, too
        d_b = d_b + column_sums(d_x_proj)
    return [d_x_proj, d_h_proj, d_c_before, d_b, *(d_norms[name] for name in norm_shapes("lstm", saved.norm, 1))]


def cell_rule() -> Rule:
    """The compiled rule of `lstm_cell`."""
    return Rule("compiled step", _forward, _vjp, supports_compiled(_FILE, tuple(VARIANTS)))
