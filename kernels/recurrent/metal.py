"""The cells on Apple GPUs: one kernel computes a time step after its product, and one computes its gradient."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from itertools import accumulate
from typing import Any, NamedTuple

import mlx.core as mx

from duoln.backends.protocol import Array, Backend
from duoln.kernels.launch import Launch, metal
from duoln.kernels.launch.declared import Layout
from duoln.kernels.norm import metal as layer_norm
from duoln.kernels.recurrent.cells import FUSED, Norms, Supports
from duoln.kernels.recurrent.plan import METAL_LADDER, Plan
from duoln.ops.recurrent.formulas import Settings
from duoln.ops.recurrent.variants import CELLS

States = tuple[Array, ...]
_LSTM = ("x_gates: real[batch, wide], h_proj: real[batch, wide], c: real[batch, hidden], gain_h: real[wide]?, "
         "bias_h: real[wide]?, gain_c: real[hidden], bias_c: real[hidden], mask: bool[batch]?")
_GRU = ("x_gates: real[batch, wide], h_proj: real[batch, wide], h: real[batch, hidden], gain_h: real[wide], "
        "bias_h: real[wide], mask: bool[batch]?")
_STATS = "stats: real[2, batch, 3]"


def _plan_of_lstm(batch: int, hidden: int, has_gain_h: bool) -> Layout:
    fit = Plan(*LAYOUTS["lstm"].plan(hidden, has_gain_h))
    return Layout((batch,), (fit.threads,), fit.macros(NORM_H=int(has_gain_h)))


def _plan_of_gru(batch: int, hidden: int) -> Layout:
    fit = Plan(*LAYOUTS["gru"].plan(hidden, True))
    return Layout((batch,), (fit.threads,), fit.macros())


FORWARD = {
    "lstm": Launch("recurrent/lstm/time_step", "lstm_forward", f"{_LSTM}, h: real[batch, hidden]?, eps: float64 "
                   f"-> next_h: like c, next_c: like c, {_STATS}", _plan_of_lstm),
    "gru": Launch("recurrent/gru/time_step", "gru_forward", f"{_GRU}, eps: float64 -> next_h: like h, {_STATS}",
                  _plan_of_gru)}
BACKWARD = {
    "lstm": Launch("recurrent/lstm/time_step", "lstm_backward", f"{_LSTM}, {_STATS}, d_h: like c, d_c: like c "
                   "-> d_x_gates: like x_gates, d_c_norm: like c, d_c_before: like c, d_h_proj: like x_gates?, "
                   "d_h_before: like c?", _plan_of_lstm),
    "gru": Launch("recurrent/gru/time_step", "gru_backward", f"{_GRU}, {_STATS}, d_h: like h "
                  "-> d_x_gates: like x_gates, d_h_gates: like x_gates, d_h_proj: like x_gates, d_h_before: like h",
                  _plan_of_gru)}


class Gradient(NamedTuple):
    """The gradients of one time step."""

    x_gates: Array
    h_proj: Array
    states: list[Array]
    """The gradients of the states before the time step, without the part that comes through `h_proj`."""
    own: Any
    """The values from which `parameters` computes the gradients of the bias and the norms."""


class MetalSteps:
    """The time steps of one sequence, with the parameters that they read, for variants with norms of LSTM and GRU.

    They have the methods of `mlx.FormulaSteps`.
    """

    def __init__(self, be: Backend | None, cell: str, settings: Settings, bias: Array | None,
                 norms: Mapping[str, Array]) -> None:
        self._cell, self._bias, self._norms, self._eps = cell, bias, norms, settings.eps
        self._read = {"gain_h": None, "bias_h": None, **norms, "eps": settings.eps}

    def forward(self, x_gates: Array, h_proj: Array, states: States, mask: Array | None) -> tuple[States, Any]:
        """The next states, and the arrays that the gradient needs."""
        kept = {"x_gates": x_gates, "h_proj": h_proj, **dict(zip(CELLS[self._cell].states, states, strict=True)),
                "mask": mask}
        given = {**self._read, **kept}
        if self._cell == "lstm" and mask is None:
            given["h"] = None  # the kernel reads the first state of masked rows only
        *new, kept["stats"] = FORWARD[self._cell]["mlx"](*FORWARD[self._cell].named(given))
        return tuple(new), {**kept, "new": new}

    def backward(self, kept: Any, gradients: list[Array]) -> Gradient:
        """The gradients of the time step's arguments, from those of the next states."""
        launch = BACKWARD[self._cell]
        flags = {"d_h_proj": "gain_h" in self._norms, "d_h_before": kept["mask"] is not None} \
            if self._cell == "lstm" else {}
        given = {**self._read, **kept, "d_h": gradients[0], "d_c": gradients[-1]}
        results = launch["mlx"](*launch.named(given), **flags)
        made = dict(zip([each.name for each in launch.spec.outputs], results, strict=True))
        made = {name: d for name, d in made.items() if d is not None}
        d_x_gates = made["d_x_gates"]
        d_states = [made["d_h_before"] if "d_h_before" in made else mx.zeros_like(kept["h"])]
        d_states += [made["d_c_before"]] if self._cell == "lstm" else []
        return Gradient(d_x_gates, made.get("d_h_proj", d_x_gates), d_states, made)

    def parameters(self, walked: Sequence[tuple[Any, Any]]) -> list[Array]:
        """The gradients of the bias, if there is one, and the norms, from (kept, own) of all time steps.

        Those that the bias and the norms of the input get through x_gates are not in them.
        """
        gradients: dict[str, Array] = {}
        if "gain_h" in self._norms:
            h_proj = mx.stack([kept["h_proj"] for kept, _ in walked])
            d_gates = mx.stack([own.get("d_h_gates", own["d_x_gates"]) for _, own in walked])
            gradients["gain_h"], gradients["bias_h"] = self._of_norms(h_proj, d_gates, CELLS[self._cell].parts)
        if "gain_c" in self._norms:
            # The cell of a masked row is not the one normalised at this time step, but its gradient here is zero.
            cells = mx.stack([kept["new"][1] for kept, _ in walked])
            d_cells = mx.stack([own["d_c_norm"] for _, own in walked])
            gradients["gain_c"], gradients["bias_c"] = self._of_norms(cells, d_cells, (1,))
        d_bias = [] if self._bias is None else [mx.zeros_like(self._bias)]
        return [*d_bias, *(gradients.get(name, mx.zeros_like(a)) for name, a in self._norms.items())]

    def _of_norms(self, x: Array, dy: Array, parts: Sequence[int]) -> tuple[Array, Array]:
        """Gradients of gain and bias from all time steps at once, for norms over parts of the columns."""
        cuts = [x.shape[-1] * gates // sum(parts) for gates in accumulate(parts[:-1])]
        of_parts = [layer_norm.backward(part, None, None, d, self._eps, None, (False, True, True))[1:]
                    for part, d in zip(mx.split(x, cuts, axis=-1), mx.split(dy, cuts, axis=-1), strict=True)]
        d_gain, d_bias = (list(pieces) for pieces in zip(*of_parts, strict=True))
        return (d_gain[0], d_bias[0]) if len(parts) == 1 else (mx.concatenate(d_gain), mx.concatenate(d_bias))


def _trial(cell: str, hidden: int, norm_h: bool) -> list[Array]:
    """A time step of one masked row of zeros, forward and back."""
    row, gates = mx.zeros((1, hidden)), mx.zeros((1, CELLS[cell].gates * hidden))
    norms = {"gain_h": gates[0], "bias_h": gates[0]} if norm_h else {}
    if cell == "lstm":
        norms |= {"gain_c": row[0], "bias_c": row[0]}
    steps = MetalSteps(None, cell, Settings("", 1e-5), None, norms)
    states = (row,) * len(CELLS[cell].states)
    new, kept = steps.forward(gates, gates, states, mx.zeros((1,), mx.bool_))
    return [*new, *steps.backward(kept, list(states)).own.values()]


LAYOUTS = {cell: metal.Layouts(METAL_LADDER, partial(_trial, cell)) for cell in FORWARD}


def supports(cell: str, supports_any: Supports) -> Supports:
    """The condition of a cell's rule: a variant with norms, sizes, and what the device's pipelines allow.

    The norms must fit layer_norm's kernel, which computes the gradients of the gains.
    """
    parts = CELLS[cell].parts
    most = layer_norm.MOST_COLUMNS // max(parts)

    def refusal(be: Backend, x: Array, h: Array, *arrays: Array, norm: str, **unused: Any) -> str | None:
        if reason := metal.refusal():
            return reason
        if (cell, norm) not in FUSED or not any(Norms.of(cell, norm)):
            return f"norm '{norm}' has no kernel"
        if x.dtype != mx.float32:
            return f"the kernel is for float32, not {x.dtype}"
        hidden, norms = h.shape[1], Norms.of(cell, norm)
        if hidden > most:
            return f"{hidden} hidden units are more than {most}"
        if reason := supports_any(be, x, h, norm=norm):
            return reason
        widths = [gates * hidden for gates in parts] + ([hidden] if norms.cell else [])
        reasons = [layer_norm.refusal(width, True, mx.float32) for width in widths]
        return next(filter(None, (LAYOUTS[cell].refusal(hidden, norms.gates), *reasons)), None)

    return refusal
