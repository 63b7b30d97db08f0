"""Optimizers against plain NumPy written from their equations, clipping, dtypes, averages, groups, and errors."""

import dataclasses
import re
import textwrap

import numpy as np
import pytest
from conftest import ON_NUMPY

import duoln
from duoln import nn, ops, optim, tree
from duoln.errors import DtypeError, ShapeError, UsageError
from duoln.testing import check_error

STEPS = 12


def _gradients(rng, params):
    return [{k: rng.standard_normal(v.shape).astype(np.float32) for k, v in params.items()} for _ in range(STEPS)]


def _adam(p, grads, lr, b1=0.9, b2=0.999, eps=1e-8, kiros=False, decay=0.0):
    m = v = np.zeros_like(p)
    for t, g in enumerate(grads, start=1):
        m, v = b1 * m + (1 - b1) * g, b2 * v + (1 - b2) * g * g
        p = p * (1 - lr * decay)
        if kiros:
            p = p - lr * np.sqrt(1 - (1 - b2) ** t) / (1 - (1 - b1) ** t) * m / (np.sqrt(v) + eps)
        else:
            p = p - lr * (m / (1 - b1 ** t)) / (np.sqrt(v / (1 - b2 ** t)) + eps)
    return p


def _sgd(p, grads, lr, momentum=0.0, nesterov=False, decay=0.0):
    v = np.zeros_like(p)
    for g in grads:
        decayed = g + decay * p
        v = momentum * v + decayed
        p = p - lr * ((momentum * v + decayed) if nesterov else v)
    return p


def _rmsprop(p, grads, lr):
    s = np.zeros_like(p)
    for g in grads:
        s = 0.9 * s + 0.1 * g * g
        p = p - lr * g / (np.sqrt(s) + 1e-8)
    return p


def _lion(p, grads, lr):
    m = np.zeros_like(p)
    for g in grads:
        p, m = p - lr * np.sign(0.9 * m + 0.1 * g), 0.99 * m + 0.01 * g
    return p


def _of_docstring():
    """The optimizer that the docstring of `optim.Optimizer` shows."""
    [text] = re.findall(r"^ {8}class Lion.*?(?=^ {4}\S)", optim.Optimizer.__doc__, re.MULTILINE | re.DOTALL)
    names = {"optim": optim, "ops": ops, "tree": tree}
    exec(textwrap.dedent(text), names)
    return names["Lion"]


Lion = _of_docstring()


@ON_NUMPY
@pytest.mark.parametrize(("optimizer", "reference"), [
    (optim.SGD(0.1), lambda p, g: _sgd(p, g, 0.1)),
    (optim.SGD(0.1, momentum=0.9), lambda p, g: _sgd(p, g, 0.1, 0.9)),
    (optim.SGD(0.1, momentum=0.9, nesterov=True), lambda p, g: _sgd(p, g, 0.1, 0.9, True)),
    (optim.SGD(0.1, momentum=0.9, weight_decay=0.2), lambda p, g: _sgd(p, g, 0.1, 0.9, decay=0.2)),
    (Lion(0.1), lambda p, g: _lion(p, g, 0.1)),
    (optim.RMSProp(0.01), lambda p, g: _rmsprop(p, g, 0.01)),
    (optim.Adam(0.01), lambda p, g: _adam(p, g, 0.01)),
    (optim.Adam(0.01, donate=True), lambda p, g: _adam(p, g, 0.01)),
    (optim.Adam(0.01, beta1=0.0, beta2=0.5), lambda p, g: _adam(p, g, 0.01, 0.0, 0.5)),
    (optim.Adam(0.01, bias_correction="kiros2015"), lambda p, g: _adam(p, g, 0.01, kiros=True)),
    (optim.AdamW(0.01, weight_decay=0.3), lambda p, g: _adam(p, g, 0.01, decay=0.3)),
], ids=["sgd", "momentum", "nesterov", "sgd decays", "lion", "rmsprop", "adam", "adam donated", "adam betas", "adam kiros2015", "adamw"])
@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
def test_updates_are_the_equations(be, rng, optimizer, reference, compiled):
    start = {"w": rng.standard_normal((4, 3)).astype(np.float32), "b": rng.standard_normal(3).astype(np.float32)}
    grads = _gradients(rng, start)
    params = duoln.to_tensors(start, be)
    slots = optimizer.init(params)
    update = duoln.compile(optimizer.update) if compiled else optimizer.update
    for step, g in enumerate(grads):
        rate = duoln.tensor(np.float32(optimizer.rate_at(step)), be)
        params, slots = update(params, duoln.to_tensors(g, be), slots, rate)
    for k in start:
        expected = reference(start[k].astype(np.float64), [g[k].astype(np.float64) for g in grads])
        np.testing.assert_allclose(params[k].numpy(), expected, rtol=2e-5, atol=2e-6)


