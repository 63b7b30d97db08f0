"""Layer norm without epsilon: exact where a row has a spread, not a number where it has none."""

import numpy as np
import pytest

import duoln
from duoln import ops
from duoln.core import composed_only


def test_rows_with_and_without_a_spread(be):
    x = np.array([[1.0, 2.0, 3.0, 6.0], [5.0, 5.0, 5.0, 5.0]], np.float32)
    expected = (x[0] - x[0].mean()) / x[0].std()
    with np.errstate(invalid="ignore", divide="ignore"):
        for y in (_norm(x, be), _composed(x, be)):
            np.testing.assert_allclose(y[0], expected, rtol=1e-6)
            assert np.isnan(y[1]).all()


@pytest.mark.parametrize("width", [13, 15, 100, 1000])
def test_equal_values_have_no_spread_whatever_their_sum_rounds_to(width, be, rng):
    x = np.repeat(rng.standard_normal((50, 1)).astype(np.float32), width, axis=1)
    with np.errstate(invalid="ignore", divide="ignore"):
        assert np.isnan(_norm(x, be)).all() and np.isnan(_composed(x, be)).all()


def test_rms_norm_of_rows_with_and_without_zeros(be):
    x = np.array([[1.0, 2.0, 3.0, 6.0], [0.0, 0.0, 0.0, 0.0]], np.float32)
    with np.errstate(invalid="ignore", divide="ignore"):
        y = ops.rms_norm(duoln.tensor(x, be), eps=0.0).numpy()
    np.testing.assert_allclose(y[0], x[0] / np.sqrt((x[0] ** 2).mean()), rtol=1e-6)
    assert np.isnan(y[1]).all()


def _norm(x, be):
    return ops.layer_norm(duoln.tensor(x, be), eps=0.0).numpy()


def _composed(x, be):
    with composed_only():
        return _norm(x, be)
