"""Norms: large means, odd widths, constant rows, one huge value, and no epsilon.

In the gate for large means each norm normalises the same rows, which it takes from other places of its array. The
baseline is the formula in NumPy float32 over these rows; a norm may be twice as far from float64 as that.
"""

from collections.abc import Callable
from contextlib import nullcontext
from typing import NamedTuple

import numpy as np
import pytest

import duoln
from duoln import ops, runtime, tensor, value_and_grad
from duoln.core import composed_only
from duoln.errors import ShapeError
from duoln.testing import check_error

MEANS = (0.0, 1e2, 1e3, 1e4)
WIDTHS = (1, 7, 32, 33, 512, 1000, 4096, 8193)
EPS = np.float32(1e-5)


class Kind(NamedTuple):
    """A norm, and how 64 rows stand in its array."""

    norm: Callable
    place: Callable[[np.ndarray], np.ndarray]
    rows: Callable[[np.ndarray, int], np.ndarray]
    centres: bool = True


def _share(width):
    """How many values of a row stand beside each other in a group of channels."""
    return next(n for n in (4, 3, 7, 1) if width % n == 0)


def _in_groups(x):
    share = _share(x.shape[1])
    return np.ascontiguousarray(x.reshape(16, 4, -1, share).transpose(0, 2, 1, 3).reshape(16, -1, 4 * share))


def _of_groups(y, width):
    share = _share(width)
    return y.reshape(16, -1, 4, share).transpose(0, 2, 1, 3).reshape(64, width)


def _in_columns(x):
    """The first and the last axis are those of a row."""
    share = _share(x.shape[1])
    return np.ascontiguousarray(x.reshape(64, -1, share).transpose(1, 0, 2))


def _of_columns(y, width):
    return y.transpose(1, 0, 2).reshape(64, width)


def _by_variance(norm):
    def normalised(x):
        centred = x - ops.mean(x, axis=-1, keepdims=True)
        return (centred - ops.mean(centred, axis=-1, keepdims=True)) / ops.sqrt(norm(x) + float(EPS))
    return normalised


KINDS = {
    "layer_norm": Kind(ops.layer_norm, lambda x: x, lambda y, width: y),
    "batch_norm": Kind(lambda x, **eps: ops.batch_norm(x, **eps)[0], lambda x: np.ascontiguousarray(x.T), lambda y, width: y.T),
    "var": Kind(_by_variance(lambda x: ops.var(x, axis=-1, keepdims=True)), lambda x: x, lambda y, width: y),
    "std": Kind(_by_variance(lambda x: ops.square(ops.std(x, axis=-1, keepdims=True))), lambda x: x, lambda y, width: y),
    "rms_norm": Kind(ops.rms_norm, lambda x: x, lambda y, width: y, centres=False),
    "add_layer_norm": Kind(lambda x, **eps: ops.add_layer_norm(x * 0.25, x * 0.75, **eps)[0], lambda x: x, lambda y, width: y),
    "add_rms_norm": Kind(lambda x, **eps: ops.add_rms_norm(x * 0.25, x * 0.75, **eps)[0], lambda x: x, lambda y, width: y, centres=False),
    "rms_norm over two axes": Kind(lambda x, **eps: ops.rms_norm(x, axis=(0, 2), **eps), _in_columns, _of_columns, centres=False),
    "layer_norm over the first axis": Kind(lambda x, **eps: ops.layer_norm(x, axis=0, **eps), lambda x: np.ascontiguousarray(x.T), lambda y, width: y.T),
    "layer_norm over two axes": Kind(lambda x, **eps: ops.layer_norm(x, axis=(0, 2), **eps), _in_columns, _of_columns),
    "group_norm": Kind(lambda x, **eps: ops.group_norm(x, groups=4, **eps), _in_groups, _of_groups),
    "instance_norm": Kind(ops.instance_norm, lambda x: np.ascontiguousarray(x.reshape(16, 4, -1).transpose(0, 2, 1)),
                          lambda y, width: y.transpose(0, 2, 1).reshape(64, width)),
}
NORMALISED = [(kind, width) for kind in KINDS for width in WIDTHS if width > 1 or kind not in ("batch_norm", "instance_norm")]
"""Which norm of how many values; a batch of one row and an image of one position are refused."""


