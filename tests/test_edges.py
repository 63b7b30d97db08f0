"""Values, gradients, layers and updates at their edges: NaN and infinity, ties, zeros, one value, none, very many."""

import math

import numpy as np
import pytest
from conftest import ON_NUMPY

import duoln
from duoln import nn, ops, optim, tree
from duoln.errors import DtypeError, ShapeError, UsageError

INF, NAN = math.inf, math.nan


@pytest.fixture(autouse=True)
def _silent():
    """NumPy warns where infinity and NaN are computed, which here is wanted."""
    with np.errstate(all="ignore"):
        yield


def _tensor(x, be, dtype=np.float32):
    return duoln.tensor(np.asarray(x, dtype), be)


def _gradients(fn, *arrays):
    return [g.numpy() for g in duoln.value_and_grad(lambda p: ops.sum(fn(*p)))(list(arrays))[1]]


def _same(actual, expected, rtol=1e-5, atol=1e-6):
    actual = actual.numpy() if isinstance(actual, duoln.Tensor) else actual
    np.testing.assert_allclose(actual, expected, rtol=rtol, atol=atol)


def _finite(params):
    return all(np.isfinite(leaf.numpy()).all() for leaf in tree.leaves(params))


# Dtypes ---------------------------------------------------------------------------------------------

_NEAREST = {NAN: 0, INF: 2**31 - 1, -INF: -2**31, 3e9: 2**31 - 1, -3e9: -2**31}


@pytest.mark.parametrize("dtype, x", [(dtype, x) for dtype in ("float32", "bfloat16", "float16") for x in _NEAREST
                                      if dtype != "float16" or not math.isfinite(x)])
def test_a_float_that_int32_does_not_hold(be, dtype, x):
    of_float = duoln.tensor([1.0, x, -2.7], be, dtype=dtype)
    if be.name == "numpy":
        with pytest.raises(DtypeError, match=r"\[astype\] expected values that int32 holds, .* found "):
            of_float.astype("int32")
    else:
        assert of_float.astype("int32").numpy().tolist() == [1, _NEAREST[x], -2]


def test_the_greatest_floats_that_int32_holds(be):
    x = _tensor([2147483520.0, -2147483648.0, 0.9, -0.9], be)
    assert x.astype("int32").numpy().tolist() == [2147483520, -2147483648, 0, 0]
    assert ops.astype(_tensor(np.zeros((0, 2)), be), "int32").shape == (0, 2)


def test_a_compiled_step_checks_floats_again(numpy_backend):
    step = duoln.compile(lambda x: x.astype("int32"))
    for value in (1.5, 2.5, 3.5):
        assert step(_tensor([value], numpy_backend)).numpy() == int(value)
    with pytest.raises(DtypeError, match="found nan"):
        step(_tensor([NAN], numpy_backend))


def test_memory_of_other_orders(be):
    for x in (np.arange(3, dtype=">f4"), np.arange(3, dtype=">i4"), np.arange(3.0)[::-1][::-1], np.arange(6)[::2] / 2):
        _same(duoln.tensor(x, be), [0, 1, 2])


def test_a_numpy_number_on_the_left(be):
    x = _tensor([1, 2], be)
    for two in (np.float32(2), np.float64(2)):
        _same(two * x, [2, 4])
        _same(two - x, [1, 0])
        _same(_gradients(lambda x, two=two: two / x, x)[0], [-2, -0.5])


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_gradients_of_16_bits_do_not_stop_growing(be, dtype):
    rows = _tensor(np.ones((3000, 2)), be).astype(dtype)

    def loss(p):
        narrow, total = p.astype(dtype), _tensor(0, be)
        for _ in range(300):
            total = total + narrow.astype("float32").sum()
        return total + (rows * narrow).astype("float32").sum()

    _same(duoln.value_and_grad(loss)(_tensor([1, 1], be))[1], [3300, 3300], rtol=1e-2)
    many = _tensor(np.full(70000, 1.0), be).astype(dtype)
    _same(ops.mean(many).astype("float32"), 1, rtol=1e-2)
    _same(ops.mean(_tensor([60000] * 4, be).astype(dtype)).astype("float32"), 60000, rtol=1e-2)


# Elementwise and reductions ---------------------------------------------------------------------------

