"""States and gradients over time."""

import numpy as np
import pytest

from duoln import nn
from duoln.errors import UsageError
from duoln.plugins.theory import stability
from duoln.plugins.theory.stability import walks
from duoln.randomness import Stream


def test_a_plain_rnn_is_walked_as_its_formula_says(numpy_backend):
    steps, scale = 12, 2.0
    [walk] = walks(numpy_backend, 5, steps, [scale]).of("rnn", "none")
    params = nn.RNNCell(stability.INPUTS, stability.HIDDEN, norm="none").init(Stream(5, "stability.init"))
    rng = Stream(5, "stability")
    x, end = rng.gaussian((steps, stability.BATCH, stability.INPUTS)), rng.gaussian((stability.BATCH, stability.HIDDEN))
    w_x, w_h = params["w_x"].astype(np.float64), scale * params["w_h"].astype(np.float64)
    h, states = np.zeros_like(end), []
    for t in range(steps):
        h = np.tanh(x[t] @ w_x + h @ w_h)
        states.append(h)
    g, gradients = end / np.linalg.norm(end, axis=1, keepdims=True), []
    for h in reversed(states):
        gradients.append(np.sqrt((g**2).sum() / len(g)))
        g = (g * (1 - h * h)) @ w_h.T
    np.testing.assert_allclose(walk.state, [np.sqrt((h**2).mean()) for h in states], rtol=1e-10)
    np.testing.assert_allclose(walk.gradient, gradients[::-1], rtol=1e-10)


@pytest.mark.long
def test_what_does_not_see_the_scale(be):
    """In few steps, so that no network magnifies rounding much."""
    measured = walks(be, steps=5, scales=(4.0,), eps=1e-10)
    moved = {key: max(w.moved for w in measured.of(*key)) for key in
             ((cell, norm, scaled) for cell in ("rnn", "lstm", "gru") for norm in ("none", "layer") for scaled in stability.SCALED)}
    for (cell, norm, scaled), change in moved.items():
        stays = norm == "layer" and (cell, scaled) != ("rnn", "w_h")  # eq. 4 norms the sum of both sides
        assert change < 1e-3 if stays else change > 0.1, (cell, norm, scaled, change)


@pytest.mark.long
def test_plain_gradients_vanish_and_explode(numpy_backend):
    measured = walks(numpy_backend, steps=40)
    spread = {}
    for cell in ("rnn", "lstm", "gru"):
        for norm in stability.NORMS:
            first = [w.gradient[0] for w in measured.of(cell, norm)]
            spread[cell, norm] = np.log10(max(first) / min(first))
            assert all(w.gradient[-1] == pytest.approx(1.0) for w in measured.of(cell, norm))
    assert all(spread[cell, "none"] > 8 for cell in ("rnn", "lstm", "gru"))
    assert spread["lstm", "layer"] < 0.1 and spread["gru", "layer"] < 0.01
    assert spread["rnn", "layer"] < spread["rnn", "none"] / 2


def test_an_explosion_is_a_finding_not_a_warning(numpy_backend):
    measured = walks(numpy_backend, steps=4, scales=(1e308,))
    assert not all(np.isfinite(w.gradient[0]) for w in measured.walks)


@pytest.mark.parametrize("bad", [{"steps": 0}, {"scales": (1.0, -2.0)}, {"scales": (float("nan"),)}, {"eps": 0.0}])
def test_arguments_that_make_no_sense(bad, numpy_backend):
    with pytest.raises(UsageError, match="expected"):
        walks(numpy_backend, **bad)
