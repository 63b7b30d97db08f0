"""Gradients that stay in factors in a compiled step: the values of the step itself, and the reasons to write them out."""

import numpy as np
import pytest

import duoln
from duoln import ops, optim, tree
from duoln.core import Factors, op
from duoln.core.rule import Rule
from duoln.core.step.program import Backward, keep_factors
from duoln.core.step.recording import Recording
from duoln.kernels import native
from duoln.kernels.linear import cpu as linear

ADAM = optim.Adam(0.01, donate=True)


@pytest.fixture
def given(monkeypatch):
    """How many gradients in factors each update of Adam got."""
    counts = []
    if native.compiler() is None:
        pytest.skip("there is no C++ compiler")
    duoln.backend("numpy")  # attaches the rules
    [rule] = [r for r in ops.adam_update.rules("numpy") if r.takes_factors]
    forward = rule.forward

    def counted(be, *arrays, **attrs):
        counts.append(sum(isinstance(a, Factors) for a in arrays))
        return forward(be, *arrays, **attrs)

    monkeypatch.setitem(rule.__dict__, "forward", counted)
    monkeypatch.setattr(linear, "LEAST_WEIGHTS", 1)
    return counts


def _array(rng, *shape, dtype=np.float32):
    return duoln.tensor(rng.standard_normal(shape).astype(dtype), "numpy")


def _train(loss, params, x, also=lambda gradients: ()):
    """Four compiled updates beside four that are not, with the same inputs."""
    def step(params, slots, x, rate):
        value, gradients = duoln.value_and_grad(loss)(params, x)
        params, slots, norm = ADAM.update_with_norm(params, gradients, slots, rate)
        return params, slots, value, norm, also(gradients)

    compiled, rate = duoln.compile(step), duoln.tensor(np.asarray(0.01, x.dtype), "numpy")
    plain, fast = ((tree.map(lambda p: duoln.tensor(p.numpy(), "numpy"), params),) for _ in range(2))
    plain, fast = ((p, ADAM.init(p)) for (p,) in (plain, fast))
    for _ in range(4):
        expected, actual = step(*plain, x, rate), compiled(*fast, x, rate)
        for (path, a), b in zip(tree.items(expected), tree.leaves(actual), strict=True):
            assert a.dtype == b.dtype
            units = 0 if a.dtype == "int32" else 16 * np.finfo(a.dtype).eps  # with 256-bit vectors some last digits differ
            np.testing.assert_allclose(a.numpy(), b.numpy(), rtol=units, atol=units, err_msg=path)
        plain, fast = expected[:2], actual[:2]


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(("rows", "sizes"), [(1, (1, 1)), (1, (7, 3)), (2, (130, 1)), (3, (1, 70)), (4, (129, 127)),
                                             (5, (100, 200)), (8, (517, 131)), (7, (3, 8192)), (6, (2, 20000))])
def test_the_bits_of_the_step(rows, sizes, dtype, rng, given):
    params = {"w": _array(rng, *sizes, dtype=dtype), "b": _array(rng, sizes[1], dtype=dtype)}
    _train(lambda p, x: ops.mean(ops.tanh(ops.linear(x, p["w"], p["b"]))), params, _array(rng, rows, sizes[0], dtype=dtype))
    assert given == [0, 0, 0, 0, 1, 0, 0]  # by turns: uncompiled, compiled, which is recorded twice and then bound


def _product(p, x):
    return ops.sum(ops.tanh(ops.matmul(x, p)))


WRITTEN_OUT = {
    "more rows than the rule takes": (_product, (30, 40), (linear.MOST_ROWS + 1, 30), lambda gradients: ()),
    "a sum of it is a result": (_product, (30, 40), (4, 30), ops.sum), "it is a result": (_product, (30, 40), (4, 30), lambda gradients: gradients),
    "a weight with two uses": (lambda p, x: ops.sum(ops.matmul(ops.tanh(ops.matmul(x, p)), p)), (40, 40), (4, 40), lambda gradients: ()),
}


@pytest.mark.parametrize("name", WRITTEN_OUT)
def test_a_gradient_that_is_written_out(name, rng, given):
    loss, of_weight, of_input, also = WRITTEN_OUT[name]
    _train(loss, _array(rng, *of_weight), _array(rng, *of_input), also)
    assert not any(given)


