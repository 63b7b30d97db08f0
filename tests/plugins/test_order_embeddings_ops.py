"""The fused rule of the order violation against the composed one, with threads, and where few pairs have a gradient."""

import numpy as np
import pytest

from duoln.plugins.order_embeddings.ops import order_violation
from duoln.plugins.order_embeddings.ops.numpy import order_violation_tiles
from duoln.testing import check_rule


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("sizes", [(1, 1, 1), (3, 5, 7), (130, 70, 33), (5, 300, 1024), (2, 3, 100_001)], ids=str)
def test_the_fused_rule(sizes, dtype, threads, rng, numpy_backend):
    captions, images, width = sizes
    arrays = [np.abs(rng.standard_normal((rows, width))).astype(dtype) for rows in (captions, images)]
    check_rule(order_violation, order_violation_tiles, arrays, {}, numpy_backend, length=max(sizes))


@pytest.mark.parametrize("share", [0.0, 0.1, 0.9])
def test_the_fused_rule_of_pairs_without_a_gradient(share, threads, rng, numpy_backend):
    arrays = [rng.standard_normal((rows, 33)) for rows in (20, 40)]
    gout = rng.standard_normal((20, 40)) * (rng.random((20, 40)) < share)
    composed = order_violation.rules("numpy")[-1]
    fused, expected = (rule.vjp(numpy_backend, rule.forward(numpy_backend, *arrays)[1], gout, (True, True))
                       for rule in (order_violation_tiles, composed))
    for a, b in zip(fused, expected, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-12, atol=1e-12)
