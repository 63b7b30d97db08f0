"""The compiled rule of `conv2d` against the composed one: odd sizes, borders, strides, views."""

import numpy as np
import pytest
from conftest import get_backend
from ops.cases import conv_reference

from duoln import ops, runtime
from duoln.core import Tensor, value_and_grad
from duoln.kernels import native
from duoln.kernels.conv import mlx as mlx_conv
from duoln.testing import check_rule

NEEDS_COMPILER = pytest.mark.skipif(native.machine_refusal() is not None, reason="nothing is compiled here")


def _rule():
    return runtime.backend("numpy") and next(r for r in ops.conv2d.rules("numpy") if r.name == "compiled")


CONVOLUTIONS = [((1, 1, 1, 1), (1, 1, 1, 1), 0), ((2, 6, 7, 3), (3, 3, 3, 4), 1), ((5, 5, 4, 2), (3, 2, 2, 3), 0),
                ((3, 8, 8, 5), (1, 1, 5, 7), 0), ((2, 4, 5, 1), (4, 5, 1, 2), 0), ((2, 3, 3, 2), (2, 2, 2, 2), 3),
                ((1, 4, 4, 3), (1, 1, 3, 2), 2), ((7, 2, 9, 4), (1, 3, 4, 1), 1), ((4, 16, 16, 8), (5, 5, 8, 9), 2)]
# Several bands of rows an image, several panels of channels, weights that do not fit beside a band, groups of bands.
LARGE = [((2, 19, 32, 40), (3, 3, 40, 37), 1), ((3, 7, 6, 200), (3, 3, 200, 5), 0), ((1, 2, 700, 3), (2, 3, 3, 17), 1),
         ((37, 6, 5, 4), (3, 2, 4, 7), 1), ((150, 3, 2, 2), (1, 1, 2, 3), 0)]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("stride", [1, 2, 3])
@pytest.mark.parametrize(("x", "weight", "padding"), CONVOLUTIONS, ids=str)
@NEEDS_COMPILER
def test_conv2d(x, weight, padding, stride, dtype, rng, numpy_backend):
    arrays = [rng.standard_normal(shape).astype(dtype) for shape in (x, weight)]
    check_rule(ops.conv2d, _rule(), arrays, numpy_backend, {"stride": stride, "padding": padding},
               length=max(int(np.prod(weight[:3])), x[0] * x[1] * x[2]))


# Channels of a group: each alone, fewer than a vector has lanes, many. Pixels of a part of a vector, of one, of several.
GROUPS = [(groups, n_in, n_out) for groups, n_in, n_out in (
    (2, 1, 1), (5, 1, 1), (16, 1, 1), (33, 1, 1), (64, 1, 1), (3, 1, 2), (4, 2, 3), (4, 4, 4), (8, 8, 8), (2, 16, 16),
    (2, 17, 33), (3, 5, 1), (2, 1, 40), (7, 3, 9), (16, 2, 1), (2, 20, 3))]
SETTINGS = [((3, 3), {"padding": 1}), ((2, 3), {"padding": (2, 0), "dilation": 2}), ((3, 1), {"stride": 2, "padding": 1}),
            ((1, 5), {"stride": (2, 3), "padding": (0, 2), "dilation": (3, 1)}), ((3, 3), {"stride": 3, "dilation": 2, "padding": 4}),
            ((1, 1), {})]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(("kernel", "settings"), SETTINGS, ids=str)
@pytest.mark.parametrize(("groups", "n_in", "n_out"), GROUPS)
@NEEDS_COMPILER
def test_conv2d_in_groups(groups, n_in, n_out, kernel, settings, dtype, rng, numpy_backend):
    arrays = [rng.standard_normal(shape).astype(dtype) for shape in ((2, 9, 11, groups * n_in), (*kernel, n_in, groups * n_out))]
    check_rule(ops.conv2d, _rule(), arrays, numpy_backend, {"stride": 1, "padding": 0, "dilation": 1, "groups": groups, **settings},
               length=200)


@pytest.mark.parametrize(("x", "weight", "settings"), [
    ((3, 40, 40, 64), (3, 3, 1, 64), {"padding": 1, "groups": 64}), ((40, 12, 12, 32), (3, 3, 4, 32), {"padding": 1, "groups": 8}),
    ((20, 300, 1, 24), (9, 1, 1, 24), {"padding": (4, 0), "groups": 24}), ((2, 19, 32, 40), (3, 3, 40, 37), {"padding": 2, "dilation": 2})],
    ids=str)
@NEEDS_COMPILER
def test_conv2d_of_groups_in_bands(x, weight, settings, rng, numpy_backend):
    arrays = [rng.standard_normal(shape).astype(np.float32) for shape in (x, weight)]
    check_rule(ops.conv2d, _rule(), arrays, numpy_backend, {"stride": 1, **settings}, length=6000)


