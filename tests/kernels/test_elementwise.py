"""The elementwise engine: each formula beside the composed rule, NumPy's bits, broadcasting, chains of compiled steps, reductions."""

import inspect
import math

import numpy as np
import pytest
from accuracy import samples

import duoln
from duoln import ops, runtime
from duoln.core import composed_only
from duoln.core.step.program import rewrites
from duoln.kernels import native
from duoln.kernels.elementwise import operators
from duoln.kernels.elementwise.engine import FORMULAS, MOST_STEPS, Chain
from duoln.kernels.elementwise.fusing import Fused
from duoln.kernels.elementwise.passes import LEAST_VALUES, Passes

pytestmark = pytest.mark.skipif(native.machine_refusal() is not None, reason="nothing is compiled here")
OPERATORS = {op.name: op for op in operators()}
TWO = [name for name, op in OPERATORS.items() if op.spec is None and name != "where"]
EXACT = {"add": np.add, "subtract": np.subtract, "multiply": np.multiply, "divide": np.divide, "negative": np.negative, "abs": np.abs,
         "maximum": np.maximum, "minimum": np.minimum, "sqrt": np.sqrt, "where": np.where, "equal": np.equal, "less": np.less,
         "greater_equal": np.greater_equal, "isnan": np.isnan, "isinf": np.isinf, "isfinite": np.isfinite}
REDUCTIONS = {"sum": np.sum, "max": np.max, "min": np.min}


def _rule(name):
    return runtime.backend("numpy") and getattr(ops, name).rules("numpy")[0]


def _special(rng, shape, dtype):
    x = rng.standard_normal(shape).astype(dtype)
    x.flat[::7], x.flat[::5], x.flat[::11], x.flat[3], x.flat[4] = np.nan, np.inf, -np.inf, -0.0, 0.0
    return x


def _arguments(name, rng, shape, dtype, make):
    names = Passes(OPERATORS[name]).arguments
    return [rng.random(shape) < 0.6 if each == "condition" else make(rng, shape, dtype) for each in names]


def test_each_gradient_is_that_of_an_argument_and_reads_what_there_is():
    for name, op in OPERATORS.items():
        passes = Passes(op)
        choices = [""] + [f"_{value}" for each in passes.attributes if type(each.kind) is tuple for value in each.kind]
        for of in (name + choice for choice in choices if name + choice in FORMULAS):
            slopes = [FORMULAS[f"{of}_{each}"] for each in passes.arguments if f"{of}_{each}" in FORMULAS]
            assert FORMULAS[of].arguments[:len(passes.arguments)] == tuple(passes.arguments)
            assert bool(slopes) is not FORMULAS[of].is_test
            assert all(set(slope.arguments) <= {*FORMULAS[of].arguments, "r", "g"} for slope in slopes)


def test_an_operator_has_its_signature():
    for op in OPERATORS.values():
        passes = Passes(op)
        assert [*passes.arguments, *(each.name for each in passes.attributes)] == list(inspect.signature(op.function).parameters)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("shape", [(1,), (65536,), (3, 5, 9001), (2049, 1025)], ids=str)  # the last one has streaming stores
@pytest.mark.parametrize("name", EXACT)
def test_bits_are_those_of_numpy(name, shape, dtype, rng, numpy_backend):
    given = _arguments(name, rng, shape, dtype, _special if math.prod(shape) > 9 else lambda rng, shape, dtype: np.ones(shape, dtype))
    with np.errstate(all="ignore"):
        expected = EXACT[name](*given)
    out, _ = _rule(name).forward(numpy_backend, *given)
    assert out.dtype == expected.dtype and out.shape == shape
    np.testing.assert_array_equal(out, expected)
    if out.dtype != bool:
        numbers = ~np.isnan(expected)
        assert (np.signbit(out) == np.signbit(expected))[numbers].all()


OF_ONE = [name for name, op in OPERATORS.items() if list(inspect.signature(op.function).parameters) == ["x"]
          and not FORMULAS[name].is_test]


