"""The LSTM on the CPU, compiled: the whole sequence in one call, with its weights packed once.

Kept for the gradient, per position: 10 H floats with norms over the gates (x_proj and h_proj before their norms 4 H
each, cell, hidden state), 6 H without, and four numbers of the norms. For few inputs of `layer` the
walks multiply these themselves, and x_proj is not kept: 6 H.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from duoln.backends.protocol import Array, Backend
from duoln.core import Rule
from duoln.kernels import host, native
from duoln.kernels.lstm.native_cell import cell_rule
from duoln.kernels.lstm.parameters import VARIANTS, Parameters, norm_gradients, parameters
from duoln.kernels.product.centred import centred
from duoln.kernels.product.multiply import column_sums
from duoln.kernels.recurrent import positions as walks
from duoln.kernels.recurrent.positions import Positions, Units
from duoln.kernels.recurrent.supports import supports_compiled
from duoln.ops import lstm, lstm_cell
from duoln.ops.recurrent.variants import GATES, norm_shapes

_FILE = "lstm/lstm.cpp"
_GATES = GATES["lstm"]

_SHARED = ("w_h: real[2], x: real[2]?, w_x: real[2]?, x_proj: real[2]?, h_proj: real[2]?, gain_x: real[1]?, "
           "gain_h: real[1]?, bias: real[1], gain_c: real[1]?, bias_c: real[1]?, "
           "hidden: real[3], cells: real[3], norms: real[2]?, slots: int64[2]?, steps: int64, batch: int64, "
           "inputs: int64, units: int64, eps: float64, variant: int32, reverse: int32, threads: int32, by_units: int32")
_walk = native.Function(_FILE, "lstm_forward", _SHARED)
_walk_back = native.Function(_FILE, "lstm_backward", f"{_SHARED}, d_hidden: real[3]?, dh: real[2], dc: real[2], "
                             "d_x: real[2]?, d_w_x: real[3]?, d_bias: real[2], d_gain_x: real[2]?, d_gain_h: real[2]?, "
                             "d_gain_c: real[2]?, d_bias_c: real[2]?, limit: float64")


class _Products(NamedTuple):
    x_proj: Array | None
    """With the bias inside the norm; without norms over the gates the sum of both products. None for few inputs, whose
    product the walks compute.
    """
    h_proj: Array | None
    """None without norms over the gates."""


class _Saved(NamedTuple):
    walked: walks.Walked
    parameters: Parameters
    cells: Array
    norms: Array | None
    products: list[_Products]
    """One, or none after a gradient has taken them, because its walk overwrites them."""
    attrs: dict[str, Any]

    @property
    def is_normed(self) -> bool:
        """Whether there are norms over the gates."""
        return self.parameters.gain_x is not None

    @property
    def has_few_inputs(self) -> bool:
        """Whether the walks multiply the inputs. They give no gradient of x_proj then, which `layer-theano` needs."""
        return bool(self.attrs["norm"] == "layer" and self.walked.x.shape[1] <= walks.FEW_INPUTS
                    and not self.walked.is_one_step)

    def shared(self, products: _Products, is_forward: bool = False) -> tuple[Any, ...]:
        """The arguments that both walks share. That forward multiplies the inputs of one step, too."""
        walked = self.walked
        multiplies = self.has_few_inputs or (is_forward and walked.is_one_step)
        inputs = (walked.x, walked.w_x) if multiplies else (None, None)
        outside = self.parameters[:-1]  # the inner bias is in x_proj
        return (walked.w_h, *inputs, *products, *outside, walked.hidden, self.cells, self.norms,
                walked.positions.slots, walked.positions.steps, walked.positions.batch, walked.x.shape[1],
                walked.units.hidden, self.attrs["eps"], VARIANTS[self.attrs["norm"]], int(walked.positions.reverse),
                *walks.threads(walked.positions, walked.w_h))


def _forward(be: Backend, x: Array, h: Array, c: Array, w_x: Array, w_h: Array, bias: Array, mask: Array | None,
             *norm_arrays: Array, **attrs: Any) -> tuple[tuple[Array, ...], _Saved]:
    units = Units.of(_GATES, h.shape[1], x.dtype)
    positions = Positions.of(x.shape[0], x.shape[1], mask, attrs["reverse"])
    norms = dict(zip(norm_shapes("lstm", attrs["norm"], 1), norm_arrays, strict=True))
    walked = walks.Walked.of(units, positions, x, h, w_x, w_h, centred if "gain_x" in norms else walks.as_it_is)
    saved = _Saved(walked, parameters(units, bias, norms, attrs["norm"]), walks.states(units, positions, c),
                   np.empty((len(walked.x), 4), x.dtype) if norms else None, [], attrs)
    saved.products.append(_walk_forward(saved))
    return walked.outputs(walked.hidden, saved.cells), saved


def _walk_forward(saved: _Saved) -> _Products:
    """Compute the states after the first ones, and what norms keep, in their places; returns the products."""
    walked = saved.walked
    room = (len(walked.x), _GATES * walked.units.stride)
    products = _Products(_x_proj(saved), host.empty(room, walked.x.dtype) if saved.is_normed else None)
    _walk(*saved.shared(products, is_forward=True))
    return products


def _x_proj(saved: _Saved) -> Array | None:
    walked = saved.walked
    if saved.has_few_inputs:
        return None
    return walked.x_proj(saved.parameters.inner_bias)


def _products_for_gradient(saved: _Saved) -> _Products:
    """The products, which the caller may overwrite."""
    try:
        return saved.products.pop()
    except IndexError:  # a gradient has taken them; a second walk gives the same bits
        walked = saved.walked._replace(hidden=saved.walked.hidden.copy())
        norms = None if saved.norms is None else saved.norms.copy()
        return _walk_forward(saved._replace(walked=walked, cells=saved.cells.copy(), norms=norms))


def _vjp(be: Backend, saved: _Saved, gouts: tuple[Array | None, ...], needs: Sequence[bool]) -> list[Array | None]:
    products = _products_for_gradient(saved)
    walked, normed, cell = saved.walked, saved.is_normed, saved.parameters.gain_c is not None
    units, positions, dtype = walked.units, walked.positions, walked.x.dtype
    dh, dc = (walks.given(units, d, walked.hidden) for d in gouts[1:])
    few, wide_shape = saved.has_few_inputs, (_GATES * units.stride,)
    d_rows = host.empty_like(walked.x) if few and needs[0] else None
    d_weights = walks.row_blocks(positions, (walked.x.shape[1], *wide_shape), dtype) if few else None
    wide = walks.row_blocks(positions, wide_shape, dtype)
    d_bias, *d_gains = wide, *(np.zeros_like(wide) if normed else None for _ in range(2))
    d_of_cell = [walks.row_blocks(positions, (units.stride,), dtype) if cell else None for _ in range(2)]
    _walk_back(*saved.shared(products), walks.optional(gouts[0]), dh, dc, d_rows, d_weights, d_bias, *d_gains,
               *d_of_cell, saved.attrs["gradient_limit"] or 0.0)
    d_x_proj, d_h_proj = products.x_proj, products.x_proj if products.h_proj is None else products.h_proj
    if d_weights is None:
        d_x, d_w_x = walked.input_gradients(d_x_proj, needs[0])
    else:
        d_x = None if d_rows is None else positions.spread(d_rows)
        d_w_x = units.cut(host.added_up(d_weights))
    d_w_h = walked.state_gradient(d_h_proj)
    d_norms = norm_gradients(units, d_bias, *d_gains, *d_of_cell)
    d_b = d_norms["bias_x"]
    if normed:  # remove the means that `centred` removed from the weights
        d_w_x, d_w_h = (centred(d, out=d) for d in (d_w_x, d_w_h))
        if saved.attrs["norm"] == "layer-theano":
            d_inner = units.cut(column_sums(d_x_proj))
            d_b = d_b + d_inner - d_inner.mean()
    return [d_x, units.cut(dh, 1), units.cut(dc, 1), d_w_x, d_w_h, d_b, None,
            *(d_norms[name] for name in norm_shapes("lstm", saved.attrs["norm"], 1))]


def attach() -> None:
    """Add the rules to `lstm` and `lstm_cell`."""
    lstm_cell.add(cell_rule(), backend="numpy")
    lstm.add(Rule("compiled walk", _forward, _vjp, supports_compiled(_FILE, tuple(VARIANTS))), backend="numpy")
