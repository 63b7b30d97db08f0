"""Weights without the means of their rows: values at every width, in every layout and part, for any number of threads."""

import numpy as np
import pytest

from duoln.kernels.recurrent import native as module
from duoln.kernels.recurrent.native import centred

pytestmark = pytest.mark.numerical


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("rows", [0, 1, 17, 33])
@pytest.mark.parametrize("width", [1, 3, 16, 31, 64, 67, 1600])
def test_each_part_of_each_row_loses_its_mean(rows, width, dtype, rng, monkeypatch):
    monkeypatch.setattr(module, "_CENTRED_IN_PARALLEL", 1)
    weight = (rng.standard_normal((rows, width)) + 3).astype(dtype)
    exact = weight.astype(np.longdouble)
    for cut in {width, 1, 2 * width // 3}:
        parts = [part - part.mean(axis=1, keepdims=True) for part in (exact[:, :cut], exact[:, cut:]) if part.shape[1]]
        for layout in (weight, np.ascontiguousarray(weight.T).T, np.repeat(weight, 2, axis=1)[:, ::2]):
            before = layout.copy()
            result = centred(layout, cut)
            assert result.dtype == dtype and result.shape == weight.shape and np.array_equal(layout, before)
            assert np.allclose(result, np.concatenate(parts, axis=1), rtol=0, atol=32 * np.finfo(dtype).eps)
    assert np.array_equal(centred(weight), centred(weight, width))
    expected = centred(weight, 1)
    assert centred(weight, 1, out=weight) is weight and np.array_equal(weight, expected)


def test_the_same_bits_for_any_number_of_threads(rng, same_bits):
    weight = rng.standard_normal((130, 1003), np.float32)
    same_bits(lambda: [centred(weight, 600)])


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_what_is_not_a_number_stays_in_its_part_of_its_row(value):
    weight = np.ones((20, 40), np.float32)
    weight[3, 5] = value
    strange = ~np.isfinite(centred(weight, 30))
    assert strange[3, :30].all() and strange.sum() == 30