@pytest.mark.parametrize("name", [*OF_ONE, "gelu"])
def test_values_and_slopes_of_every_exponent_are_those_of_float64_to_four_units(name, numpy_backend):
    rule, attrs = _rule(name), {"approximate": "none"} if name == "gelu" else {}
    x = samples(np.float32, (88.7, 104, 0.5, 1e-4))
    of = {}
    with np.errstate(invalid="ignore"):  # a signalling NaN
        of_dtype = {np.float32: x, np.float64: x.astype(np.float64)}
    rules = {np.float32: rule, np.float64: getattr(ops, name).rules("numpy")[-1]}
    for dtype, given in of_dtype.items():
        with np.errstate(all="ignore"):
            y, saved = rules[dtype].forward(numpy_backend, given, **attrs)
            of[dtype] = y, *rules[dtype].vjp(numpy_backend, saved, np.ones(x.shape, dtype), (True,))
    for k, (mine, exact) in enumerate(zip(of[np.float32], of[np.float64], strict=True)):
        with np.errstate(over="ignore"):
            rounded = exact.astype(np.float32)
        numbers = np.isfinite(rounded) & np.isfinite(mine)
        np.testing.assert_array_equal(mine[~numbers], rounded[~numbers])
        size = np.abs(rounded) if k == 0 or name not in ("gelu", "silu") else np.maximum(np.abs(rounded), 1)  # a slope of 0
        with np.errstate(over="ignore"):  # after the greatest number
            units = np.abs(mine[numbers] - exact[numbers]) / np.spacing(size[numbers])
        assert units.max() <= 4, (x[numbers][units.argmax()], units.max())


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("second", [(70,), (50, 1), (3, 1, 1), (1, 50, 70), (), 0.5], ids=str)
@pytest.mark.parametrize("name", TWO)
def test_broadcasting(name, second, dtype, rng):
    x = rng.standard_normal((3, 50, 70)).astype(dtype)
    given_second = second if isinstance(second, float) else duoln.tensor(rng.standard_normal(second).astype(dtype), "numpy")
    weight = duoln.tensor(rng.standard_normal(x.shape).astype(dtype), "numpy")
    op = OPERATORS[name]

    def results(first, last):
        def loss(given):
            one, two = (given if len(given) == 2 else (given[0], given_second))
            y = op(two, one) if last else op(one, two)
            return ops.sum(y * weight), y
        if FORMULAS[name].is_test:
            return [op(first, given_second)]
        given = [first] if isinstance(given_second, float) else [first, given_second]
        (_, y), gradients = duoln.value_and_grad(loss, has_aux=True)(given)
        return [y, *gradients]

    for last in (False, True):
        first = duoln.tensor(x, "numpy")
        mine = results(first, last)
        with composed_only():
            theirs = results(first, last)
        for a, b in zip(mine, theirs, strict=True):
            assert a.shape == b.shape and a.dtype == b.dtype
            np.testing.assert_allclose(a.numpy(), b.numpy(), rtol=1e4 * np.finfo(dtype).eps, atol=1e4 * np.finfo(dtype).eps)


def test_what_is_left_to_the_composed_rule(rng, numpy_backend):
    supports = _rule("add").supports
    x = rng.standard_normal((300, 300)).astype(np.float32)
    assert supports(numpy_backend, x, x[:1]) is None and supports(numpy_backend, 2.0, x) is None
    assert "float32 and float64" in supports(numpy_backend, x.astype(np.int32), 1)
    assert "no values" in supports(numpy_backend, x[:0], x[:0])
    small = duoln.tensor(x[:7], "numpy")
    assert ops.add.explain(small, small)[0] == ("compiled", f"it is for at least {LEAST_VALUES} values")
    assert ops.gelu.explain(small)[0] == ("compiled", "runs")
    large = duoln.tensor(x, "numpy")
    assert ops.add.explain(small[:1], large)[0] == ("compiled", "runs")


def test_the_gradient_of_a_sum_is_one_number(rng, numpy_backend):
    x, y = (rng.standard_normal((300, 900)).astype(np.float32) for _ in range(2))
    rule = _rule("multiply")
    saved = rule.forward(numpy_backend, x, y)[1]
    for value in (2.5, -0.0, np.nan, np.inf):
        gout = np.broadcast_to(np.float32(value), x.shape)
        for gradient, second in zip(rule.vjp(numpy_backend, saved, gout, (True, True)), (y, x), strict=True):
            np.testing.assert_array_equal(gradient, second * gout)


# Reductions -----------------------------------------------------------------------------------------

@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(("shape", "axis"), [
    ((65536,), (0,)), ((3, 5, 9001), (2,)), ((3, 5, 9001), (1, 2)), ((9001, 3, 5), (0,)), ((9001, 3, 5), (0, 1)), ((9, 2001, 7), (1,)),
    ((40, 1500), (0,)), ((40000, 1), (1,)), ((1, 40000), (0,)), ((2, 1, 9001, 1), (0, 2)), ((2049, 1025), (0, 1))], ids=str)
