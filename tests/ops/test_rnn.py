"""Recurrent operators: every cell and variant against its reference, gradients, masks, lengths and errors."""

import contextlib
import functools
import itertools

import numpy as np
import pytest
from conftest import NAMES, every_second

import duoln
from duoln import nn, ops
from duoln.core import composed_only
from duoln.errors import UsageError
from duoln.ops import recurrent
from duoln.ops.recurrent.variants import CELLS, has_bias
from duoln.testing import check_error, check_op, references

VARIANTS = [(cell, norm) for cell in CELLS for norm in CELLS[cell].variants]
DETACHED = ("lstm", "layer-detached")
"""Its gradient is not that of its values."""


class Problem:
    """Arrays of one cell and variant, an operator over them, and its reference."""

    def __init__(self, cell, norm, rng, steps=5, batch=3, n_in=4, hidden=6, masked=False, **attrs):
        self.cell, self.norm, self.attrs = cell, norm, attrs
        self.n_states = 2 if cell == "lstm" else 1
        shapes = {name: shape for name, shape in recurrent.norm_shapes(cell, norm, hidden).items()}
        width = CELLS[cell].gates * hidden
        self.arrays = [rng.standard_normal((steps, batch, n_in))]
        self.arrays += [rng.standard_normal((batch, hidden)) for _ in range(self.n_states)]
        self.arrays += [rng.standard_normal((n_in, width)), rng.standard_normal((hidden, width))]
        self.has_bias = has_bias(cell, norm)
        self.arrays += [rng.standard_normal(width)] if self.has_bias else []
        self.norm_names = list(shapes)
        self.arrays += [rng.standard_normal(shape) for shape in shapes.values()]
        self.mask = (rng.random((steps, batch)) < 0.7) & (np.arange(batch) > 0) if masked else None  # the first sequence has no step

    def _split(self, arrays):
        arrays = list(arrays)
        x, states = arrays[0], arrays[1:1 + self.n_states]
        rest = arrays[1 + self.n_states:]
        bias = rest[2] if self.has_bias else None
        norms = dict(zip(self.norm_names, rest[2 + self.has_bias:], strict=True))
        return x, states, rest[0], rest[1], bias, norms

    def op(self, *tensors):
        x, states, w_x, w_h, bias, norms = self._split(tensors)
        mask = None if self.mask is None else duoln.tensor(self.mask, x.backend)
        return getattr(ops, self.cell)(x, *states, w_x, w_h, bias, mask, norms, norm=self.norm, **self.attrs)

    def steps(self, *tensors):
        """The same by the step operator, in a Python loop."""
        x, states, w_x, w_h, bias, norms = self._split(tensors)
        outs = []
        for t in range(x.shape[0]):
            new = getattr(ops, f"{self.cell}_step")(x[t], *states, w_x, w_h, bias, norms, norm=self.norm)
            states = list(new) if isinstance(new, tuple) else [new]
            outs.append(states[0])
        return (ops.stack(*outs), *states)

    def reference(self, *arrays, **options):
        x, states, w_x, w_h, bias, norms = self._split(arrays)
        p, step = {"w_x": w_x, "w_h": w_h, "bias": bias, **norms}, references.STEPS[self.cell, self.norm]
        return references.sequence(step, p, x, states, self.mask, self.attrs.get("reverse", False), **options)


SHAPES = [{}, {"steps": 1}, {"steps": 0}, {"batch": 1}, {"hidden": 1}, {"masked": True}, {"reverse": True},
          {"masked": True, "reverse": True}]
FLOAT32 = [*itertools.product(VARIANTS, SHAPES, {"numpy"} & set(NAMES)),
           *every_second(VARIANTS, SHAPES, [name for name in NAMES if name != "numpy"])]
"""All of NumPy's, and each variant with each shape on one of two other backends."""


def _of_shape(cell, norm, rng, shape):
    return Problem(cell, norm, rng, **{**shape, **({"batch": 6} if norm == "batch" else {})})  # statistics of few rows are ill-conditioned


@pytest.mark.parametrize(("cell", "norm"), VARIANTS)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_float64(cell, norm, shape, rng, numpy_backend):
    """By the chosen rule, by the composed one where it is another, and by the operator of one step after another."""
    p = _of_shape(cell, norm, rng, shape)
    tensors = [duoln.tensor(a, numpy_backend) for a in p.arrays]
    for rules, form in ((contextlib.nullcontext, p.op), (composed_only, p.op), *([] if shape else [(contextlib.nullcontext, p.steps)])):
        with rules():
            for a, b in zip(form(*tensors), p.reference(*p.arrays), strict=True):
                np.testing.assert_allclose(a.numpy(), b, rtol=1e-12, atol=1e-12)
            if (cell, norm) != DETACHED:
                duoln.testing.gradcheck(form, *tensors)


