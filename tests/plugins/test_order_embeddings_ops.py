"""The fused rule of the order violation against the composed one, with threads, and where few pairs have a gradient."""

import numpy as np
import pytest

from duoln.extend import native
from duoln.plugins.order_embeddings.ops import order_violation, order_violation_compiled
from duoln.testing import check_rule

compiles = pytest.mark.skipif(native.compiler() is None, reason="there is no C++ compiler")


@compiles
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("sizes", [(1, 1, 1), (3, 5, 7), (130, 70, 33), (5, 300, 1024), (2, 3, 100_001)], ids=str)
def test_the_fused_rule(sizes, dtype, threads, rng, numpy_backend):
    captions, images, width = sizes
    arrays = [np.abs(rng.standard_normal((rows, width))).astype(dtype) for rows in (captions, images)]
    check_rule(order_violation, order_violation_compiled, arrays, numpy_backend, length=max(sizes))


@compiles
@pytest.mark.parametrize("share", [0.0, 0.1, 0.9])
def test_the_fused_rule_of_pairs_without_a_gradient(share, threads, rng, numpy_backend):
    arrays = [rng.standard_normal((rows, 33)) for rows in (20, 40)]
    gout = rng.standard_normal((20, 40)) * (rng.random((20, 40)) < share)
    composed = order_violation.rules("numpy")[-1]
    fused, expected = (each.vjp(numpy_backend, each.forward(numpy_backend, *arrays)[1], gout, (True, True))
                       for each in (order_violation_compiled, composed))
    for a, b in zip(fused, expected, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-12, atol=1e-12)


@compiles
def test_the_compiled_rule_has_the_same_bits_for_any_number_of_threads(rng, numpy_backend, same_bits):
    captions, images = (rng.standard_normal((rows, 131)).astype(np.float32) for rows in (37, 22))

    def run():
        errors, saved = order_violation_compiled.forward(numpy_backend, captions, images)
        return errors, *order_violation_compiled.vjp(numpy_backend, saved, errors, (True, True))

    same_bits(run)


@compiles
@pytest.mark.parametrize("column", [0, 39])
def test_what_is_not_a_number_comes_out_where_it_belongs(column, numpy_backend):
    captions, images = np.ones((3, 40), np.float32), np.zeros((5, 40), np.float32)
    captions[1, column] = np.nan
    errors, saved = order_violation_compiled.forward(numpy_backend, captions, images)
    d_captions, d_images = order_violation_compiled.vjp(numpy_backend, saved, np.ones_like(errors), (True, True))
    assert np.isnan(errors[1]).all() and np.isfinite(errors[[0, 2]]).all()
    assert np.isnan(d_captions[1]).nonzero()[0].tolist() == [column] and np.isfinite(d_captions[[0, 2]]).all()
    assert np.isnan(d_images[:, column]).all() and np.isnan(d_images).sum() == 5