def test_a_clipped_gradient_is_written_out(rng, given):
    adam = optim.Adam(0.01, clip=optim.clip_global_norm(0.1))
    params, x = _array(rng, 30, 40), _array(rng, 4, 30)
    step = duoln.compile(lambda p, s, x, r: adam.update(p, duoln.value_and_grad(
        lambda p: ops.sum(ops.tanh(ops.matmul(x, p))))(p)[1], s, r))
    slots = adam.init(params)
    for _ in range(3):
        params, slots = step(params, slots, x, duoln.tensor(np.float32(0.01), "numpy"))
    assert given == [0, 0, 0]


def test_a_factor_that_is_itself_updated(rng, given):
    """The input of the product is a parameter: its values before the update count."""
    params = {"query": _array(rng, 4, 30), "w": _array(rng, 30, 40)}
    _train(lambda p, x: ops.sum(ops.tanh(ops.matmul(p["query"], p["w"])) * x), params, _array(rng, 4, 40))
    assert given == [0, 0, 0, 0, 1, 0, 0]


def test_factors_are_an_array_where_one_is_expected(rng):
    left, right = rng.standard_normal((3, 4)), rng.standard_normal((3, 4))
    np.testing.assert_array_equal(np.asarray(Factors(left, right)), left.T @ right)
    assert np.asarray(Factors(left, right), np.float32).dtype == np.float32


@pytest.mark.parametrize(("left", "right"), [
    (lambda a: np.repeat(a, 2, axis=1)[:, ::2], lambda a: a), (lambda a: a[::-1], lambda a: np.asfortranarray(a)),
    (lambda a: a, lambda a: np.broadcast_to(a[:, :1], a.shape)), (lambda a: a[:0], lambda a: a[:0])],
    ids=["every second", "reversed", "broadcast", "no rows"])
def test_factors_in_any_layout(left, right, rng, given):
    """A plug-in's rule gives what it likes."""
    [rule] = [r for r in ops.adam_update.rules("numpy") if r.takes_factors]
    factors = Factors(left(rng.standard_normal((4, 30), np.float32)), right(rng.standard_normal((4, 50), np.float32)))
    rate, eps, ones = np.array(0.01, np.float32), np.array(1e-8, np.float32), np.ones((30, 50), np.float32)

    def updated(gradient):
        return rule.forward(duoln.backend("numpy"), rate, eps, None, None, ones, gradient, ones, ones, beta1=0.9, beta2=0.999, donate=False)[0]

    for of_factors, of_array in zip(updated(factors), updated(np.asarray(factors)), strict=True):
        np.testing.assert_allclose(of_factors, of_array, rtol=1e-5, atol=1e-6)


def test_factors_of_a_rule_whose_gradient_takes_attributes(numpy_backend):
    """What `forward` saved reaches `factors` without the attributes that are kept beside it."""
    @op
    def scaled(x, w):
        return scaled.apply(x, w, by=2.0)

    @op
    def read(g):
        return read.apply(g)

    def vjp(be, saved, gout, needs, *, by):
        return None, by * saved.T @ gout

    scaled.add(Rule("composed", lambda be, x, w, by: (by * x @ w, x), vjp,
                    factors={1: lambda be, saved, gout: (saved * 2.0, gout)}))
    read.add(Rule("composed", lambda be, g: (np.asarray(g).copy(), None), takes_factors=True))
    x, w = np.arange(6.0).reshape(2, 3), np.ones((3, 4))

    def step(x, w):
        x, w = (duoln.tensor(a, numpy_backend) for a in (x, w))
        return [read(duoln.value_and_grad(lambda w: ops.sum(scaled(x, w)))(w)[1]).data]

    record = Recording(numpy_backend, [x, w])
    with record.recording():
        [expected] = step(x, w)
    program = record.program([expected])
    kept = keep_factors(program)
    assert [one.needs for one in kept.instructions if isinstance(one, Backward)][-1] == (False, False)
    np.testing.assert_array_equal(kept.function()(x, w)[0], expected)