@pytest.mark.parametrize("name", REDUCTIONS)
def test_reductions(name, shape, axis, dtype, rng, numpy_backend):
    rule = _rule(name)
    for x in (rng.standard_normal(shape).astype(dtype), np.asfortranarray(rng.integers(0, 3, shape).astype(dtype))):
        assert rule.supports(numpy_backend, x, axis, False) is None
        for keepdims in (False, True):
            out, saved = rule.forward(numpy_backend, x, axis=axis, keepdims=keepdims)
            expected = REDUCTIONS[name](x.astype(np.float64), axis=axis, keepdims=keepdims)
            assert out.dtype == x.dtype and out.shape == expected.shape
            size = np.abs(x).astype(np.float64).sum(axis=axis, keepdims=keepdims)
            assert (np.abs(out - expected) <= (16 * np.finfo(dtype).eps * size if name == "sum" else 0)).all()
            gout = rng.standard_normal(expected.shape).astype(dtype)
            composed = getattr(ops, name).rules("numpy")[-1]
            theirs = composed.vjp(numpy_backend, composed.forward(numpy_backend, x, axis=axis, keepdims=keepdims)[1], gout, (True,))[0]
            np.testing.assert_allclose(rule.vjp(numpy_backend, saved, gout, (True,))[0], theirs, rtol=4 * np.finfo(dtype).eps)


@pytest.mark.parametrize("place", [0, 3000, 70001])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf], ids=str)
@pytest.mark.parametrize("name", REDUCTIONS)
def test_reductions_of_what_is_no_finite_number(name, value, place, numpy_backend):
    x = np.zeros(70002, np.float32)
    x[place] = value
    for given, axis in ((x, (0,)), (x.reshape(-1, 2), (0,)), (x.reshape(-1, 6), (1,)), (x.reshape(2, -1), (1,))):
        np.testing.assert_array_equal(_rule(name).forward(numpy_backend, given, axis=axis, keepdims=False)[0],
                                      REDUCTIONS[name](given, axis=axis))


@pytest.mark.long
def test_the_sum_of_many_values_keeps_its_digits(rng, numpy_backend):
    x = rng.random(1 << 22).astype(np.float32)
    exact = math.fsum(x.tolist())
    for given, axis in ((x, (0,)), (x.reshape(-1, 1, 1), (0, 1, 2))):
        assert abs(float(_rule("sum").forward(numpy_backend, given, axis=axis, keepdims=False)[0]) - exact) < 1e-6 * exact
    columns = _rule("sum").forward(numpy_backend, x.reshape(-1, 2), axis=(0,), keepdims=False)[0]
    assert abs(float(columns.sum(dtype=np.float64)) - exact) < 1e-6 * exact
    running = _rule("cumulative_sum").forward(numpy_backend, x, axis=0)[0]
    np.testing.assert_allclose(running, np.cumsum(x, dtype=np.float64), rtol=1e-6)


@pytest.mark.parametrize("shape", [(LEAST_VALUES,), (3, 9001), (40000, 1), (70, 1023)], ids=str)
def test_running_sums(shape, rng, numpy_backend):
    x, rule = rng.standard_normal(shape).astype(np.float32), _rule("cumulative_sum")
    axis = len(shape) - 1
    assert rule.supports(numpy_backend, x, axis) is None and "last axis" in rule.supports(numpy_backend, x[None], 0)
    y, saved = rule.forward(numpy_backend, x, axis=axis)
    np.testing.assert_allclose(y, np.cumsum(x, axis=axis, dtype=np.float64), rtol=1e-5, atol=1e-4)
    gradient, = rule.vjp(numpy_backend, saved, x, (True,))
    np.testing.assert_allclose(gradient, np.cumsum(x[..., ::-1], axis=axis, dtype=np.float64)[..., ::-1], rtol=1e-5, atol=1e-4)


# Chains ---------------------------------------------------------------------------------------------

@pytest.fixture
def programs(numpy_backend, monkeypatch):
    """The programs of compiled steps as they are repeated, in order."""
    made, fuse = [], rewrites["numpy"]
    monkeypatch.setitem(rewrites, "numpy", lambda program: made.append(fuse(program)) or made[-1])
    return made


def _chains(programs):
    return [one for one in programs[-1].instructions if isinstance(one, Fused)]


def _same(compiled, step, *given):
    """The bits of a compiled step after its records are those of the step itself."""
    for _ in range(4):
        out = compiled(*given)
    for a, b in zip(duoln.tree.leaves(out), duoln.tree.leaves(step(*given)), strict=True):
        assert a.shape == b.shape and a.dtype == b.dtype and a.numpy().tobytes() == b.numpy().tobytes()


