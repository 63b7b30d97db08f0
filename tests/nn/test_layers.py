"""Layers: parameters, starts, functions, and errors."""

import numpy as np
import pytest
from conftest import ON_NUMPY
from ops.cases import batch_norm_reference, group_norm_reference, layer_norm_reference, rms_norm_reference

import duoln
from duoln import nn, ops
from duoln.errors import ShapeError, UsageError
from duoln.kernels import native
from duoln.randomness import Stream
from duoln.testing import check_close, check_error


def _x(be, rng, *shape):
    return duoln.tensor(rng.standard_normal(shape).astype(np.float32), be)


def _relu(x):
    return np.maximum(x, 0)


# A layer, the shape of its input, its parameters, and what it computes as it starts, from these in float64.
LAYERS = [
    (nn.Linear(4, 3), (2, 5, 4), {"weight": (4, 3), "bias": (3,)}, lambda p, x: x @ p["weight"] + p["bias"]),
    (nn.Linear(4, 3, bias=False), (2, 4), {"weight": (4, 3)}, lambda p, x: x @ p["weight"]),
    (nn.LayerNorm(6), (3, 6), {"gain": (6,), "bias": (6,)}, lambda p, x: layer_norm_reference(x)),
    (nn.LayerNorm(6, activation="relu"), (4, 6), {"gain": (6,), "bias": (6,)}, lambda p, x: _relu(layer_norm_reference(x))),
    (nn.LayerNorm(6, activation="tanh"), (4, 6), {"gain": (6,), "bias": (6,)}, lambda p, x: np.tanh(layer_norm_reference(x))),
    *((nn.LayerNorm((3, 4, 2), **options), (5, 3, 4, 2), shapes, lambda p, x, by=by: by * layer_norm_reference(x, axis=(1, 2, 3)))
      for options, shapes, by in (({}, {"gain": (3, 4, 2), "bias": (3, 4, 2)}, 1), ({"gain": 0.5}, {"gain": (3, 4, 2), "bias": (3, 4, 2)}, 0.5),
                                  ({"affine": False}, {}, 1))),
    *((nn.RMSNorm(width, affine=affine), (3, 4, 6), {"gain": width if isinstance(width, tuple) else (width,)} if affine else {},
       lambda p, x, axes=axes: rms_norm_reference(x, axis=axes)) for width, axes in ((6, (2,)), ((4, 6), (1, 2))) for affine in (True, False)),
    *((nn.GroupNorm(groups, 4), (2, 3, 5, 4), {"gain": (4,), "bias": (4,)}, lambda p, x, n=groups: group_norm_reference(x, groups=n)) for groups in (1, 2, 4)),
    (nn.GroupNorm(2, 4, gain=0.5), (2, 3, 5, 4), {"gain": (4,), "bias": (4,)}, lambda p, x: 0.5 * group_norm_reference(x, groups=2)),
    (nn.InstanceNorm(4), (2, 3, 5, 4), {"gain": (4,), "bias": (4,)}, lambda p, x: group_norm_reference(x, groups=4)),
    (nn.InstanceNorm(4, affine=False), (2, 3, 5, 4), {}, lambda p, x: group_norm_reference(x, groups=4)),
    (nn.BatchNorm(3), (50, 3), {"gain": (3,), "bias": (3,)}, lambda p, x: batch_norm_reference(x)[0]),
]


@pytest.mark.parametrize(("layer", "shape", "shapes", "reference"), LAYERS, ids=lambda each: repr(each) if isinstance(each, nn.Module) else "")
def test_a_layer_starts_as_its_operator(layer, shape, shapes, reference, be, rng):
    params, x = duoln.init(layer, 0, be), _x(be, rng, *shape)
    assert {key: value.shape for key, value in params.items()} == shapes
    host = {key: value.numpy().astype(np.float64) for key, value in params.items()}
    check_close(layer(params, x).numpy(), reference(host, x.numpy().astype(np.float64)), 1e-5, repr(layer))


