"""Attention: many queries of the same values, large scores, arrays that do not fit; a key that a query does not see changes nothing,
even if it or its value is not finite.
"""

from contextlib import nullcontext

import numpy as np
import pytest

import duoln
from duoln import ops, runtime, tensor, to_tensors, value_and_grad
from duoln.core import composed_only
from duoln.errors import DtypeError, ShapeError
from duoln.testing import check_close, check_error

B, T, A, M = 3, 5, 4, 2


def _arrays(dtype=np.float32):
    rng = np.random.default_rng(0)
    shapes = {"query": (B, A), "key": (B, T, A), "value": (B, T, M), "score_vector": (A,)}
    return {name: rng.standard_normal(shape).astype(dtype) for name, shape in shapes.items()}, \
        np.arange(T) < np.array([[5], [2], [1]])


def _steps(p, mask, count):
    """Queries that depend on the context before them: the loss of so many."""
    query, total = p["query"], 0.0
    for k in range(count):
        context, weights = ops.additive_attention(query, p["key"], p["value"], p["score_vector"], mask)
        query = ops.concat(context, query[:, :2], axis=1)
        total = total + ops.sum(context * (k + 1.0)) + ops.sum(ops.square(weights))
    return total


@pytest.mark.parametrize("count", [1, 2, 6])
def test_the_gradient_of_many_queries_is_that_of_simple_operators(be, count):
    arrays, mask = _arrays(np.float64)
    numpy = runtime.backend("numpy")

    def plain(p, mask):
        query, total = p["query"], 0.0
        for k in range(count):
            compared = ops.tanh(p["key"] + ops.expand_dims(query, axis=1))
            scores = ops.sum(compared * p["score_vector"], axis=2)
            weights = ops.softmax(ops.where(mask, scores, -1e30), axis=1)
            context = ops.sum(ops.expand_dims(weights, axis=2) * p["value"], axis=1)
            query = ops.concat(context, query[:, :2], axis=1)
            total = total + ops.sum(context * (k + 1.0)) + ops.sum(ops.square(weights))
        return total

    wide = to_tensors((arrays, mask), numpy)
    expected, slopes = value_and_grad(plain)(*wide)
    narrow = to_tensors(({k: a.astype(np.float32) for k, a in arrays.items()}, mask), be)
    value, gradients = value_and_grad(lambda p, mask: _steps(p, mask, count))(*narrow)
    assert float(value) == pytest.approx(float(expected), rel=1e-5)
    for name in arrays:
        check_close(gradients[name].numpy(), slopes[name].numpy(), 1e-5, name)


@pytest.mark.parametrize(("name", "shape"), [
    ("query", (B, A + 1)), ("query", (B + 1, A)), ("score_vector", (A, 1)), ("value", (B, T + 1, M)), ("value", (B, T)),
    ("key", (B, A)), ("key", (B, 0, A))])
def test_shapes_that_do_not_fit(numpy_backend, name, shape):
    arrays, mask = _arrays()
    p, t = to_tensors(({**arrays, name: np.zeros(shape, np.float32)}, mask), numpy_backend)
    call = lambda mask: ops.additive_attention(p["query"], p["key"], p["value"], p["score_vector"], mask)  # noqa: E731
    check_error(ShapeError, lambda: call(t), "additive_attention", name, str(shape))
    check_error(DtypeError, lambda: call(tensor(mask.astype(np.int32), numpy_backend)), "bool", "int32")


BAD = [np.nan, np.inf, -np.inf]
BOTH_RULES = {"chosen rule": nullcontext, "composed rule": composed_only}


def _run(be, rule, attend, arrays):
    """Results and gradients of the sum of the results' squares, where those are finite."""
    def loss(p):
        outs = attend(p)
        return sum(ops.sum(ops.square(ops.where(ops.isfinite(o), o, 0.0))) for o in outs), outs

    with BOTH_RULES[rule](), np.errstate(all="ignore"):
        (_, outs), gradients = duoln.value_and_grad(loss, has_aux=True)({k: duoln.tensor(a, be) for k, a in arrays.items()})
        return [o.numpy() for o in outs], {k: g.numpy() for k, g in gradients.items()}