@pytest.mark.usefixtures("differences_taken")
@pytest.mark.parametrize(("variant", "shape", "be"), FLOAT32, ids=str, indirect=["be"])
def test_float32(variant, shape, rng, be):
    cell, norm = variant
    if norm != "none" and shape.get("hidden") == 1:
        shape = {"hidden": 3}  # a norm over one value has gradient 0, and float32 shows its own rounding
    p = _of_shape(cell, norm, rng, shape)
    check_op(p.op, p.arrays, p.reference, be, length=400)


class Stopped:
    """Layer norm by the means and variances of the first pass, which stay in later ones."""

    def __init__(self):
        self.statistics, self.place = [], None

    def __call__(self, p, x, name, eps):
        if self.place is None:
            self.statistics.append((x.mean(-1, keepdims=True), x.var(-1, keepdims=True)))
            mean, variance = self.statistics[-1]
        else:
            mean, variance = self.statistics[self.place]
            self.place += 1
        return (x - mean) / np.sqrt(variance + eps) * p[f"gain_{name}"] + p[f"bias_{name}"]


@pytest.mark.parametrize("shape", [{}, {"masked": True}, {"reverse": True}], ids=str)
@pytest.mark.parametrize("form", ["op", "steps"])
def test_the_statistics_of_a_detached_norm_have_no_gradient(form, shape, rng, numpy_backend):
    """The gradient is that of the equations with the statistics held: by central differences, array by array."""
    if form == "steps" and shape:
        pytest.skip("time steps have neither a mask nor a direction")
    p = Problem(*DETACHED, rng, **shape)
    weights = rng.standard_normal((len(p.arrays[0]), *p.arrays[1].shape))
    norm = Stopped()
    step = references.lstm_step(norm)

    def loss(arrays):
        x, states, w_x, w_h, bias, norms = p._split(arrays)
        out = references.sequence(step, {"w_x": w_x, "w_h": w_h, "bias": bias, **norms}, x, states, p.mask, p.attrs.get("reverse", False))
        norm.place = 0
        return (out[0] * weights).sum()

    loss(p.arrays)
    _, gradients = duoln.value_and_grad(lambda arrays: ops.sum(getattr(p, form)(*arrays)[0] * duoln.tensor(weights, numpy_backend)))(
        [duoln.tensor(a, numpy_backend) for a in p.arrays])
    with_statistics = Problem("lstm", "layer", rng)
    with_statistics.arrays, with_statistics.mask, with_statistics.attrs = p.arrays, p.mask, p.attrs
    _, others = duoln.value_and_grad(lambda arrays: ops.sum(getattr(with_statistics, form)(*arrays)[0] * duoln.tensor(weights, numpy_backend)))(
        [duoln.tensor(a, numpy_backend) for a in p.arrays])
    for k, gradient in enumerate(gradients):
        along = rng.standard_normal(p.arrays[k].shape)
        ends = [loss([a + sign * 1e-6 * along if place == k else a for place, a in enumerate(p.arrays)]) for sign in (1, -1)]
        difference = (ends[0] - ends[1]) / 2e-6
        np.testing.assert_allclose((gradient.numpy() * along).sum(), difference, rtol=1e-6, atol=1e-8)
    assert np.abs(gradients[4].numpy() - others[4].numpy()).max() > 1e-2


LIMIT = 0.05


class Bounded:
    """A problem with a weighted sum of its hidden states as the loss, and its gradients in float64 on NumPy."""

    def __init__(self, cell, norm, masked, reverse):
        rng = np.random.default_rng(0)
        self.problem, self.reverse = Problem(cell, norm, rng, masked=masked, reverse=reverse), reverse
        steps, rows = self.problem.arrays[:2]
        self.weights = rng.standard_normal((len(steps), *rows.shape))
        self.expected = self.gradients(self.by_steps, "numpy", np.float64)
        self.free = self.gradients(lambda *tensors: self.at_once(*tensors, limit=None), "numpy", np.float64)

    def by_steps(self, *tensors):
        """The hidden states by the step operator, before each of which the states' gradients are bounded."""
        x, states, w_x, w_h, bias, norms = self.problem._split(tensors)
        mask, hidden = self.problem.mask, {}
        for t in reversed(range(len(x))) if self.reverse else range(len(x)):
            seen = [ops.clip_gradient(state, limit=LIMIT) for state in states]
            new = getattr(ops, f"{self.problem.cell}_step")(x[t], *seen, w_x, w_h, bias, norms, norm=self.problem.norm)
            new = list(new) if isinstance(new, tuple) else [new]
            real = None if mask is None else duoln.tensor(mask[t][:, None], x.backend)
            states = new if real is None else [ops.where(real, a, b) for a, b in zip(new, states, strict=True)]
            hidden[t] = states[0]
        return ops.stack(*(hidden[t] for t in sorted(hidden)))

    def at_once(self, *tensors, limit=LIMIT):
        """The same by the operator over sequences."""
        self.problem.attrs = {"reverse": self.reverse, "gradient_limit": limit}
        return self.problem.op(*tensors)[0]

    def gradients(self, fn, backend, dtype):
        """Those of all arrays."""
        tensors, weights = ([duoln.tensor(a.astype(dtype), backend) for a in arrays]
                            for arrays in (self.problem.arrays, [self.weights]))
        return [g.numpy() for g in duoln.value_and_grad(lambda p: ops.sum(fn(*p) * weights[0]))(tensors)[1]]


