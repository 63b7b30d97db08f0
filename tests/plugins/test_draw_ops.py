"""DRAW's attention: grids that cover no pixel or all pixels, the fused glimpse, and refused arguments."""

import itertools

import numpy as np
import pytest

from duoln import ops
from duoln.core import value_and_grad
from duoln.errors import ShapeError, UsageError
from duoln.plugins.draw.ops import filterbank, gaussian_latent, write_then_read
from duoln.plugins.draw.ops.numpy import write_then_read_in_one_pass
from duoln.runtime import to_tensors
from duoln.testing import check_error, check_rule

# No stride, any stride; filters thinner than a pixel, wider than the image; a centre far outside; no strength.
EXTREMES = [np.array(v) for v in itertools.product((0.0, 1e9, -1e9), (0.3,), (-1e9, -60.0, 0.0, 60.0, 1e9),
                                                   (-1e9, 0.0, 1e9), (-1e9, 0.0, 60.0))]


@pytest.mark.parametrize("size", [2, 5])
def test_degenerate_grids_are_finite(size, be):
    where = np.stack(EXTREMES).astype(np.float32)
    tensor = to_tensors({"where": where}, be)

    def total(p):
        rows, columns = filterbank(p["where"], size=size, pixels=28)
        return ops.sum(rows * 0.5) + ops.sum(columns)

    value, gradient = value_and_grad(total)(tensor)
    assert np.isfinite(float(value)) and np.isfinite(gradient["where"].numpy()).all()
    rows, columns = (t.numpy() for t in filterbank(tensor["where"], size=size, pixels=28))
    assert np.isfinite(rows).all() and np.isfinite(columns).all() and columns.min() >= 0 and columns.max() <= 1
    assert columns.sum(axis=2).max() < 1 + 1e-5


def test_degenerate_glimpses_are_finite(be):
    where = np.stack(EXTREMES)
    rng = np.random.default_rng(1)
    n = len(where)
    arrays = {"canvas": rng.standard_normal((n, 9, 9)), "looked": np.concatenate((where, where[::-1], rng.standard_normal((n, 9))), 1)}
    image = to_tensors({"image": (rng.random((n, 9, 9)) < 0.5).astype(np.float32)}, be)["image"]

    def total(p):
        canvas, seen = write_then_read(p["canvas"], image, p["looked"], read=2, write=3)
        return ops.mean(ops.sigmoid(canvas)) + ops.mean(seen)

    value, gradients = value_and_grad(total)(to_tensors({k: a.astype(np.float32) for k, a in arrays.items()}, be))
    assert np.isfinite(float(value))
    assert all(np.isfinite(g.numpy()).all() for g in gradients.values())


def test_a_grid_outside_sees_nothing_and_a_wide_one_the_mean(numpy_backend):
    where = np.array([[20.0, 20.0, -4.0, 0.0, 0.0], [0.0, 0.0, 18.0, 0.0, 0.0]])
    tensor = to_tensors({"where": where}, numpy_backend)["where"]
    rows, columns = (t.numpy() for t in filterbank(tensor, size=3, pixels=28))
    assert not rows[0].any() and not columns[0].any()
    np.testing.assert_allclose(rows[1], 1 / 28, rtol=1e-4)


@pytest.mark.parametrize(("batch", "pixels", "read", "write", "dtype"), [
    (1, 28, 2, 5, "float32"), (3, 28, 5, 2, "float64"), (7, 5, 3, 4, "float32"), (128, 28, 2, 5, "float32")])
@pytest.mark.parametrize("centre", ["edge", "draw"])
def test_the_fused_glimpse(batch, pixels, read, write, dtype, centre, numpy_backend):
    rng = np.random.default_rng(batch)
    looked = 0.5 * rng.standard_normal((batch, 10 + write * write))
    if batch > 1:
        looked[0, :10] = 30 * np.sign(rng.standard_normal(10))  # beyond the range to which the numbers of a grid are clamped
    canvas = rng.standard_normal((batch, pixels, pixels))
    canvas[0, 0, :2] = -1000, 1000
    inputs = [canvas, rng.random((batch, pixels, pixels)), looked]
    check_rule(write_then_read, write_then_read_in_one_pass, [a.astype(dtype) for a in inputs],
               {"read": read, "write": write, "centre": centre}, numpy_backend, length=pixels ** 2)


def test_what_is_refused(numpy_backend):
    t = to_tensors({"where": np.zeros((2, 5)), "four": np.zeros((2, 4)), "canvas": np.zeros((2, 6, 6)),
                    "looked": np.zeros((2, 14)), "flat": np.zeros((2, 36))}, numpy_backend)
    check_error(ShapeError, lambda: filterbank(t["four"], size=2, pixels=6), "[filterbank]", "(batch, 5)", "(2, 4)")
    check_error(ShapeError, lambda: filterbank(t["where"], size=1, pixels=6), "[filterbank]", "at least 2", "found 1")
    check_error(UsageError, lambda: filterbank(t["where"], size=2, pixels=6, centre="left"), "'edge' or 'draw'", "'left'")
    check_error(ShapeError, lambda: write_then_read(t["flat"], t["flat"], t["looked"], read=2, write=2), "(2, 36)")
    check_error(ShapeError, lambda: write_then_read(t["canvas"], t["canvas"], t["looked"], read=2, write=3), "(2, 19)", "(2, 14)")
    check_error(ShapeError, lambda: write_then_read(t["canvas"], t["canvas"], t["looked"], read=1, write=2), "at least 2")
    check_error(UsageError, lambda: write_then_read(t["canvas"], t["canvas"], t["looked"], read=2, write=2, centre="x"), "'x'")
    check_error(ShapeError, lambda: gaussian_latent(t["where"], t["four"]), "[gaussian_latent]", "(2, 5)", "(2, 4)")
