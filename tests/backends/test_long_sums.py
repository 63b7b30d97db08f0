"""Sums of many values keep their digits along every axis and in every memory layout.

A library adds the values of the axis that is contiguous in pairs or in parts, and those of another axis one after another.
"""

import numpy as np
import pytest
from conftest import STAND_IN

CASES = [((1 << 18, 4), 0), ((1 << 18, 1), 0), ((4, 1 << 18), 1), ((1 << 18, 4), None), ((1 << 18, 4), (0, 1)), ((3, 1 << 18, 2), 1),
         ((3, 1 << 18, 2), (0, 1)), ((3, 1 << 18, 2), (0, -2)), ((64, 64, 64, 3), (0, 1, 2)), ((4097, 5, 2), (0, 2)), ((5001, 3), -2)]
LAYOUTS = {"C": lambda x: x, "Fortran": np.asfortranarray, "every second row": lambda x: np.repeat(x, 2, axis=0)[::2],
           "backward": lambda x: x[::-1].copy()[::-1], "broadcast": lambda x: np.broadcast_to(x[:1], x.shape),
           "broadcast in the last axis": lambda x: np.broadcast_to(x[..., :1], x.shape)}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("keepdims", [False, True])
@pytest.mark.parametrize("shape, axis", CASES, ids=str)
def test_the_rounding_of_a_long_sum_stays_small(request, be, shape, axis, keepdims, layout, rng):
    """Positive values: their roundings do not cancel. Those of equal values are even the same for a while."""
    if STAND_IN in request.node.name:
        pytest.skip("a GPU adds in parts, the stand-in as NumPy does")
    x = LAYOUTS[layout](rng.random(shape, np.float32))
    given = x if be.name == "numpy" else be.asarray(x)
    for name in ("sum", "mean"):
        exact = getattr(np, name)(x.astype(np.float64), axis=axis, keepdims=keepdims)
        got = be.to_numpy(getattr(be, name)(given, axis=axis, keepdims=keepdims))
        assert got.dtype == np.float32 and got.shape == exact.shape
        assert np.abs(got / exact - 1).max() <= (2e-5 if _sums_equal_values(layout, axis, x.ndim) else 1e-6)


def _sums_equal_values(layout, axis, ndim):
    axes = range(ndim) if axis is None else np.lib.array_utils.normalize_axis_tuple(axis, ndim)
    return {"broadcast": 0, "broadcast in the last axis": ndim - 1}.get(layout) in axes


@pytest.mark.parametrize("shape, axis", [((5000, 0), 0), ((5000, 0, 3), (0, 1)), ((0, 5000, 3), 1), ((5000, 3), ())], ids=str)
def test_a_long_axis_beside_an_empty_one(be, shape, axis, rng):
    x = rng.random(shape, np.float32)
    np.testing.assert_array_equal(be.to_numpy(be.sum(be.asarray(x), axis=axis)), x.sum(axis=axis))


def test_whole_numbers_and_truth_values_are_counted_exactly(be, rng):
    flags = rng.random((1 << 18, 3)) < 0.5
    for values in (flags, flags.astype(np.int32)):
        np.testing.assert_array_equal(be.to_numpy(be.sum(be.asarray(values), axis=0)), flags.sum(axis=0))
