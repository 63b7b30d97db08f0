"""One time step of an LSTM after its products, compiled: each row is read once, and nine numbers are kept for it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from duoln import ops
from duoln.backends.protocol import Array, Backend
from duoln.core import Rule
from duoln.kernels import host, native
from duoln.kernels.linear.few_rows import MOST_ROWS
from duoln.kernels.product.multiply import column_sums, multiply
from duoln.kernels.recurrent import positions as walks
from duoln.kernels.recurrent.cells import Norms, Supports, supports
from duoln.kernels.recurrent.positions import Parameters, Units
from duoln.kernels.recurrent.weights import is_transposed
from duoln.ops.recurrent.variants import CELLS

_FILE = "recurrent/lstm/cell.cpp"
_SHARED = ("x_proj: real[2], h_proj: real[2], c: real[2], gain_x: real[1]?, gain_h: real[1]?, bias_x: real[1], "
           "gain_c: real[1]?, bias_c: real[1]?, inner_bias: real[1]?, c_new: real[2], norms: real[2], batch: int64, "
           "hidden: int64, eps: float64, variant: int32, threads: int32")
_GRADIENTS = (", d_h: real[2]?, d_c: real[2]?, d_x_proj: real[2], d_h_proj: real[2], d_c_before: real[2], "
              "d_bias_x: real[2], d_gain_x: real[2]?, d_gain_h: real[2]?, d_gain_c: real[2]?, d_bias_c: real[2]?")
_NAMES = ("x_proj", "h_proj", "c", *walks.PARAMETERS, "inner_bias", "c_new", "norms", "batch", "hidden", "eps",
          "variant", "threads")
_step = native.Function(_FILE, "lstm_cell_forward", _SHARED + ", h_new: real[2]").unchecked((*_NAMES, "h_new"))
_step_back = native.Function(_FILE, "lstm_cell_backward", _SHARED + _GRADIENTS).unchecked(
    (*_NAMES, "d_h", "d_c", "d_x_proj", "d_h_proj", "d_c_before", *(f"d_{name}" for name in walks.PARAMETERS)))


class _Saved(NamedTuple):
    x_proj: Array
    h_proj: Array
    c: Array
    parameters: list[Array | None]
    """As `positions.PARAMETERS`."""
    inner_bias: Array | None
    """The bias inside the input's norm, without its mean."""
    c_new: Array
    norms: Array
    """(B, 9): of each norm the mean, what rounding left of it, and rstd."""
    units: Units
    norm: str
    eps: float

    def arguments(self) -> tuple[Any, ...]:
        """The arguments that both directions share, as `_NAMES`."""
        return (self.x_proj, self.h_proj, self.c, *self.parameters, self.inner_bias, self.c_new, self.norms,
                *self.c.shape, self.eps, Norms.of("lstm", self.norm).number, native.threads_for(self.x_proj.nbytes))


def _forward(be: Backend, x_proj: Array, h_proj: Array, c: Array, bias: Array, *norm_arrays: Array, norm: str,
             eps: float) -> tuple[tuple[Array, Array], _Saved]:
    units = Units.of(CELLS["lstm"].gates, c.shape[1], c.dtype)
    is_inner = CELLS["lstm"].variants[norm].inner_bias
    saved = _Saved(host.contiguous(x_proj), host.contiguous(h_proj), host.contiguous(c),
                   Parameters.of("lstm", norm).filled(units, (bias, *norm_arrays)),
                   units.filled(bias - bias.mean()) if is_inner else None, host.empty(c.shape, c.dtype),
                   host.empty((len(c), 9), c.dtype), units, norm, eps)
    h_new = host.empty(c.shape, c.dtype)
    _step(c.dtype, (*saved.arguments(), h_new))
    return (h_new, saved.c_new), saved


