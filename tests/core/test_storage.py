"""16 bits are storage: every operator computes in float32 and rounds each result and gradient once."""

import numpy as np
import pytest

import duoln
from duoln import compile, ops, tree, value_and_grad
from duoln.core import Op, Rule, Tensor, each_rule
from duoln.errors import DtypeError
from duoln.testing import check_error


def _tensor(be, *shape, dtype="bfloat16", seed=0):
    return duoln.tensor(np.random.default_rng(seed).standard_normal(shape).astype(np.float32), be, dtype=dtype)


def _rounded(x, dtype="bfloat16"):
    return x.astype(dtype).numpy()


@pytest.fixture
def half_or_float32():
    """An operator of three arrays whose rule takes the first and the second as they are stored."""
    seen = []

    def function(x, y, z):
        return made.apply(x, y, z)

    def forward(be, x, y, z):
        seen.append([be.dtype(a) for a in (x, y, z)])
        wide = [be.astype(a, "float32") for a in (x, y)]
        return be.astype(wide[0] * wide[1] * z, be.dtype(x)), be.dtype(x)

    def vjp(be, saved, gout, needs):
        seen.append([be.dtype(gout), needs])
        return be.ones(gout.shape, saved), be.ones(gout.shape, saved), be.full(gout.shape, 1 / 3)

    made = Op(function, "x: real, y: real, z: real -> like x", "half_or_float32")
    made.add(Rule("composed", forward, vjp, stored=(0, 1)))
    return made, seen


def test_a_rule_gets_what_it_takes_and_the_rest_in_float32(half_or_float32, be):
    op, seen = half_or_float32
    x, wide = _tensor(be, 3), _tensor(be, 3, dtype="float32")
    for args, given, result in (((x, x, x), ["bfloat16", "bfloat16", "float32"], "bfloat16"),
                                ((x, x, wide), ["bfloat16", "bfloat16", "float32"], "bfloat16"),
                                ((x, wide, x), ["float32"] * 3, "bfloat16"), ((wide, x, x), ["float32"] * 3, "float32"),
                                ((wide, wide, wide), ["float32"] * 3, "float32")):
        seen.clear()
        assert op(*args).dtype == result
        assert seen == [given]


def test_gradients_have_the_dtypes_of_their_inputs(half_or_float32, be):
    op, _ = half_or_float32
    for dtypes in (("bfloat16",) * 3, ("bfloat16", "bfloat16", "float32"), ("bfloat16", "float32", "bfloat16")):
        params = [_tensor(be, 3, dtype=dtype) for dtype in dtypes]
        _, gradients = value_and_grad(lambda p: op(*p).sum())(params)
        assert [g.dtype for g in gradients] == list(dtypes)
        third = np.float32(1 / 3)
        assert gradients[2].numpy()[0] == (_rounded(duoln.tensor(third, be)) if dtypes[2] == "bfloat16" else third)


@pytest.mark.parametrize("state", ["bfloat16", "float32"])
def test_a_result_like_an_array_that_a_rule_takes_in_float32_is_rounded_once(state, be):
    """So are its gradients: a rule sees float32 on both ways."""
    seen = []

    def forward(be, x, y):
        seen.append([be.dtype(x), be.dtype(y)])
        return (x, y * 1.001), None

    def vjp(be, saved, gouts, needs):
        seen.append([None if g is None else be.dtype(g) for g in gouts])
        return gouts[0], gouts[1] * 1.001

    made = Op(lambda x, y: made.apply(x, y), "x: real, y: real -> x: like x, y: like y", "carried")
    made.add(Rule("composed", forward, vjp, stored=(0,)))
    x, y = _tensor(be, 4), _tensor(be, 4, dtype="float32", seed=1).astype("bfloat16").astype(state)
    assert made.explain(x, y) == [("composed", "runs")]
    first, second = made(x, y)
    assert (first.dtype, second.dtype) == ("bfloat16", state)
    exact = duoln.tensor(y.numpy().astype(np.float32) * np.float32(1.001), be)
    np.testing.assert_array_equal(second.numpy(), exact.astype(state).numpy())
    seen.clear()
    _, gradients = value_and_grad(lambda p: ops.add(*((o * 2.0).astype("float32").sum() for o in made(*p))))([x, y])
    assert [g.dtype for g in gradients] == ["bfloat16", state]
    assert seen == [["bfloat16", "float32"]] * 2
    np.testing.assert_array_equal(gradients[1].numpy(), duoln.tensor(np.full(4, 2.002, np.float32), be).astype(state).numpy())


def test_explain_names_both_ways(half_or_float32, be):
    op, _ = half_or_float32
    x, wide = _tensor(be, 3), _tensor(be, 3, dtype="float32")
    assert op.explain(x, x, x) == [("composed", "runs")]
    assert op.explain(x, wide, x) == [("composed, in float32", "runs")]
    assert ops.exp.explain(x)[-1] == ("composed, in float32", "runs")


def test_a_fast_rule_for_float32_runs_on_widened_arrays(numpy_backend):
    x = _tensor(numpy_backend, 4, 5)
    names = [name for name, verdict in ops.layer_norm.explain(x) if verdict == "runs"]
    assert names == [f"{name}, in float32" for name, verdict in ops.layer_norm.explain(x.astype("float32")) if verdict == "runs"]


