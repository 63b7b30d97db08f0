"""One time step of an LSTM after its products, compiled: each row is read once, and nine numbers are kept for it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from duoln.backends.protocol import Array, Backend
from duoln.core import Rule
from duoln.kernels import native
from duoln.kernels.product.multiply import column_sums
from duoln.kernels.recurrent import positions as walks
from duoln.kernels.recurrent.cells import Norms, supports
from duoln.kernels.recurrent.positions import Units
from duoln.ops.recurrent.variants import CELLS, norm_shapes

_FILE = "recurrent/lstm/cell.cpp"
_SHARED = ("x_proj: real[2], h_proj: real[2], c: real[2], gain_x: real[1]?, gain_h: real[1]?, bias: real[1], "
           "gain_c: real[1]?, bias_c: real[1]?, inner_bias: real[1]?, c_new: real[2], norms: real[2], batch: int64, "
           "hidden: int64, eps: float64, variant: int32, threads: int32")
_step = walks.Kernel(_FILE, "lstm_cell_forward", f"{_SHARED}, h_new: real[2]")
_step_back = walks.Kernel(_FILE, "lstm_cell_backward", f"{_SHARED}, d_h: real[2]?, d_c: real[2]?, "
                          "d_x_proj: real[2], d_h_proj: real[2], d_c_before: real[2], d_bias: real[2], "
                          "d_gain_x: real[2]?, d_gain_h: real[2]?, d_gain_c: real[2]?, d_bias_c: real[2]?")


class _Saved(NamedTuple):
    x_proj: Array
    h_proj: Array
    c: Array
    parameters: dict[str, Array]
    inner_bias: Array | None
    """The bias inside the input's norm, without its mean."""
    c_new: Array
    norms: Array
    """(B, 9): of each norm the mean, what rounding left of it, and rstd."""
    units: Units
    norm: str
    eps: float

    def arguments(self) -> dict[str, Any]:
        """The arguments that both directions share."""
        batch, hidden = self.c.shape
        return {"x_proj": self.x_proj, "h_proj": self.h_proj, "c": self.c, **self.parameters,
                "inner_bias": self.inner_bias, "c_new": self.c_new, "norms": self.norms, "batch": batch,
                "hidden": hidden, "eps": self.eps, "variant": Norms.of("lstm", self.norm).number,
                "threads": native.threads_for(self.x_proj.nbytes)}


def _forward(be: Backend, x_proj: Array, h_proj: Array, c: Array, bias: Array, *norm_arrays: Array, norm: str,
             eps: float) -> tuple[tuple[Array, Array], _Saved]:
    units = Units.of(CELLS["lstm"].gates, c.shape[1], c.dtype)
    norms = dict(zip(norm_shapes("lstm", norm, 1), norm_arrays, strict=True))
    x_proj, h_proj, c = (np.ascontiguousarray(a) for a in (x_proj, h_proj, c))
    is_inner = CELLS["lstm"].variants[norm].inner_bias
    saved = _Saved(x_proj, h_proj, c, walks.filled_parameters("lstm", norm, units, bias, norms),
                   units.filled(bias - bias.mean()) if is_inner else None, np.empty_like(c),
                   np.empty((len(c), 9), c.dtype), units, norm, eps)
    h_new = np.empty_like(c)
    _step({**saved.arguments(), "h_new": h_new})
    return (h_new, saved.c_new), saved


def _vjp(be: Backend, saved: _Saved, gouts: tuple[Array | None, Array | None],
         needs: Sequence[bool]) -> list[Array | None]:
    d_x_proj, d_c_before = np.empty_like(saved.x_proj), np.empty_like(saved.c)
    d_h_proj = np.empty_like(saved.x_proj) if Norms.of("lstm", saved.norm).gates else d_x_proj
    parts = walks.room_for_gradients(len(saved.c), saved.parameters)
    d_h, d_c = (None if d is None else np.ascontiguousarray(d) for d in gouts)
    _step_back({**saved.arguments(), **parts, "d_h": d_h, "d_c": d_c, "d_x_proj": d_x_proj, "d_h_proj": d_h_proj,
                "d_c_before": d_c_before})
    gradients = walks.parameter_gradients("lstm", saved.norm, saved.units, parts)
    if saved.inner_bias is not None:
        gradients["bias"] = gradients["bias"] + column_sums(d_x_proj)
    return [d_x_proj, d_h_proj, d_c_before,
            *(gradients[name] for name in ("bias", *CELLS["lstm"].variants[saved.norm].norms))]


def rule() -> Rule:
    """The compiled rule of `lstm_cell`."""
    fused = supports("lstm")

    def refusal(be: Backend, x_proj: Array, *arrays: Array, **attrs: Any) -> str | None:
        return fused(be, x_proj, *arrays, **attrs) or native.refusal(_FILE, x_proj.dtype)

    return Rule("compiled step", _forward, _vjp, refusal)