def test_weights_alone_decay_and_the_norm_is_that_of_all(be, rng):
    start = {"w": rng.standard_normal((4, 3)).astype(np.float32), "b": rng.standard_normal(3).astype(np.float32)}
    optimizer = optim.AdamW(0.01, weight_decay=0.3, decays=lambda path, p: p.ndim > 1, clip=optim.clip_global_norm(1.0))
    params, clipped = duoln.to_tensors(start, be), []
    slots = optimizer.init(params)
    for g in _gradients(rng, start):
        params, slots, norm = optimizer.update_with_norm(params, duoln.to_tensors(g, be), slots, 0.01)
        expected = np.sqrt(sum((a.astype(np.float64) ** 2).sum() for a in g.values()))
        assert norm.item() == pytest.approx(expected, rel=1e-5)
        clipped.append({k: a / max(expected, 1.0) for k, a in g.items()})
    for k, decay in (("w", 0.3), ("b", 0.0)):
        expected = _adam(start[k].astype(np.float64), [g[k] for g in clipped], 0.01, decay=decay)
        np.testing.assert_allclose(params[k].numpy(), expected, rtol=1e-4, atol=1e-5)


class TestClipping:
    def _g(self, be):
        return duoln.to_tensors({"a": np.array([3.0, 0.0], np.float32), "b": np.array([[4.0]], np.float32)}, be)

    def _values(self, tree_):
        return np.concatenate([t.numpy().ravel() for t in tree_.values()])

    def test_value(self, be):
        np.testing.assert_allclose(self._values(optim.clip_value(3.5)(self._g(be))), [3, 0, 3.5])

    def test_zero_gradients_stay_zero(self, be):
        zero = duoln.to_tensors({"a": np.zeros(2, np.float32)}, be)
        for clip in (optim.clip_global_norm(1.0), optim.clip_each_norm(1.0), optim.clip_value(1.0)):
            assert self._values(clip(zero)).tolist() == [0, 0]

    def test_an_optimizer_clips_before_it_updates(self, be):
        g = self._g(be)
        optimizer = optim.SGD(1.0, clip=optim.clip_global_norm(1.0))
        new, _ = optimizer.update(g, g, optimizer.init(g))
        np.testing.assert_allclose(self._values(new), [2.4, 0, 3.2], rtol=1e-6)


def test_statistics_of_a_population_never_decay(be, rng):
    model = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm(3), nn.LSTM(3, 2, norm="batch"))
    x = duoln.tensor(rng.standard_normal((4, 5, 2)).astype(np.float32), be)
    params = nn.with_population(model, duoln.to_tensors(model.init(0), be), [x])
    optimizer = optim.AdamW(0.1, weight_decay=0.5)
    zeros = tree.map(ops.zeros_like, params)
    updated, _ = optimizer.update(params, zeros, optimizer.init(params), 0.1)
    statistics = 0
    for (path, before), after in zip(tree.items(params), tree.leaves(updated), strict=True):
        is_statistic = path.rpartition(".")[2].startswith(("mean", "variance"))
        statistics += is_statistic
        np.testing.assert_allclose(after.numpy(), before.numpy() * (1 if is_statistic else np.float32(0.95)), rtol=1e-6)
    assert statistics == 2 + 2 * 3
    assert [path for path, _ in tree.items(nn.without_population(model, params))] == [path for path, _ in tree.items(model.init(0))]


