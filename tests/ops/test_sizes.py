"""Large and small values, whose squares and products overflow and vanish: results and gradients beside float64."""

import numpy as np
import pytest

import duoln
from duoln import ops, optim

SIZES = (1e-30, 1e-25, 1e-20, 1.0, 1e20, 1e25, 1e30)


def gradients(function, be, *arrays):
    """The gradients of the sum of a function's results by all its arguments."""
    tensors = [duoln.tensor(np.float32(a), be) for a in arrays]
    return [g.numpy() for g in duoln.value_and_grad(lambda p: ops.sum(function(*p)))(tensors)[1]]


def check_close(result, expected):
    np.testing.assert_allclose(np.asarray(result, np.float64), expected, rtol=3e-6, atol=1e-44)


@pytest.mark.parametrize("size", SIZES)
def test_quotients(be, size):
    x, y = np.float32([3 * size, 0, -size]), np.float32([2 * size, size, 4 * size])
    dx, dy = gradients(ops.divide, be, x, y)
    check_close(dx, 1 / y.astype(np.float64))
    check_close(dy, -x / y.astype(np.float64) ** 2)


@pytest.mark.parametrize("size", [1e-20, 1e-12, 1.0, 1e20, 1e25])
def test_reciprocal_roots(be, size):
    x = np.float32([size, 3 * size])
    scale = np.float32(size * np.sqrt(size))  # a small slope stands beside a large gradient
    [dx] = gradients(lambda x: ops.rsqrt(x) * float(scale), be, x)
    check_close(dx, -0.5 * scale * x.astype(np.float64) ** -1.5)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("order", [-2, -1, -0.5, 0.5, 1, 2, 3, 4.5])
def test_vector_norms(be, size, order):
    x = np.float32([[3, -4, 1], [2, 2, -5]]) * np.float32(size)
    wide = np.abs(x.astype(np.float64))
    expected = np.sum(wide**order, axis=1) ** (1 / order)
    check_close(ops.vector_norm(duoln.tensor(x, be), axis=1, ord=order).numpy(), expected)
    [dx] = gradients(lambda x: ops.vector_norm(x, axis=1, ord=order), be, x)
    check_close(dx, np.sign(x) * (wide / expected[:, None]) ** (order - 1))


@pytest.mark.parametrize("order", [-np.inf, -2, -1, -0.5, 0, 0.5, 1, 2, 3, np.inf])
def test_vector_norms_of_zeros_and_of_what_is_no_number(be, order):
    x = np.float32([[0, 4, 1], [0, 0, 0], [np.nan, 1, 0], [np.inf, 1, 2]])
    result = ops.vector_norm(duoln.tensor(x, be), axis=1, ord=order).numpy()
    with np.errstate(all="ignore"):
        expected = np.linalg.norm(x.astype(np.float64), axis=1, ord=order)
    np.testing.assert_allclose(result, expected, rtol=1e-6)
    [dx] = gradients(lambda x: ops.vector_norm(x, axis=1, ord=order), be, x[:2])
    assert np.isfinite(dx).all() and (dx[1] == 0).all()
    assert dx[0, 0] == 0 or order == -np.inf


def test_norms_of_no_values(be):
    x = np.zeros((2, 0), np.float32)
    for order in (0, 0.5, 1, 2, 3):
        assert ops.vector_norm(duoln.tensor(x, be), axis=1, ord=order).numpy().tolist() == [0, 0]
    assert ops.global_norm(duoln.tensor(x, be)).item() == 0


@pytest.mark.parametrize("size", SIZES)
def test_norms_of_all_gradients_and_clipping(be, size):
    g = {"a": np.float32([3 * size]), "b": np.float32([[4 * size, 0]])}
    tensors = {name: duoln.tensor(value, be) for name, value in g.items()}
    check_close(optim.global_norm(tensors).numpy(), 5 * size)
    da, db = gradients(ops.global_norm, be, *g.values())
    check_close(da, [0.6])
    check_close(db, [[0.8, 0]])
    limit = 5 * size / 10
    clipped = optim.clip_global_norm(limit)(tensors)
    check_close(clipped["a"].numpy(), g["a"] / 10)
    check_close(clipped["b"].numpy(), g["b"] / 10)
    clipped = optim.clip_each_norm(limit)(tensors)
    check_close(clipped["a"].numpy(), [limit])
    check_close(clipped["b"].numpy(), [[limit, 0]])
    for clip in (optim.clip_global_norm(50 * size), optim.clip_each_norm(50 * size)):
        np.testing.assert_array_equal(clip(tensors)["a"].numpy(), g["a"])


def test_huge_gradients_are_clipped_to_a_plain_limit(be):
    g = {"w": duoln.tensor(np.float32([3e20, 4e20]), be)}
    for clip in (optim.clip_global_norm(5.0), optim.clip_each_norm(5.0)):
        check_close(clip(g)["w"].numpy(), [3, 4])


def test_the_norm_of_zeros_has_no_gradient_and_that_of_nan_is_nan(be):
    da, db = gradients(ops.global_norm, be, np.zeros(2), np.zeros((1, 3)))
    assert not da.any() and not db.any()
    assert np.isnan(ops.global_norm(duoln.tensor(np.float32([1, np.nan]), be), duoln.tensor(np.float32([2]), be)).item())
    assert ops.global_norm(duoln.tensor(np.float32([1, -np.inf]), be)).item() == np.inf


@pytest.mark.parametrize("size", SIZES)
def test_weight_norm(be, size):
    v, gain = np.float32([[3, 0], [4, 0]]) * np.float32(size), np.float32([10, 2])
    w = ops.weight_norm(duoln.tensor(v, be), duoln.tensor(gain, be))
    check_close(w.numpy(), [[6, 0], [8, 0]])
    dv, d_gain = gradients(lambda v, gain: ops.weight_norm(v, gain)[0], be, v, gain)
    check_close(dv[:, 0], np.array([16, -12]) / (25 * float(np.float32(size))) * 2)
    assert not dv[:, 1].any()
    check_close(d_gain, [0.6, 0])
