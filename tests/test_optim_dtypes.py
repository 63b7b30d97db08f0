"""The dtypes of optimizers, the rounding of averages, empty trees, and settings that have no update."""

import numpy as np
import pytest

import duoln
from duoln import nn, ops, optim, tree
from duoln.errors import DtypeError, ShapeError, UsageError
from duoln.testing import check_error

OPTIMIZERS = [optim.SGD(0.1), optim.SGD(0.1, momentum=0.9, nesterov=True), optim.RMSProp(0.1), optim.Adam(0.1), optim.AdamW(0.1)]
CLIPS = [optim.clip_global_norm(1.0), optim.clip_each_norm(1.0), optim.clip_value(1.0), optim.scale_by_norm(lambda norm: norm)]


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=lambda o: type(o).__name__)
def test_16_bits_are_refused(be, optimizer, dtype):
    """A step is often below half a unit in their last place; RMSProp divides by an epsilon that is 0 in float16."""
    name, wide = f"[{type(optimizer).__name__}]", {"w": duoln.tensor([1.0, 2.0], be)}
    narrow, rate = {"w": wide["w"].astype(dtype)}, duoln.tensor(0.1, be)
    remedy = f"p.astype('{dtype}')"
    for params in (narrow, wide | {"table": narrow["w"]}):
        check_error(DtypeError, lambda p=params: optimizer.init(p), name, "parameters of float32", f"found {dtype}", remedy)
    slots = optimizer.init(wide)
    for step in (0.1, rate):
        check_error(DtypeError, lambda r=step: optimizer.update(narrow, wide, slots, r), name, "parameters of float32", remedy)
        check_error(DtypeError, lambda r=step: optimizer.update(wide, narrow, slots, r), name, "gradients of float32", remedy)
        check_error(DtypeError, lambda r=step: optimizer.update_with_norm(wide, narrow, slots, r), name, "gradients of float32")
    check_error(DtypeError, lambda: optimizer.update(wide, wide, slots, rate.astype(dtype)), name, "rate: expected float32", f"found {dtype}")


@pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=lambda o: type(o).__name__)
def test_a_number_and_a_tensor_are_one_rate(numpy_backend, optimizer):
    """At any size of it, in the dtype of the parameters."""
    for dtype in ("float32", "float64"):
        params = duoln.to_tensors({"w": np.array([1.0, -2.0])}, numpy_backend, dtype=dtype)
        gradients, slots = {"w": params["w"] * 3.0}, optimizer.init(params)
        for rate in (3e-8, 1e-3):
            first, second = (optimizer.update(params, gradients, slots, r)[0]["w"] for r in (rate, duoln.tensor(rate, numpy_backend, dtype)))
            assert first.dtype == second.dtype == dtype
            np.testing.assert_array_equal(first.numpy(), second.numpy())
        peer = duoln.tensor(0.1, numpy_backend, {"float32": "float64", "float64": "float32"}[dtype])
        check_error(DtypeError, lambda: optimizer.update(params, gradients, slots, peer), "rate", dtype, peer.dtype)  # noqa: B023


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_the_rates_of_adam_are_float32(be, dtype):
    """An epsilon of 1e-8 is 0 in float16, and 0 / 0 a NaN."""
    rates = ops.adam_rates(duoln.tensor(0.125, be, dtype=dtype), duoln.tensor(0, be), beta1=0.9, beta2=0.999, eps=1e-8)
    expected = ops.adam_rates(duoln.tensor(0.125, be), duoln.tensor(0, be), beta1=0.9, beta2=0.999, eps=1e-8)
    assert [t.dtype for t in rates] == ["float32", "float32", "int32"]
    for mine, own in zip(rates, expected, strict=True):
        np.testing.assert_array_equal(mine.numpy(), own.numpy())


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("clip", CLIPS[:2], ids=["all norms", "each norm"])
def test_a_norm_that_the_dtype_does_not_hold_clips(be, clip, dtype):
    """The square of 300, and the sum of these squares, are infinite in float16."""
    gradients = {"w": duoln.tensor(np.full(90000, 300.0, np.float32), be).astype(dtype)}
    clipped = clip(gradients)["w"]
    assert clipped.dtype == "float32"
    np.testing.assert_allclose(clipped.numpy(), np.full(90000, 1 / 300), rtol=5e-3)


@pytest.mark.parametrize("beta", [0.9, 0.999, 0.9999])
def test_the_average_of_weights_that_stay_is_these(be, rng, beta):
    ema, params = optim.MovingAverage(beta), {"w": duoln.tensor(rng.standard_normal(1000).astype(np.float32), be)}
    average, update = ema.init(params), duoln.compile(ema.update)
    for _ in range(200):
        average = update(average, params)
    np.testing.assert_array_equal(average["w"].numpy(), params["w"].numpy())


def test_an_average_near_its_end_keeps_its_digits(numpy_backend):
    ema, end = optim.MovingAverage(0.999), {"w": duoln.tensor([1.0], numpy_backend)}
    average = {"w": duoln.tensor([1.2], numpy_backend)}
    for _ in range(4000):
        average = ema.update(average, end)
    assert average["w"].item() == pytest.approx(1 + 0.2 * 0.999 ** 4000, rel=2e-6)