bounded = functools.cache(Bounded)
"""Every backend is compared with the same gradients."""


@pytest.mark.parametrize(("variant", "masked", "reverse", "be"), every_second(
    [v for v in VARIANTS if v[1] != "batch"], (False, True), (False, True), NAMES), ids=str, indirect=["be"])
def test_bounded_gradients_are_those_of_steps_whose_states_are_bounded(variant, masked, reverse, be):
    case = bounded(*variant, masked, reverse)
    for a, b in zip(case.gradients(case.at_once, be, np.float32), case.expected, strict=True):
        np.testing.assert_allclose(a, b, rtol=2e-4, atol=2e-5)
    assert max(np.abs(a - b).max() for a, b in zip(case.free, case.expected, strict=True)) > 1e-2


def test_a_wrong_bound_of_a_layer_is_named():
    check_error(UsageError, lambda: nn.LSTM(3, 4, gradient_limit=0.0), "[LSTM] gradient_limit", "0.0")


def _scaled_matrix(p, arrays, rng):
    """All of W_h times a number, and one more for each of its rows; eq. 4 of the plain cell normalises the sum of both products."""
    w_h = arrays[2 + p.n_states]
    w_h *= 3
    if p.cell == "rnn":
        arrays[1 + p.n_states] *= 3
    else:
        w_h[:, :2 * len(w_h) if p.cell == "gru" else None] += rng.standard_normal((len(w_h), 1))


def _scaled_column(p, arrays, rng):
    arrays[2 + p.n_states][:, 0] *= 3


def _scaled_case(p, arrays, rng):
    arrays[0][:, 1] *= 5


@pytest.mark.parametrize(("change", "sees"), [(_scaled_matrix, ()), (_scaled_column, recurrent.CELLS), (_scaled_case, ("rnn",))])
@pytest.mark.parametrize("cell", recurrent.CELLS)
def test_invariances(cell, change, sees, rng, numpy_backend):
    """Section 5.1: the effect of re-scaling and re-centring all of W_h, and of re-scaling one case."""
    p = Problem(cell, "layer", rng, eps=1e-12)
    changed = [a.copy() for a in p.arrays]
    change(p, changed, rng)
    before, after = (p.op(*(duoln.tensor(a, numpy_backend) for a in arrays))[0].numpy() for arrays in (p.arrays, changed))
    if cell in sees:
        assert np.abs(after - before).max() > 1e-3
    else:
        np.testing.assert_allclose(after, before, rtol=1e-6, atol=1e-8)
    if change is _scaled_case:
        np.testing.assert_array_equal(after[:, [0, 2]], before[:, [0, 2]])


def test_nan_in_the_input_comes_out(rng, numpy_backend):
    p = Problem("lstm", "layer", rng)
    p.arrays[0][2, 1, 0] = np.nan
    with np.errstate(invalid="ignore"):
        out = p.op(*(duoln.tensor(a, numpy_backend) for a in p.arrays))[0].numpy()
    assert np.isnan(out[2:, 1]).all() and np.isfinite(np.delete(out, 1, axis=1)).all() and np.isfinite(out[:2]).all()


class TestCell:
    """`lstm_cell`: a time step; the caller computes its products."""

    @pytest.mark.parametrize("norm", [norm for norm in CELLS["lstm"].variants if norm != "layer-detached"])
    def test_it_is_what_a_step_does_after_its_products(self, norm, rng, numpy_backend):
        p = Problem("lstm", norm, rng, batch=6)
        x, (h, c), w_x, w_h, bias, norms = p._split([duoln.tensor(a, numpy_backend) for a in p.arrays])
        step = ops.lstm_step(x[0], h, c, w_x, w_h, bias, norms, norm=norm)
        cell = ops.lstm_cell(x[0] @ w_x, h @ w_h, c, bias, norms, norm=norm)
        assert all(np.array_equal(a.numpy(), b.numpy()) for a, b in zip(step, cell, strict=True))
        names, parameters = list(norms), [*([] if bias is None else [bias]), *norms.values()]

        def of_floats(x_proj, h_proj, c, *rest):
            rest = list(rest)
            own = rest.pop(0) if bias is not None else None
            return ops.lstm_cell(x_proj, h_proj, c, own, dict(zip(names, rest, strict=True)), norm=norm)

        duoln.testing.gradcheck(of_floats, x[0] @ w_x, h @ w_h, c, *parameters)
        duoln.testing.gradcheck(lambda *a: of_floats(*a)[1], x[0] @ w_x, h @ w_h, c, *parameters)  # the loss does not depend on h