def _tensors(rng, dtype, *shapes):
    return [duoln.tensor(rng.standard_normal(shape).astype(dtype), "numpy") for shape in shapes]


def _large_step(a, b, x, y):
    def loss(p):
        h = ops.tanh(x * p["a"] + x) * ops.sigmoid(y)
        h = ops.gelu(h, approximate="tanh") + ops.elu(y, 0.5) * 2.0
        h = ops.where(h > 0.1, h, ops.square(h)) + p["b"]
        return ops.sum(h * h) + ops.mean(ops.huber(h, y, delta=0.3))

    return *duoln.value_and_grad(loss)({"a": a, "b": b}), 1.0 - x * 2.0


def _read_by_a_product(x, y, w):
    before = ops.exp(x) * y
    product = (before + 1.0) @ w
    return product * y - before, ops.sum(before)


def _read_inside_and_outside(x):
    y = ops.exp(x)
    z = y * y
    return y, z, ops.sum(z, axis=0), z > y


def _long(x):
    for _ in range(2 * MOST_STEPS):
        x = x * 0.5 + 0.25
    return x


def _sums(axis):
    return lambda x, y: ops.sum(ops.square(ops.sum(ops.square(x - y) * x, axis=axis)))


def _ends_in_a_sum(chains):
    return next(one for one in chains if one.sum).outputs == ()


_SQUARE = (150, 150)
STEPS = {  # a step, the shapes of its arguments, and what its chains are
    "many formulas": (_large_step, [(150, 201), (201,), (150, 201), (150, 201)],
                      lambda chains: sum(len(one.chain.steps) for one in chains) > 20),
    "values between formulas": (lambda x, y: ops.tanh(x * y + x) * ops.sigmoid(y), [(200, 100)] * 2,  # they are not written
                                lambda chains: [(len(one.chain.steps), len(one.outputs)) for one in chains] == [(5, 1)]),
    "read by a product": (_read_by_a_product, [(160, 160)] * 3, bool),
    "read inside and outside": (_read_inside_and_outside, [_SQUARE], bool),
    "a long one is cut": (_long, [_SQUARE], lambda chains: [len(one.chain.steps) for one in chains] == [MOST_STEPS] * 4),
    **{f"a sum over {axis}": (_sums(axis), [(130, 201)] * 2, _ends_in_a_sum) for axis in (None, 0, 1, (0, 1))},
    **{f"the gradient of a sum over {axis}": (lambda x, y, axis=axis: duoln.value_and_grad(_sums(axis))(x, y), [(130, 201)] * 2, bool)
       for axis in (None, 0, 1, (0, 1))},
}


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", STEPS)
def test_a_step_of_chains_has_the_bits_of_the_step(name, dtype, rng, programs):
    step, shapes, check = STEPS[name]
    _same(duoln.compile(step), step, *_tensors(rng, dtype, *shapes))
    assert check(_chains(programs)) and (name != "values between formulas" or len(programs[-1].instructions) == 1)


def test_a_chain_reads_its_inputs_before_an_update_overwrites_them(rng, programs):
    def step(p, m, v, g):
        rate, eps = (duoln.tensor(np.float32(value), "numpy") for value in (0.1, 1e-8))
        chain = ops.exp(p) * g + p
        p, m, v, _ = ops.adam_update(rate, eps, None, None, p, g, m, v, beta1=0.9, beta2=0.99, donate=True)
        return p, m, v, chain

    def given():
        return [duoln.tensor(np.abs(rng.standard_normal((200, 200))).astype(np.float32), "numpy") for _ in range(4)]

    compiled = duoln.compile(step)
    for _ in range(4):
        arrays = given()
        expected = step(*[duoln.tensor(x.numpy().copy(), "numpy") for x in arrays])
        for a, b in zip(compiled(*arrays), expected, strict=True):
            assert a.numpy().tobytes() == b.numpy().tobytes()
    assert _chains(programs)


def test_a_slot_is_used_again_only_after_its_last_reader(rng):
    x = rng.standard_normal(5000)
    steps = [("exp", (0,)), ("square", (1,)), ("add", (1, 2)), ("negative", (3,)), ("multiply", (4, 1)), ("subtract", (5, 2))]
    out, kept = Chain(1, steps, outputs=[6, 3])(x)
    e = np.exp(x)
    np.testing.assert_allclose(kept, e + e * e, rtol=1e-12)
    np.testing.assert_allclose(out, -(e + e * e) * e - e * e, rtol=1e-12)
