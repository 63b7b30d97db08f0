"""Every case of the table: values and gradients on every backend, in every layout and in 16 bits; values too near 0 for their dtype."""

from contextlib import nullcontext

import numpy as np
import pytest
from ops.cases import CASES

import duoln
from duoln import compile, ops, optim, tensor, tree, value_and_grad
from duoln.core import Op, composed_only
from duoln.testing import check_op


def _inputs(case):
    return case.inputs(np.random.default_rng(3))


@pytest.mark.usefixtures("differences_taken")
@pytest.mark.parametrize("case", CASES, ids=str)
def test_float32_values_and_gradients(case, be):
    check_op(case.fn, _inputs(case), case.reference, be, case.length, case.differentiable)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_float64_against_central_differences(case, numpy_backend):
    check_op(case.fn, _inputs(case), case.reference, numpy_backend, case.length, case.differentiable, dtype="float64")


@pytest.mark.parametrize("case", CASES, ids=str)
def test_nothing_is_frozen_when_a_step_is_replayed(case, numpy_backend):
    """The two calls that are recorded see the same values, so that a value that was frozen would not be noticed there."""
    def step(*tensors):
        if not case.differentiable:
            return tree.leaves(case.fn(*tensors))
        floats = {k: t for k, t in enumerate(tensors) if t.dtype == "float32"}
        return value_and_grad(lambda given: _scalar(case.fn(*[given.get(k, t) for k, t in enumerate(tensors)])))(floats)

    compiled = compile(step)
    for seed in (3, 3, 4):
        tensors = _tensors(case, numpy_backend, "float32", seed)
        for ours, own in zip(tree.leaves(compiled(*tensors)), tree.leaves(step(*tensors)), strict=True):
            np.testing.assert_array_equal(ours.numpy(), own.numpy())


def _scalar(result):
    """A number that depends on all results, each of whose entries weighs differently."""
    total = 0.0
    for t in tree.leaves(result):
        weights = tensor(np.cos(np.arange(t.size, dtype=np.float32)).reshape(t.shape), t.backend)
        total = total + ops.sum(t * weights) if t.dtype == "float32" else total
    return total


def test_every_operator_has_a_case():
    made = {c.name for c in CASES}
    elsewhere = {"adam_rates", "adam_update", "counted", "listed_rate", "rnn", "rnn_step", "lstm", "lstm_cell", "lstm_step", "gru", "gru_step",
                 "arange", "eye", "full", "full_like", "linspace", "ones", "ones_like", "zeros", "zeros_like"}  # tests of their own
    missing = [name for name in (*ops.__all__, *ops.WITHIN) if name not in elsewhere and not any(m.startswith(name) for m in made)]
    assert missing == []


def test_every_operator_has_a_composed_rule():
    for name in (*ops.__all__, *ops.WITHIN):
        if isinstance(op := getattr(ops, name), Op) and op.has_rules:
            assert op.rules("no such backend")[-1].name == "composed"


def test_linear_cross_entropy_in_blocks(be, monkeypatch):
    """The composed rule with blocks of a few rows and classes, on every backend."""
    from duoln.ops import loss

    monkeypatch.setattr(loss, "BLOCK", 50)
    case = next(c for c in CASES if c.name.startswith("linear_cross_entropy(2, 3, 5)"))
    with composed_only():
        for dtype in ("float32", "float64") if be.name == "numpy" else ("float32",):
            check_op(case.fn, _inputs(case), case.reference, be, 100, dtype=dtype)


def _tensors(case, be, dtype, seed=3, scale=1):
    inputs = case.inputs(np.random.default_rng(seed))
    return [duoln.tensor(x * scale, be, dtype=dtype) if x.dtype.kind == "f" else duoln.tensor(x, be) for x in inputs]


@pytest.mark.parametrize("case", CASES[::9], ids=str)
def test_close_to_the_formula_on_every_backend(case, be):
    if min((t.size for t in _tensors(case, be, "bfloat16")), default=0) > 1:
        check_op(case.fn, case.inputs(np.random.default_rng(3)), case.reference, be, case.length, case.differentiable, dtype="bfloat16")


@pytest.mark.parametrize("rules", [nullcontext, composed_only])
def test_underflow_is_no_error(rules, numpy_backend):
    """Also where Adam squares tiny gradients, in place too."""
    x, optimizer = tensor(np.float32([-200, 1e-30]), numpy_backend), optim.Adam(1e-3, donate=True)
    with rules(), np.errstate(all="raise"):
        for fn in (ops.exp, ops.square, ops.softmax, ops.softplus, ops.layer_norm, lambda x: x * x[1]):
            assert np.isfinite(fn(x).numpy()).all()
        for update in (optimizer.update, *[compile(optimizer.update)] * 4):
            params = {"w": x * 1.0}
            updated, _ = update(params, {"w": x * 1e-10}, optimizer.init(params), tensor(np.float32(1e-3), numpy_backend))
            assert np.isfinite(updated["w"].numpy()).all()


def test_overflow_is_still_raised(numpy_backend):
    with composed_only(), np.errstate(all="raise"), pytest.raises(FloatingPointError, match="overflow"):
        ops.exp(tensor(np.float32([1000, -1000]), numpy_backend))
