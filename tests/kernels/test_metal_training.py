"""The whole MLX path with the Metal text doing the work: a few MNIST steps, a few steps of each normalised cell.

Steps run eagerly here: hostgpu computes at once, so it needs values and cannot be traced.
"""

import sys

import numpy as np
import pytest

mx = pytest.importorskip("mlx.core", reason="MLX is not for this platform")
if sys.platform != "linux":
    pytest.skip("kernels run on the CPU under Linux only", allow_module_level=True)

import stand_in_metal
from conftest import get_backend
from device_rules import recurrent_losses

from duoln import runtime
from duoln.kernels.norm import metal as layer_norm_metal
from duoln.plugins.mnist import Mnist
from duoln.tasks import make_config
from duoln.training.trainer import Trainer


@pytest.fixture
def mlx(monkeypatch):
    """The MLX backend as on a Mac, but eager."""
    be = get_backend("mlx")
    stand_in_metal.install(monkeypatch)
    monkeypatch.setattr(be, "compile", lambda step: step)
    return be


def test_mnist_steps_are_numpys(mlx):
    task, losses, before = Mnist(), {}, len(stand_in_metal.launches)
    cfg = make_config(task, "ln", "smoke", {"batch_size": 32})
    for be in (mlx, runtime.backend("numpy")):
        trainer = Trainer(task, "ln", cfg, task.data(cfg), be)
        losses[be.name] = [trainer.advance() for _ in range(8)]
    np.testing.assert_allclose(losses["mlx"], losses["numpy"], rtol=1e-4)
    assert losses["mlx"][-1] < losses["mlx"][0] and stand_in_metal.ran(before) == {"layer_norm_backward"}


@pytest.mark.parametrize(("cell", "norm"), [("LSTM", "layer"), ("LSTM", "layer-cell"), ("GRU", "layer")])
def test_a_recurrent_layer_trains_as_on_numpy(cell, norm, mlx):
    before = len(stand_in_metal.launches)
    ours, right = recurrent_losses(cell, norm, mlx)
    np.testing.assert_allclose(ours, right, rtol=1e-4)
    assert ours[-1] < ours[0] and {f"{cell.lower()}_forward", f"{cell.lower()}_backward"} <= stand_in_metal.ran(before)


def test_the_custom_function_of_layer_norm_has_the_gradients_of_the_formula(mlx, rng):
    """`mx.grad` through the kernel's own custom function, against `mx.grad` through the plain formula."""
    eps, batch, hidden = 1e-5, 3, 9
    arguments = [mx.array(rng.standard_normal(shape).astype(np.float32)) for shape in ((batch, hidden), (hidden,), (hidden,))]
    weights = mx.array(rng.standard_normal((batch, hidden)).astype(np.float32))

    def plain(x, gain, bias):
        centred = x - mx.mean(x, axis=-1, keepdims=True)
        return centred * mx.rsqrt(mx.mean(centred ** 2, axis=-1, keepdims=True) + eps) * gain + bias

    (value, gradients), (expected, exact) = (
        mx.value_and_grad(lambda *given, f=f: mx.sum(weights * f(*given)), argnums=[0, 1, 2])(*arguments)
        for f in (layer_norm_metal.differentiable(eps), plain))
    np.testing.assert_allclose(np.array(value), np.array(expected), rtol=1e-4)
    for gradient, expected in zip(gradients, exact, strict=True):
        np.testing.assert_allclose(np.array(gradient), np.array(expected), atol=2e-4)