@pytest.mark.parametrize("bad", [np.inf, np.nan])
@pytest.mark.parametrize(("groups", "n_in", "n_out"), [(6, 1, 1), (4, 4, 4), (2, 20, 3), (2, 3, 17)])
@NEEDS_COMPILER
def test_what_is_not_finite_stays_in_its_group(groups, n_in, n_out, bad, rng, numpy_backend):
    x, weight = (rng.standard_normal(s).astype(np.float32) for s in ((2, 6, 7, groups * n_in), (3, 2, n_in, groups * n_out)))
    x[1, 2, 3, n_in - 1], gout = bad, rng.standard_normal((2, 6, 8, groups * n_out)).astype(np.float32)
    results = []
    for rule in (_rule(), ops.conv2d.rules("numpy")[-1]):
        with np.errstate(invalid="ignore"):
            y, saved = rule.forward(numpy_backend, x, weight, stride=1, padding=1, groups=groups)
            results.append((y, *rule.vjp(numpy_backend, saved, gout, (True, True))))
    for mine, expected in zip(*results, strict=True):
        np.testing.assert_allclose(mine, expected, rtol=1e-4, atol=1e-4)
    assert np.isfinite(results[0][0][..., n_out:]).all() and not np.isfinite(results[0][0]).all()


@pytest.mark.parametrize(("x", "weight", "padding"), LARGE, ids=str)
@NEEDS_COMPILER
def test_conv2d_in_bands_and_panels(x, weight, padding, rng, numpy_backend):
    arrays = [rng.standard_normal(shape).astype(np.float32) for shape in (x, weight)]
    check_rule(ops.conv2d, _rule(), arrays, numpy_backend, {"stride": 1, "padding": padding}, length=4000)


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


@pytest.mark.parametrize("bad", [np.inf, -np.inf, np.nan])
@pytest.mark.parametrize("settings", [{"stride": 1, "padding": 0}, {"stride": 1, "padding": 1}, {"stride": 2, "padding": 1},
                                      {"stride": 3, "padding": 2}, {"stride": (1, 2), "padding": (1, 2), "dilation": 2, "groups": 2}], ids=str)
@NEEDS_COMPILER
def test_a_weight_that_is_not_finite_reaches_the_pixels_that_met_it(settings, bad, rng, numpy_backend):
    n_in = 6 // settings.get("groups", 1)
    x, weight = (rng.standard_normal(shape).astype(np.float32) for shape in ((2, 7, 8, 6), (3, 3, n_in, 4)))
    weight[0, 1, 2, 3] = bad

    def gradients(rule):
        y, saved = rule.forward(numpy_backend, x, weight, **settings)
        return rule.vjp(numpy_backend, saved, np.ones_like(y), (True, True))

    with np.errstate(all="ignore"):
        mine, composed = gradients(_rule()), gradients(ops.conv2d.rules("numpy")[-1])
    assert np.isfinite(composed[0]).any() and not np.isfinite(composed[0]).all()
    for got, expected in zip(mine, composed, strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-4)


@NEEDS_COMPILER
def test_conv2d_of_views(rng, numpy_backend):
    x = rng.standard_normal((3, 12, 6, 8)).astype(np.float32)[:, ::2, ::-1, ::2]
    weight = rng.standard_normal((5, 3, 3, 4)).astype(np.float32).transpose(1, 2, 3, 0)
    check_rule(ops.conv2d, _rule(), [x, weight], numpy_backend, {"stride": 1, "padding": 1}, length=100)


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


@NEEDS_COMPILER
def test_conv2d_without_values_is_left_to_the_composed_rule(numpy_backend):
    supports, x, w = _rule().supports, np.ones((2, 4, 4, 3), np.float32), np.ones((3, 3, 3, 5), np.float32)
    assert supports(numpy_backend, x, w, stride=2, padding=0) is None
    assert "no values" in supports(numpy_backend, x[:0], w, stride=1, padding=0)
    assert "no values" in supports(numpy_backend, x, w[..., :0], stride=1, padding=0)


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


def test_the_measure_allows_sums_in_the_least_accurate_order(monkeypatch):
    def in_order(x, weight, stride, padding):
        x, weight = np.asarray(x), np.asarray(weight)
        side, total = x.shape[1] - 2, np.float32(0)
        for i, j, c in np.ndindex(weight.shape[:3]):
            total = total + x[:, i:i + side, j:j + side, c, None] * weight[i, j, c]
        return total

    monkeypatch.setattr(mlx_conv, "_convolve", in_order)
    monkeypatch.setattr(mlx_conv, "_IMAGES", 1)
    figure = mlx_conv._measure()
    assert 0 < figure.error < figure.allowed
