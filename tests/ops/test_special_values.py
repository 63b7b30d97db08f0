"""Infinity, NaN, zeros of both signs, large and small values and empty arrays."""

import math

import numpy as np
import pytest

import duoln
from duoln import ops
from duoln.errors import DtypeError, ShapeError
from duoln.plugins.handwriting.ops import soft_window

# As the array API standard says, beside NumPy in float64 -----------------------------------------------

V = np.float32([np.nan, np.inf, -np.inf, 0.0, -0.0, 1, -1, 0.5, -0.5, 2, -2, 3, -3, 1.5, -1.5, 2.5, -2.5, 88, -88, 1e20, -1e20, 3e38, -3e38,
                1e-40, -1e-45, 3.4028235e38, 0.1, -0.3, 1e-20, -1e-20, 0.75, -0.25, 7, -8, 2e-38])
X, Y = (a.reshape(-1) for a in np.meshgrid(V, V))


def check_same(result, expected, *arguments):
    """NaN at the same places, zeros of the same sign, and values that agree to 2e-5."""
    if expected.dtype != bool:
        with np.errstate(over="ignore", under="ignore"):
            expected = expected.astype(np.float32)
        zero = (expected == 0) & (result == 0)
        np.testing.assert_array_equal(np.signbit(result[zero]), np.signbit(expected[zero]), str([a[zero] for a in arguments]))
    np.testing.assert_allclose(result, expected, rtol=2e-5, atol=1e-37, err_msg=str(arguments))


@pytest.fixture(autouse=True)
def quiet():
    with np.errstate(all="ignore"):
        yield


def of_numpy(name):
    """NumPy's function; of infinities the standard takes the floor of the quotient, where NumPy has NaN or -1."""
    if name == "floor_divide":
        return lambda x, y: np.where(np.isinf(x) | np.isinf(y), np.floor(x / y), np.floor_divide(x, y))
    return getattr(np, {"pow": "power"}.get(name, name))


@pytest.mark.parametrize("name", ["abs", "ceil", "cos", "exp", "expm1", "floor", "isfinite", "isinf", "isnan", "log", "log1p", "negative", "round", "sign", "signbit", "sin", "sqrt", "square", "tanh"])
def test_functions_of_one_tensor(name, be):
    check_same(getattr(ops, name)(duoln.tensor(V, be)).numpy(), of_numpy(name)(V.astype(np.float64)), V)


BINARY = ["add", "divide", "equal", "greater", "greater_equal", "less", "less_equal", "multiply", "not_equal", "pow", "subtract",
          "floor_divide", "remainder", "hypot", "logaddexp"]


@pytest.mark.parametrize("name", BINARY)
def test_functions_of_two_tensors(name, be):
    check_same(getattr(ops, name)(duoln.tensor(X, be), duoln.tensor(Y, be)).numpy(), of_numpy(name)(X.astype(np.float64), Y.astype(np.float64)), X, Y)


