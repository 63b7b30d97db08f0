"""Reductions and pools: means of equal values, empty axes, 3,000,000 values against float64, and borders, which belong to no pixel."""

from contextlib import nullcontext

import numpy as np
import pytest
from conftest import STAND_IN, every_second

import duoln
from duoln import ops
from duoln.core import composed_only

# Means of equal values, and an empty axis --------------------------------------------------------------

COUNTS = [2, 3, 7, 41, 47, 49, 55, 61, 82, 98, 103, 121, 187, 191]
"""The product of some of these and the rounded reciprocal is not 1."""


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_the_mean_of_ones_is_1(be, dtype):
    for n in COUNTS:
        ones = duoln.tensor(np.ones((3, n), dtype), be)
        for mean in (ops.mean(ones), *ops.mean(ones, axis=-1), *ops.mean(ones.T, axis=0), ones[0].mean()):
            assert mean.item() == 1.0, n
        assert ops.var(ones * 3.0).item() == ops.std(ones * 3.0).item() == 0.0
        assert duoln.value_and_grad(ops.mean)(ones)[1].numpy()[0, 0] == np.ones((), dtype) / (3 * n)


@pytest.mark.parametrize("side", [5, 7, 11])
def test_the_average_of_a_window_of_ones_is_1(be, side):
    image = ops.ones((1, side, side, 2), be)
    assert ops.avg_pool2d(image, size=side).numpy().tolist() == [[[[1.0, 1.0]]]]
    assert ops.avg_pool1d(image[0], size=side).numpy().min() == 1.0


REDUCTIONS = ["argmax", "argmin", "max", "min", "sum", "prod", "mean", "logsumexp", "vector_norm", "std", "var"]
SHAPES = [((0, 3), 1), ((0, 3), -1), ((4, 0), 0), ((2, 0, 5), 2), ((2, 0, 5), 0), ((0, 0, 2), 2)]


@pytest.mark.parametrize(("name", "case"), every_second(REDUCTIONS, SHAPES))
def test_beside_an_empty_axis_a_reduction_has_no_values(be, name, case):
    shape, axis = case
    for keepdims in (False, True):
        y = getattr(ops, name)(ops.zeros(shape, be), axis=axis, keepdims=keepdims)
        assert y.shape == y.numpy().shape == np.sum(np.zeros(shape), axis=axis, keepdims=keepdims).shape
        assert y.dtype == ("int32" if name.startswith("arg") else "float32")
    if not name.startswith("arg"):
        _, gradient = duoln.value_and_grad(lambda x: ops.sum(getattr(ops, name)(x, axis=axis)))(ops.zeros(shape, be))
        assert gradient.shape == gradient.numpy().shape == shape


@pytest.mark.parametrize("name", ["softmax", "log_softmax", "cumulative_sum"])
def test_beside_an_empty_axis_there_is_nothing_to_normalise(be, name):
    for shape, axis in SHAPES:
        value, gradient = duoln.value_and_grad(lambda x, axis=axis: ops.sum(getattr(ops, name)(x, axis=axis)))(
            ops.zeros(shape, be))
        assert value.item() == 0.0 and gradient.numpy().shape == shape


# Long reductions ---------------------------------------------------------------------------------------

LENGTH = 3_000_000
"""Added one after another, so many equal values drift by up to 1.5 %: all roundings go one way."""
VALUES = {"random": lambda rng: rng.random(LENGTH, np.float32) + np.float32(0.5), "equal": lambda rng: np.full(LENGTH, 0.1, np.float32)}
RULES = {"chosen rule": nullcontext, "composed rule": composed_only}


