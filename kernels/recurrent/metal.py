"""The cells on Apple GPUs: one kernel computes a time step after its product, and one computes its gradient."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from itertools import accumulate
from typing import Any, NamedTuple

import mlx.core as mx

from duoln.backends.protocol import Array, Backend
from duoln.kernels.launch import metal
from duoln.kernels.norm import metal as layer_norm
from duoln.kernels.recurrent.cells import FUSED, Norms, Supports
from duoln.kernels.recurrent.plan import METAL_LADDER, Plan
from duoln.ops.recurrent.formulas import Settings
from duoln.ops.recurrent.variants import CELLS

States = tuple[Array, ...]
_LSTM = ("x_gates: float32[2], h_proj: float32[2], c: float32[2], gain_h: float32[1]?, bias_h: float32[1]?, "
         "gain_c: float32[1], bias_c: float32[1], mask: bool[1]?, ")
_GRU = ("x_gates: float32[2], h_proj: float32[2], h: float32[2], gain_h: float32[1], bias_h: float32[1], "
        "mask: bool[1]?, ")
FORWARD = {"lstm": metal.Kernel("recurrent/lstm/lstm_forward.metal", _LSTM + "h: float32[2]?, eps: float32"),
           "gru": metal.Kernel("recurrent/gru/gru_forward.metal", _GRU + "eps: float32")}
BACKWARD = {"lstm": metal.Kernel("recurrent/lstm/lstm_backward.metal",
                                 _LSTM + "stats: float32[3], d_h: float32[2], d_c: float32[2]"),
            "gru": metal.Kernel("recurrent/gru/gru_backward.metal", _GRU + "stats: float32[3], d_h: float32[2]")}


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
        self._read = {**norms, "eps": self._eps}
        self._forward, self._backward = ((kernels[cell], [each.name for each in kernels[cell].inputs])
                                         for kernels in (FORWARD, BACKWARD))

    def forward(self, x_gates: Array, h_proj: Array, states: States, mask: Array | None) -> tuple[States, Any]:
        """The next states, and the arrays that the gradient needs."""
        kept = {"x_gates": x_gates, "h_proj": h_proj, **dict(zip(CELLS[self._cell].states, states, strict=True)),
                "mask": mask}
        given = {**self._read, **kept}
        if self._cell == "lstm" and mask is None:
            given["h"] = None  # the kernel reads the first state of masked rows only
        outputs = {f"next_{name}": states[0].shape for name in CELLS[self._cell].states}
        counts = len(CELLS[self._cell].parts) * ("gain_h" in self._norms) + ("gain_c" in self._norms)
        *new, kept["stats"] = self._run(*self._forward, given, {**outputs, "stats": (counts, len(h_proj), 3)}).values()
        return tuple(new), {**kept, "new": new}

    def backward(self, kept: Any, gradients: list[Array]) -> Gradient:
        """The gradients of the time step's arguments, from those of the next states."""
        given = {**self._read, **kept, "d_h": gradients[0], "d_c": gradients[-1]}
        wide, narrow = kept["x_gates"].shape, kept["h"].shape
        if self._cell == "lstm":
            outputs = {"d_x_gates": wide, "d_c_norm": narrow, "d_c_before": narrow,
                       **({"d_h_proj": wide} if "gain_h" in self._norms else {}),
                       **({} if kept["mask"] is None else {"d_h_before": narrow})}
        else:
            outputs = {"d_x_gates": wide, "d_h_gates": wide, "d_h_proj": wide, "d_h_before": narrow}
        made = self._run(*self._backward, given, outputs)
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

    def _run(self, kernel: metal.Kernel, names: Sequence[str], given: Mapping[str, Any],
             outputs: Mapping[str, tuple[int, ...]]) -> dict[str, Array]:
        """The outputs of a kernel by name, from its inputs by name; an input that is not there is None."""
        norm_h = "gain_h" in self._norms
        p = Plan(*LAYOUTS[self._cell].plan(given["h_proj"].shape[1] // CELLS[self._cell].gates, norm_h))
        macros = p.macros(**({"NORM_H": int(norm_h)} if self._cell == "lstm" else {}))
        return dict(zip(outputs, kernel(len(given["h_proj"]), p.threads, [*map(given.get, names)], outputs, macros),
                        strict=True))

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
        if reason := supports_any(be, x, h):
            return reason
        widths = [gates * hidden for gates in parts] + ([hidden] if norms.cell else [])
        reasons = [layer_norm.refusal(width, True, mx.float32) for width in widths]
        return next(filter(None, (LAYOUTS[cell].refusal(hidden, norms.gates), *reasons)), None)

    return refusal