def test_dtypes_of_results(be):
    x, wide = _tensor(be, 2, 3), _tensor(be, 2, 3, dtype="float32")
    gain = duoln.tensor(np.ones(3, np.float32), be)
    labels = duoln.tensor([0, 2], be)
    for result, dtype in ((x + 0.1, "bfloat16"), (x * x, "bfloat16"), (x + wide, "float32"), (wide * x, "float32"), (x > wide, "bool"),
                          (ops.layer_norm(x, gain, gain), "bfloat16"), (ops.layer_norm(wide, gain.astype("bfloat16")), "float32"),
                          (ops.linear(x, x.T, duoln.tensor([1.0, 2.0], be)), "bfloat16"), (ops.linear(wide, x.T), "float32"), (x @ wide.T, "float32"),
                          (ops.sum(x, axis=0), "float32"), (ops.mean(x), "float32"), (ops.logsumexp(x), "float32"), (ops.max(x), "bfloat16"),
                          (ops.softmax(x), "bfloat16"), (ops.log_softmax(x), "float32"), (ops.softmax_cross_entropy(x, labels), "float32"),
                          (ops.concat(x, wide), "float32"), (ops.batch_norm(x, gain)[0], "bfloat16"), (ops.batch_norm(x, gain)[2], "float32"),
                          (ops.argmax(x), "int32"), (ops.global_norm(x), "float32")):
        assert result.dtype == dtype


def test_states_keep_their_own_dtype(be):
    x, h, c = _tensor(be, 3, 2, 4), duoln.tensor(np.zeros((2, 5), np.float32), be), _tensor(be, 2, 5, dtype="float32")
    w_x, w_h, bias = _tensor(be, 4, 20), _tensor(be, 5, 20), duoln.tensor(np.zeros(20, np.float32), be)
    assert [y.dtype for y in ops.lstm(x, h, c, w_x, w_h, bias)] == ["bfloat16", "float32", "float32"]
    assert [y.dtype for y in ops.lstm(x, h.astype("bfloat16"), c, w_x, w_h, bias)] == ["bfloat16", "bfloat16", "float32"]


def test_a_sum_of_gradients_is_rounded_once(be):
    """1 + 2^-8 is a tie of bfloat16, so that a sum of 1 and many 2^-8 that is rounded each time stays 1."""
    one, small = duoln.tensor(1.0, be), duoln.tensor(2.0 ** -8, be)
    x = duoln.tensor([1.0], be, dtype="bfloat16")

    def fn(p):
        y = p * 1.0
        total = ops.sum(y * one)
        for _ in range(64):
            total = total + ops.sum(y * small)
        return total

    _, gradient = value_and_grad(fn)(x)
    assert gradient.dtype == "bfloat16" and gradient.item() == 1.25


def test_a_step_is_replayed(be):
    if be.lazy:
        pytest.skip("it compiles by itself, which takes it long on a CPU")
    x, w = _tensor(be, 4, 3), _tensor(be, 3, 3, dtype="float32", seed=1)
    gain = duoln.tensor(np.ones(3, np.float32), be)

    def step(w, gain, x):
        def loss(p):
            y = ops.layer_norm(ops.linear(x, p["w"].astype("bfloat16")), p["gain"], activation="tanh")
            return ops.mean(ops.square(y + ops.take(x, duoln.tensor([0, 0, 1, 2], be), axis=0)))
        return value_and_grad(loss)({"w": w, "gain": gain})

    compiled = compile(step)
    for k in range(4):
        moved = w + 0.125 * k
        for mine, own in zip(tree.leaves(compiled(moved, gain, x)), tree.leaves(step(moved, gain, x)), strict=True):
            assert mine.dtype == own.dtype == "float32"
            np.testing.assert_array_equal(mine.numpy(), own.numpy())


def test_watched_values_and_errors(be):
    x = duoln.tensor([6e4], be, dtype="float16")
    with duoln.core.watched(), pytest.raises(duoln.errors.NotFiniteError, match="multiply"):
        _ = x * 2.0
    wide = duoln.tensor(np.ones(2), be) if "float64" in be.dtypes else None
    if wide is not None:
        check_error(DtypeError, lambda: ops.add(_tensor(be, 2), wide), "[add]", "bfloat16", "float64", "astype")
        check_error(DtypeError, lambda: ops.linear(_tensor(be, 2, 2), ops.stack(wide, wide)), "[linear]", "float64")


def test_a_rule_that_is_watched_gets_what_is_stored(be):
    dtypes = []

    def through(op, rule):
        def forward(backend, *natives, **attrs):
            dtypes.append([backend.dtype(x) for x in natives])
            return rule.forward(backend, *natives, **attrs)
        return Rule(rule.name, forward, rule.vjp)

    with each_rule(through):
        ops.exp(_tensor(be, 2))
    assert dtypes == [["bfloat16"]]


def test_gradients_of_a_tensor_in_16_bits_are_tensors(be):
    value, gradient = value_and_grad(lambda p: ops.sum(p * p))(_tensor(be, 3, dtype="float16"))
    assert isinstance(gradient, Tensor) and (value.dtype, gradient.dtype) == ("float32", "float16")


def test_adam_update_refuses_16_bits(be):
    """It would give float32 parameters back, or lose its steps."""
    number, p = duoln.tensor(0.1, be), _tensor(be, 3)
    check_error(DtypeError, lambda: ops.adam_update(number, number, None, None, p, p, p, p, beta1=0.9, beta2=0.9),
                "[adam_update]", "float32", "bfloat16", "p.astype('bfloat16')")
