"""The bridge's path for CUDA, over the stand-in for CuPy: memory is shared, and a call waits for nothing."""

import pytest
import stand_in_capture

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.peers

from duoln.bridge import torch as bridge
from duoln.bridge.torch import arrays, function


@pytest.fixture
def on_gpu(gpu, monkeypatch):
    """Tensors on the CPU in the place of CUDA's. What waits for the device, or copies between it and the host, fails."""
    def refused(what):
        raise AssertionError(f"{what} in a call")

    monkeypatch.setattr(function, "backend_for", lambda device: gpu)
    monkeypatch.setattr(stand_in_capture, "refuse", refused)
    monkeypatch.setattr(stand_in_capture.Stream, "synchronize", lambda stream: refused("a wait"))
    return gpu


def test_memory_is_shared_both_ways(on_gpu):
    x, seen = torch.randn(3, 4), []

    def look(x):
        seen.append(x.data.data.ptr)
        seen.append(x * 2.0)
        return seen[1]

    y = bridge.differentiable(look)(x)
    assert seen[0] == x.data_ptr() and seen[1].data.data.ptr == y.data_ptr()
    torch.testing.assert_close(y, 2 * x)


@pytest.mark.parametrize(("make", "shape"), [(lambda: bridge.LayerNorm(64), (5, 64)), (lambda: bridge.LSTM(8, 16, norm="layer"), (4, 2, 8)),
                                             (lambda: bridge.GRU(8, 16), (4, 2, 8))], ids=["LayerNorm", "LSTM", "GRU"])
def test_a_call_and_its_gradient_wait_for_nothing(make, shape, on_gpu, numpy_backend, monkeypatch):
    layer, x, results = make(), torch.randn(shape, requires_grad=True), []
    for be in (on_gpu, numpy_backend):
        monkeypatch.setattr(function, "backend_for", lambda device, be=be: be)
        y = layer(x)
        y = y if isinstance(y, torch.Tensor) else y[0]
        results.append([y, *torch.autograd.grad(y.square().sum(), [x, *layer.parameters()])])
    for a, b in zip(*results, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


def test_a_cuda_device_is_cupys():
    assert arrays._BACKENDS == {"cpu": "numpy", "cuda": "cupy"}