@pytest.mark.parametrize("count", [1, 7, 16, 33])
def test_no_place_of_an_array_has_another_gradient(be, count):
    for fn in (ops.elu, ops.silu, ops.gelu, ops.relu, ops.tanh, lambda x: ops.clip(x, -1.0, 1.0), lambda x: x ** 2.5,
               lambda x: ops.leaky_relu(x, 0.1), ops.softplus):
        for value in (NAN, INF, -INF, 1e-30, 0.0, 88.5, -87.5):
            dx = _gradients(fn, _tensor(np.full(count, value), be))[0]
            np.testing.assert_allclose(dx, np.full(count, dx[0]), rtol=3e-6)


def _chosen(fn):
    """Chosen before a slope that is infinite, and after it."""
    return lambda x: ops.where(x > 0.0, fn(ops.where(x > 0.0, x, 1.0)), 0.0)


_WITH_NAN = [NAN, 1, NAN, 1, 2], [1, NAN, NAN, 1, 1]
_OF_ROWS = [[NAN, 1], [2, 2]]
SLOPES = {
    "powers of 0": (lambda x, y: x ** y, ([0, 0, 0, 0, 2], [-1, -0.5, 0, 3, 2]), ([-INF, -INF, 0, 0, 4], [0, 0, 0, 0, 4 * math.log(2)])),
    "powers of what is no number": (lambda x, y: x ** y, ([-2, NAN], [2, 2]), (None, [0, NAN])),
    "a maximum beside NaN": (ops.maximum, _WITH_NAN, ([1, 1, 1, 0.5, 1], [1, 1, 1, 0.5, 0])),
    "a minimum beside NaN": (ops.minimum, _WITH_NAN, ([1, 1, 1, 0.5, 0], [1, 1, 1, 0.5, 1])),
    "the largest of a row": (lambda x: ops.max(x, axis=1), (_OF_ROWS,), ([[0.5, 0.5], [0.5, 0.5]],)),
    "the least of a row": (lambda x: ops.min(x, axis=1), (_OF_ROWS,), ([[0.5, 0.5], [0.5, 0.5]],)),
    "the largest of equal ones": (ops.max, ([1, 3, 3, 3],), ([0, 1 / 3, 1 / 3, 1 / 3],)),
    "a deviation of equal values": (lambda x: ops.std(x, axis=-1), ([[3, 3, 3]],), ([[0, 0, 0]],)),
    "a deviation of one value": (lambda x: ops.std(x, axis=-1), ([[5]],), ([[0]],)),
    **{f"a product of {x}": (ops.prod, (x,), (slopes,)) for x,
       slopes in (([0, 2, 3], [6, 0, 0]), ([2, 3, 0], [0, 0, 6]), ([2, 0, 0, 3], [0] * 4))},
    **{f"{name} of what is chosen": (_chosen(fn), ([0, 4, -1],), ([0, slope, 0],))
       for name, fn, slope in (("log", ops.log, 0.25), ("sqrt", ops.sqrt, 0.25), ("rsqrt", lambda x: x ** -0.5, -1 / 16))},
    "huber": (lambda x: ops.huber(x, ops.zeros_like(x)), ([-INF, -1e30, -1, -0.5, 0, 0.5, 1, 1e30, INF],),
              ([-1, -1, -1, -0.5, 0, 0.5, 1, 1, 1],)),
}


@pytest.mark.parametrize("name", SLOPES)
def test_gradients_of_the_sum(be, name):
    fn, inputs, slopes = SLOPES[name]
    for actual, expected in zip(_gradients(fn, *(_tensor(x, be) for x in inputs)), slopes, strict=True):
        if expected is not None:
            _same(actual, expected)


@pytest.mark.parametrize("size, stride", [(2, 2), (3, 1), ((2, 2), (1, 2))])
def test_a_window_with_nan_keeps_its_gradient(be, size, stride):
    x = np.random.default_rng(0).standard_normal((2, 7, 7, 3)).astype(np.float32)
    x[0, 3, 3, 1] = NAN
    y = ops.max_pool2d(_tensor(x, be), size=size, stride=stride)
    [dx] = _gradients(lambda x: ops.max_pool2d(x, size=size, stride=stride), _tensor(x, be))
    assert np.isnan(y.numpy()[..., 1]).any() and not np.isnan(y.numpy()[..., 0]).any()
    np.testing.assert_allclose(dx.sum(), y.size, rtol=1e-5)