def test_what_is_shown_and_refused(be, rng):
    assert repr(nn.LayerNorm((3, 4, 2), affine=False)) == "LayerNorm(width=(3, 4, 2), affine=False)"
    check_error(UsageError, lambda: nn.LayerNorm(6, activation="gelu"), "expected activation 'relu', 'tanh' or None, found 'gelu'")
    ids = [[1, 9], [0, 1]]
    params = duoln.init(layer := nn.Embedding(10, 3), 0, be)
    np.testing.assert_array_equal(layer(params, duoln.tensor(ids, be)).numpy(), params["table"].numpy()[ids])


@ON_NUMPY
def test_an_embedding_as_a_linear_layer(be, rng):
    layer, x = nn.Embedding(5, 3, padding_idx=0), _x(be, rng, 2, 4, 3)
    params = duoln.init(layer, 0, be)
    table, r = params["table"].numpy().astype(np.float64), rng.standard_normal((2, 4, 5)).astype(np.float32)
    check_close(layer.as_linear(params, x).numpy(), x.numpy() @ table.T, 1e-5, "logits")
    _, (of_table, of_x) = duoln.value_and_grad(lambda both: ops.sum(layer.as_linear(both[0], both[1]) * duoln.tensor(r, be)))((params, x))
    check_close(of_table["table"].numpy(), np.einsum("abw,abi->wi", r.astype(np.float64), x.numpy()), 1e-5, "table")
    check_close(of_x.numpy(), r @ table, 1e-5, "x")
    check_error(ShapeError, lambda: layer.as_linear({}, x), "[Embedding] expected parameters with 'table'")


def test_sequential_names_and_order(be, rng):
    model = nn.Sequential(nn.Linear(4, 6), ops.relu, out=nn.Linear(6, 2))
    params = duoln.init(model, 0, be)
    assert list(params) == ["0", "out"]
    x = _x(be, rng, 3, 4)
    expected = np.maximum(x.numpy() @ params["0"]["weight"].numpy(), 0) @ params["out"]["weight"].numpy()
    np.testing.assert_allclose(model(params, x).numpy(), expected, rtol=1e-4, atol=1e-6)
    check_error(UsageError, lambda: nn.Sequential(3), "layer 0", "int")
    assert nn.Flatten()({}, _x(be, rng, 3, 2, 2)).shape == (3, 4)


def test_the_first_layer_takes_all_inputs(be, rng):
    class Masked(nn.Module):
        def __call__(self, params, x, mask, bias=None):
            return ops.where(mask, x, 0.0) if bias is None else ops.where(mask, x, 0.0) + bias

    x, mask = _x(be, rng, 2, 3), duoln.tensor(np.array([[True, False, True]] * 2), be)
    for first in (Masked(), ops.where):
        model = nn.Sequential(first, nn.Linear(3, 2))
        given = (x, mask) if first is not ops.where else (mask, x, duoln.tensor(np.zeros((2, 3), np.float32), be))
        params = duoln.init(model, 0, be)
        expected = np.where(mask.numpy(), x.numpy(), 0) @ params["1"]["weight"].numpy() + params["1"]["bias"].numpy()
        np.testing.assert_allclose(model(params, *given).numpy(), expected, rtol=1e-5, atol=1e-6)
    model = nn.Sequential(nn.Sequential(Masked()), ops.relu)
    np.testing.assert_array_equal(model({"0": {"0": {}}}, x, mask, x).numpy(), np.maximum(np.where(mask.numpy(), x.numpy(), 0) + x.numpy(), 0))
    check_error(TypeError, lambda: nn.Sequential(nn.Linear(3, 2))(duoln.init(nn.Sequential(nn.Linear(3, 2)), 0, be), x, mask), "Linear")


def test_a_child_starts_the_same_whatever_stands_beside_it():
    one = nn.Sequential(a=nn.Linear(4, 4)).init(Stream(0, "init"))
    two = nn.Sequential(b=nn.Linear(9, 9), a=nn.Linear(4, 4)).init(Stream(0, "init"))
    np.testing.assert_array_equal(one["a"]["weight"], two["a"]["weight"])
    assert not np.array_equal(one["a"]["weight"], nn.Linear(4, 4).init(Stream(0, "init"))["weight"])


