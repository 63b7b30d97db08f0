"""The launches of the recurrent operators in C++ and CUDA, declared once. An array that a cell does not have is None.

On the CPU an entry takes a whole sequence (`cpu`); on CUDA one time step (`cuda_steps`), or all of them (`cuda_walk`).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from functools import cache

from duoln.kernels import source
from duoln.kernels.launch import Launch
from duoln.kernels.launch.declared import Layout
from duoln.kernels.recurrent import cluster_plan, plan
from duoln.kernels.recurrent.cells import COMPILED_WALKS, FUSED
from duoln.kernels.recurrent.positions import PARAMETERS
from duoln.ops.recurrent.variants import CELLS

BIASES = ("bias", "bias_2", "bias_3")
"""The biases of the gates that a single time step adds up itself."""


def _array_declarations(names: Sequence[str]) -> str:
    return ", ".join(f"{name}: own?" for name in names)


# C++ ------------------------------------------------------------------------------------------------------------------

_WALK = (f"w_h: own, {_array_declarations(('x', 'w_x', 'x_proj', 'h_proj', *PARAMETERS))}, hidden: own, cells: own?, "
         "raw_cells: own?, norms: own?, slots: own int64?, steps: int64, batch: int64, inputs: int64, units: int64, "
         "eps: float64, reverse: int32, threads: int32, by_units: int32, transposed: int32")
_OF_GRADIENTS = _array_declarations([f"d_{name}" for name in PARAMETERS])
_ENTRIES = {
    "forward": _WALK,
    "backward": f"{_WALK}, d_hidden: own?, dh: own, dc: own, d_x: own?, d_w_x: own?, d_x_proj: own?, d_h_proj: own?, "
                f"{_OF_GRADIENTS}, limit: float64",
    "step": f"w_h: own, x: own, w_x: own, {_array_declarations((*PARAMETERS, *BIASES, 'inner_bias'))}, h: own, c: own, "
            "h_new: own, c_new: own, batch: int64, inputs: int64, units: int64, eps: float64, threads: int32, "
            "transposed: int32, theirs: int32",
}
"""The entries of each variant's text."""


@cache
def _compiled(file: str, cell: str, norms: str, constant: str) -> dict[str, Launch]:
    """The entries of a text, which is that of all variants of the cell behind this one's constants."""
    source.make_variant(f"{file}.cpp", f'#define NORMS {norms}\nstatic constexpr {constant};\n#include "sequence.h"\n')
    return {name: Launch(file, f"{cell}_{name}", declaration) for name, declaration in _ENTRIES.items()}


WALKS = {(cell, norm): _compiled(f"recurrent/{cell}/{cell}_{walk.text}", cell, walk.norms, walk.constant)
         for (cell, norm), walk in COMPILED_WALKS.items()}
"""By cell and norm: the forward and backward walk, and the single time step."""

_CELL = (f"x_proj: own, h_proj: own, c: own[batch, hidden], {_array_declarations((*PARAMETERS, 'inner_bias'))}, "
         "c_new: own, norms: own")
_HOW = "eps: float64, variant: int32, threads: int32"
CELL = Launch("recurrent/lstm/cell", "lstm_cell_forward", f"{_CELL}, {_HOW} -> h_new: like c")
"""An LSTM's time step after its products."""
CELL_BACK = Launch("recurrent/lstm/cell", "lstm_cell_backward", f"{_CELL}, d_h: own?, d_c: own?, d_x_proj: own, "
                   f"d_h_proj: own, {_OF_GRADIENTS}, {_HOW} -> d_c_before: like c")

# CUDA -----------------------------------------------------------------------------------------------------------------

_SEQUENCE = "[time_steps, batch, wide]"
_GAINS = "gain_x: real[wide]?, bias_x: real[wide]?, gain_h: real[wide]?, bias_h: real[wide]?"
_LSTM = f"{_GAINS}, bias: real[wide], gain_c: real[hidden]?, bias_c: real[hidden]?, mask: bool[time_steps, batch]?"
_GRU = f"{_GAINS}, mask: bool[time_steps, batch]?"
_RNN = "gain_h: real[wide]?, bias_h: real[wide]?, mask: bool[time_steps, batch]?"
_BACK = "stats: own, d_hs: stored[time_steps, batch, hidden]?, dh: real[batch, hidden]"
_PRODUCTS = f"x_proj: stored{_SEQUENCE}, h_proj: stored{_SEQUENCE}"
_STEPS = {
    ("lstm", "forward"): f"{_PRODUCTS}, c: own[states, batch, hidden], {_LSTM}, h: own stored, stats: own, "
                         "time_step: int32, eps: float32",
    ("gru", "forward"): f"{_PRODUCTS}, h: own[states, batch, hidden], {_GRU}, h_stored: own stored?, stats: own, "
                        "time_step: int32, eps: float32",
    ("rnn", "forward"): f"x_proj: own stored{_SEQUENCE}, h_proj: real[batch, hidden], {_RNN}, h: own stored, "
                        "stats: own, time_step: int32, eps: float32",
    ("lstm", "backward"): f"{_PRODUCTS}, c: real[states, batch, hidden], {_LSTM}, {_BACK}, carry: own?, dc: own, "
                          "d_x_proj: own stored, d_h_proj: own stored?, d_x_gates: own stored?, d_c_norm: own?, "
                          "time_step: int32",
    ("gru", "backward"): f"{_PRODUCTS}, h: real[states, batch, hidden], {_GRU}, {_BACK}, carry: own, "
                         "d_x_proj: own stored, d_h_proj: own stored, d_x_gates: own stored?, d_h_gates: own stored?, "
                         "time_step: int32",
    ("rnn", "backward"): f"x_proj: stored{_SEQUENCE}, {_RNN}, stats: own, "
                         "d_hs: stored[time_steps, batch, wide]?, dh: real[batch, hidden], carry: own?, "
                         "d_x_proj: own stored, d_x_gates: own stored?, time_step: int32",
}


