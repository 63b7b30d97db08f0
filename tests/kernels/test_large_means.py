"""The gate that every layer-norm rule passes: large means, odd widths, constant rows, one huge value.

The yardstick is the two-pass formula in NumPy float32; a rule may be twice as far from float64 as that.
"""

import numpy as np
import pytest

from duoln import ops
from duoln.core import Tensor, composed_only

MEANS = (0.0, 1e2, 1e3, 1e4)
WIDTHS = (1, 7, 32, 33, 512, 1000, 4096, 8193)


def _exact(x):
    x = x.astype(np.float64)
    centred = x - x.mean(-1, keepdims=True)
    return centred / np.sqrt((centred ** 2).mean(-1, keepdims=True) + 1e-5)


def _two_pass(x):
    centred = x - x.mean(-1, keepdims=True)
    return centred / np.sqrt((centred ** 2).mean(-1, keepdims=True) + np.float32(1e-5))



def _run(be, x, composed):
    tensor = Tensor(be.asarray(x), be)
    if composed:
        with composed_only():
            return ops.layer_norm(tensor).numpy()
    return ops.layer_norm(tensor).numpy()


@pytest.mark.parametrize("composed", [False, True], ids=["chosen rule", "composed rule"])
@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("mean", MEANS)
def test_large_means(be, mean, width, composed, rng):
    x = (rng.standard_normal((64, width)) + mean).astype(np.float32)
    allowed = 2 * np.abs(_two_pass(x) - _exact(x)).max() + 4e-7
    error = np.abs(_run(be, x, composed) - _exact(x)).max()
    assert error <= allowed, f"error {error:.2e}, two-pass float32 has {allowed / 2:.2e}"


@pytest.mark.parametrize("composed", [False, True], ids=["chosen rule", "composed rule"])
@pytest.mark.parametrize("width", WIDTHS)
def test_constant_rows_are_finite_and_small(be, width, composed):
    x = np.repeat(np.array([[0.0], [1.0], [-3.7], [1e4]], np.float32), width, axis=1)
    y = _run(be, x, composed)
    allowed = 2 * np.abs(_two_pass(x)).max() + 1e-6
    assert np.isfinite(y).all() and np.abs(y).max() <= allowed


@pytest.mark.parametrize("composed", [False, True], ids=["chosen rule", "composed rule"])
@pytest.mark.parametrize("width", WIDTHS[1:])
def test_one_huge_value(be, width, composed, rng):
    x = rng.standard_normal((4, width)).astype(np.float32)
    x[:, width // 2] = 1e15
    y = _run(be, x, composed)
    assert np.isfinite(y).all()
    assert np.abs(y - _exact(x)).max() <= 2 * np.abs(_two_pass(x) - _exact(x)).max() + 1e-5 * np.sqrt(width)
