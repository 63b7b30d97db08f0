"""The rules of `conv2d`: exact sums, axes of length 1, and MLX's rule with its measure. `test_rules.py` has sizes, groups and views."""

import numpy as np
import pytest
from conftest import get_backend
from ops.cases import conv_reference
from test_rules import CONVOLUTIONS

from duoln import ops, runtime
from duoln.core import Tensor, value_and_grad
from duoln.kernels import native
from duoln.kernels.conv import mlx as mlx_conv
from duoln.testing import check_rule

NEEDS_COMPILER = pytest.mark.skipif(native.machine_refusal() is not None, reason="nothing is compiled here")


def _rule():
    return runtime.backend("numpy") and next(r for r in ops.conv2d.rules("numpy") if r.name == "compiled")


@NEEDS_COMPILER
def test_conv2d_is_as_exact_as_a_sum_in_float32(rng, numpy_backend):
    x, weight = (rng.standard_normal(shape) for shape in ((4, 32, 32, 16), (3, 3, 16, 16)))
    gout = rng.standard_normal(x.shape)

    def results(rule, dtype):
        y, saved = rule.forward(numpy_backend, x.astype(dtype), weight.astype(dtype), 1, 1)
        return y, *rule.vjp(numpy_backend, saved, gout.astype(dtype), (True, True))

    for mine, exact, terms in zip(results(_rule(), "float32"), results(ops.conv2d.rules("numpy")[-1], "float64"),
                                  (144, 144, 4096), strict=True):
        assert np.abs(mine - exact).max() <= np.finfo(np.float32).eps * np.sqrt(terms) * np.abs(exact).max()


@pytest.mark.parametrize("make", [lambda flat: flat.reshape(2, 5, 5)[..., None],
                                  lambda flat: flat.reshape(1, 2, 5, 5).transpose(1, 2, 3, 0)], ids=["new axis", "permuted"])
def test_conv2d_of_axes_of_length_1(make, numpy_backend):
    """The stride of such an axis may be anything: NumPy calls the array contiguous, and copies nothing."""
    x = Tensor(make(np.arange(50, dtype=np.float32)), numpy_backend)
    weight = Tensor(np.ones((3, 3, 1, 1), np.float32), numpy_backend)
    np.testing.assert_array_equal(ops.conv2d(x, weight).numpy(), conv_reference(x.numpy(), weight.numpy(), 1, 0))
    # Under a sum the gradient of a weight is the sum of the pixels that it met.
    _, gradient = value_and_grad(lambda w: ops.sum(ops.conv2d(x, w)))(weight)
    height, width = x.shape[1] - 2, x.shape[2] - 2
    met = [[x.numpy()[:, i:i + height, j:j + width].sum() for j in range(3)] for i in range(3)]
    np.testing.assert_array_equal(gradient.numpy()[:, :, 0, 0], met)


# MLX --------------------------------------------------------------------------------------------------

@pytest.mark.parametrize(("x", "weight", "padding"), CONVOLUTIONS, ids=str)
@pytest.mark.parametrize("stride", [1, 2, 3])
def test_conv2d_of_mlx(x, weight, padding, stride, rng):
    be = get_backend("mlx")
    rule = next(r for r in ops.conv2d.rules("mlx") if r.name == "mx.conv2d")
    arrays = [rng.standard_normal(shape).astype(np.float32) for shape in (x, weight)]
    check_rule(ops.conv2d, rule, arrays, be, {"stride": stride, "padding": padding},
               length=max(int(np.prod(weight[:3])), x[0] * x[1] * x[2]))


def test_conv2d_of_mlx_is_used_where_it_is_accurate(monkeypatch):
    be = get_backend("mlx")
    rule = next(r for r in ops.conv2d.rules("mlx") if r.name == "mx.conv2d")
    x, w = be.ones((1, 4, 4, 2)), be.ones((3, 3, 2, 2))
    figure = mlx_conv.accuracy()
    assert 0 < figure.error <= figure.allowed and rule.supports(be, x, w) is None
    assert "so it is used" in rule.remark(be).lower()
    monkeypatch.setattr(mlx_conv, "_measured", [mlx_conv.Figure(1e-3, 1e-5)])  # as a Winograd transform could have it
    assert "1.0e-03" in rule.supports(be, x, w) and "not used" in rule.remark(be)
    assert "no values" in rule.supports(be, x[:0], w)
    assert "float64" in rule.supports(be, be.astype(x, "float64"), be.astype(w, "float64"))


def _winograd(x, weight, stride, padding):
    """F(6 x 6, 3 x 3) in float32, as MLX computes it on a GPU: 8 x 8 inputs and the weights are transformed, then multiplied."""
    rows = np.array([[1, 0, -5.25, 0, 5.25, 0, -1, 0], [0, 1, 1, -4.25, -4.25, 1, 1, 0], [0, -1, 1, 4.25, -4.25, -1, 1, 0],
                     [0, 0.5, 0.25, -2.5, -1.25, 2, 1, 0], [0, -0.5, 0.25, 2.5, -1.25, -2, 1, 0],
                     [0, 2, 4, -2.5, -5, 0.5, 1, 0], [0, -2, 4, 2.5, -5, -0.5, 1, 0], [0, -1, 0, 5.25, 0, -5.25, 0, 1]])
    points = np.array([1, -1, 2, -2, 0.5, -0.5])
    scale = np.array([-2 / 9, -2 / 9, 1 / 90, 1 / 90, 32 / 45, 32 / 45])
    of_weight = np.concatenate([[[1, 0, 0]], scale[:, None] * points[:, None] ** np.arange(3), [[0, 0, 1]]])
    back = np.concatenate([np.eye(6)[:, :1], points ** np.arange(6)[:, None], np.eye(6)[:, 5:]], 1)
    rows, of_weight, back = (a.astype(np.float32) for a in (rows, of_weight, back))
    x, tiles = np.asarray(x), (x.shape[1] - 2) // 6
    corners = [x[:, 6 * i:6 * i + 8, 6 * j:6 * j + 8] for i in range(tiles) for j in range(tiles)]
    parts = np.einsum("ai,ntijc,bj->abntc", rows, np.stack(corners, 1), rows)
    products = parts.reshape(8, 8, -1, x.shape[3]) @ np.einsum("ai,ijco,bj->abco", of_weight, np.asarray(weight), of_weight)
    out = np.einsum("ai,ijro,bj->rabo", back, products, back).reshape(len(x), tiles, tiles, 6, 6, -1)
    return out.transpose(0, 1, 3, 2, 4, 5).reshape(len(x), 6 * tiles, 6 * tiles, -1)


def test_the_measure_refuses_winograds_transform(monkeypatch):
    """It is right except for its rounding, and the rounding error is above the limit."""
    monkeypatch.setattr(mlx_conv, "_convolve", _winograd)
    figure = mlx_conv._measure()
    assert figure.allowed < figure.error < 1e-4
