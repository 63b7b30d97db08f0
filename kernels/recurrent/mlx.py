"""The recurrent operators on MLX: all inputs at once, then one time step after another, then one product per weight.

On Apple GPUs the cells with layer norm have one kernel forward and one backward (`metal`). Every variant whose gradient
is that of its values, on any device, can use the formula of `ops.recurrent` as a function of arrays. The gradient of
the formula is `mx.vjp` of that function, which computes the time step again, so only x_gates, h_proj and the states are
kept. MLX compiles the function on a GPU, but not on a CPU, because the compilation takes seconds there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import mlx.core as mx

from duoln import ops
from duoln.backends.protocol import Array, Backend
from duoln.core import Rule, Tensor, derived
from duoln.kernels.recurrent import metal
from duoln.kernels.recurrent.cells import Arrays, Supports, bounds_unmasked
from duoln.kernels.recurrent.metal import Gradient, MetalSteps, States
from duoln.ops import linear
from duoln.ops.recurrent import formulas
from duoln.ops.recurrent.formulas import Settings
from duoln.ops.recurrent.variants import CELLS, norm_shapes


class FormulaSteps:
    """The time steps of one sequence by the formula, for any cell and variant. It stores no values of a call."""

    def __init__(self, be: Backend, cell: str, settings: Settings, bias: Array | None,
                 norms: Mapping[str, Array]) -> None:
        self._read = [*([] if bias is None else [bias]), *norms.values()]
        n_states = self._states = len(CELLS[cell].states)

        def step(x_gates: Array, h_proj: Array, *rest: Array) -> States:
            tensors = [Tensor(a, be) for a in rest]
            states, parameters = tuple(tensors[:n_states]), tensors[n_states:]
            own_bias = None if bias is None else parameters.pop(0)
            new = formulas.next_states(cell, Tensor(x_gates, be), Tensor(h_proj, be), states, own_bias,
                                       dict(zip(norms, parameters, strict=True)), settings)
            return tuple(t.data for t in new)

        def masked(mask: Array, *rest: Array) -> States:
            return tuple(mx.where(mask, a, b) for a, b in zip(step(*rest), rest[2:2 + n_states], strict=True))

        on_gpu = getattr(be, "on_gpu", False)
        self._step, self._masked = (mx.compile(f) if on_gpu else f for f in (step, masked))

    def forward(self, x_gates: Array, h_proj: Array, states: States, mask: Array | None) -> tuple[States, Any]:
        """The next states (B, H), and the values of this time step that the gradient needs.

        Args:
            x_gates: the contribution of the input to the gates, (B, gates * H).
            h_proj: h W_h, (B, gates * H).
            states: the states before the time step.
            mask: (B,) bool, False where a row is masked and keeps its state; None if no row is.
        """
        column = None if mask is None else mask[:, None]
        read = (x_gates, h_proj, *states, *self._read)
        new = self._step(*read) if column is None else self._masked(column, *read)
        return tuple(new), (x_gates, h_proj, states, column)

    def backward(self, kept: Any, gradients: list[Array]) -> Gradient:
        """The gradients of the time step's arguments, from those of the next states."""
        x_gates, h_proj, states, column = kept

        def of_floats(*read: Array) -> States:
            return tuple(self._step(*read) if column is None else self._masked(column, *read))

        _, (d_x_gates, d_h_proj, *rest) = mx.vjp(of_floats, [x_gates, h_proj, *states, *self._read], gradients)
        return Gradient(d_x_gates, d_h_proj, rest[:self._states], rest[self._states:])

    def parameters(self, walked: Sequence[tuple[Any, Any]]) -> list[Array]:
        """The gradients of the bias, if there is one, and the norms, from (kept, own) of all time steps."""
        return [sum(gradients, mx.zeros_like(a)) for a, *gradients in zip(self._read, *(own for _, own in walked),
                                                                          strict=True)]


