"""The GRU on the CPU, compiled: the whole sequence in one call, with its weights packed once.

Kept for the gradient, per position: 7 H floats with norms (x_proj and h_proj before their norms 3 H each, hidden
state), 5 H without (the sums of the gates 3 H, the contribution of the state to n, hidden state), and four numbers of
the norms.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from duoln.backends.protocol import Array, Backend
from duoln.core import Rule
from duoln.kernels import host, native
from duoln.kernels.product.centred import centred
from duoln.kernels.product.multiply import column_sums
from duoln.kernels.recurrent import positions as walks
from duoln.kernels.recurrent.positions import Positions, Units
from duoln.kernels.recurrent.supports import supports_compiled
from duoln.ops import gru
from duoln.ops.recurrent.variants import GATES, norm_shapes

_FILE = "gru/gru.cpp"
_VARIANTS = ("none", "layer", "layer-theano")
_GATES = GATES["gru"]

_SHARED = ("w_h: real[2], x_proj: real[2], h_proj: real[2], gain_x: real[1]?, bias_x: real[1], gain_h: real[1]?, "
           "bias_h: real[1]?, hidden: real[3], norms: real[2]?, slots: int64[2]?, steps: int64, batch: int64, "
           "units: int64, eps: float64, normed: int32, reverse: int32, threads: int32, by_units: int32")
_walk = native.Function(_FILE, "gru_forward", f"{_SHARED}, x: real[2]?, w_x: real[2]?, inputs: int64")
_walk_back = native.Function(_FILE, "gru_backward", f"{_SHARED}, d_hidden: real[3]?, dh: real[2], d_x_proj: real[2], "
                             "d_h_proj: real[2], d_gain_x: real[2]?, d_bias_x: real[2], d_gain_h: real[2]?, "
                             "d_bias_h: real[2]?, limit: float64")


class _Parameters(NamedTuple):
    """The parameters as the walk reads them, filled up to the stride; without norms the bias alone."""

    gain_x: Array | None
    bias_x: Array
    gain_h: Array | None
    bias_h: Array | None


class _Saved(NamedTuple):
    walked: walks.Walked
    parameters: _Parameters
    x_proj: Array
    h_proj: Array
    norms: Array | None
    attrs: dict[str, Any]

    def shared(self) -> tuple[Any, ...]:
        """The arguments that both walks share."""
        walked = self.walked
        return (walked.w_h, self.x_proj, self.h_proj, *self.parameters, walked.hidden, self.norms,
                walked.positions.slots, walked.positions.steps, walked.positions.batch, walked.units.hidden,
                self.attrs["eps"], int(self.norms is not None), int(walked.positions.reverse),
                *walks.threads(walked.positions, walked.w_h))


def _centred(weight: Array, out: Array | None = None) -> Array:
    """The matrix without its rows' means: those of the columns of z and r, and those of n, as each norm has its own."""
    return centred(weight, weight.shape[1] * 2 // 3, out)


def _parameters(units: Units, bias: Array | None, norms: dict[str, Array]) -> _Parameters:
    if not norms:
        assert bias is not None
        return _Parameters(None, units.filled(bias), None, None)
    return _Parameters(*(units.filled(norms[name]) for name in ("gain_x", "bias_x", "gain_h", "bias_h")))


def _forward(be: Backend, x: Array, h: Array, w_x: Array, w_h: Array, bias: Array | None, mask: Array | None,
             *norm_arrays: Array, **attrs: Any) -> tuple[tuple[Array, ...], _Saved]:
    units = Units.of(_GATES, h.shape[1], x.dtype)
    positions = Positions.of(x.shape[0], x.shape[1], mask, attrs["reverse"])
    norms = dict(zip(norm_shapes("gru", attrs["norm"], 1), norm_arrays, strict=True))
    walked = walks.Walked.of(units, positions, x, h, w_x, w_h, _centred if norms else walks.as_it_is)
    # a bias of `layer-theano` is inside the input's norm
    inner_bias = units.filled(_centred(bias[None])[0]) if norms and bias is not None else None
    x_proj = walked.x_proj(inner_bias)
    h_proj = host.empty((len(x_proj), (_GATES if norms else 1) * units.stride), x.dtype)
    saved = _Saved(walked, _parameters(units, bias, norms), x_proj, h_proj,
                   np.empty((len(x_proj), 4), x.dtype) if norms else None, attrs)
    _walk(*saved.shared(), *walked.one_step())
    return walked.outputs(walked.hidden), saved


def _vjp(be: Backend, saved: _Saved, gouts: tuple[Array | None, ...], needs: Sequence[bool]) -> list[Array | None]:
    walked, normed = saved.walked, saved.norms is not None
    units, positions = walked.units, walked.positions
    dh = walks.given(units, gouts[1], walked.hidden)
    d_x_proj, d_h_proj = host.empty_like(saved.x_proj), host.empty_like(saved.x_proj)
    d_bias_x = walks.row_blocks(positions, (_GATES * units.stride,), walked.x.dtype)
    d_gain_x, d_gain_h, d_bias_h = (np.zeros_like(d_bias_x) if normed else None for _ in range(3))
    _walk_back(*saved.shared(), walks.optional(gouts[0]), dh, d_x_proj, d_h_proj, d_gain_x, d_bias_x, d_gain_h,
               d_bias_h, saved.attrs["gradient_limit"] or 0.0)
    (d_x, d_w_x), d_w_h = walked.input_gradients(d_x_proj, needs[0]), walked.state_gradient(d_h_proj)
    d_norms = {name: units.cut(host.added_up(d)) for name, d in (("gain_x", d_gain_x), ("bias_x", d_bias_x),
                                                                  ("gain_h", d_gain_h), ("bias_h", d_bias_h))
               if d is not None}
    d_bias: Array | None = d_norms["bias_x"]
    if normed:  # remove the means that `_centred` removed from the weights
        d_w_x, d_w_h, d_bias = _centred(d_w_x, d_w_x), _centred(d_w_h, d_w_h), None
        if saved.attrs["norm"] == "layer-theano":
            d_bias = _centred(units.cut(column_sums(d_x_proj))[None])[0]
    return [d_x, units.cut(dh, 1), d_w_x, d_w_h, d_bias, None,
            *(d_norms[name] for name in norm_shapes("gru", saved.attrs["norm"], 1))]


def attach() -> None:
    """Add the rule to `gru`."""
    gru.add(Rule("compiled walk", _forward, _vjp, supports_compiled(_FILE, _VARIANTS)), backend="numpy")
