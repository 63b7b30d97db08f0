"""Layer norm of rows whose first value is far away, and of long rows; an LSTM's step with large means.

The yardstick is the two-pass formula in NumPy float32; a rule may be twice as far from float64 as that. `tests/ops/test_norm.py` is the
gate for large means, constant rows and one huge value, which every norm passes.
"""

import numpy as np
import pytest

from duoln import ops, runtime
from duoln.core import Tensor, composed_only
from duoln.ops.recurrent.variants import norm_shapes

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
@pytest.mark.parametrize("width", WIDTHS[3:])
@pytest.mark.parametrize("first", [-30.0, 1e3])
def test_values_after_a_first_one_far_away_keep_their_digits(be, first, width, composed, rng):
    x = rng.standard_normal((8, width)).astype(np.float32)
    x[:, 0] = first
    error, of_two_passes = (np.abs(y - _exact(x))[:, 1:].max() for y in (_run(be, x, composed), _two_pass(x)))
    assert error <= 2 * of_two_passes + 4e-7, f"error {error:.2e}, two-pass float32 has {of_two_passes:.2e}"


@pytest.mark.long
@pytest.mark.parametrize("composed", [False, True], ids=["chosen rule", "composed rule"])
def test_the_rounding_of_a_long_row_stays_small(be, composed, rng):
    """Sums in one chain, or one in each lane of a vector, lose digits: squares are positive, so their roundings go one way."""
    x = rng.random((1, 1 << 22), np.float32)
    assert np.abs(_run(be, x, composed) - _exact(x)).max() <= 1e-6


@pytest.mark.parametrize("hidden", [5, 16, 17, 100])
@pytest.mark.parametrize("mean", MEANS)
@pytest.mark.parametrize("norm", ["layer", "layer-cell"])
def test_a_step_of_an_lstm(be, norm, mean, hidden, rng):
    """A large mean of x's products with norms over them, of the cell with a norm over it."""
    x_proj, h_proj = (rng.standard_normal((9, 4 * hidden)).astype(np.float32) for _ in range(2))
    c = rng.standard_normal((9, hidden)).astype(np.float32)
    if norm == "layer":
        x_proj += np.float32(mean)
    else:
        c += np.float32(mean)
    norms = {name: np.full(shape, name.startswith("gain"), np.float32) for name, shape in norm_shapes("lstm", norm, hidden).items()}

    def states(dtype, backend):
        x, h, cell, bias, *of_norms = (Tensor(backend.asarray(a.astype(dtype)), backend)
                                       for a in (x_proj, h_proj, c, np.zeros(4 * hidden, np.float32), *norms.values()))
        return [s.numpy() for s in ops.lstm_cell(x, h, cell, bias, dict(zip(norms, of_norms, strict=True)), norm=norm)]

    with composed_only():
        exact = states("float64", runtime.backend("numpy"))
        plain = states("float32", be)
    for got, composed, right in zip(states("float32", be), plain, exact, strict=True):
        allowed = 2 * np.abs(composed - right).max() + 2e-6
        assert np.abs(got - right).max() <= allowed, f"error {np.abs(got - right).max():.2e}, the composed rule has {allowed / 2:.2e}"