def test_rmsprop_keeps_a_mean_square_that_stays(be, rng):
    optimizer, g = optim.RMSProp(1e-3, beta=0.999), rng.standard_normal(1000).astype(np.float32)
    params = duoln.to_tensors({"w": g}, be)
    slots, square = {**optimizer.init(params), "square": {"w": duoln.tensor(g * g, be)}}, g * g
    update = duoln.compile(optimizer.update)
    for _ in range(100):
        _, slots = update(params, {"w": params["w"]}, slots, duoln.tensor(1e-3, be))
    np.testing.assert_array_equal(slots["square"]["w"].numpy(), square)


def test_what_is_not_averaged(be):
    params = {"w": duoln.tensor([1.0], be)}
    narrow, ema = tree.map(lambda p: p.astype("bfloat16"), params), optim.MovingAverage(0.5)
    check_error(DtypeError, lambda: ema.update(narrow, params), "[MovingAverage]", "float32", "bfloat16")
    assert ema.update(params, narrow)["w"].dtype == "float32"


@pytest.mark.parametrize("clip", [None, *CLIPS], ids=["none", "all norms", "each norm", "value", "own"])
@pytest.mark.parametrize("kind", [optim.SGD, optim.RMSProp, optim.Adam, optim.AdamW])
@pytest.mark.parametrize("empty", [{}, [], {"frozen": {}}], ids=str)
def test_an_empty_tree_stays(be, kind, clip, empty):
    """As of a part of a model that has no parameters."""
    optimizer = kind(0.1, clip=clip)
    slots = optimizer.init(empty)
    for rate in (0.1, duoln.tensor(0.1, be)):
        assert optimizer.update(empty, empty, slots, rate) == (empty, slots)
        check_error(ShapeError, lambda r=rate: optimizer.update(empty, {"w": duoln.tensor([1.0], be)}, slots, r), "[tree]", "expected", "found")
    assert clip is None or clip(empty) == empty
    assert optim.MovingAverage().update(empty, empty) == empty


@pytest.mark.parametrize("beta", [0.0, 1e-17])
@pytest.mark.parametrize("name", ["beta1", "beta2"])
def test_a_correction_by_0_is_refused(be, name, beta):
    """The first beta makes the rate infinite, the second one makes it 0."""
    settings = {"beta1": 0.9, "beta2": 0.999, "bias_correction": "kiros2015", name: beta}
    for kind in (optim.Adam, optim.AdamW):
        check_error(UsageError, lambda k=kind: k(0.1, **settings), f"[{kind.__name__}] {name}: expected a number above 0", f"found {beta}")
    number, count = duoln.tensor(0.1, be), duoln.tensor(0, be)
    check_error(UsageError, lambda: ops.adam_rates(number, count, eps=1e-8, **settings), f"[adam_rates] {name}", f"found {beta}")
    plain = optim.Adam(0.1, **{name: beta})
    params, gradients = {"w": duoln.tensor([1.0, 1.0], be)}, {"w": duoln.tensor([2.0, 0.0], be)}
    np.testing.assert_allclose(plain.update(params, gradients, plain.init(params), 0.1)[0]["w"].numpy(), [0.9, 1.0], rtol=1e-5)


@pytest.mark.parametrize("optimizer", [*OPTIMIZERS[:4], optim.AdamW(0.1, decays=lambda path, p: not path.endswith("table"))],
                         ids=lambda o: type(o).__name__)
def test_a_row_of_padding_stays(be, rng, optimizer):
    """Also one that is not 0, under AdamW where its table does not decay."""
    params, start = _trained(be, rng, optimizer, own_row=True)
    np.testing.assert_array_equal(params["table"].numpy()[1], start[1])
    assert (params["table"].numpy()[[0, 2]] != start[[0, 2]]).all()


@pytest.mark.parametrize("own_row", [False, True])
def test_decay_shrinks_a_row_of_padding_that_is_not_0(be, rng, own_row):
    params, start = _trained(be, rng, optim.AdamW(0.1, weight_decay=0.5), own_row)
    np.testing.assert_allclose(params["table"].numpy()[1], start[1] * 0.95 ** 3, rtol=1e-5)
    assert start[1].any() == own_row


def _trained(be, rng, optimizer, own_row):
    """The parameters of an embedding after three updates, and its table before; a row of its own for the padding, or 0."""
    layer, ids = nn.Embedding(3, 4, padding_idx=1), duoln.tensor([[0, 1], [1, 2]], be)
    start = rng.standard_normal((3, 4)).astype(np.float32) if own_row else layer.init(0)["table"]
    params = duoln.to_tensors({"table": start.copy()}, be)
    slots = optimizer.init(params)
    for _ in range(3):
        _, gradients = duoln.value_and_grad(lambda p: ops.sum(ops.square(layer(p, ids) - 3.0)))(params)
        params, slots = optimizer.update(params, gradients, slots, 0.1)
    return params, start