def test_groups_that_share_memory_are_updated_as_one(be):
    """An update in place of one group must not change what the other one reads."""
    results = []
    for donate in (False, True):
        w = duoln.tensor(np.ones(5000, np.float32), be)
        params, gradients = {"w": w, "b": w}, {"w": w * 1.0, "b": w * 0.5}
        optimizer = optim.AdamW(0.1, donate=donate, decays=lambda path, p: path == "w")
        results.append(optimizer.update(params, gradients, optimizer.init(params), 0.1))
    for first, second in zip(tree.leaves(results[0]), tree.leaves(results[1]), strict=True):
        np.testing.assert_array_equal(first.numpy(), second.numpy())


def test_parameters_with_names_like_statistics_decay(numpy_backend):
    params = duoln.to_tensors({"mean_head": np.ones(2, np.float32), "head": np.ones(2, np.float32)}, numpy_backend)
    optimizer = optim.AdamW(0.1, weight_decay=0.5)
    updated, _ = optimizer.update(params, tree.map(ops.zeros_like, params), optimizer.init(params))
    assert [p.numpy()[0] for p in updated.values()] == pytest.approx([0.95, 0.95])


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


MODEL = nn.Sequential(body=nn.Linear(3, 4), head=nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2)), header=nn.Linear(2, 2))
HEAD, REST = optim.Adam(optim.cosine(1e-2, 5), donate=True), optim.SGD(1e-1, momentum=0.9, clip=optim.clip_value(0.01))


def _start(be, rng):
    params = duoln.init(MODEL, 0, be)
    return params, tree.map(lambda p: duoln.tensor(rng.standard_normal(p.shape).astype(np.float32), be), params)


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
def test_each_group_is_updated_by_its_own(be, rng, compiled):
    clip = optim.clip_global_norm(0.5)
    groups = optim.Groups({"head": HEAD, "body.bias": optim.SGD(1.0)}, rest=REST, clip=clip)
    params, gradients = _start(be, rng)
    own = [(HEAD, "head", params["head"]), (optim.SGD(1.0), "bias", params["body"]["bias"]),
           (REST, "rest", {"body": {"weight": params["body"]["weight"]}, "header": params["header"]})]
    expected = {name: tree.map(lambda p: p * 1.0, part) for _, name, part in own}
    slots_of = {name: optimizer.init(expected[name]) for optimizer, name, _ in own}
    slots, update = groups.init(params), duoln.compile(groups.update_with_norm) if compiled else groups.update_with_norm
    for _ in range(5):
        params, slots, norm = update(params, gradients, slots)
        clipped = clip(gradients)
        parts = {"head": clipped["head"], "bias": clipped["body"]["bias"],
                 "rest": {"body": {"weight": clipped["body"]["weight"]}, "header": clipped["header"]}}
        for optimizer, name, _ in own:
            expected[name], slots_of[name] = optimizer.update(expected[name], parts[name], slots_of[name])
    assert norm.item() == pytest.approx(optim.global_norm(gradients).item())
    for ours, theirs in ((params["head"], expected["head"]), (params["body"]["bias"], expected["bias"]),
                         (params["header"], expected["rest"]["header"]), (params["body"]["weight"], expected["rest"]["body"]["weight"])):
        for a, b in zip(tree.leaves(ours), tree.leaves(theirs), strict=True):
            np.testing.assert_array_equal(a.numpy(), b.numpy())
    assert [path for path, _ in tree.items(params)] == [path for path, _ in tree.items(MODEL.init(0))]


