"""Weights without the means of their rows: values at every width, in every layout and part, for any number of threads."""

import numpy as np
import pytest

from duoln.kernels import native
from duoln.kernels.recurrent import weights as module
from duoln.kernels.recurrent.positions import Units
from duoln.kernels.recurrent.weights import Means

pytestmark = [pytest.mark.numerical, pytest.mark.skipif(native.machine_refusal() is not None, reason="nothing is compiled here")]

def _exact(weight, parts):
    """Each part of each row without its mean; the parts are numbers of columns, or each column's share."""
    ends = np.cumsum(parts) * weight.shape[1] // sum(parts)
    pieces = np.split(weight.astype(np.longdouble), ends[:-1], axis=1)
    return np.concatenate([piece - piece.mean(axis=1, keepdims=True) for piece in pieces if piece.shape[1]], axis=1)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("rows", [0, 1, 17, 33])
@pytest.mark.parametrize("hidden", [1, 3, 16, 31, 64, 400])
@pytest.mark.parametrize("parts", [(1,), (4,), (2, 1), (1, 1, 1, 1)], ids=str)
def test_each_part_of_each_row_loses_its_mean(parts, hidden, rows, dtype, rng, monkeypatch):
    """Also where the weight lies transposed, and where its gates are padded or lose their padding."""
    monkeypatch.setattr(module, "_IN_PARALLEL", 1)
    means, units = Means(parts), Units.of(sum(parts), hidden, np.dtype(dtype))
    weight = (rng.standard_normal((rows, sum(parts) * hidden)) + 3).astype(dtype)
    exact, close = _exact(weight, parts), {"rtol": 0, "atol": 32 * np.finfo(dtype).eps}
    for layout in (weight, np.asfortranarray(weight), np.repeat(weight, 2, axis=1)[:, ::2]):
        before = layout.copy()
        result = means.subtract_from(layout)
        assert result.dtype == dtype and np.allclose(result, exact, **close)
        padded = module.padded(units, means, layout)
        assert np.allclose(padded, units.filled(exact), **close) and np.array_equal(layout, before)
    if rows:
        transposed = means.without_of_transposed(units, units.filled(weight).T.copy(), units.stride, hidden)
        assert np.allclose(transposed.T, exact, **close)
    expected = means.subtract_from(weight)
    assert np.array_equal(means.subtract_from(weight, out=weight), expected) and np.array_equal(weight, expected)


@pytest.mark.parametrize("transposed", [False, True])
def test_the_same_bits_for_any_number_of_threads(transposed, rng, same_bits):
    weight = rng.standard_normal((530, 1003), np.float32)
    units = Units(1, 1003, 1008)
    same_bits(lambda: [module.padded(units, Means((1,)), np.asfortranarray(weight) if transposed else weight)])


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_what_is_not_a_number_stays_in_its_part_of_its_row(value, transposed):
    weight = np.ones((20, 48), np.float32)
    weight[3, 5] = value
    strange = ~np.isfinite(module.padded(Units(3, 16, 16), Means((2, 1)), np.asfortranarray(weight) if transposed else weight))
    assert strange[3, :32].all() and strange.sum() == 32
