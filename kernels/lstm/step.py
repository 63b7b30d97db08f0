"""One time step of an LSTM after its products, on NumPy: for models whose next input depends on the last output.

The rule saves everything that the gradient reads, so nothing is computed twice. Per row these are x_proj and h_proj
after their norms and the gates, 4 H each, the normalised cell, its tanh and the previous cell.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from duoln.backends.protocol import Array, Backend
from duoln.core import Rule
from duoln.kernels import host
from duoln.kernels.lstm.gates import NORMED_GATES, CellNorm, make_terms, split_gates
from duoln.kernels.recurrent import shared as recurrent
from duoln.ops.recurrent.variants import norm_shapes

_VARIANTS = ("none", "layer", "layer-cell", "layer-theano")


class _Normalised(NamedTuple):
    """A product after its norm, before gain and bias: (B, 4H) and (B, 1)."""

    xhat: Array
    rstd: Array


class _Saved(NamedTuple):
    norm: str
    norms: dict[str, Array]
    normalised: dict[str, _Normalised]
    """With the keys "x" and "h", set if x_proj and h_proj are normalised."""
    gates: Array
    c: Array
    """The cell before the time step."""
    cell_norm: CellNorm | None
    rstd_c: Array | None
    tanh_c: Array
    """tanh of the cell, after its norm if it has one."""


def _normalised(proj: Array, eps: float, inner_bias: Array | None = None) -> _Normalised:
    xhat = host.empty_like(proj)
    np.subtract(proj, proj.mean(axis=1, keepdims=True), xhat)
    if inner_bias is not None:
        np.add(xhat, inner_bias, xhat)
    return _Normalised(xhat, recurrent.normalise_rows(xhat, eps))


def _forward(be: Backend, x_proj: Array, h_proj: Array, c: Array, bias: Array, *norm_arrays: Array, norm: str,
             eps: float, eps_place: str) -> tuple[tuple[Array, Array], _Saved]:
    norms = dict(zip(norm_shapes("lstm", norm, 1), norm_arrays, strict=True))
    terms = make_terms(norms, bias, norm)
    gates, normalised = host.empty_like(x_proj), {}
    if norm in NORMED_GATES:
        inner_bias = bias - bias.mean() if norm == "layer-theano" else None
        normalised = {"x": _normalised(x_proj, eps, inner_bias), "h": _normalised(h_proj, eps)}
        recurrent.add_gates(normalised["x"].xhat, normalised["h"].xhat, terms, gates, host.empty_like(x_proj))
    else:
        np.add(x_proj, h_proj, gates)
        np.multiply(gates, terms.gain_x, gates)
        np.add(gates, terms.biases, gates)
    recurrent.activate(gates, 3 * c.shape[1])
    f, i, o, g = split_gates(gates)
    c_new, h, tanh_c = i * g, host.empty_like(c), host.empty_like(c)
    np.multiply(f, c, h)
    np.add(c_new, h, c_new)
    cell_norm, rstd_c = None, None
    if "gain_c" in norms:
        cell_norm = CellNorm(norms, eps, c)
        rstd_c = cell_norm(c_new, tanh_c)
        np.tanh(tanh_c, tanh_c)
    else:
        np.tanh(c_new, tanh_c)
    np.multiply(o, tanh_c, h)
    return (h, c_new), _Saved(norm, norms, normalised, gates, c, cell_norm, rstd_c, tanh_c)


def _through_norm(d: Array, normalised: _Normalised, gain: Array) -> Array:
    """The gradient before the norm of a product, from the gradient after the norm."""
    d_proj = d * gain
    np.subtract(d_proj, d_proj.mean(axis=1, keepdims=True), d_proj)
    recurrent.normalise_rows_gradient(d_proj, normalised.xhat, normalised.rstd, host.empty_like(d_proj))
    return d_proj


def _vjp(be: Backend, saved: _Saved, gouts: tuple[Array | None, Array | None],
         needs: Sequence[bool]) -> list[Array | None]:
    d_h, d_c = gouts
    hidden = saved.c.shape[1]
    f, i, o, g = split_gates(saved.gates)
    d_norms: dict[str, Array] = {}
    d_gates = host.empty_like(saved.gates)
    d_f, d_i, d_o, d_g = split_gates(d_gates)
    if d_h is None:
        dc = np.zeros_like(saved.c)
        d_o[:] = 0
        d_norms |= {name: np.zeros_like(a) for name, a in saved.norms.items() if name.endswith("_c")}
    else:
        np.multiply(d_h, saved.tanh_c, d_o)
        dc = saved.tanh_c * saved.tanh_c
        np.subtract(1.0, dc, dc)
        np.multiply(dc, d_h, dc)
        np.multiply(dc, o, dc)
        if saved.cell_norm is not None and saved.rstd_c is not None:
            d_norms["gain_c"], d_norms["bias_c"] = saved.cell_norm.parameters(dc)
            saved.cell_norm.input(dc, saved.rstd_c, host.empty_like(dc))
    if d_c is not None:
        np.add(dc, d_c, dc)
    np.multiply(dc, saved.c, d_f)
    np.multiply(dc, g, d_i)
    np.multiply(dc, i, d_g)
    np.multiply(dc, f, dc)
    scratch = host.empty_like(d_gates)
    recurrent.slopes(saved.gates, 3 * hidden, scratch)
    np.multiply(d_gates, scratch, d_gates)
    d_bias = recurrent.column_sums(d_gates)
    d_proj = {"x": d_gates, "h": d_gates}
    for name, normalised in saved.normalised.items():
        np.multiply(d_gates, normalised.xhat, scratch)
        d_norms[f"gain_{name}"], d_norms[f"bias_{name}"] = recurrent.column_sums(scratch), d_bias
        d_proj[name] = _through_norm(d_gates, normalised, saved.norms[f"gain_{name}"])
    if saved.norm == "layer-theano":  # the bias is inside the input's norm, too
        d_bias = d_bias + recurrent.column_sums(d_proj["x"])
    return [d_proj["x"], d_proj["h"], dc, d_bias, *(d_norms[name] for name in saved.norms)]


def _supports(be: Backend, x_proj: Array, h_proj: Array, c: Array, *arrays: Array, norm: str, eps_place: str,
              **unused: Any) -> str | None:
    if norm not in _VARIANTS:
        return f"norm '{norm}' has no fused rule"
    if eps_place != "inside":
        return "epsilon is outside the root"
    return None if x_proj.size else "there are no values"


def step_rule() -> Rule:
    """The rule of `lstm_cell`."""
    return Rule("fused step", _forward, _vjp, _supports)