def test_parameters_that_do_not_belong_are_refused(be, rng):
    check_error(ShapeError, lambda: nn.Linear(4, 3)({"wieght": 1}, _x(be, rng, 2, 4)), "[Linear]", "weight", "wieght")
    check_error(ShapeError, lambda: nn.Sequential(a=nn.Linear(4, 3))({}, _x(be, rng, 2, 4)), "[Sequential]", "'a'")


class TestNormalisers:
    @pytest.mark.parametrize(("width", "axes", "activation"), [(6, (-1,), None), (6, (-1,), "tanh"), ((4, 6), (-2, -1), "relu")])
    def test_layer_norm_with_a_gain_alone(self, width, axes, activation, be, rng):
        layer, x, residual, r = nn.LayerNorm(width, bias=False, activation=activation, gain=1.5), _x(be, rng, 3, 4, 6), _x(be, rng, 3, 4, 6), _x(be, rng, 3, 4, 6)
        params = duoln.init(layer, 0, be)
        assert list(params) == ["gain"] and repr(layer).endswith("bias=False)") and nn.LayerNorm(6, bias=False, affine=False).init(0) == {}
        of_activation = {None: lambda y: y, "tanh": np.tanh, "relu": lambda y: np.maximum(y, 0)}[activation]

        def expected(rows):
            rows = rows.astype(np.float64)
            return of_activation(1.5 * (rows - rows.mean(axes, keepdims=True)) / np.sqrt(rows.var(axes, keepdims=True) + 1e-5))

        check_close(layer(params, x).numpy(), expected(x.numpy()), 1e-5, "values")
        y, total = layer.of_sum(params, x, residual)
        check_close(total.numpy(), x.numpy() + residual.numpy(), 1e-5, "sum")
        check_close(y.numpy(), expected(total.numpy()), 1e-5, "norm of the sum")
        whole, zeros = nn.LayerNorm(width, activation=activation), {**params, "bias": ops.zeros_like(params["gain"])}
        for call in (lambda norm, p, x: norm(p, x), lambda norm, p, x: norm.of_sum(p, x, residual)[0]):
            def gradients(norm, own, call=call):
                return duoln.value_and_grad(lambda p: ops.sum(r * call(norm, {k: p[k] for k in own}, p["x"])))({**own, "x": x})[1]

            mine, second = gradients(layer, params), gradients(whole, zeros)
            for name in ("gain", "x"):
                check_close(mine[name].numpy(), second[name].numpy(), 1e-5, name)

    def test_weight_norm_starts_as_the_layer_it_wraps(self, be, rng):
        for layer, x in ((nn.Linear(4, 3), _x(be, rng, 2, 4)), (nn.Conv2d(2, 3, 2), _x(be, rng, 2, 4, 4, 2))):
            wrapped = nn.WeightNorm(layer)
            params = duoln.init(wrapped, 0, be)
            assert list(params) == ["direction", "gain", "bias"]
            np.testing.assert_allclose(wrapped(params, x).numpy(), layer(duoln.init(layer, 0, be), x).numpy(), rtol=2e-5, atol=1e-6)
        check_error(UsageError, lambda: nn.WeightNorm(nn.LayerNorm(3)), "LayerNorm")