def _rows(x):
    return ops.reshape(x, shape=(LENGTH // 3, 3))


def _ids(x):
    return ops.zeros((LENGTH // 3,), x.backend, "int32")


def _gradients_of_linear(x):
    start = {name: ops.ones(shape, x.backend) for name, shape in (("weight", (3, 2)), ("bias", (2,)))}
    d = ops.expand_dims(_rows(x)[:, 0], axis=-1)
    gradients = duoln.value_and_grad(lambda p: ops.sum(ops.linear(_rows(x), p["weight"], p["bias"]) * d))(start)[1]
    return ops.concat(gradients["weight"], ops.expand_dims(gradients["bias"], axis=0), axis=0)


def _gradient_of_embedding(x):
    table = ops.ones((5, 3), x.backend)
    return duoln.value_and_grad(lambda t: ops.sum(ops.embedding(t, _ids(x)) * _rows(x)))(table)[1][0]


def _gradient_of_broadcasting(x):
    return duoln.value_and_grad(lambda t: ops.sum(t * _rows(x)))(ops.ones((3,), x.backend))[1]


def _gradient_of_running_sums(x):
    return duoln.value_and_grad(lambda t: ops.sum(ops.cumulative_sum(t) * x))(x)[1]


def _gradient_of_convolution(x):
    image = ops.reshape(x[:1_000_000], shape=(1, 1000, 1000, 1))
    return duoln.value_and_grad(lambda w: ops.sum(ops.conv2d(image, w) * image))(ops.ones((1, 1, 1, 1), x.backend))[1]


def _rows_of(a):
    return a.reshape(-1, 3)


LONG = {
    "sum": (ops.sum, lambda a: a.sum()),
    "var": (lambda x: ops.var(x) + 1.0, lambda a: a.var() + 1),
    # A third of the values: its gradient needs twenty arrays of their size.
    "prod": (lambda x: ops.prod(1.0 + x[:1_000_000] * 1e-6),
             lambda a: np.prod((1 + a[:1_000_000].astype(np.float32) * np.float32(1e-6)).astype(np.float64))),
    "vector_norm": (ops.vector_norm, lambda a: np.sqrt((a * a).sum())),
    "vector_norm of order 1": (lambda x: ops.vector_norm(x, ord=1), lambda a: np.abs(a).sum()),
    "vector_norm of order 3": (lambda x: ops.vector_norm(x, ord=3), lambda a: (a ** 3).sum() ** (1 / 3)),
    "global_norm": (lambda x: ops.global_norm(x, x), lambda a: np.sqrt(2 * (a * a).sum())),
    "cumulative_sum": (ops.cumulative_sum, np.cumsum),
    "cumulative_sum of columns": (lambda x: ops.cumulative_sum(_rows(x), axis=0), lambda a: np.cumsum(_rows_of(a), axis=0)),
    "cumulative_sum, its gradient": (_gradient_of_running_sums, lambda a: np.cumsum(a[::-1])[::-1]),
    "logsumexp": (ops.logsumexp, lambda a: np.log(np.exp(a).sum())),
    "softmax": (ops.softmax, lambda a: np.exp(a) / np.exp(a).sum()),
    "log_softmax": (ops.log_softmax, lambda a: a - np.log(np.exp(a).sum())),
    "linear, its gradients": (_gradients_of_linear, lambda a: np.repeat(np.append(_rows_of(a).T @ _rows_of(a)[:, 0], _rows_of(a)[:, 0].sum())[:, None], 2, axis=1)),
    "embedding, its gradient": (_gradient_of_embedding, lambda a: _rows_of(a).sum(axis=0)),
    "broadcasting, its gradient": (_gradient_of_broadcasting, lambda a: _rows_of(a).sum(axis=0)),
    "conv2d, its gradient": (_gradient_of_convolution, lambda a: (a[:1_000_000] ** 2).sum()),
}


@pytest.mark.long
@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("values", VALUES)
@pytest.mark.parametrize("name", LONG)
def test_a_long_reduction_keeps_its_digits(request, name, values, rule, be, rng):
    if STAND_IN in request.node.name:
        pytest.skip("a GPU adds in parts, the stand-in as NumPy does")
    reduce, exact = LONG[name]
    x = VALUES[values](rng)
    expected = exact(x.astype(np.float64))
    with RULES[rule]():
        y = reduce(duoln.tensor(x, be)).numpy().astype(np.float64).reshape(np.shape(expected))
    assert np.abs(y / expected - 1).max() <= (1e-5 if values == "random" else 3e-4)


FILLS = {"ones": 1.0, "the lowest float": float(np.finfo(np.float32).min), "-infinity": -np.inf, "NaN": np.nan}


def of_windows(x, size, stride, padding):
    """The gradient of the sum: each window gives 1 to its greatest pixels, in equal shares."""
    rows, columns = x.shape
    dx = np.zeros(x.shape)
    for top in range(-padding, rows + padding - size + 1, stride):
        for left in range(-padding, columns + padding - size + 1, stride):
            place = slice(max(top, 0), top + size), slice(max(left, 0), left + size)
            window = x[place]
            greatest = ~(window < window.max())
            dx[place] += greatest / greatest.sum()
    return dx


@pytest.mark.parametrize("rules", ["fused", "composed"])
@pytest.mark.parametrize(("size", "stride", "padding"), [(2, 2, 1), (3, 2, 1), (3, 1, 1), (4, 3, 2), (2, 2, 0)])
@pytest.mark.parametrize("fill", FILLS)
def test_all_of_the_gradient_goes_to_pixels(be, fill, size, stride, padding, rules):
    images = np.full((2, 5, 6, 1), FILLS[fill], np.float32)
    images[1, 2, 3] = 2.0  # beside windows without it
    x = duoln.tensor(images, be)

    def total(x):
        return ops.sum(ops.max_pool2d(x, size=size, stride=stride, padding=padding))

    with np.errstate(invalid="ignore", over="ignore"):
        if rules == "composed":
            with composed_only():
                _, dx = duoln.value_and_grad(total)(x)
        else:
            _, dx = duoln.value_and_grad(total)(x)
        expected = np.stack([of_windows(image[..., 0], size, stride, padding) for image in images])
    np.testing.assert_allclose(dx.numpy()[..., 0], expected, rtol=1e-5)
