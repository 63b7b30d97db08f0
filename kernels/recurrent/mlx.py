"""The recurrent operators on MLX: all inputs at once, steps without products in them, one product per weight after.

What a step does between its products is `Steps`: on Apple GPUs one kernel each way for the layer-normalised cells,
and for every variant, anywhere, the formula of `ops.recurrent` as a function of arrays. There the gradient is `mx.vjp`
of that function, which computes the step again, so per step and row only the input's side and the states are kept; on
a GPU MLX compiles it (its CPU build takes seconds to).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import mlx.core as mx

from duoln.backends.protocol import Array, Backend
from duoln.core import Op, Rule, Tensor, derived
from duoln.kernels import metal
from duoln.kernels.gru.metal import MetalGru
from duoln.kernels.layer_norm.metal import MOST_COLUMNS
from duoln.kernels.lstm.metal import MetalLstm
from duoln.kernels.recurrent.steps import Gradient, States, Steps
from duoln.ops import gru, linear, lstm, lstm_cell, rnn
from duoln.ops.recurrent import formulas
from duoln.ops.recurrent.formulas import Settings
from duoln.ops.recurrent.variants import norm_shapes

MakeSteps = Callable[[Backend, str, Settings, Array | None, Mapping[str, Array]], Steps]


class FormulaSteps:
    """Steps by the formula, any cell and variant."""

    def __init__(self, be: Backend, cell: str, settings: Settings, bias: Array | None,
                 norms: Mapping[str, Array]) -> None:
        self._read = [*([] if bias is None else [bias]), *norms.values()]
        n_states = self._states = 2 if cell == "lstm" else 1

        def step(side: Array, product: Array, *rest: Array) -> States:
            tensors = [Tensor(a, be) for a in rest]
            states, others = tuple(tensors[:n_states]), tensors[n_states:]
            own_bias = None if bias is None else others.pop(0)
            new = formulas.next_states(cell, Tensor(side, be), Tensor(product, be), states, own_bias,
                                       dict(zip(norms, others, strict=True)), settings)
            return tuple(t.data for t in new)

        def masked(keep: Array, *rest: Array) -> States:
            return tuple(mx.where(keep, a, b)
                         for a, b in zip(step(*rest), rest[2:2 + n_states], strict=True))

        on_gpu = getattr(be, "on_gpu", False)
        self._step, self._masked = (mx.compile(f) if on_gpu else f for f in (step, masked))

    def forward(self, side: Array, product: Array, states: States, keep: Array | None) -> tuple[States, Any]:
        """As in `Steps`."""
        column = None if keep is None else keep[:, None]
        read = (side, product, *states, *self._read)
        new = self._step(*read) if column is None else self._masked(column, *read)
        return tuple(new), (side, product, states, column)

    def backward(self, kept: Any, gradients: list[Array]) -> Gradient:
        """As in `Steps`."""
        side, product, states, column = kept

        def of_floats(*read: Array) -> States:
            return tuple(self._step(*read) if column is None else self._masked(column, *read))

        _, (d_side, d_product, *rest) = mx.vjp(of_floats, [side, product, *states, *self._read], gradients)
        return Gradient(d_side, d_product, rest[:self._states], rest[self._states:])

    def parameters(self, walked: Sequence[tuple[Any, Any]]) -> list[Array]:
        """As in `Steps`."""
        return [sum(found, mx.zeros_like(a)) for a, *found in zip(self._read, *(own for _, own in walked), strict=True)]


class _Saved(NamedTuple):
    steps: Steps
    sides: Any
    """What the input's side saved for its own gradient."""
    kept: list[Any]
    """What each step keeps, in the order of the walk."""
    hidden: list[Array]
    """The hidden state before each step."""
    first: States
    w_h: Array
    times: Sequence[int]
    has_bias: bool
    norms: int


def _input_rule(cell: str, settings: Settings, names: Sequence[str]) -> Rule:
    """The input's side of all steps as a rule: x, w_x, bias, norms -> (T, B, gates * H)."""

    def side(x: Tensor, w_x: Tensor, bias: Tensor | None, *norms: Tensor) -> Tensor:
        return formulas.input_side(cell, linear(x, w_x), bias, dict(zip(names, norms, strict=True)), settings)

    return derived(side)


