"""2,000 steps forward and backward with recurrent weights scaled by 0.5, 1 and 4."""

import numpy as np
import pytest

import duoln
from duoln import nn, ops
from duoln.randomness import Stream

STEPS, BATCH, HIDDEN = 2000, 4, 32


def _norms(layer, scale, backend):
    """Greatest hidden state, and the norm of the first state's gradient of the sum of the last output."""
    params = layer.init(Stream(0, "init"))
    params["forward0"]["w_h"] = params["forward0"]["w_h"] * np.float32(scale)
    params = duoln.to_tensors(params, backend)
    x = duoln.tensor(np.random.default_rng(0).standard_normal((STEPS, BATCH, 8)).astype(np.float32), backend)

    def loss(p):
        out, _ = layer(p, x)
        return ops.mean(ops.square(out)), out

    (_, out), grads = duoln.value_and_grad(loss, has_aux=True)(params)
    gradient = grads["forward0"]["w_h"].numpy() * scale  # of a weight's relative change, which layer norm leaves alone
    return float(np.abs(out.numpy()).max()), float(np.linalg.norm(gradient)), np.isfinite(gradient).all()


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU])
def test_layer_norm_keeps_states_and_gradients_finite(kind, numpy_backend):
    found = [_norms(kind(8, HIDDEN, norm="layer"), scale, numpy_backend) for scale in (0.5, 1.0, 4.0)]
    assert all(finite for _, _, finite in found)
    states = [state for state, _, _ in found]
    assert max(states) <= 1.0 and max(states) < 1.01 * min(states)
    if kind is nn.GRU:
        gradients = [g for _, g, _ in found]
        assert max(gradients) < 1.1 * min(gradients)


def test_the_plain_gru_is_not_of_one_order(numpy_backend):
    gradients = [_norms(nn.GRU(8, HIDDEN, norm="none"), scale, numpy_backend)[1] for scale in (0.5, 4.0)]
    assert gradients[1] > 1e6 * gradients[0]