class _Saved(NamedTuple):
    steps: FormulaSteps | MetalSteps
    x_gates: tuple[Rule, Any]
    """The rule that computed x_gates, and the values that it saved for its gradient."""
    kept: list[Any]
    """The values that each time step keeps, in the order of computation."""
    hidden: list[Array]
    """The hidden state before each time step."""
    first: States
    w_h: Array
    times: Sequence[int]
    padding: Array | None
    """(T, B, 1), False where a row's input was taken for 0; None where no row's was."""
    has_bias: bool
    norms: int
    limit: float | None
    """The bound on the gradients of the states before a time step."""


def _input_rule(cell: str, settings: Settings, names: Sequence[str]) -> Rule:
    """A rule for `x_gates` of all time steps: x, w_x, bias, norms -> (T, B, gates * H)."""

    def x_gates(x: Tensor, w_x: Tensor, bias: Tensor | None, *norms: Tensor) -> Tensor:
        return formulas.input_to_gates(cell, linear(x, w_x), bias, dict(zip(names, norms, strict=True)), settings)

    return derived(x_gates)


def _rule(name: str, cell: str, kind: type[FormulaSteps] | type[MetalSteps], supports: Supports) -> Rule:
    """The rule of a cell over a sequence by time steps of a kind."""

    def forward(be: Backend, x: Array, *arrays: Any, **attrs: Any) -> tuple[States, _Saved]:
        states, w_x, w_h, bias, mask, norms = Arrays.of(cell, attrs["norm"], arrays)
        settings = Settings(attrs["norm"], attrs["eps"])
        padding = None if mask is None or settings.norm == "batch" else mask[..., None]
        if padding is not None:
            x = mx.where(padding, x, 0.0)  # padding may be infinite, and its gradient would be NaN
        of_input = _input_rule(cell, settings, list(norms))
        x_gates, x_gates_saved = of_input.forward(be, x, w_x, bias, *norms.values())
        steps = kind(be, cell, settings, bias, norms)
        times = range(x.shape[0] - 1, -1, -1) if attrs["reverse"] else range(x.shape[0])
        first, before, kept, hidden = states, [], [], {}
        for t in times:
            before.append(states[0])
            states, of_step = steps.forward(x_gates[t], states[0] @ w_h, states, None if mask is None else mask[t])
            kept.append(of_step)
            hidden[t] = states[0]
        out = mx.stack([hidden[t] for t in sorted(hidden)])
        return (out, *states), _Saved(steps, (of_input, x_gates_saved), kept, before, first, w_h, times,
                                      padding, bias is not None, len(norms), attrs["gradient_limit"])

    def vjp(be: Backend, saved: _Saved, gouts: tuple[Array | None, ...], needs: Sequence[bool]) -> list[Array | None]:
        d_hidden, *given = gouts
        d_states = [mx.zeros_like(s) if d is None else d for d, s in zip(given, saved.first, strict=True)]
        d_x_gates: dict[int, Array] = {}
        d_h_proj: list[Array] = []
        walked: list[tuple[Any, Any]] = []
        w_back = mx.transpose(saved.w_h)
        for k in reversed(range(len(saved.times))):
            if d_hidden is not None:
                d_states[0] = d_states[0] + d_hidden[saved.times[k]]
            gradient = saved.steps.backward(saved.kept[k], d_states)
            d_x_gates[saved.times[k]] = gradient.x_gates
            d_h_proj.append(gradient.h_proj)
            walked.append((saved.kept[k], gradient.own))
            d_states = [gradient.states[0] + gradient.h_proj @ w_back, *gradient.states[1:]]
            if saved.limit is not None:
                d_states = [mx.clip(d, -saved.limit, saved.limit) for d in d_states]
        before = mx.concatenate(list(reversed(saved.hidden)))
        d_w_h = mx.transpose(before) @ mx.concatenate(d_h_proj)
        of_input, x_gates_saved = saved.x_gates
        assert of_input.vjp is not None
        in_time = mx.stack([d_x_gates[t] for t in sorted(d_x_gates)])
        d_x, d_w_x, d_bias, *d_norms = of_input.vjp(be, x_gates_saved, in_time,
                                                    (needs[0], True, saved.has_bias, *([True] * saved.norms)))
        if saved.padding is not None and d_x is not None:
            d_x = mx.where(saved.padding, d_x, 0.0)
        d_read = saved.steps.parameters(walked)
        if saved.has_bias:
            d_bias = d_bias + d_read.pop(0)
        return [d_x, *d_states, d_w_x, d_w_h, d_bias, None,
                *(a + b for a, b in zip(d_norms, d_read, strict=True))]

    return Rule(name, forward, vjp, bounds_unmasked(cell, supports))