@pytest.mark.parametrize("name", BINARY)
def test_functions_of_a_tensor_and_a_number(name, be):
    """A power has a finite exponent, or a base above 0."""
    of_ours, x = getattr(ops, name), duoln.tensor(V, be)
    for number in map(float, V):
        if name != "pow" or math.isfinite(number):
            check_same(of_ours(x, number).numpy(), of_numpy(name)(V.astype(np.float64), np.full(V.shape, number)), V)
        if name != "pow" or 0 < number < math.inf:
            check_same(of_ours(number, x).numpy(), of_numpy(name)(np.full(V.shape, number), V.astype(np.float64)), V)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_quotients_that_round_up(dtype, be):
    """The rounded x / y is an integer, and the exact one is below it; the results are those of Python."""
    x, y = np.float32([[1, 0.3, 2144, 5, -1e-7, 1e-7, 3e4, -3e4, -1, 6], [0.1, 0.1, 358, 0.7, 1, -1, 2e4, 2e4, 0.1, 0.2]])
    x, y = duoln.tensor(x, be, dtype), duoln.tensor(y, be, dtype)
    pairs = list(zip(x.numpy().tolist(), y.numpy().tolist(), strict=True))
    for result, expected in ((x // y, [a // b for a, b in pairs]), (x % y, [a % b for a, b in pairs]), (divmod(x, y)[1], [a % b for a, b in pairs])):
        assert result.dtype == dtype
        np.testing.assert_array_equal(result.numpy(), duoln.tensor(expected, be, dtype).numpy())
    assert (7 // y).tolist() == ops.floor_divide(7, y).tolist() and (np.float32(7) % y).tolist() == divmod(7, y)[1].tolist()


def test_maximum_and_minimum_of_nan(be):
    seen = np.isnan(X) | np.isnan(Y)
    x, y = duoln.tensor(X, be), duoln.tensor(Y, be)
    for function, of_host in ((ops.maximum, np.maximum), (ops.minimum, np.minimum)):
        np.testing.assert_array_equal(function(x, y).numpy(), of_host(X, Y))
        assert np.isnan(function(x, y).numpy()[seen]).all()


# NaN stays NaN, and what is known stays known ----------------------------------------------------------

INF, NAN = np.inf, np.nan


def tensor(x, be, dtype=np.float32):
    return duoln.tensor(np.asarray(x, dtype), be)


def gradients(function, be, *arrays):
    tensors = [tensor(a, be) for a in arrays]
    with np.errstate(all="ignore"):
        return [g.numpy() for g in duoln.value_and_grad(lambda p: ops.sum(function(*p)))(tensors)[1]]


def value(function, be, *arrays):
    with np.errstate(all="ignore"):
        return function(*(tensor(a, be) for a in arrays)).numpy()


def test_a_class_of_no_probability_that_is_no_target_adds_nothing(be):
    logits, targets = [[0, -INF, 1], [2, 0, -INF]], [[1, 0, 0], [0.5, 0.5, 0]]
    p = np.exp(np.float64([[0, -INF, 1], [2, 0, -INF]]))
    p /= p.sum(1, keepdims=True)
    np.testing.assert_allclose(value(ops.probability_cross_entropy, be, logits, targets),
                               [-np.log(p[0, 0]), -0.5 * np.log(p[1, 0] * p[1, 1])], rtol=1e-6)
    d_logits, d_targets = gradients(ops.probability_cross_entropy, be, logits, targets)
    np.testing.assert_allclose(d_logits, p - np.float64(targets), atol=1e-6)
    assert np.isfinite(d_targets).all() and d_targets[0, 2] > 0
    assert value(ops.probability_cross_entropy, be, logits, [[0.5, 0.5, 0], [0.5, 0.5, 0]])[0] == INF
    assert np.isnan(value(ops.probability_cross_entropy, be, [[0, NAN]], [[1, 0]])).all()


def test_a_class_of_weight_0_takes_out_its_infinity(be):
    labels, weight = tensor([1, 0], be, np.int32), tensor([1, 0, 0], be)
    logits = tensor([[0, -INF, 1], [0, -INF, 1]], be)
    np.testing.assert_allclose(ops.softmax_cross_entropy(logits, labels, class_weights=weight).numpy(), [0, np.log(1 + np.e)], rtol=1e-6)
    losses = ops.softmax_cross_entropy(logits, labels, class_weights=weight, label_smoothing=0.25).numpy()
    assert np.isfinite(losses).all()
    soft = ops.probability_cross_entropy(logits, tensor([[0, 1, 0], [1, 0, 0]], be), class_weights=weight).numpy()
    assert soft[0] == 0 and np.isfinite(soft).all()


def test_the_sum_of_exponentials(be):
    x = [[-INF, -INF], [0, NAN], [INF, 0], [NAN, -INF], [-INF, 3]]
    np.testing.assert_array_equal(value(ops.logsumexp, be, x), [-INF, NAN, INF, NAN, 3])
    [dx] = gradients(ops.logsumexp, be, x)
    np.testing.assert_array_equal(dx[[0, 4]], [[0, 0], [0, 1]])
    assert np.isnan(dx[1]).any() and np.isnan(dx[3]).any()


def test_binary_cross_entropy_of_infinite_logits(be):
    logits, targets = [INF, -INF, INF, -INF, NAN, NAN, 0], [1, 0, 0, 1, 0, 1, 0.5]
    np.testing.assert_allclose(value(ops.bce_with_logits, be, logits, targets), [0, 0, INF, INF, NAN, NAN, np.log(2)], rtol=1e-6)
    dx, _ = gradients(ops.bce_with_logits, be, logits, targets)
    np.testing.assert_array_equal(dx, [0, 0, 1, -1, NAN, NAN, 0])


def test_divergence_of_targets_that_are_no_probabilities(be):
    targets, log_predictions = [NAN, -0.5, 0, 1], [-1, -1, -INF, -2]
    np.testing.assert_array_equal(value(ops.kl_div, be, log_predictions, targets), [NAN, NAN, 0, 2])
    d_predictions, d_targets = gradients(ops.kl_div, be, log_predictions[2:], targets[2:])
    np.testing.assert_array_equal(d_predictions, [0, -1])
    np.testing.assert_array_equal(d_targets, [0, 3])


ACTIVATIONS = {"elu": (ops.elu, INF, -1, 1, 0), "erf": (ops.erf, 1, -1, 0, 0), "gelu": (ops.gelu, INF, 0, 1, 0),
               "gelu, tanh": (lambda x: ops.gelu(x, approximate="tanh"), INF, 0, 1, 0), "relu": (ops.relu, INF, 0, 1, 0),
               "leaky_relu": (lambda x: ops.leaky_relu(x, 0.5), INF, -INF, 1, 0.5), "sigmoid": (ops.sigmoid, 1, 0, 0, 0),
               "silu": (ops.silu, INF, 0, 1, 0), "softplus": (ops.softplus, INF, 0, 1, 0), "tanh": (ops.tanh, 1, -1, 0, 0)}


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_activations_and_slopes_of_infinity(name, be):
    function, above, below, slope_above, slope_below = ACTIVATIONS[name]
    np.testing.assert_array_equal(value(function, be, [INF, -INF, NAN]), [above, below, NAN])
    far = np.float32([200, 1e13, 1e20, 3e38, INF])
    for x, slope in ((far, slope_above), (-far, slope_below)):
        np.testing.assert_allclose(gradients(function, be, x)[0], np.full(5, slope), atol=1e-6)
    np.testing.assert_allclose(gradients(function, be, [INF, -INF])[0], [slope_above, slope_below], atol=1e-37)


@pytest.mark.parametrize("function", [
    ops.abs, ops.ceil, ops.cos, ops.exp, ops.expm1, ops.floor, ops.log, ops.log1p, ops.negative, ops.round, ops.rsqrt, ops.sign, ops.sin,
    ops.sqrt, ops.square, ops.max, ops.min, ops.mean, ops.prod, ops.std, ops.sum, ops.var, ops.vector_norm, ops.softmax, ops.log_softmax,
    ops.logsumexp, ops.global_norm, lambda x: ops.vector_norm(x, ord=3), lambda x: ops.vector_norm(x, ord=0.5), lambda x: ops.clip(x, 0, 1),
    lambda x: ops.maximum(x, 0.0), lambda x: ops.minimum(0.0, x), lambda x: ops.huber(x, ops.zeros_like(x)), lambda x: x ** 2.0,
    lambda x: ops.max_pool2d(ops.reshape(x, (1, 2, 2, 1)), size=2)], ids=range(35))
def test_nan_stays_nan(function, be):
    for x in ([NAN] * 4, [1, NAN, 2, 3], [NAN, 1, 2, 3], [3, 2, 1, NAN]):
        y = value(function, be, x)
        assert np.isnan(y).sum() == (np.isnan(x).sum() if y.shape == (4,) and function not in (ops.softmax, ops.log_softmax) else y.size)


@pytest.mark.parametrize("number", [-1000, 100, 1000])
def test_a_window_of_extreme_values(number, be):
    for place in range(3):
        raw = np.zeros((1, 3), np.float32)
        raw[0, place] = number
        kappa, characters = np.full((1, 1), 2, np.float32), np.ones((1, 4, 2), np.float32)
        function = lambda *arrays: soft_window(*arrays)[0]  # noqa: E731
        assert np.isfinite(value(function, be, raw, kappa, characters)).all()
        assert all(np.isfinite(g).all() for g in gradients(function, be, raw, kappa, characters))


def test_indices_that_are_none_and_tables_that_are_empty(be):
    none, table = tensor([], be, np.int32), [[1.0, 2], [3, 4]]
    for function in (lambda x: ops.take(x, none, axis=0), lambda x: ops.take(x, none, axis=1), lambda x: x[none],
                     lambda x: ops.take_along_axis(x, tensor(np.zeros((2, 0)), be, np.int32), axis=1), lambda x: ops.embedding(x, none)):
        [dx] = gradients(function, be, table)
        np.testing.assert_array_equal(dx, np.zeros((2, 2)))
    for shape, axis in (((0, 3), 0), ((3, 0), 1), ((0, 3), 1), ((3, 0), 0)):
        indices = none if not shape[axis] else tensor([0, 2], be, np.int32)
        assert gradients(lambda x, indices=indices, axis=axis: ops.take(x, indices, axis=axis), be, np.zeros(shape))[0].shape == shape
    with pytest.raises(ShapeError, match=r"expected no indices into an axis of 0 entries, found 2"):
        ops.take(tensor(np.zeros((0, 3)), be), tensor([0, 1], be, np.int32), axis=0)


@pytest.mark.parametrize("shape", [(0,), (0, 3), (3, 0), (2, 0, 3)])
def test_all_and_any_of_none(shape, be):
    x = tensor(np.zeros(shape), be, bool)
    for axis in (None, *range(len(shape)), tuple(range(len(shape)))):
        for keepdims in (False, True):
            np.testing.assert_array_equal(ops.all(x, axis=axis, keepdims=keepdims).numpy(), np.all(np.zeros(shape, bool), axis=axis, keepdims=keepdims))
            np.testing.assert_array_equal(ops.any(x, axis=axis, keepdims=keepdims).numpy(), np.any(np.zeros(shape, bool), axis=axis, keepdims=keepdims))


def test_the_gradient_of_a_new_axis(be):
    for key, x in ((None, [1.0, 2]), ((None, 0), [1.0, 2]), ((slice(None), None, slice(1, None)), np.ones((2, 3))), ((..., None), 2.0),
                   ((None, slice(1, None), None, ..., None, 0), np.ones((2, 3))), ((None, ..., None, slice(None, None, 2)), np.ones((2, 3)))):
        [dx] = gradients(lambda x, key=key: x[key] * 3.0, be, x)
        expected = np.zeros(np.shape(x))
        expected[key] = 3
        np.testing.assert_array_equal(dx, expected)


# Floats that become int32, ties, and NaN beside rows that have none -----------------------------------------

_NEAREST = {NAN: 0, INF: 2**31 - 1, -INF: -2**31, 3e9: 2**31 - 1, -3e9: -2**31}


@pytest.mark.parametrize("dtype, x", [(dtype, x) for dtype in ("float32", "bfloat16", "float16") for x in _NEAREST
                                      if dtype != "float16" or not math.isfinite(x)])
def test_a_float_that_int32_does_not_hold(be, dtype, x):
    of_float = duoln.tensor([1.0, x, -2.7], be, dtype=dtype)
    if be.name == "numpy":
        with pytest.raises(DtypeError, match=r"\[astype\] expected values that int32 holds, .* found "):
            of_float.astype("int32")
    else:
        assert of_float.astype("int32").numpy().tolist() == [1, _NEAREST[x], -2]
    ends = tensor([2147483520.0, -2147483648.0, 0.9, -0.9], be)
    assert ends.astype("int32").numpy().tolist() == [2147483520, -2147483648, 0, 0]


def _chosen(fn):
    """Chosen before a slope that is infinite, and after it."""
    return lambda x: ops.where(x > 0.0, fn(ops.where(x > 0.0, x, 1.0)), 0.0)


_WITH_NAN = [NAN, 1, NAN, 1, 2], [1, NAN, NAN, 1, 1]
_OF_ROWS = [[NAN, 1], [2, 2]]
SLOPES = {
    "powers of 0": (lambda x, y: x ** y, ([0, 0, 0, 0, 2], [-1, -0.5, 0, 3, 2]), ([-INF, -INF, 0, 0, 4], [0, 0, 0, 0, 4 * math.log(2)])),
    "powers of what is no number": (lambda x, y: x ** y, ([-2, NAN], [2, 2]), (None, [0, NAN])),
    "a maximum beside NaN": (ops.maximum, _WITH_NAN, ([1, 1, 1, 0.5, 1], [1, 1, 1, 0.5, 0])),
    "a minimum beside NaN": (ops.minimum, _WITH_NAN, ([1, 1, 1, 0.5, 0], [1, 1, 1, 0.5, 1])),
    "the largest of a row": (lambda x: ops.max(x, axis=1), (_OF_ROWS,), ([[0.5, 0.5], [0.5, 0.5]],)),
    "the least of a row": (lambda x: ops.min(x, axis=1), (_OF_ROWS,), ([[0.5, 0.5], [0.5, 0.5]],)),
    "a deviation of equal values": (lambda x: ops.std(x, axis=-1), ([[3, 3, 3]],), ([[0, 0, 0]],)),
    **{f"a product of {x}": (ops.prod, (x,), (slopes,)) for x,
       slopes in (([0, 2, 3], [6, 0, 0]), ([2, 3, 0], [0, 0, 6]), ([2, 0, 0, 3], [0] * 4))},
    **{f"{name} of what is chosen": (_chosen(fn), ([0, 4, -1],), ([0, slope, 0],))
       for name, fn, slope in (("log", ops.log, 0.25), ("sqrt", ops.sqrt, 0.25), ("rsqrt", lambda x: x ** -0.5, -1 / 16))},
    "huber": (lambda x: ops.huber(x, ops.zeros_like(x)), ([-INF, -1e30, -1, -0.5, 0, 0.5, 1, 1e30, INF],),
              ([-1, -1, -1, -0.5, 0, 0.5, 1, 1, 1],)),
}


@pytest.mark.parametrize("name", SLOPES)
def test_gradients_at_ties_zeros_and_nan(be, name):
    fn, inputs, slopes = SLOPES[name]
    for actual, expected in zip(gradients(fn, be, *inputs), slopes, strict=True):
        if expected is not None:
            np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("place", [0, 7, slice(None)])
def test_a_row_with_nan_reaches_no_second_row(be, place):
    x = np.random.default_rng(0).standard_normal((3, 33)).astype(np.float32)
    labels, eye = tensor([0, 1, 32], be, np.int32), ops.eye(33, backend=be)
    for fn in (ops.softmax, ops.log_softmax, ops.logsumexp, ops.layer_norm, ops.rms_norm,
               lambda x: ops.max(x, axis=-1), lambda x: ops.std(x, axis=-1), lambda x: ops.prod(x, axis=-1),
               *(lambda x, share=share: ops.softmax_cross_entropy(x, labels, label_smoothing=share) for share in (0.0, 0.1)),
               lambda x: ops.linear_cross_entropy(x, eye, ops.zeros(33, be), labels),
               *(lambda x, activation=activation: ops.activated_linear(x, eye, activation=activation)
                 for activation in ("relu", "tanh"))):
        broken = x.copy()
        broken[1, place] = NAN
        y, [dx] = value(fn, be, broken), gradients(fn, be, broken)
        assert np.isnan(y[1]).all()
        np.testing.assert_array_equal(y[[0, 2]], value(fn, be, x)[[0, 2]])
        np.testing.assert_array_equal(dx[[0, 2]], gradients(fn, be, x)[0][[0, 2]])


def test_places_of_nan_and_of_equal_values(be):
    x = tensor([[1, NAN, 3], [NAN, NAN, 5], [2, 1, 2]], be)
    assert ops.argmax(x, axis=1).numpy().tolist() == [1, 0, 0] and ops.argmin(x, axis=1).numpy().tolist() == [1, 0, 1]
