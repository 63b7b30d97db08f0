"""DRAW's attention: grids that cover no pixel or all pixels, the fused glimpse, and refused arguments."""

import itertools

import numpy as np
import pytest

from duoln import ops
from duoln.core import value_and_grad
from duoln.errors import ShapeError
from duoln.extend import native
from duoln.kernels.native import processor
from duoln.plugins.draw.ops import filterbank, gaussian_latent, write_then_read
from duoln.plugins.draw.ops.glimpse import write_then_read_compiled
from duoln.plugins.draw.ops.latent import latent_compiled
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


compiles = pytest.mark.skipif(native.compiler() is None, reason="there is no C++ compiler")


@compiles
@pytest.mark.parametrize(("batch", "pixels", "read", "write", "dtype"), [
    (1, 28, 2, 5, "float32"), (3, 28, 5, 2, "float64"), (7, 5, 3, 4, "float32"), (1, 1, 2, 2, "float32"), (2, 16, 2, 3, "float64"),
    (2, 131, 4, 3, "float32"), (128, 28, 2, 5, "float32")])
def test_the_fused_glimpse(batch, pixels, read, write, dtype, numpy_backend):
    rng = np.random.default_rng(batch)
    looked = 0.5 * rng.standard_normal((batch, 10 + write * write))
    if batch > 1:
        looked[0, :10] = 30 * np.sign(rng.standard_normal(10))  # beyond the range to which the numbers of a grid are clamped
    canvas = rng.standard_normal((batch, pixels, pixels))
    canvas[0, 0, 0], canvas[0, -1, -1] = -1000, 1000
    inputs = [canvas, rng.random((batch, pixels, pixels)), looked]
    check_rule(write_then_read, write_then_read_compiled, [a.astype(dtype) for a in inputs], numpy_backend,
               {"read": read, "write": write}, length=pixels ** 2)


@compiles
def test_a_compiled_glimpse_has_the_same_bits_for_any_number_of_threads(numpy_backend, same_bits):
    rng = np.random.default_rng(0)
    inputs = [rng.standard_normal(shape).astype(np.float32) for shape in ((37, 28, 28), (37, 28, 28), (37, 35))]

    def run():
        out, saved = write_then_read_compiled.forward(numpy_backend, *inputs, read=2, write=5)
        return *out, *write_then_read_compiled.vjp(numpy_backend, saved, out, (True,) * 3)

    same_bits(run)


@compiles
@pytest.mark.skipif(not processor.own_platform().endswith("x86_64"), reason="other CPUs compute denormal numbers as fast as others")
def test_a_compiled_glimpse_has_no_denormal_numbers_and_its_caller_has(numpy_backend):
    """The patch is in a corner, so most products of two filters are below the least normal number."""
    rng = np.random.default_rng(0)
    canvas, image, looked = np.zeros((3, 28, 28), np.float32), rng.random((3, 28, 28), np.float32), np.zeros((3, 35), np.float32)
    looked[:, [0, 1, 5, 6]], looked[:, 10:] = -0.9, 1
    out, saved = write_then_read_compiled.forward(numpy_backend, canvas, image, looked, read=2, write=5)
    gradients = write_then_read_compiled.vjp(numpy_backend, saved, (np.zeros_like(out[0]), np.ones_like(out[1])), (True,) * 3)
    for array in (*out, saved.filters, saved.seen_rows, *gradients):
        assert array.any() and not ((np.abs(array) > 0) & (np.abs(array) < np.finfo(np.float32).tiny)).any()
    assert np.prod(np.array([1e-30, 1e-10], np.float32)) > 0  # in NumPy, after the call


@compiles
@pytest.mark.parametrize("where", [0, 1, 2])
def test_what_is_not_a_number_stays_in_its_row(where, numpy_backend):
    inputs = [np.full(shape, 0.5, np.float32) for shape in ((3, 9, 9), (3, 9, 9), (3, 14))]
    inputs[where][1].reshape(-1)[3] = np.nan
    out, saved = write_then_read_compiled.forward(numpy_backend, *inputs, read=2, write=2)
    gradients = write_then_read_compiled.vjp(numpy_backend, saved, out, (True,) * 3)
    for array in (*out, *gradients):
        assert np.isfinite(array[[0, 2]]).all()
    assert np.isnan(out[1][1]).any() and np.isnan(gradients[2][1]).any()


@compiles
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(("batch", "width"), [(1, 1), (3, 15), (2, 16), (5, 67), (128, 100)])
def test_the_compiled_latent_variables(batch, width, dtype, numpy_backend):
    rng = np.random.default_rng(width)
    inputs = [0.5 * rng.standard_normal(shape).astype(dtype) for shape in ((batch, 2 * width), (batch, width))]
    check_rule(gaussian_latent, latent_compiled, inputs, numpy_backend, length=width)
    check_rule(gaussian_latent, latent_compiled, [np.asfortranarray(a) for a in inputs], numpy_backend, length=width)


@compiles
@pytest.mark.parametrize("given", [(True, False), (False, True)])
@pytest.mark.parametrize(("op", "rule", "shapes", "attributes"), [
    (write_then_read, write_then_read_compiled, ((2, 6, 6), (2, 6, 6), (2, 19)), {"read": 2, "write": 3}),
    (gaussian_latent, latent_compiled, ((3, 14), (3, 7)), {})], ids=["glimpse", "latent"])
def test_a_compiled_rule_of_which_one_result_is_used(op, rule, shapes, attributes, given, rng, numpy_backend):
    inputs, gradients = [rng.standard_normal(shape) for shape in shapes], []
    for each in (rule, op.rules("numpy")[-1]):
        out, saved = each.forward(numpy_backend, *inputs, **attributes)
        full = each.vjp(numpy_backend, saved, tuple(o if use else None for o, use in zip(out, given, strict=True)), (True,) * len(inputs))
        gradients.append([np.zeros(a.shape) if g is None else g for g, a in zip(full, inputs, strict=True)])
    for ours, theirs in zip(*gradients, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-9, atol=1e-12)


@compiles
def test_latent_variables_that_are_not_finite_stay_in_their_place(numpy_backend):
    for place, value in ((1, np.nan), (5, np.nan), (1, np.inf), (5, np.inf), (5, -np.inf)):
        statistics = np.full((3, 8), 0.5, np.float32)
        statistics[1, place] = value
        with np.errstate(invalid="ignore"):
            both = [rule.forward(numpy_backend, statistics, np.ones((3, 4), np.float32))[0]
                    for rule in (latent_compiled, gaussian_latent.rules("numpy")[-1])]
        for ours, theirs in zip(*both, strict=True):
            np.testing.assert_allclose(ours, theirs, rtol=1e-6)


def test_what_is_refused(numpy_backend):
    t = to_tensors({"where": np.zeros((2, 5)), "canvas": np.zeros((2, 6, 6)), "looked": np.zeros((2, 14))}, numpy_backend)
    check_error(ShapeError, lambda: filterbank(t["where"], size=1, pixels=6), "[filterbank]", "at least 2", "found 1")
    check_error(ShapeError, lambda: write_then_read(t["canvas"], t["canvas"], t["looked"], read=2, write=3), "(2, 19)", "(2, 14)")
    check_error(ShapeError, lambda: write_then_read(t["canvas"], t["canvas"], t["looked"], read=1, write=2), "at least 2")
