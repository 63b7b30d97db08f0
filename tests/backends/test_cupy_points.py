"""The points at which CuPy and its stand-in may differ; the tests run on the one that is installed."""

import numpy as np
import pytest

from duoln import ops
from duoln.core import Tensor
from duoln.errors import KernelError


def test_results_without_dimensions_are_arrays(gpu):
    total = gpu.sum(gpu.ones((3,)))
    assert total.shape == () and gpu.dtype(total + total) == "float32"


@pytest.mark.parametrize("view", [lambda x: x[::2], lambda x: x[:, 1:], lambda x: x.T, lambda x: x[:, ::-1]],
                         ids=["rows", "columns", "turned", "flipped"])
def test_views_reach_kernels_as_they_are_meant(gpu, rng, view):
    x = rng.standard_normal((8, 8)).astype(np.float32)
    wide = np.ascontiguousarray(view(x)).astype(np.float64)
    expected = (wide - wide.mean(-1, keepdims=True)) / np.sqrt(wide.var(-1, keepdims=True) + 1e-5)
    actual = ops.layer_norm(Tensor(view(gpu.asarray(x)), gpu)).numpy()
    np.testing.assert_allclose(actual, expected, atol=1e-5)


def test_numbers_have_the_width_of_their_parameter(gpu):
    """A wrong width would shift every number behind it: here the last ones decide the result."""
    x = Tensor(gpu.asarray(np.array([[1.0, 3.0]], np.float32)), gpu)
    np.testing.assert_allclose(ops.layer_norm(x, eps=3.0, activation="relu").numpy(), [[0.0, 0.5]], rtol=1e-6)


def test_an_array_of_the_host_is_refused(gpu):
    from duoln.kernels.launch import cuda as launch

    with pytest.raises(KernelError, match=r"\[sum_columns\] x: expected a CuPy array, found numpy.ndarray"):
        launch.sum_columns(np.ones((2, 2), np.float32))
    with pytest.raises(TypeError):
        gpu.ones((2,)) + np.ones(2, np.float32)


def test_memory_of_a_launch_may_be_used_again_at_once(gpu, rng):
    """Many launches whose buffers are freed while they may still be waiting."""
    x = rng.standard_normal((64, 1000)).astype(np.float32)
    out = Tensor(gpu.asarray(x), gpu)
    for _ in range(5):
        out = ops.layer_norm(ops.layer_norm(out) * 2.0 + 1.0)
    wide = x.astype(np.float64)
    expected = (wide - wide.mean(-1, keepdims=True)) / wide.std(-1, keepdims=True)
    np.testing.assert_allclose(out.numpy(), expected, atol=1e-4)
