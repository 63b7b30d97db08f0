"""Every case of the table: values and gradients on every backend, every fast rule against the composed one, every layout, values of 16
bits, which are float32 rounded once, and values too near 0 for their dtype, which are 0 and no error.
"""

import numpy as np
import pytest
from composed_layouts import check_layouts, is_small
from ops.cases import CASES

import duoln
from duoln import compile, nn, ops, optim, tensor, to_tensors, tree, value_and_grad
from duoln.core import Op, Rule, Tensor, composed_only, each_rule
from duoln.errors import DuolnError
from duoln.testing import check_op
from duoln.testing.gradients import projected_gradients


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
    from duoln.ops import linear_loss

    monkeypatch.setattr(linear_loss, "BLOCK", 50)
    case = next(c for c in CASES if c.name.startswith("linear_cross_entropy(2, 3, 5)"))
    with composed_only():
        for dtype in ("float32", "float64") if be.name == "numpy" else ("float32",):
            check_op(case.fn, _inputs(case), case.reference, be, 100, dtype=dtype)


@pytest.mark.long
def test_no_layout_changes_a_composed_rule():
    assert check_layouts([case for case in CASES if is_small(case)]) >= 10500


@pytest.mark.minutes
def test_no_layout_changes_a_composed_rule_of_large_arrays():
    assert check_layouts([case for case in CASES if not is_small(case)]) >= 300


NARROW = ("bfloat16", "float16")


def _tensors(case, be, dtype, seed=3, scale=1):
    inputs = case.inputs(np.random.default_rng(seed))
    return [duoln.tensor(x * scale, be, dtype=dtype) if x.dtype.kind == "f" else duoln.tensor(x, be) for x in inputs]


def _wide(be, x):
    return be.astype(x, "float32") if hasattr(x, "dtype") and be.dtype(x) in NARROW else x


def _stored(be, x, like):
    """What is stored of a float32 value where another value, or nothing, was stored."""
    return x if x is None or be.dtype(x) == be.dtype(like) else be.astype(x, be.dtype(like))


def _many(x):
    return x if isinstance(x, tuple) else (x,)


class Compared:
    """In the place of each rule, one that compares it with the op's own rule on the widened arrays."""

    def __init__(self):
        self.narrow = self.gradients = 0

    def __call__(self, op, rule):
        def forward(be, *natives, **attrs):
            out, saved = rule.forward(be, *natives, **attrs)
            with each_rule(lambda op, rule: rule):
                plain, kept = op.rules(be.name)[-1].forward(be, *[_wide(be, x) for x in natives], **attrs)
            if op is not ops.astype:
                for mine, own in zip(_many(out), _many(plain), strict=True):
                    self._same(be, mine, own)
            self.narrow += any(be.dtype(o) in NARROW for o in _many(out))
            return out, (saved, kept, natives, op.rules(be.name)[-1])

        def vjp(be, saved, gout, needs):
            mine_saved, kept, natives, plain = saved
            gradients = rule.vjp(be, mine_saved, gout, needs)
            wide = tuple(_wide(be, g) for g in gout) if isinstance(gout, tuple) else _wide(be, gout)
            for mine, own, x, need in zip(gradients, plain.vjp(be, kept, wide, needs), natives, needs, strict=True):
                if need:
                    assert be.dtype(mine) == be.dtype(x)
                    self._same(be, mine, own)
                    self.gradients += 1
            return gradients

        return Rule(rule.name, forward, None if rule.vjp is None else vjp)

    @staticmethod
    def _same(be, mine, own):
        np.testing.assert_array_equal(be.to_numpy(mine), be.to_numpy(_stored(be, own, mine)))


@pytest.mark.parametrize("dtype", NARROW)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_computed_in_float32_and_rounded_once(case, dtype, numpy_backend):
    tensors = _tensors(case, numpy_backend, dtype)
    floats = [k for k, t in enumerate(tensors) if t.dtype == dtype]
    compared = Compared()
    with np.errstate(all="ignore"), composed_only(), each_rule(compared):
        case.fn(*tensors)
        if case.differentiable and floats:
            projected_gradients(case.fn, tensors, floats, np.random.default_rng(1))
            assert compared.gradients


@pytest.mark.parametrize("case", CASES[::9], ids=str)
def test_close_to_the_formula_on_every_backend(case, be):
    if min((t.size for t in _tensors(case, be, "bfloat16")), default=0) > 1:
        check_op(case.fn, case.inputs(np.random.default_rng(3)), case.reference, be, case.length, case.differentiable, dtype="bfloat16")