def test_without_a_rest_it_stays(be, rng):
    params, gradients = _start(be, rng)
    groups = optim.Groups({"head": optim.SGD(0.1)}, rest=None)
    new, slots = groups.update(params, gradients, groups.init(params))
    assert new["body"]["weight"] is params["body"]["weight"] and new["header"]["bias"] is params["header"]["bias"]
    assert not np.array_equal(new["head"]["0"]["weight"].numpy(), params["head"]["0"]["weight"].numpy()) and slots.keys() == {"head"}


def test_rates_are_those_of_the_groups(be, rng):
    params, gradients = _start(be, rng)
    groups = optim.Groups({"head": dataclasses.replace(HEAD, donate=False)}, rest=optim.SGD(0.1))
    assert groups.rate_at(5) == {"head": 0.0, "rest": 0.1} and not groups.donate
    new, _ = groups.update(params, gradients, groups.init(params), {"head": 0.0, "rest": duoln.tensor(0.0, be)})
    assert all(np.array_equal(a.numpy(), b.numpy()) for a, b in tree.zipped(new, params))


def test_wrong_groups_are_told(numpy_backend, rng):
    params, gradients = _start(numpy_backend, rng)
    check_error(UsageError, lambda: optim.Groups({}, rest=REST), "[Groups] groups")
    check_error(DtypeError, lambda: optim.Groups({"head": 0.1}, rest=REST), "'head'", "0.1")
    check_error(UsageError, lambda: optim.Groups({"rest": HEAD}, rest=REST), "'rest'")
    check_error(UsageError, lambda: optim.Groups({"head": HEAD, "head.0": HEAD}, rest=REST), "'head.0' in 'head'")
    check_error(ShapeError, lambda: optim.Groups({"tail": HEAD}, rest=REST).init(params), "'tail'", "body.weight")
    groups = optim.Groups({"head": HEAD}, rest=REST)
    check_error(ShapeError, lambda: groups.update(params, gradients, {"head": {}}), "head, rest")
    check_error(ShapeError, lambda: groups.update(params, gradients["head"], groups.init(params)), "keys")
    check_error(ShapeError, lambda: groups.update(params, gradients, groups.init(params), 0.1), "rates", "0.1")
    check_error(UsageError, lambda: groups.update(params, gradients, groups.init(params), {"haed": 0.1}), "head, rest", "haed")


# Ends of what numbers hold ----------------------------------------------------------------------------------

@pytest.mark.parametrize("kind", [optim.Adam, optim.RMSProp])
def test_an_epsilon_that_keeps_no_division_from_0(be, kind):
    for eps in (0.0, 1e-50):
        check_error(UsageError, lambda eps=eps: kind(0.1, eps=eps), f"[{kind.__name__}] eps: expected a finite number of at least 1e-30")
    optimizer, params = kind(0.1, eps=1e-30), {"w": duoln.tensor([1.0, 2.0], be)}
    updated, _ = optimizer.update(params, tree.map(ops.zeros_like, params), optimizer.init(params), 0.1)
    assert updated["w"].tolist() == [1.0, 2.0]


@pytest.mark.parametrize("count", [0, 2**24, 2**31 - 2, 2**31 - 1])
def test_the_number_of_updates_does_not_wrap_round(be, count):
    optimizer, params = optim.Adam(0.1), {"a": duoln.tensor([1.0, 2.0], be)}
    slots = {**optimizer.init(params), "update": duoln.tensor(np.int32(count), be)}
    params, slots = optimizer.update(params, {"a": duoln.tensor([1.0, -3.0], be)}, slots, 0.1)
    assert int(slots["update"]) == min(count + 1, 2**31 - 1) and np.isfinite(params["a"].numpy()).all()


def test_clips_of_nan_and_of_infinity(be):
    for clip in CLIPS[:3]:
        assert np.isnan(clip({"a": duoln.tensor([np.nan, 1.0], be), "b": duoln.tensor([1.0], be)})["a"].numpy()[0])
    assert optim.clip_value(1.0)({"a": duoln.tensor([np.inf, 2.0], be)})["a"].tolist() == [1, 1]