@pytest.mark.parametrize("place", [0, 7, slice(None)])
def test_a_row_with_nan_reaches_no_second_row(be, place):
    x = np.random.default_rng(0).standard_normal((3, 33)).astype(np.float32)
    labels, eye = _tensor([0, 1, 32], be, np.int32), ops.eye(33, backend=be)
    for fn in (ops.softmax, ops.log_softmax, ops.logsumexp, ops.layer_norm, ops.rms_norm,
               lambda x: ops.max(x, axis=-1), lambda x: ops.std(x, axis=-1), lambda x: ops.prod(x, axis=-1),
               *(lambda x, share=share: ops.softmax_cross_entropy(x, labels, label_smoothing=share) for share in (0.0, 0.1)),
               lambda x: ops.linear_cross_entropy(x, eye, ops.zeros(33, be), labels),
               *(lambda x, activation=activation: ops.activated_linear(x, eye, activation=activation)
                 for activation in ("relu", "tanh"))):
        broken = x.copy()
        broken[1, place] = NAN
        y, dx = fn(_tensor(broken, be)).numpy(), _gradients(fn, _tensor(broken, be))[0]
        assert np.isnan(y[1]).all()
        np.testing.assert_array_equal(y[[0, 2]], fn(_tensor(x, be)).numpy()[[0, 2]])
        np.testing.assert_array_equal(dx[[0, 2]], _gradients(fn, _tensor(x, be))[0][[0, 2]])


def test_places_of_nan_and_of_equal_values(be):
    x = _tensor([[1, NAN, 3], [NAN, NAN, 5], [2, 1, 2]], be)
    assert ops.argmax(x, axis=1).numpy().tolist() == [1, 0, 0]
    assert ops.argmin(x, axis=1).numpy().tolist() == [1, 0, 1]


def test_rounding(be):
    _same(ops.round(_tensor([0.5, 1.5, 2.5, -1.5, 8388609, INF], be)), [0, 2, 2, -2, 8388609, INF])


# Shapes -----------------------------------------------------------------------------------------------

def test_axes_of_length_0(be):
    x, none = _tensor(np.ones((3, 1)), be), _tensor(np.ones((1, 0)), be)
    for fn in (lambda x, y: x + y, lambda x, y: x * y, ops.matmul):
        dx, dy = _gradients(fn, x, none)
        _same(dx, np.zeros((3, 1)))
        assert dy.shape == (1, 0)
    for fn in (ops.softmax, ops.layer_norm, ops.cumulative_sum, lambda x: ops.pad(x, ((0, 0), (0, 0)))):
        arguments = {"axis": 0} if fn is ops.cumulative_sum else {}
        assert _gradients(lambda x, fn=fn, a=arguments: fn(x, **a), _tensor(np.ones((0, 3)), be))[0].shape == (0, 3)
    with pytest.raises(ShapeError, match=r"\[max\] expected at least one value"):
        ops.max(_tensor(np.ones((0, 3)), be), axis=0)


@pytest.mark.parametrize("layer", [nn.RNN, nn.LSTM, nn.GRU])
@pytest.mark.parametrize("norm", ["none", "layer"])
@pytest.mark.parametrize("shape", [(0, 3, 4), (5, 0, 4), (0, 0, 4)])
def test_sequences_of_no_step_or_no_example(be, layer, norm, shape):
    model = layer(4, 6, norm=norm)
    params = duoln.to_tensors(model.init(0), be)
    y, gradients = duoln.value_and_grad(lambda p: model(p, _tensor(np.zeros(shape), be))[0].sum())(params)
    assert float(y) == 0 and _finite(gradients)


def test_images_of_no_example(be):
    none, weight = _tensor(np.zeros((0, 5, 5, 2)), be), _tensor(np.ones((3, 3, 2, 4)), be)
    dx, dweight = _gradients(ops.conv2d, none, weight)
    assert dx.shape == (0, 5, 5, 2)
    _same(dweight, np.zeros((3, 3, 2, 4)))
    for fn in (ops.max_pool2d, ops.avg_pool2d):
        assert _gradients(lambda x, fn=fn: fn(x, size=2), none)[0].shape == (0, 5, 5, 2)
    with pytest.raises(ShapeError, match=r"\[conv2d\]"):
        ops.conv2d(_tensor(np.ones((1, 5, 5, 2)), be), weight, dilation=3)