@pytest.mark.parametrize("dtype", NARROW)
def test_layouts(dtype, be):
    """Arrays in other orders and with gaps give the same bits as copies in order."""
    x = duoln.tensor(np.random.default_rng(0).standard_normal((6, 8)).astype(np.float32), be, dtype=dtype)
    for view in (x.T, x[::2], x[:, ::-1], x[1:, 3:], ops.broadcast_to(x[:1], (4, 8))):
        plain = duoln.tensor(view.numpy().copy(), be, dtype=dtype)
        for fn in (ops.exp, lambda a: a * a, ops.layer_norm, lambda a: ops.matmul(a, a.T), lambda a: ops.linear(a, ops.permute_dims(a, axes=(1, 0))), ops.sum,
                   lambda a: ops.concat(a, a, axis=1), lambda a: ops.take(a, duoln.tensor([1, 0, 1], be), axis=1)):
            result, expected = fn(view), fn(plain)
            assert isinstance(result, Tensor) and result.dtype == expected.dtype
            np.testing.assert_allclose(result.numpy().astype(np.float32), expected.numpy().astype(np.float32), rtol=8e-3, atol=1e-3)


@pytest.mark.parametrize("activation", ["relu", "tanh"])
def test_an_activated_product_is_stored_as_its_input(activation, be):
    """As the product and the activation apart."""
    x, weight = duoln.tensor(np.ones((2, 3), np.float32), be, dtype="float16"), duoln.tensor(np.ones((3, 4), np.float32), be)
    assert ops.activated_linear(x, weight, activation=activation).dtype == ops.linear(x, weight).dtype == "float16"


SCALES = (1e-25, 1e-15, 80.0)
"""With the first two products and squares are too near 0, with the last one exponentials."""


def _values_and_gradients(case, tensors):
    outs = tree.leaves(case.fn(*tensors))
    floats = {k: t for k, t in enumerate(tensors) if t.dtype == "float32"}
    if not case.differentiable or not floats:
        return outs

    def total(given):
        results = tree.leaves(case.fn(*[given.get(k, t) for k, t in enumerate(tensors)]))
        return sum((ops.sum(t * 1e-20) for t in results if t.dtype == "float32"), start=tensor(np.float32(0), tensors[0].backend))

    return [*outs, *tree.leaves(value_and_grad(total)(floats))]


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("rules", ["picked", "composed"])
def test_underflow_is_no_error_in_any_operator(scale, rules, numpy_backend):
    same = 0
    for case in CASES:
        tensors = _tensors(case, numpy_backend, "float32", scale=scale)
        with composed_only() if rules == "composed" else np.errstate():
            try:
                with np.errstate(all="ignore"):
                    expected = _values_and_gradients(case, tensors)
            except DuolnError:  # these values are not for this operator
                continue
            with np.errstate(over="ignore", invalid="ignore", divide="ignore", under="raise"):
                for own, plain in zip(_values_and_gradients(case, tensors), expected, strict=True):
                    assert own.numpy().tobytes() == plain.numpy().tobytes(), case
        same += 1
    assert same > 500


def test_overflow_is_still_raised(numpy_backend):
    x = tensor(np.float32([1000, -1000]), numpy_backend)
    with composed_only(), np.errstate(all="raise"), pytest.raises(FloatingPointError, match="overflow"):
        ops.exp(x)


@pytest.mark.parametrize("rules", ["picked", "composed"])
@pytest.mark.parametrize("wraps", [lambda step: step, compile])
def test_a_training_step_with_tiny_gradients(wraps, rules, numpy_backend):
    """Adam squares them, and may write in place: it does so once."""
    model = nn.Sequential(nn.Linear(3, 4), nn.LayerNorm(4), ops.softplus, nn.Linear(4, 2))
    start = to_tensors(model.init(0), numpy_backend)
    x, y = tensor(np.float32(np.random.default_rng(0).standard_normal((5, 3)) * 200), numpy_backend), tensor(np.int32([0, 1, 0, 1, 1]), numpy_backend)

    def trained(donate):
        optimizer = optim.Adam(1e-3, donate=donate)

        @wraps
        def step(params, slots, rate):
            _, gradients = value_and_grad(lambda p: ops.mean(ops.softmax_cross_entropy(model(p, x) * 80.0, y)) * 1e-24)(params)
            return optimizer.update(params, gradients, slots, rate)

        params = tree.map(lambda t: tensor(t.numpy(), numpy_backend), start)
        slots = optimizer.init(params)
        for _ in range(3):
            params, slots = step(params, slots, tensor(np.float32(1e-3), numpy_backend))
        return [t.numpy().tobytes() for t in tree.leaves((params, slots))]

    with composed_only() if rules == "composed" else np.errstate():
        plain = trained(donate=False)
        with np.errstate(all="raise"):
            assert trained(donate=False) == plain and trained(donate=True) == plain
