"""Optimizers against plain NumPy written from their equations, clipping, and errors."""

import re
import textwrap

import numpy as np
import pytest
from conftest import ON_NUMPY

import duoln
from duoln import nn, ops, optim, tree
from duoln.errors import ShapeError, UsageError
from duoln.testing import check_error

STEPS = 12


def _gradients(rng, params):
    return [{k: rng.standard_normal(v.shape).astype(np.float32) for k, v in params.items()} for _ in range(STEPS)]


def _adam(p, grads, lr, b1=0.9, b2=0.999, eps=1e-8, kiros=False):
    m = v = np.zeros_like(p)
    for t, g in enumerate(grads, start=1):
        m, v = b1 * m + (1 - b1) * g, b2 * v + (1 - b2) * g * g
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
], ids=["sgd", "momentum", "nesterov", "sgd decays", "lion", "rmsprop", "adam", "adam donated", "adam betas", "adam kiros2015"])
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


def test_early_kiros_steps_are_as_large_as_the_protocol_says():
    # Ratio to true Adam: 3.5 at t = 1, 6.6 at 12, 1.03 at 3000 (independent of the gradients).
    for t, ratio in ((1, 3.5), (3, 5.0), (12, 6.6), (100, 3.2), (3000, 1.03)):
        kiros = np.sqrt(1 - 0.001 ** t) / (1 - 0.1 ** t)
        adam = np.sqrt(1 - 0.999 ** t) / (1 - 0.9 ** t)
        assert kiros / adam == pytest.approx(ratio, rel=0.02)


def test_schedules():
    optimizer = optim.SGD(lambda step: 0.1 / (1 + step))
    assert [optimizer.rate_at(s) for s in (0, 1, 4)] == [0.1, 0.05, 0.02]
    check_error(UsageError, lambda: optim.SGD(lambda s: float("nan")).rate_at(3), "nan", "update 3")
    check_error(UsageError, lambda: optim.SGD(-1.0).rate_at(0), "-1.0")


def test_gradients_of_another_form_are_refused(be):
    params = duoln.to_tensors({"w": [1.0, 2.0]}, be)
    optimizer = optim.Adam(0.1)
    check_error(ShapeError, lambda: optimizer.update(params, {"v": params["w"]}, optimizer.init(params),
                                                     duoln.tensor(0.1, be)), "keys w", "keys v")


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
