"""The recurrent operators on MLX: all inputs at once, then one time step after another, then one product per weight.

`Steps` computes a time step between its products. On Apple GPUs the cells with layer norm have one kernel forward and
one backward. Every variant, on any device, can use the formula of `ops.recurrent` as a function of arrays. The gradient
of the formula is `mx.vjp` of that function, which computes the time step again, so only x_gates, h_proj and the states
are kept. MLX compiles the function on a GPU, but not on a CPU, because the compilation takes seconds there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import mlx.core as mx

from duoln.backends.protocol import Array, Backend
from duoln.core import Rule, Tensor, derived
from duoln.kernels import metal
from duoln.kernels.recurrent.cells import bounds_unmasked
from duoln.kernels.recurrent.steps import Gradient, States, Steps
from duoln.ops import linear
from duoln.ops.recurrent import formulas
from duoln.ops.recurrent.formulas import Settings
from duoln.ops.recurrent.variants import norm_shapes

MakeSteps = Callable[[Backend, str, Settings, Array | None, Mapping[str, Array]], Steps]


class FormulaSteps:
    """Time steps by the formula, for any cell and variant."""

    def __init__(self, be: Backend, cell: str, settings: Settings, bias: Array | None,
                 norms: Mapping[str, Array]) -> None:
        self._read = [*([] if bias is None else [bias]), *norms.values()]
        n_states = self._states = 2 if cell == "lstm" else 1

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
        """As in `Steps`."""
        column = None if mask is None else mask[:, None]
        read = (x_gates, h_proj, *states, *self._read)
        new = self._step(*read) if column is None else self._masked(column, *read)
        return tuple(new), (x_gates, h_proj, states, column)

    def backward(self, kept: Any, gradients: list[Array]) -> Gradient:
        """As in `Steps`."""
        x_gates, h_proj, states, column = kept

        def of_floats(*read: Array) -> States:
            return tuple(self._step(*read) if column is None else self._masked(column, *read))

        _, (d_x_gates, d_h_proj, *rest) = mx.vjp(of_floats, [x_gates, h_proj, *states, *self._read], gradients)
        return Gradient(d_x_gates, d_h_proj, rest[:self._states], rest[self._states:])

    def parameters(self, walked: Sequence[tuple[Any, Any]]) -> list[Array]:
        """As in `Steps`."""
        return [sum(gradients, mx.zeros_like(a)) for a, *gradients in zip(self._read, *(own for _, own in walked),
                                                                          strict=True)]


class _Saved(NamedTuple):
    steps: Steps
    x_gates: tuple[Rule, Any]
    """The rule that computed x_gates, and the values that it saved for its gradient."""
    kept: list[Any]
    """The values that each time step keeps, in the order of computation."""
    hidden: list[Array]
    """The hidden state before each time step."""
    first: States
    w_h: Array
    times: Sequence[int]
    has_bias: bool
    norms: int
    limit: float | None
    """The bound on the gradients of the states before a time step."""


def input_rule(cell: str, settings: Settings, names: Sequence[str]) -> Rule:
    """A rule for `x_gates` of all time steps: x, w_x, bias, norms -> (T, B, gates * H)."""

    def x_gates(x: Tensor, w_x: Tensor, bias: Tensor | None, *norms: Tensor) -> Tensor:
        return formulas.input_to_gates(cell, linear(x, w_x), bias, dict(zip(names, norms, strict=True)), settings)

    return derived(x_gates)


def rule(name: str, cell: str, make_steps: MakeSteps, supports: Callable[..., str | None]) -> Rule:
    """The rule of a cell over a sequence; `make_steps` makes its time steps."""
    n_states = 2 if cell == "lstm" else 1

    def forward(be: Backend, x: Array, *arrays: Any, **attrs: Any) -> tuple[States, _Saved]:
        states = tuple(arrays[:n_states])
        w_x, w_h, bias, mask, *norms = arrays[n_states:]
        names = list(norm_shapes(cell, attrs["norm"], 1))
        settings = Settings(attrs["norm"], attrs["eps"], attrs["eps_place"])
        of_input = input_rule(cell, settings, names)
        x_gates, x_gates_saved = of_input.forward(be, x, w_x, bias, *norms)
        steps = make_steps(be, cell, settings, bias, dict(zip(names, norms, strict=True)))
        times = range(x.shape[0] - 1, -1, -1) if attrs["reverse"] else range(x.shape[0])
        first, before, kept, hidden = states, [], [], {}
        for t in times:
            before.append(states[0])
            states, of_step = steps.forward(x_gates[t], states[0] @ w_h, states, None if mask is None else mask[t])
            kept.append(of_step)
            hidden[t] = states[0]
        out = mx.stack([hidden[t] for t in sorted(hidden)])
        return (out, *states), _Saved(steps, (of_input, x_gates_saved), kept, before, first, w_h, times,
                                      bias is not None, len(norms), attrs["gradient_limit"])

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
        d_read = saved.steps.parameters(walked)
        if saved.has_bias:
            d_bias = d_bias + d_read.pop(0)
        return [d_x, *d_states, d_w_x, d_w_h, d_bias, None,
                *(a + b for a, b in zip(d_norms, d_read, strict=True))]

    return Rule(name, forward, vjp, bounds_unmasked(cell, supports))


def supports_any(be: Backend, x: Array, *arrays: Array, **attrs: Any) -> str | None:
    """The formula takes all variants."""
    return None if x.size and arrays[0].size else "there are no values"


def metal_supports(variants: Sequence[str], most: int,
                   refusal: Callable[[int, str], str | None]) -> Callable[..., str | None]:
    """A function of the arguments: None, or why a Metal rule for these variants and sizes cannot run.

    Args:
        variants: norms.
        most: hidden units.
        refusal: why the device's pipelines do not allow the kernels of so many units and of a norm, or None.
    """

    def supports(be: Backend, x: Array, h: Array, *arrays: Array, norm: str, eps_place: str,
                 **unused: Any) -> str | None:
        if reason := metal.missing():
            return reason
        if norm not in variants:
            return f"norm '{norm}' has no kernel"
        if eps_place != "inside":
            return "epsilon is outside the root"
        if x.dtype != mx.float32:
            return f"the kernel is for float32, not {x.dtype}"
        if h.shape[1] > most:
            return f"{h.shape[1]} hidden units are more than {most}"
        return supports_any(be, x, h) or refusal(h.shape[1], norm)

    return supports


def formula_rule(cell: str) -> Rule:
    """The rule of a cell for every variant, on any device."""
    return rule("steps without products", cell, FormulaSteps, supports_any)
