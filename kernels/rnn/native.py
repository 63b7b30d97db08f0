"""The tanh RNN on the CPU, compiled: the whole sequence in one call, with its weights packed once.

Kept for the gradient, per position: 2 H floats (the sum of the products before its norm, hidden state), and with a norm
its rstd.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from duoln.backends.protocol import Array, Backend
from duoln.core import Rule
from duoln.kernels import host, native
from duoln.kernels.product.centred import centred
from duoln.kernels.recurrent import positions as walks
from duoln.kernels.recurrent.positions import Positions, Units
from duoln.kernels.recurrent.supports import supports_compiled
from duoln.ops import rnn

_FILE = "rnn/rnn.cpp"
_VARIANTS = ("none", "layer")

_SHARED = ("w_h: real[2], sums: real[2], gain: real[1]?, bias: real[1], hidden: real[3], rstd: real[1]?, "
           "slots: int64[2]?, steps: int64, batch: int64, units: int64, eps: float64, reverse: int32, threads: int32, "
           "by_units: int32")
_walk = native.Function(_FILE, "rnn_forward", f"{_SHARED}, x: real[2]?, w_x: real[2]?, inputs: int64")
_walk_back = native.Function(_FILE, "rnn_backward", f"{_SHARED}, d_hidden: real[3]?, dh: real[2], d_sums: real[2], "
                             "d_gain: real[2]?, d_bias: real[2], limit: float64")


class _Saved(NamedTuple):
    walked: walks.Walked
    sums: Array
    gain: Array | None
    bias: Array
    rstd: Array | None
    eps: float
    limit: float
    """Of the gradients between time steps; 0 for none."""

    def shared(self) -> tuple[Any, ...]:
        """The arguments that both walks share."""
        walked = self.walked
        return (walked.w_h, self.sums, self.gain, self.bias, walked.hidden, self.rstd, walked.positions.slots,
                walked.positions.steps, walked.positions.batch, walked.units.hidden, self.eps,
                int(walked.positions.reverse), *walks.threads(walked.positions, walked.w_h))


def _forward(be: Backend, x: Array, h: Array, w_x: Array, w_h: Array, bias: Array | None, mask: Array | None,
             *norms: Array, **attrs: Any) -> tuple[tuple[Array, ...], _Saved]:
    units = Units.of(1, h.shape[1], x.dtype)
    positions = Positions.of(x.shape[0], x.shape[1], mask, attrs["reverse"])
    walked = walks.Walked.of(units, positions, x, h, w_x, w_h, centred if norms else walks.as_it_is)
    gain, added = norms if norms else (None, bias)
    sums = walked.x_proj()
    saved = _Saved(walked, sums, None if gain is None else units.filled(gain), units.filled(added),
                   None if gain is None else np.empty(len(sums), x.dtype), attrs["eps"],
                   attrs["gradient_limit"] or 0.0)
    _walk(*saved.shared(), *walked.one_step())
    return walked.outputs(walked.hidden), saved


def _vjp(be: Backend, saved: _Saved, gouts: tuple[Array | None, ...], needs: Sequence[bool]) -> list[Array | None]:
    walked, normed = saved.walked, saved.gain is not None
    units, positions = walked.units, walked.positions
    dh, d_sums = walks.given(units, gouts[1], walked.hidden), host.empty_like(saved.sums)
    d_bias = walks.row_blocks(positions, (units.stride,), walked.x.dtype)
    d_gain = np.zeros_like(d_bias) if normed else None
    _walk_back(*saved.shared(), walks.optional(gouts[0]), dh, d_sums, d_gain, d_bias, saved.limit)
    (d_x, d_w_x), d_w_h = walked.input_gradients(d_sums, needs[0]), walked.state_gradient(d_sums)
    d_added = units.cut(host.added_up(d_bias))
    if d_gain is None:
        return [d_x, units.cut(dh, 1), d_w_x, d_w_h, d_added, None]
    # remove the means that `centred` removed from the weights
    return [d_x, units.cut(dh, 1), centred(d_w_x, out=d_w_x), centred(d_w_h, out=d_w_h), None, None,
            units.cut(host.added_up(d_gain)), d_added]


def attach() -> None:
    """Add the rule to `rnn`."""
    rnn.add(Rule("compiled walk", _forward, _vjp, supports_compiled(_FILE, _VARIANTS)), backend="numpy")
