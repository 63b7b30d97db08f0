"""2,000 steps forward and backward with recurrent weights scaled by 0.5, 1 and 4.

The scale of W_h does not change layer norm, so neither states nor gradients depend on it. This holds for the formula.
In float32 a chaotic network (an LN-LSTM without forget bias can be one) magnifies rounding over so many time steps.
Therefore the exact statement is tested in float64 with a tiny epsilon and a start that is not chaotic, and finiteness is
tested in float32.
"""

import numpy as np
import pytest

import duoln
from duoln import nn, ops, tree
from duoln.randomness import Stream

STEPS, BATCH, HIDDEN = 2000, 4, 32
SCALES = (0.5, 1.0, 4.0)


def _run(layer, scale, backend, dtype):
    """Greatest hidden state, and the gradient's norm for a relative change of W_h."""
    start = layer.init(Stream(3, "init"))
    start["forward0"]["w_h"] = start["forward0"]["w_h"] * scale
    params = tree.map(lambda a: duoln.tensor(a.astype(dtype), backend), start)
    x = duoln.tensor(np.random.default_rng(3).standard_normal((STEPS, BATCH, 8)).astype(dtype), backend)

    def loss(p):
        out, _ = layer(p, x)
        return ops.mean(ops.square(out)), out

    (_, out), grads = duoln.value_and_grad(loss, has_aux=True)(params)
    return float(np.abs(out.numpy()).max()), float(np.linalg.norm(grads["forward0"]["w_h"].numpy() * scale))


@pytest.mark.parametrize(("kind", "rtol"), [(nn.LSTM, 1e-4), (nn.GRU, 1e-8)])
def test_layer_norm_does_not_see_the_scale(kind, rtol, numpy_backend):
    runs = [_run(kind(8, HIDDEN, norm="layer", eps=1e-12), scale, numpy_backend, np.float64) for scale in SCALES]
    assert all(state <= 1.0 for state, _ in runs)
    np.testing.assert_allclose([g for _, g in runs], runs[0][1], rtol=rtol)


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU])
def test_float32_stays_finite(kind, numpy_backend):
    runs = [_run(kind(8, HIDDEN, norm="layer"), scale, numpy_backend, np.float32) for scale in SCALES]
    states = [state for state, _ in runs]
    assert np.isfinite([g for _, g in runs]).all() and max(states) < 1.01 * min(states)


def test_the_plain_gru_sees_it(numpy_backend):
    small, large = (_run(nn.GRU(8, HIDDEN, norm="none"), scale, numpy_backend, np.float64)[1] for scale in (0.5, 4.0))
    assert large > 1e6 * small
