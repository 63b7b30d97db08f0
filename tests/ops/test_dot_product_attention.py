"""A key that a query does not see changes no result and no gradient, even if the key or its value is not finite."""

from contextlib import nullcontext

import numpy as np
import pytest

import duoln
from duoln import ops
from duoln.core import composed_only

BAD = [np.nan, np.inf, -np.inf]
RULES = {"chosen rule": nullcontext, "composed rule": composed_only}


def _run(be, rule, attend, arrays):
    """Results and gradients of the sum of the results' squares, where those are finite."""
    def loss(p):
        outs = attend(p)
        return sum(ops.sum(ops.square(ops.where(ops.isfinite(o), o, 0.0))) for o in outs), outs

    with RULES[rule](), np.errstate(all="ignore"):
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
@pytest.mark.parametrize("rule", RULES)
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
@pytest.mark.parametrize("rule", RULES)
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