# Losses and layers --------------------------------------------------------------------------------------

def test_all_labels_ignored(be):
    x, labels = _tensor(np.ones((3, 4)), be), _tensor([-1] * 3, be, np.int32)
    for share in (0.0, 0.3):
        value, dx = duoln.value_and_grad(lambda x, share=share: ops.softmax_cross_entropy(
            x, labels, ignore_index=-1, label_smoothing=share).mean())(x)
        assert float(value) == 0 and not dx.numpy().any()


def test_smoothing_beside_weights_and_ignored_labels(be):
    x = np.random.default_rng(0).standard_normal((4, 5)).astype(np.float32)
    labels, weight, share = np.array([0, -1, 3, 4]), np.array([1, 2, 0, 4, 0.5]), 0.3
    log_p = x - np.log(np.exp(x).sum(1, keepdims=True))
    expected = [(1 - share) * -weight[k] * row[k] - share * (weight * row).mean() if k >= 0 else 0
                for row, k in zip(log_p, labels, strict=True)]
    _same(ops.softmax_cross_entropy(_tensor(x, be), _tensor(labels, be, np.int32), ignore_index=-1, class_weights=_tensor(weight, be),
                                    label_smoothing=share), expected)


def test_queries_without_a_key(be):
    layer = nn.MultiHeadAttention(4, 2)
    params = duoln.to_tensors(layer.init(0), be)
    x = _tensor(np.random.default_rng(0).standard_normal((2, 3, 4)), be)
    mask = _tensor([[1, 1, 0], [0, 0, 0]], be, bool)
    _, gradients = duoln.value_and_grad(lambda p: (layer(p, x, mask) ** 2.0).sum())(params)
    assert _finite(gradients)


def test_rows_that_are_taken_often_and_padding(be):
    table, ids = _tensor(np.ones((4, 2)), be), _tensor([1, 1, 1, 0, -1, 2, 2], be, np.int32)
    _same(_gradients(lambda t: ops.take(t, ids, axis=0), table)[0][:, 0], [1, 3, 2, 1])
    repeated = _tensor(np.zeros(1000), be, np.int32)
    _same(_gradients(lambda t: ops.embedding(t, repeated, padding_idx=0), table)[0], np.zeros((4, 2)))
    _same(_gradients(lambda t: ops.embedding(t, repeated), table)[0][0], [1000, 1000])


@pytest.mark.parametrize("layer", [nn.RNN, nn.LSTM, nn.GRU])
@pytest.mark.parametrize("norm", ["none", "layer"])
def test_padding_changes_no_direction(be, norm, layer):
    model = layer(3, 4, norm=norm, layers=2, bidirectional=True)
    params = duoln.to_tensors(model.init(0), be)
    x = np.random.default_rng(1).standard_normal((5, 2, 3)).astype(np.float32)
    mask = _tensor(np.arange(5)[:, None] < [[3, 5]], be, bool)
    y, states = model(params, _tensor(x, be), mask=mask)
    alone, of_alone = model(params, _tensor(x[:3, :1], be))
    _same(y.numpy()[:3, :1], alone.numpy(), atol=1e-5)
    for padded, state in zip(tree.leaves(states), tree.leaves(of_alone), strict=True):
        _same(padded.numpy()[:1], state.numpy(), atol=1e-5)
    ends = layer(3, 4, norm=norm, layers=2, bidirectional=True, return_sequences=False)
    _same(ends(params, _tensor(x, be), mask=mask)[0].numpy()[:1], ends(params, _tensor(x[:3, :1], be))[0].numpy(), atol=1e-5)


# Gradients, steps and updates -----------------------------------------------------------------------------

def test_ten_thousand_operators(be):
    def chain(p):
        for _ in range(10_000):
            p = p + 1.0
        return p

    _same(_gradients(chain, _tensor([2], be))[0], [1])