class TestPopulation:
    def test_statistics_are_means_over_batches_with_unbiased_variance(self, be, rng):
        model = nn.Sequential(norm=nn.BatchNorm(3))
        params = duoln.init(model, 0, be)
        batches = [_x(be, rng, 8, 3) for _ in range(4)]
        with_statistics = nn.with_population(model, params, batches)
        hosts = [b.numpy().astype(np.float64) for b in batches]
        np.testing.assert_allclose(with_statistics["norm"]["mean"].numpy(), np.mean([h.mean(0) for h in hosts], 0), rtol=1e-4, atol=1e-6)
        variance = np.mean([h.var(0, ddof=1) for h in hosts], 0)
        np.testing.assert_allclose(with_statistics["norm"]["variance"].numpy(), variance, rtol=1e-4)
        assert "mean" not in params["norm"] and "gather" not in with_statistics["norm"]
        x = _x(be, rng, 5, 3)
        expected = (x.numpy() - with_statistics["norm"]["mean"].numpy()) / np.sqrt(variance + 1e-5)
        np.testing.assert_allclose(model(with_statistics, x).numpy(), expected, rtol=1e-4, atol=1e-5)

    def test_an_unbiased_layer_is_not_corrected_twice(self, numpy_backend, rng):
        model = nn.BatchNorm(3, unbiased=True)
        batch = _x(numpy_backend, rng, 4, 3)
        with_statistics = nn.with_population(model, duoln.init(model, 0, numpy_backend), [batch])
        np.testing.assert_allclose(with_statistics["variance"].numpy(), batch.numpy().var(0, ddof=1), rtol=1e-5)

    def test_a_model_without_batch_norm_is_left_alone(self, numpy_backend):
        model = nn.Linear(2, 2)
        params = duoln.init(model, 0, numpy_backend)
        assert nn.with_population(model, params, []) is params


def test_a_padding_row_starts_at_0_and_stays(be):
    layer = nn.Embedding(5, 3, padding_idx=2)
    table = layer.init(0)["table"]
    assert not table[2].any() and np.all(table[[0, 1, 3, 4]] != 0)
    np.testing.assert_array_equal(np.delete(table, 2, 0), np.delete(nn.Embedding(5, 3).init(0)["table"], 2, 0))
    loaded = np.arange(15, dtype=np.float32).reshape(5, 3)  # a row of another origin keeps its values, as in PyTorch
    ids = duoln.tensor([[2, 0], [2, 4]], be)
    params = {"table": duoln.tensor(loaded, be)}
    np.testing.assert_array_equal(layer(params, ids).numpy(), loaded[[[2, 0], [2, 4]]])
    _, gradients = duoln.value_and_grad(lambda p: ops.sum(ops.square(layer(p, ids))))(params)
    expected = np.zeros((5, 3), np.float32)
    expected[[0, 4]] = 2 * loaded[[0, 4]]
    np.testing.assert_array_equal(gradients["table"].numpy(), expected)


@pytest.mark.parametrize(("layer", "shape", "expected"), [
    (nn.Conv1d(4, 6, 3, dilation=2, groups=2), (2, 9, 4), (2, 5, 6)), (nn.Conv1d(4, 2, 4, stride=2, padding="same"), (2, 9, 4), (2, 5, 2)),
    (nn.Conv2d(4, 6, (3, 2), stride=(1, 2), padding=(1, 0), groups=2), (2, 5, 6, 4), (2, 5, 3, 6)),
    (nn.Conv2d(2, 3, 3, padding="same", dilation=2, bias=False), (1, 5, 6, 2), (1, 5, 6, 3))])
def test_shapes_of_convolutions(layer, shape, expected, be):
    params = duoln.to_tensors(layer.init(0), be)
    assert layer(params, ops.ones(shape, be)).shape == expected
    assert params["weight"].shape == (*layer.kernel, layer.n_in // layer.groups, layer.n_out)


@pytest.mark.skipif(native.machine_refusal() is not None, reason="there is no C++ compiler")
def test_which_rule_runs_a_convolution_in_groups(numpy_backend):
    x, weight = ops.ones((1, 5, 5, 4), numpy_backend), ops.ones((3, 3, 2, 4), numpy_backend)
    for settings in ({"groups": 2}, {"groups": 2, "dilation": 2}, {"groups": 2, "stride": (1, 2), "padding": (0, 1)}):
        assert ops.conv2d.explain(x, weight, **settings)[0] == ("compiled", "runs")
    pooled = ops.max_pool2d.explain(x, size=(1, 2))
    assert pooled[-1] == ("composed", "runs") and all("squares" in reason for _, reason in pooled[:-1])
