"""The LSTM on MLX: the time loop of `recurrent.mlx_walk`, with Metal kernels if there is a Metal device."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import mlx.core as mx

from duoln.backends.protocol import Array, Backend
from duoln.core import Rule, Tensor, derived
from duoln.kernels.lstm.metal import MetalLstm, refusal
from duoln.kernels.norm.metal import MOST_COLUMNS
from duoln.kernels.recurrent import mlx_walk
from duoln.kernels.recurrent.steps import States
from duoln.ops import lstm, lstm_cell
from duoln.ops.recurrent import formulas
from duoln.ops.recurrent.formulas import Settings
from duoln.ops.recurrent.variants import norm_shapes

_VARIANTS = ("layer", "layer-cell", "layer-theano")
_MOST_HIDDEN = MOST_COLUMNS // 4
"""The norm of all four gates must fit layer_norm's kernel, which computes the gradients of the gains."""


class _CellSaved(NamedTuple):
    steps: MetalLstm
    kept: Any
    x_gates: tuple[Rule, Any]
    """The rule that computed x_gates, and the values that it saved for its gradient."""
    norms: int


def _cell_forward(be: Backend, x_proj: Array, h_proj: Array, c: Array, bias: Array, *norms: Array,
                  **attrs: Any) -> tuple[States, _CellSaved]:
    names, settings = list(norm_shapes("lstm", attrs["norm"], 1)), Settings(**attrs)

    def to_gates(x_proj: Tensor, bias: Tensor, *norms: Tensor) -> Tensor:
        return formulas.input_to_gates("lstm", x_proj, bias, dict(zip(names, norms, strict=True)), settings)

    of_input = derived(to_gates)
    x_gates, x_gates_saved = of_input.forward(be, x_proj, bias, *norms)
    steps = MetalLstm(be, "lstm", settings, bias, dict(zip(names, norms, strict=True)))
    new, kept = steps.forward(x_gates, h_proj, (c, c), None)  # without a mask the kernel does not read the first state
    return new, _CellSaved(steps, kept, (of_input, x_gates_saved), len(norms))


def _cell_vjp(be: Backend, saved: _CellSaved, gouts: tuple[Array | None, ...],
              needs: Sequence[bool]) -> list[Array | None]:
    d_states = [mx.zeros_like(saved.kept[1]) if d is None else d for d in gouts]
    gradient = saved.steps.backward(saved.kept, d_states)
    of_input, x_gates_saved = saved.x_gates
    assert of_input.vjp is not None
    d_x_proj, *d_parameters = of_input.vjp(be, x_gates_saved, gradient.x_gates, [True] * (2 + saved.norms))
    of_step = saved.steps.parameters([(saved.kept, gradient.own)])
    return [d_x_proj, gradient.h_proj, gradient.states[1],
            *(a + b for a, b in zip(d_parameters, of_step, strict=True))]


def attach() -> None:
    """Add the rules to `lstm` and `lstm_cell`."""
    supports = mlx_walk.metal_supports(_VARIANTS, _MOST_HIDDEN, refusal)
    lstm.add(mlx_walk.formula_rule("lstm"), backend="mlx")
    lstm.add(mlx_walk.rule("metal cells", "lstm", MetalLstm, supports), backend="mlx")
    lstm_cell.add(Rule("metal cell", _cell_forward, _cell_vjp,
                       lambda be, x_proj, h_proj, c, *arrays, **attrs: supports(be, x_proj, c, **attrs)), backend="mlx")