def _formula(x, centres):
    """In the dtype of `x`."""
    centred = x - x.mean(-1, keepdims=True) if centres else x
    return centred / np.sqrt((centred ** 2).mean(-1, keepdims=True) + x.dtype.type(EPS))


def _check(kind, be, x, extra):
    if kind == "batch_norm" and be.name == "cupy":
        pytest.skip("a GPU adds columns in parts, the stand-in as NumPy does")
    norm, place, rows, centres = KINDS[kind]
    exact = _formula(x.astype(np.float64), centres)
    error = np.abs(_formula(x, centres) - exact).max()
    placed = tensor(place(x), be)
    with composed_only():
        composed = norm(placed).numpy()
    for y in (composed, norm(placed).numpy()):
        assert np.isfinite(y).all()
        assert np.abs(rows(y, x.shape[1]) - exact).max() <= 2 * error + extra, f"float32 in NumPy has {error:.2e}"


@pytest.mark.few
@pytest.mark.parametrize("mean", MEANS)
@pytest.mark.parametrize(("kind", "width"), NORMALISED)
def test_large_means(kind, mean, width, be, rng):
    _check(kind, be, (rng.standard_normal((64, width)) + mean).astype(np.float32), 4e-7)


@pytest.mark.parametrize(("kind", "width"), NORMALISED)
def test_constant_rows(kind, width, be):
    x = np.repeat(np.tile(np.array([0.0, 1.0, -3.7, 1e4], np.float32), 16)[:, None], width, axis=1)
    _check(kind, be, x, 1e-6)


@pytest.mark.parametrize("eps", [1e-5, 1e-15, 0.0])
@pytest.mark.parametrize("kind", KINDS)
def test_values_whose_squares_float32_does_not_hold(kind, eps, be, rng):
    """Values and gradients of rows near 1e-35, 1e-25, 1, 1e20 and 1e28 are those of float64."""
    if kind in ("var", "std"):
        return  # a variance is itself too large for float32
    norm, place, *_ = KINDS[kind]
    weights, rows = place(rng.standard_normal((64, 33)).astype(np.float32)), rng.standard_normal((64, 33))

    def run(x, be):
        def loss(x):
            y = norm(x, eps=eps)
            return ops.sum(y * tensor(weights.astype(x.dtype), be)), y
        with np.errstate(over="ignore"):  # in the variance that a batch norm returns
            (_, y), gradient = value_and_grad(loss, has_aux=True)(tensor(place(x), be))
        return y.numpy(), gradient.numpy()

    for size in (1e-35, 1e-25, 1e-19, 1.0, 1e19, 1e20, 1e28):
        x = (rows * size).astype(np.float32)
        with composed_only():
            exact, composed = run(x.astype(np.float64), runtime.backend("numpy")), run(x, be)
        for y, gradient in (composed, run(x, be)):
            assert np.abs(y - exact[0]).max() <= 1e-5, size
            assert np.abs(gradient - exact[1]).max() <= 1e-4 * np.abs(exact[1]).max(), size