def test_results_of_a_step_stay(be):
    """Arguments as results, too."""
    step = duoln.compile(lambda x: (x, ops.reshape(x, (1, 2)), x, x + 1.0))
    results = [step(_tensor([k, k + 1], be)) for k in range(6)]
    for k, of_call in enumerate(results):
        for more, actual in zip((0, 0, 0, 1), of_call, strict=True):
            _same(actual.numpy().ravel(), [k + more, k + 1 + more])
    assert not (step(_tensor([1, 2], be))[3] == step(_tensor([2, 2], be))[3]).numpy()[0]


@ON_NUMPY
def test_what_a_step_returns_beside_donated_parameters(be):
    optimizer = optim.Adam(0.1, donate=True)

    def update(params, slots):
        _, gradients = duoln.value_and_grad(lambda p: (p["a"] ** 2.0).sum())(params)
        params, slots = optimizer.update(params, gradients, slots, 0.1)
        return params["a"] * 1.0, params, slots, params["a"] - params["a"]

    step = duoln.compile(update)
    starts = [{"a": _tensor([1, -2], be)} for _ in range(2)]
    states = [(params, optimizer.init(params)) for params in starts]
    kept = [[], []]
    for _ in range(5):
        for k, function in enumerate((update, step)):
            copy, *states[k], zeros = function(*states[k])
            kept[k].append(copy)
            _same(zeros, [0, 0])
    for plain, compiled in zip(*kept, strict=True):
        _same(compiled, plain.numpy())


def test_a_parameter_under_two_names(be):
    whole = _tensor([[1, 2]], be)
    for donate in (False, True):
        shared = whole[0]
        params = {"a": shared, "b": shared}
        _, gradients = duoln.value_and_grad(lambda p: (p["a"] * p["b"]).sum())(params)
        optimizer = optim.Adam(0.1, donate=donate)
        params, _ = optimizer.update(params, gradients, optimizer.init(params), 0.1)
        for leaf in tree.leaves(params):
            _same(leaf, [0.9, 1.9], rtol=1e-4)
    _same(whole, [[1, 2]])


@pytest.mark.parametrize("kind", [optim.Adam, optim.RMSProp])
def test_an_epsilon_that_keeps_no_division_from_0(be, kind):
    for eps in (0.0, 1e-50):
        with pytest.raises(UsageError, match=rf"\[{kind.__name__}\] eps: expected a finite number of at least 1e-30"):
            kind(0.1, eps=eps)
    optimizer, params = kind(0.1, eps=1e-30), {"used": _tensor([1], be), "unused": _tensor([1, 2], be)}
    slots = optimizer.init(params)
    for _ in range(3):
        _, gradients = duoln.value_and_grad(lambda p: p["used"].sum())(params)
        params, slots = optimizer.update(params, gradients, slots, 0.1)
    _same(params["unused"], [1, 2])
    assert _finite(params)


@pytest.mark.parametrize("count", [0, 2**24, 2**31 - 2, 2**31 - 1])
def test_the_number_of_updates_does_not_wrap_round(be, count):
    optimizer, params = optim.Adam(0.1), {"a": _tensor([1, 2], be)}
    slots = optimizer.init(params)
    slots["update"] = _tensor(count, be, np.int32)
    params, slots = optimizer.update(params, {"a": _tensor([1, -3], be)}, slots, 0.1)
    assert int(slots["update"]) == min(count + 1, 2**31 - 1) and _finite(params)


def test_clips_of_nan_and_of_infinity(be):
    for clip in (optim.clip_global_norm(1.0), optim.clip_each_norm(1.0), optim.clip_value(1.0)):
        assert np.isnan(clip({"a": _tensor([NAN, 1], be), "b": _tensor([1], be)})["a"].numpy()[0])
    _same(optim.clip_value(1.0)({"a": _tensor([INF, 2], be)})["a"], [1, 1])


@pytest.mark.parametrize("size", [1e20, 3e-25, 3e38])
@pytest.mark.parametrize("clip", [None, optim.clip_global_norm(1.0)])
def test_the_norm_beside_an_update(be, size, clip):
    params, gradients = [_tensor([1, 2], be), _tensor(3, be)], [_tensor([0.6 * size, 0], be), _tensor(0.8 * size, be)]
    for optimizer in (optim.Adam(0.1, clip=clip), optim.SGD(0.1, clip=clip)):
        norm = optimizer.update_with_norm(params, gradients, optimizer.init(params), 0.1)[2]
        _same(norm, size, atol=0)