def _step(cell: str, norm: str, direction: str) -> Launch:
    """The values of a row stay in registers where they fit; else another text reads them again."""
    file, entry, macros = f"recurrent/{cell}/{cell}", f"{cell}_{direction}", plan.norm_macros(cell, norm)
    texts = [(f"{file}.cu", entry)] + [(f"recurrent/{cell}/wide.cu", f"{entry}_wide")] * (cell != "rnn")

    def of_sizes(batch: int, hidden: int) -> Layout:
        fit = plan.plan(min(hidden, plan.MOST_HIDDEN), cell)
        return Layout(*fit.launch(batch), fit.macros(**macros), text=texts[-1 if hidden > plan.MOST_KEPT else 0])

    return Launch(file, entry, _STEPS[cell, direction], of_sizes, texts=texts)


STEPS = {(cell, norm, direction): _step(cell, norm, direction)
         for cell, norm in FUSED for direction in ("forward", "backward")}
"""One time step, by cell, norm and direction."""

_WEIGHTS = "w_h: real[hidden, wide], w_stats: own?"
_WALKS = {
    ("lstm", "forward"): f"x_proj: real{_SEQUENCE}, {_WEIGHTS}, {_LSTM}, h: own, c: own, h_proj: own, stats: own, "
                         "eps: float32",
    ("gru", "forward"): f"x_proj: real{_SEQUENCE}, {_WEIGHTS}, {_GRU}, h: own, h_proj: own, stats: own, eps: float32",
    ("rnn", "forward"): f"x_proj: own{_SEQUENCE}, {_WEIGHTS}, x_stats: own, {_RNN}, h: own, "
                        "stats: own, eps: float32",
    ("lstm", "backward"): f"x_proj: real{_SEQUENCE}, h_proj: real{_SEQUENCE}, {_WEIGHTS}, {_LSTM}, "
                          "c: real[states, batch, hidden], stats: own, d_hs: real[time_steps, batch, hidden]?, "
                          "dh: own, dc: own, d_x_proj: own, d_h_proj: own?, d_parameters: own, limit: float32",
    ("gru", "backward"): f"x_proj: real{_SEQUENCE}, h_proj: real{_SEQUENCE}, {_WEIGHTS}, {_GRU}, "
                         "h: real[states, batch, hidden], stats: own, d_hs: real[time_steps, batch, hidden]?, "
                         "dh: own, d_x_proj: own, d_h_proj: own, d_parameters: own?, limit: float32",
    ("rnn", "backward"): f"x_proj: real{_SEQUENCE}, {_WEIGHTS}, {_RNN}, stats: own, "
                         "d_hs: real[time_steps, batch, hidden]?, dh: own, d_x_proj: own, d_parameters: own?, "
                         "limit: float32",
}
_FILES = {"forward": "walk", "backward": "walk_backward"}
SWITCH = "DUOLN_WALK"
"""The variable: 0 for no walks; say: a walk that waits in vain prints for what (see cluster.cuh)."""


def _plan_of_walk(cell: str, norm: str, direction: str) -> Callable[..., Layout]:
    macros = plan.norm_macros(cell, norm)

    def of_sizes(batch: int, hidden: int) -> Layout:
        from duoln.kernels.recurrent.cuda_walk import device  # it asks CuPy

        fit = cluster_plan.plan(cell, norm, direction, hidden, batch, device())
        assert fit is not None, "supports() has asked"
        says = {"SAY_WAITS": 1} if os.environ.get(SWITCH) == "say" else {}
        return Layout((fit.grid(batch),), (cluster_plan.THREADS,), fit.macros(**macros, **says), shared=fit.shared,
                      cluster=fit.cluster)

    return of_sizes


CLUSTER_WALKS = {(cell, norm, direction): Launch(
    f"recurrent/{cell}/{_FILES[direction]}", f"{cell}_walk_{direction}", _WALKS[cell, direction],
    _plan_of_walk(cell, norm, direction)) for cell, norm in FUSED for direction in _FILES}
"""All time steps, by cell, norm and direction."""


def _plan_of_statistics(gates: int) -> Callable[..., Layout]:
    def of_sizes(rows: int, hidden: int) -> Layout:
        fit = plan.plan(min(hidden, plan.MOST_KEPT))
        return Layout(*fit.launch(rows + hidden), fit.macros(CELL_GATES=gates))

    return of_sizes


STATISTICS = {gates: Launch(
    "recurrent/row_statistics", "row_statistics", "x_proj: own[time_steps, batch, wide], w_h: real[hidden, wide], "
    "bias: real[wide]?, x_stats: own[parts, rows, 3], w_stats: own, eps: float32", _plan_of_statistics(gates))
    for gates in sorted({cell.gates for cell in CELLS.values()})}
"""Mean, residual and rstd of the rows of x_proj and of the recurrent weights, by the number of gates."""
