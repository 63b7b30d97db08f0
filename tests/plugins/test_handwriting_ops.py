"""What the table of cases cannot show of the operators of handwriting: extremes of the density, and wrong arrays."""

import numpy as np
import pytest

from duoln import ops, tensor, value_and_grad
from duoln.plugins.handwriting.ops import mixture_density


def _output(r, s, offset, count=20):
    """One row of network output whose components all have this r and log deviation, and means at `offset`."""
    parts = [np.zeros(1), np.zeros(count), *(np.full(count, v) for v in (offset, -offset, s, s, r))]
    return np.concatenate(parts).astype(np.float32)[None]


@pytest.mark.parametrize("r", [-20.0, -9.0, 0.0, 9.0, 20.0])
@pytest.mark.parametrize("s", [-8.0, 0.0, 8.0])
@pytest.mark.parametrize("offset", [0.0, 1e-3, 70.0])
def test_the_density_is_finite_where_it_would_divide_by_nothing(be, r, s, offset):
    points = tensor(np.array([[0.0, 0.0, 1.0]], np.float32), be)
    loss, gradients = value_and_grad(
        lambda p: ops.sum(mixture_density(p["output"], p["points"])))(
            {"output": tensor(_output(r, s, offset), be), "points": points})
    assert np.isfinite(float(loss))
    assert all(np.isfinite(g.numpy()).all() for g in gradients.values())


@pytest.mark.parametrize("r", [-3.0, 0.5, 6.0])
def test_float32_near_a_correlation_of_one_agrees_with_float64(be, r):
    rng = np.random.default_rng(0)
    output, points = rng.standard_normal((64, 121)), rng.standard_normal((64, 3))
    output[:, 101:] += r
    wide = mixture_density(tensor(output), tensor(points)).numpy()
    narrow = mixture_density(tensor(output.astype(np.float32), be), tensor(points.astype(np.float32), be)).numpy()
    np.testing.assert_allclose(narrow, wide, rtol=1e-4)


def test_a_component_far_away_takes_no_part():
    output = _output(0.0, 0.0, 0.0, count=2)
    output[0, 3] = 1e4  # the first component's mean
    value = float(mixture_density(tensor(output), tensor(np.zeros((1, 3), np.float32))).numpy()[0])
    assert value == pytest.approx(np.log(2 * np.pi) + np.log(2) + np.log(2), rel=1e-6)