def _rule(name: str, cell: str, make_steps: MakeSteps, supports: Callable[..., str | None]) -> Rule:
    n_states = 2 if cell == "lstm" else 1

    def forward(be: Backend, x: Array, *arrays: Any, **attrs: Any) -> tuple[States, _Saved]:
        states = tuple(arrays[:n_states])
        w_x, w_h, bias, mask, *norms = arrays[n_states:]
        names = list(norm_shapes(cell, attrs["norm"], 1))
        settings = Settings(attrs["norm"], attrs["eps"], attrs["eps_place"])
        rule = _input_rule(cell, settings, names)
        side, side_saved = rule.forward(be, x, w_x, bias, *norms)
        steps = make_steps(be, cell, settings, bias, dict(zip(names, norms, strict=True)))
        times = range(x.shape[0] - 1, -1, -1) if attrs["reverse"] else range(x.shape[0])
        first, before, kept, hidden = states, [], [], {}
        for t in times:
            before.append(states[0])
            states, of_step = steps.forward(side[t], states[0] @ w_h, states, None if mask is None else mask[t])
            kept.append(of_step)
            hidden[t] = states[0]
        out = mx.stack([hidden[t] for t in sorted(hidden)])
        return (out, *states), _Saved(steps, (rule, side_saved), kept, before, first, w_h, times, bias is not None,
                                      len(norms))

    def vjp(be: Backend, saved: _Saved, gouts: tuple[Array | None, ...], needs: Sequence[bool]) -> list[Array | None]:
        g_out, *g_states = gouts
        d_states = [mx.zeros_like(s) if g is None else g for g, s in zip(g_states, saved.first, strict=True)]
        d_sides: dict[int, Array] = {}
        d_products: list[Array] = []
        walked: list[tuple[Any, Any]] = []
        w_back = mx.transpose(saved.w_h)
        for k in reversed(range(len(saved.times))):
            if g_out is not None:
                d_states[0] = d_states[0] + g_out[saved.times[k]]
            found = saved.steps.backward(saved.kept[k], d_states)
            d_sides[saved.times[k]] = found.side
            d_products.append(found.product)
            walked.append((saved.kept[k], found.own))
            d_states = [found.states[0] + found.product @ w_back, *found.states[1:]]
        before = mx.concatenate(list(reversed(saved.hidden)))
        d_w_h = mx.transpose(before) @ mx.concatenate(d_products)
        rule, side_saved = saved.sides
        assert rule.vjp is not None
        d_x, d_w_x, d_bias, *d_norms = rule.vjp(be, side_saved, mx.stack([d_sides[t] for t in sorted(d_sides)]),
                                                (needs[0], True, saved.has_bias, *([True] * saved.norms)))
        d_read = saved.steps.parameters(walked)
        if saved.has_bias:
            d_bias = d_bias + d_read.pop(0)
        return [d_x, *d_states, d_w_x, d_w_h, d_bias, None,
                *(a + b for a, b in zip(d_norms, d_read, strict=True))]

    return Rule(name, forward, vjp, supports)


def _any_supports(be: Backend, x: Array, *arrays: Array, **attrs: Any) -> str | None:
    return None if x.size and arrays[0].size else "there are no values"


def _metal_supports(variants: Sequence[str], most: int) -> Callable[..., str | None]:
    def supports(be: Backend, x: Array, h: Array, *arrays: Array, norm: str, eps_place: str,
                 **others: Any) -> str | None:
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
        return _any_supports(be, x, h)

    return supports


class _CellSaved(NamedTuple):
    steps: MetalLstm
    kept: Any
    side: Any
    norms: int


def _cell_forward(be: Backend, side: Array, product: Array, c: Array, bias: Array, *norms: Array,
                  **attrs: Any) -> tuple[States, _CellSaved]:
    names, settings = list(norm_shapes("lstm", attrs["norm"], 1)), Settings(**attrs)

    def normalised(side: Tensor, bias: Tensor, *norms: Tensor) -> Tensor:
        return formulas.input_side("lstm", side, bias, dict(zip(names, norms, strict=True)), settings)

    rule = derived(normalised)
    made, side_saved = rule.forward(be, side, bias, *norms)
    steps = MetalLstm(be, "lstm", settings, bias, dict(zip(names, norms, strict=True)))
    new, kept = steps.forward(made, product, (c, c), None)  # without a mask nobody reads the state before
    return new, _CellSaved(steps, kept, (rule, side_saved), len(norms))


def _cell_vjp(be: Backend, saved: _CellSaved, gouts: tuple[Array | None, ...],
              needs: Sequence[bool]) -> list[Array | None]:
    d_states = [mx.zeros_like(saved.kept[1]) if g is None else g for g in gouts]
    found = saved.steps.backward(saved.kept, d_states)
    rule, side_saved = saved.side
    d_side, d_bias, *d_norms = rule.vjp(be, side_saved, found.side, [True] * (2 + saved.norms))
    of_bias, *of_norms = saved.steps.parameters([(saved.kept, found.own)])
    return [d_side, found.product, found.states[1], d_bias + of_bias,
            *(a + b for a, b in zip(d_norms, of_norms, strict=True))]


def attach() -> None:
    """Add the rules to `lstm`, `lstm_cell`, `gru` and `rnn`."""
    ops: list[tuple[Op[..., Any], str]] = [(lstm, "lstm"), (gru, "gru"), (rnn, "rnn")]
    for op, cell in ops:
        op.add(_rule("steps without products", cell, FormulaSteps, _any_supports), backend="mlx")
    # The widest norm must fit layer_norm's kernel, which gives the gains' gradients.
    supports = _metal_supports(("layer", "layer-cell", "layer-theano"), MOST_COLUMNS // 4)
    lstm.add(_rule("metal cells", "lstm", MetalLstm, supports), "mlx")
    lstm_cell.add(Rule("metal cell", _cell_forward, _cell_vjp,
                       lambda be, side, product, c, *others, **attrs: supports(be, side, c, **attrs)), "mlx")
    gru.add(_rule("metal cells", "gru", MetalGru, _metal_supports(("layer", "layer-theano"), MOST_COLUMNS // 2)), "mlx")