def supports_any(be: Backend, x: Array, *arrays: Array, norm: str, **attrs: Any) -> str | None:
    """The formula takes all variants whose gradient is that of their values."""
    if norm == "layer-detached":
        return "MLX would differentiate the statistics"
    return None if x.size and arrays[0].size else "there are no values"


class _CellSaved(NamedTuple):
    steps: MetalSteps
    kept: Any
    x_gates: tuple[Rule, Any]
    """The rule that computed x_gates, and the values that it saved for its gradient."""
    norms: int


def _cell_forward(be: Backend, x_proj: Array, h_proj: Array, c: Array, bias: Array, *norms: Array,
                  **attrs: Any) -> tuple[States, _CellSaved]:
    """One time step of an LSTM after its products, by Metal's kernel."""
    names, settings = list(norm_shapes("lstm", attrs["norm"], 1)), Settings(**attrs)

    def to_gates(x_proj: Tensor, bias: Tensor, *norms: Tensor) -> Tensor:
        return formulas.input_to_gates("lstm", x_proj, bias, dict(zip(names, norms, strict=True)), settings)

    of_input = derived(to_gates)
    x_gates, x_gates_saved = of_input.forward(be, x_proj, bias, *norms)
    steps = MetalSteps(be, "lstm", settings, bias, dict(zip(names, norms, strict=True)))
    new, kept = steps.forward(x_gates, h_proj, (c, c), None)  # without a mask the kernel does not read the first state
    return new, _CellSaved(steps, kept, (of_input, x_gates_saved), len(norms))


def _cell_vjp(be: Backend, saved: _CellSaved, gouts: tuple[Array | None, ...],
              needs: Sequence[bool]) -> list[Array | None]:
    d_states = [mx.zeros_like(new) if d is None else d for d, new in zip(gouts, saved.kept["new"], strict=True)]
    gradient = saved.steps.backward(saved.kept, d_states)
    of_input, x_gates_saved = saved.x_gates
    assert of_input.vjp is not None
    d_x_proj, *d_parameters = of_input.vjp(be, x_gates_saved, gradient.x_gates, [True] * (2 + saved.norms))
    of_step = saved.steps.parameters([(saved.kept, gradient.own)])
    return [d_x_proj, gradient.h_proj, gradient.states[1],
            *(a + b for a, b in zip(d_parameters, of_step, strict=True))]


def attach() -> None:
    """Add the rules to `rnn`, `lstm`, `gru` and `lstm_cell`."""
    for operator, cell in ((ops.rnn, "rnn"), (ops.lstm, "lstm"), (ops.gru, "gru")):
        operator.add(_rule("steps without products", cell, FormulaSteps, supports_any), backend="mlx")
        if cell in metal.FORWARD:
            operator.add(_rule("metal cells", cell, MetalSteps, metal.supports(cell, supports_any)), backend="mlx")
    supports = metal.supports("lstm", supports_any)
    ops.lstm_cell.add(Rule("metal cell", _cell_forward, _cell_vjp,
                           lambda be, x_proj, h_proj, c, *arrays, **attrs: supports(be, x_proj, c, **attrs)),
                      backend="mlx")
