"""The parameters of an LSTM as the compiled rules read them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from duoln.backends.protocol import Array
from duoln.kernels import host
from duoln.kernels.recurrent.positions import Units

VARIANTS = {"none": 0, "layer-cell": 1, "layer": 2, "layer-theano": 2}
"""The numbers of variant.h: nothing, the cell, or gates and cell are normalised."""


class Parameters(NamedTuple):
    """Filled up to the stride; those of norms that a variant does not have are None."""

    gain_x: Array | None
    gain_h: Array | None
    bias: Array
    """All biases outside the norms."""
    gain_c: Array | None
    bias_c: Array | None
    inner_bias: Array | None
    """The bias inside the input's norm, without its mean; of `layer-theano`."""


def parameters(units: Units, bias: Array, norms: Mapping[str, Array], norm: str) -> Parameters:
    """The parameters of a variant from the operators' arrays."""
    gain_c, bias_c = (units.filled(norms[name], 1) if name in norms else None for name in ("gain_c", "bias_c"))
    if "gain_x" not in norms:
        return Parameters(None, None, units.filled(bias), gain_c, bias_c, None)
    inner_bias = units.filled(bias - bias.mean()) if norm == "layer-theano" else None
    return Parameters(units.filled(norms["gain_x"]), units.filled(norms["gain_h"]),
                      units.filled(norms["bias_x"] + norms["bias_h"] + bias), gain_c, bias_c, inner_bias)


def norm_gradients(units: Units, d_bias: Array, d_gain_x: Array | None, d_gain_h: Array | None, d_gain_c: Array | None,
                   d_bias_c: Array | None) -> dict[str, Array | None]:
    """The gradients of the norms' parameters by name, from the parts that a kernel gives of each.

    Every bias outside the norms has that of `bias_x`.
    """
    d_b, d_g_x, d_g_h = (None if d is None else units.cut(host.added_up(d)) for d in (d_bias, d_gain_x, d_gain_h))
    d_g_c, d_b_c = (None if d is None else units.cut(host.added_up(d), 1) for d in (d_gain_c, d_bias_c))
    return {"gain_x": d_g_x, "bias_x": d_b, "gain_h": d_g_h, "bias_h": d_b, "gain_c": d_g_c, "bias_c": d_b_c}