@pytest.mark.few
@pytest.mark.parametrize("width", WIDTHS[1:])
@pytest.mark.parametrize("kind", KINDS)
def test_one_huge_value(kind, width, be, rng):
    x = rng.standard_normal((64, width)).astype(np.float32)
    x[:, width // 2] = 1e15
    _check(kind, be, x, 1e-5 * np.sqrt(width))


@pytest.mark.parametrize("kind", KINDS)
def test_gradients_of_constant_rows_and_of_large_means(kind, be, rng):
    """Where nothing varies, the gradient is that of x / sqrt(eps) but for its mean; it is finite at all means."""
    norm, place, rows, centres = KINDS[kind]
    weights = rng.standard_normal((64, 33)).astype(np.float32)
    x = np.repeat(np.tile(np.array([0.0, 1.0, -3.7, 1e4], np.float32), 16)[:, None], 33, axis=1)

    def gradient(x):
        value = value_and_grad(lambda x: ops.sum(norm(x) * tensor(place(weights), be)))(tensor(place(x), be))[1]
        return rows(value.numpy(), 33)

    if centres:
        expected = (weights - weights.mean(-1, keepdims=True)) / np.sqrt(EPS)
        np.testing.assert_allclose(gradient(x), expected, rtol=1e-4, atol=1e-3)
    else:
        np.testing.assert_allclose(gradient(x)[::4], weights[::4] / np.sqrt(EPS), rtol=1e-5)
    for mean in MEANS:
        assert np.isfinite(gradient((rng.standard_normal((64, 33)) + mean).astype(np.float32))).all()


def test_wrong_axes_and_shapes_are_named(be):
    x, gain = tensor(np.ones((2, 3, 4), np.float32), be), tensor(np.ones((4, 3), np.float32), be)
    check_error(ShapeError, lambda: ops.layer_norm(x, gain, axis=(1, 2)), "[layer_norm] gain: expected shape (3, 4) for axes (1, 2) of (2, 3, 4), found (4, 3)")
    check_error(ShapeError, lambda: ops.layer_norm(x, axis=()), "[layer_norm] axis: expected at least one axis, found ()")
    check_error(ShapeError, lambda: ops.rms_norm(x, axis=(1, -2)), "[rms_norm] expected different axes, found (1, -2)")
    check_error(ShapeError, lambda: ops.group_norm(x, groups=3), "[group_norm] groups: expected a divisor of the channels, found 3 for 4")
    check_error(ShapeError, lambda: ops.instance_norm(x[0]), "[instance_norm] expected at least 3 axes, found shape (3, 4)")
    check_error(ShapeError, lambda: ops.instance_norm(x[:, :1]), "[instance_norm] expected at least 2 positions to normalise over, found shape (2, 1, 4)")
    for name, call in (("rms_norm", lambda: ops.rms_norm(x[:, :, :0])), ("layer_norm", lambda: ops.layer_norm(x[:, :0], axis=(1, 2))),
                       ("layer_norm", lambda: ops.layer_norm(x[:, :, :0])),
                       ("group_norm", lambda: ops.group_norm(x[:, :0], groups=2)), ("instance_norm", lambda: ops.instance_norm(x[:, :, :0]))):
        check_error(ShapeError, call, f"[{name}] expected at least one value ")


# Without epsilon ---------------------------------------------------------------------------------------

WITHOUT = {"layer": (ops.layer_norm, 5.0, lambda x: (x - x.mean()) / x.std()), "rms": (ops.rms_norm, 0.0, lambda x: x / np.sqrt((x ** 2).mean()))}


@pytest.mark.parametrize("kind", WITHOUT)
def test_rows_with_and_without_a_spread(kind, be):
    op, value, formula = WITHOUT[kind]
    x = np.array([[1.0, 2.0, 3.0, 6.0], [value] * 4], np.float32)
    for y in _without_epsilon(x, be, op):
        np.testing.assert_allclose(y[0], formula(x[0]), rtol=1e-6)
        assert np.isnan(y[1]).all()


@pytest.mark.parametrize("width", [13, 15, 100, 1000])
def test_equal_values_have_no_spread_whatever_their_sum_rounds_to(width, be, rng):
    x = np.repeat(rng.standard_normal((50, 1)).astype(np.float32), width, axis=1)
    assert all(np.isnan(y).all() for y in _without_epsilon(x, be))


def _without_epsilon(x, be, op=ops.layer_norm):
    """By the chosen rule and by the composed one."""
    with np.errstate(invalid="ignore", divide="ignore"):
        for rules in (nullcontext, composed_only):
            with rules():
                yield op(tensor(x, be), eps=0.0).numpy()


NAMES = ("add_layer_norm", "add_rms_norm")
PLAIN = {"add_layer_norm": ops.layer_norm, "add_rms_norm": ops.rms_norm}


def _loss_of(outputs, weights, used):
    terms = [ops.sum(out * w) for k, (out, w) in enumerate(zip(outputs, weights, strict=True)) if k in used]
    return sum(terms[1:], start=terms[0])


def _sums(name, be, rng, dtype="float64"):
    shapes = ((3, 5), (3, 5), (5,), (5,))[:4 if name == "add_layer_norm" else 3]
    return [duoln.tensor(rng.standard_normal(s), be, dtype=dtype) for s in shapes]


@pytest.mark.parametrize("used", [(0,), (1,), (0, 1)])
@pytest.mark.parametrize("name", NAMES)
def test_gradients_of_either_output_are_those_of_two_operators(name, used, numpy_backend, rng):
    be = numpy_backend
    params = _sums(name, be, rng)
    weights = [duoln.tensor(rng.standard_normal((3, 5)), be, dtype="float64") for _ in range(2)]

    def fused(p):
        return _loss_of(getattr(ops, name)(*p), weights, used)

    def apart(p):
        total = p[0] + p[1]
        return _loss_of((PLAIN[name](total, *p[2:]), total), weights, used)

    value, gradients = value_and_grad(fused)(params)
    expected, expected_gradients = value_and_grad(apart)(params)
    np.testing.assert_allclose(value.numpy(), expected.numpy(), rtol=1e-13)
    for mine, theirs in zip(gradients, expected_gradients, strict=True):
        np.testing.assert_allclose(mine.numpy(), theirs.numpy(), rtol=1e-11, atol=1e-13)
    np.testing.assert_array_equal(gradients[0].numpy(), gradients[1].numpy())


@pytest.mark.parametrize("name", NAMES)
def test_the_gradient_that_both_summands_share_is_not_overwritten(name, be, rng):
    """One summand is used once more, and one tensor is both summands: a sum in place would change the second one."""
    x, r = (duoln.tensor(rng.standard_normal((3, 5)).astype(np.float32), be) for _ in range(2))

    def loss(p):
        y, total = getattr(ops, name)(*p)
        return ops.sum(y * y * y) + ops.sum(total * total) + ops.sum(p[0]) * 3.0

    dx, dr = value_and_grad(loss)([x, r])[1]
    np.testing.assert_allclose(dx.numpy(), dr.numpy() + 3.0, rtol=1e-5, atol=1e-5)
    twice = value_and_grad(lambda p: ops.sum(getattr(ops, name)(p, p)[1]))(x)[1]
    np.testing.assert_array_equal(twice.numpy(), np.full((3, 5), 2.0, np.float32))


@pytest.mark.parametrize("name", NAMES)
def test_a_stream_of_float32_stays_float32_beside_16_bits(name, numpy_backend, rng):
    """The sum is stored as the residual is, y as `x` is; y is that of the sum before it is rounded."""
    be = numpy_backend
    narrow, wide = _sums(name, be, rng, "bfloat16")[0], _sums(name, be, rng, "float32")[1]
    y, total = getattr(ops, name)(narrow, wide)
    assert (y.dtype, total.dtype) == ("bfloat16", "float32")
    exact = narrow.astype("float32") + wide
    np.testing.assert_array_equal(total.numpy(), exact.numpy())
    y, total = getattr(ops, name)(wide, narrow)
    assert (y.dtype, total.dtype) == ("float32", "bfloat16")
    np.testing.assert_allclose(y.numpy(), PLAIN[name](exact).numpy(), rtol=1e-5, atol=1e-6)
    gradients = value_and_grad(lambda p: ops.sum(getattr(ops, name)(*p)[1].astype("float32")))([narrow, wide])[1]
    assert [g.dtype for g in gradients] == ["bfloat16", "float32"]