def _vjp(be: Backend, saved: _Saved, gouts: tuple[Array | None, Array | None],
         needs: Sequence[bool]) -> list[Array | None]:
    dtype = saved.c.dtype
    d_x_proj, d_c_before = host.empty_like(saved.x_proj), host.empty_like(saved.c)
    d_h_proj = host.empty_like(saved.x_proj) if Norms.of("lstm", saved.norm).gates else d_x_proj
    parts = Parameters.of("lstm", saved.norm).room(saved.units, len(saved.c), dtype)
    d_h, d_c = [None if d is None else host.contiguous(d.astype(dtype, copy=False)) for d in gouts]
    _step_back(dtype, (*saved.arguments(), d_h, d_c, d_x_proj, d_h_proj, d_c_before, *parts))
    d_bias, *d_norms = Parameters.of("lstm", saved.norm).gradients(saved.units, parts)
    if saved.inner_bias is not None:
        d_bias = d_bias + column_sums(d_x_proj)
    return [d_x_proj, d_h_proj, d_c_before, d_bias, *d_norms]


class _SavedSequence(NamedTuple):
    step: _Saved
    x: Array
    h: Array
    w_x: Array
    w_h: Array


def _forward_sequence(be: Backend, x: Array, h: Array, c: Array, w_x: Array, w_h: Array, bias: Array, mask: None,
                      *norm_arrays: Array, norm: str, eps: float, **unused: Any) -> tuple[tuple[Array, ...], Any]:
    """A sequence of one time step; the step's norms subtract the means that a walk takes out of the weights."""
    rows = x[0]
    x_proj, h_proj = multiply(rows, w_x), multiply(h, w_h)
    (h_new, c_new), step = _forward(be, x_proj, h_proj, c, bias, *norm_arrays, norm=norm, eps=eps)
    return (h_new[None], h_new, c_new), _SavedSequence(step, rows, h, w_x, w_h)


def _vjp_of_sequence(be: Backend, saved: _SavedSequence, gouts: Sequence[Array | None],
                     needs: Sequence[bool]) -> list[Array | None]:
    d_hidden, d_h, d_c = gouts
    if d_hidden is not None:
        d_h = d_hidden[0] if d_h is None else d_hidden[0] + d_h
    d_x_proj, d_h_proj, d_c_before, *d_parameters = _vjp(be, saved.step, (d_h, d_c), needs)
    return [multiply(d_x_proj, saved.w_x.T)[None] if needs[0] else None,
            multiply(d_h_proj, saved.w_h.T) if needs[1] else None, d_c_before,
            _gradient(saved.w_x, saved.x, d_x_proj) if needs[3] else None,
            _gradient(saved.w_h, saved.h, d_h_proj) if needs[4] else None,
            d_parameters[0], None, *d_parameters[1:]]


def _gradient(weight: Array, x: Array, d_product: Array) -> Array:
    """The gradient of a weight, which lies as the weight, from that of its product with x."""
    return multiply(d_product.T, x).T if is_transposed(weight) else multiply(x.T, d_product)


def _refusal(of_step: Supports) -> Supports:
    """The reason why a sequence is not one compiled step."""

    def refusal(be: Backend, x: Array, h: Array, c: Array, w_x: Array, w_h: Array, bias: Array | None,
                mask: Array | None, *norms: Array, gradient_limit: float | None = None, **attrs: Any) -> str | None:
        if x.shape[0] != 1 or x.shape[1] <= MOST_ROWS:
            return f"it is for one time step of more than {MOST_ROWS} rows"
        if mask is not None or gradient_limit is not None:
            return "it has no mask, and no bound on gradients"
        return of_step(be, x, h, **attrs)

    return refusal


def attach() -> None:
    """Add the rules to `lstm_cell`, and to `lstm` for one time step of many rows, which packs no weight of its own."""
    fused = supports("lstm")

    def refusal(be: Backend, x_proj: Array, *arrays: Array, **attrs: Any) -> str | None:
        return fused(be, x_proj, *arrays, **attrs) or native.refusal(_FILE, x_proj.dtype)

    ops.lstm_cell.add(Rule("compiled step", _forward, _vjp, refusal), backend="numpy")
    ops.lstm.add(Rule("compiled step", _forward_sequence, _vjp_of_sequence, _refusal(refusal)), backend="numpy")