def _spoiled(arrays, names, hidden, bad):
    return {k: np.where(hidden[..., None], np.float32(bad), a) if k in names else a for k, a in arrays.items()}


def _qkv(rng, queries, keys):
    return {name: rng.standard_normal((2, 3, steps, width)).astype(np.float32)
            for name, steps, width in (("query", queries, 7), ("key", keys, 7), ("value", keys, 5))}


@pytest.mark.parametrize("bad", BAD)
@pytest.mark.parametrize("names", [("key",), ("value",), ("key", "value")], ids="+".join)
@pytest.mark.parametrize("queries, keys, causal", [(5, 9, False), (5, 9, True), (70, 150, False)])
@pytest.mark.parametrize("rule", BOTH_RULES)
def test_keys_that_no_query_sees(rule, queries, keys, causal, names, bad, be, rng):
    arrays = _qkv(rng, queries, keys)
    hidden = np.broadcast_to((np.arange(keys) >= np.array([[keys - 3], [2]]))[:, None], (2, 3, keys))
    mask = duoln.tensor(~hidden[:, :1, None], be)

    def attend(p):
        return [ops.scaled_dot_product_attention(p["query"], p["key"], p["value"], mask, causal=causal)]

    clean, spoiled = (_run(be, rule, attend, a) for a in (arrays, _spoiled(arrays, names, hidden, bad)))
    np.testing.assert_array_equal(spoiled[0][0], clean[0][0])
    for name in arrays:
        np.testing.assert_array_equal(spoiled[1][name], clean[1][name])


@pytest.mark.parametrize("bad", BAD)
@pytest.mark.parametrize("names", [("key",), ("value",), ("key", "value")], ids="+".join)
@pytest.mark.parametrize("queries, causal", [(9, True), (9, False), (70, True)])
@pytest.mark.parametrize("rule", BOTH_RULES)
def test_a_key_that_some_queries_see_is_told_to_them_alone(rule, queries, causal, names, bad, be, rng):
    """Two sequences in one row, or the later steps of one."""
    arrays = _qkv(rng, queries, queries)
    first = np.arange(queries) < queries // 2
    spoils = np.broadcast_to(~first, (2, 3, queries))
    mask = None if causal else duoln.tensor(first[:, None] == first, be)

    def attend(p):
        return [ops.scaled_dot_product_attention(p["query"], p["key"], p["value"], mask, causal=causal)]

    (y, clean), (z, spoiled) = (_run(be, rule, attend, a) for a in (arrays, _spoiled(arrays, names, spoils, bad)))
    np.testing.assert_allclose(z[0][..., first, :], y[0][..., first, :], rtol=1e-6)
    np.testing.assert_allclose(spoiled["query"][..., first, :], clean["query"][..., first, :], rtol=1e-5, atol=1e-7)
    if "value" in names:
        assert np.isnan(z[0][..., ~first, :]).all()
    if not causal:
        for name in ("key", "value"):
            np.testing.assert_allclose(spoiled[name][..., first, :], clean[name][..., first, :], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("bad", BAD)
@pytest.mark.parametrize("names", [("key",), ("value",), ("key", "value")], ids="+".join)
def test_masked_steps_of_additive_attention(names, bad, be, rng):
    arrays = {name: rng.standard_normal(shape).astype(np.float32) for name, shape in (
        ("query", (3, 4)), ("key", (3, 6, 4)), ("value", (3, 6, 5)), ("score_vector", (4,)))}
    real = np.arange(6) < np.array([[6], [3], [0]])
    real[1, 0] = False
    mask = duoln.tensor(real, be)

    def attend(p):
        return ops.additive_attention(p["query"], p["key"], p["value"], p["score_vector"], mask)

    clean, spoiled = (_run(be, "chosen rule", attend, a) for a in (arrays, _spoiled(arrays, names, ~real, bad)))
    for y, z in zip(clean[0], spoiled[0], strict=True):
        np.testing.assert_array_equal(z, y)
        assert not z[2].any()
    for name in arrays:
        np.testing.assert_array_equal(spoiled[1][name], clean[1][name])
