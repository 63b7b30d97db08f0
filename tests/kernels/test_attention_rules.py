"""The compiled rule of attention: every small size, masks, layouts, threads, what is not a number, and its memory."""

import itertools
import tracemalloc
from contextlib import nullcontext

import numpy as np
import pytest

import duoln
from duoln import ops, runtime
from duoln.core.op import composed_only
from duoln.errors import ShapeError
from duoln.kernels import native
from duoln.testing import check_close, check_error, check_rule

compiled = pytest.mark.skipif(native.machine_refusal() is not None, reason="nothing is compiled here")
attention = ops.scaled_dot_product_attention


def _rule():
    return runtime.backend("numpy") and attention.rules("numpy")[0]


def _arrays(rng, before, queries, keys, width, n_values, dtype="float32"):
    return [rng.standard_normal((*before, *shape)).astype(dtype) for shape in ((queries, width), (keys, width), (keys, n_values))]


@pytest.mark.long
@compiled
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("causal", [False, True])
def test_every_small_size(causal, dtype, rng, numpy_backend):
    for queries, keys, width, n_values in itertools.product((2, 6, 13, 49) if causal else (1, 2, 13, 49), (2, 3, 16, 65), (1, 5, 33), (2, 17)):
        mask = rng.random((2, 1, queries, keys)) < 0.5
        mask[..., :2] = True  # where no query sees two keys, the gradient of the scores is 0 and shows nothing but rounding
        for seen in (None, mask):
            check_rule(attention, _rule(), [*_arrays(rng, (2, 2), queries, keys, width, n_values, dtype), seen], numpy_backend,
                       {"causal": causal, "scale": width ** -0.5}, 2 * max(queries, keys, width))


@compiled
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("queries, keys", [(70, 129), (130, 270), (300, 130), (200, 256), (5, 300), (300, 5)])
def test_more_queries_and_keys_than_are_computed_at_once(queries, keys, causal, rng, numpy_backend):
    mask = rng.random((1, 2, queries, keys)) < 0.5
    mask[..., :2] = True
    for seen in (None, mask):
        check_rule(attention, _rule(), [*_arrays(rng, (1, 2), queries, keys, 8, 5), seen], numpy_backend,
                   {"causal": causal, "scale": 0.3}, 2 * max(queries, keys))


@pytest.mark.parametrize("width", [1, 33])
def test_one_key_has_all_the_weight(width, be, rng):
    arrays = _arrays(rng, (2, 3), 5, 1, width, 4)
    _, gradients = duoln.value_and_grad(lambda p: ops.sum(attention(*p)))([duoln.tensor(a, be) for a in arrays])
    check_close(attention(*(duoln.tensor(a, be) for a in arrays)).numpy(), np.broadcast_to(arrays[2], (2, 3, 5, 4)).copy(), 1e-6, "values")
    assert max(np.abs(g.numpy()).max() for g in gradients[:2]) < 1e-5
    check_close(gradients[2].numpy(), np.full((2, 3, 1, 4), 5, np.float32), 1e-6, "gradient of values")


@compiled
@pytest.mark.parametrize("mask", [(), (1,), (70,), (130, 1), (130, 70), (1, 1, 70), (3, 1, 70), (3, 130, 70), (2, 3, 1, 1), (2, 1, 130, 70), (2, 1, 1, 1), (1, 1, 1, 1, 70),
                                  (4, 2, 3, 1, 70), (4, 1, 1, 130, 70)], ids=str)
def test_every_shape_of_a_mask(mask, rng, numpy_backend):
    before = (4, 2, 3) if len(mask) == 5 else (2, 3)
    inputs = [*_arrays(rng, before, 130, 70, 8, 8), np.atleast_2d(rng.random(mask) < 0.6)]
    check_rule(attention, _rule(), inputs, numpy_backend, {"causal": False, "scale": 0.3}, 260)


@compiled
@pytest.mark.parametrize("mask", [None, [True, True, True, False], [False, False, False, True]], ids=str)
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_what_is_not_a_number_goes_where_the_composed_rule_sends_it(value, mask, rng, numpy_backend):
    mask = None if mask is None else np.array([mask])
    for place in range(3):
        arrays = _arrays(rng, (2,), 5, 4, 3, 3)
        arrays[place][1, 2, 1] = value
        gout = rng.standard_normal((2, 5, 3)).astype(np.float32)
        finite = []
        for rule in (_rule(), attention.rules("numpy")[-1]):
            with np.errstate(all="ignore"):
                y, saved = rule.forward(numpy_backend, *arrays, mask, causal=False, scale=0.5)
                finite.append([np.isfinite(a) for a in (y, *rule.vjp(numpy_backend, saved, gout, (True, True, True, False))[:3])])
        for mine, theirs in zip(*finite, strict=True):
            np.testing.assert_array_equal(mine, theirs)


def test_large_scores_and_queries_that_see_nothing(be, rng):
    q, k, v = (duoln.tensor(a, be) for a in _arrays(rng, (2,), 6, 9, 4, 3))
    mask = np.ones((6, 9), bool)
    mask[2] = False
    for scale in (1.0, 1e5):
        f = duoln.value_and_grad(lambda p, s=scale: ops.sum(ops.square(attention(*p, duoln.tensor(mask, be), scale=s))))
        value, gradients = f([q, k, v])
        assert np.isfinite(float(value)) and all(np.isfinite(g.numpy()).all() for g in gradients)
        assert not attention(q, k, v, duoln.tensor(mask, be), scale=scale).numpy()[:, 2].any() and not gradients[0].numpy()[:, 2].any()


@pytest.mark.parametrize("scale", [None, 0.3])
@pytest.mark.parametrize("size", [1e6, 3e9, 1e15])
def test_scores_that_are_huge(size, scale, be, rng):
    """The largest score has a difference of exactly 0, however it is rounded."""
    q, k, v = rng.standard_normal((64, 3)), rng.standard_normal((5, 3)) * size, rng.standard_normal((5, 3))
    q, k, v = (a.astype(np.float32) for a in (q, k, v))
    y = ops.scaled_dot_product_attention(*(duoln.tensor(a, be) for a in (q, k, v)), scale=scale).numpy()
    np.testing.assert_allclose(y, v[(q.astype(np.float64) @ k.T).argmax(axis=1)], rtol=1e-5)


def test_a_causal_query_sees_no_later_key_however_small_its_own_scores_are(be):
    q, k, v = np.full((3, 1), 1e16, np.float32), np.full((3, 1), -1e16, np.float32), np.float32([[1], [2], [30]])
    for run in (nullcontext, composed_only):
        with run():
            y = ops.scaled_dot_product_attention(*(duoln.tensor(a, be) for a in (q, k, v)), causal=True).numpy()
        np.testing.assert_allclose(y, [[1], [1.5], [11]], rtol=1e-6)


def test_what_a_causal_query_does_not_see_changes_nothing(be, rng):
    arrays = _arrays(rng, (1, 2), 70, 70, 8, 8)
    y = attention(*(duoln.tensor(a, be) for a in arrays), causal=True).numpy()
    for a in arrays:
        a[..., 40:, :] = rng.standard_normal(a[..., 40:, :].shape)
    z = attention(*(duoln.tensor(a, be) for a in arrays), causal=True).numpy()
    check_close(z[..., :40, :], y[..., :40, :], 1e-6, "the first 40")
    assert np.abs(z[..., 40:, :] - y[..., 40:, :]).max() > 0.1


def _peak(arrays, causal):
    """Bytes of NumPy's arrays for values and gradients, with all that was needed for them, as a share of the scores' bytes."""
    values = [duoln.tensor(a, "numpy") for a in arrays]
    step = duoln.value_and_grad(lambda p: ops.sum(attention(*p, causal=causal)))
    step(values)
    tracemalloc.start()
    try:
        step(values)
        return tracemalloc.get_traced_memory()[1] / (4 * np.prod(arrays[0].shape[:-1]) * arrays[1].shape[-2])
    finally:
        tracemalloc.stop()


@pytest.mark.long
@pytest.mark.parametrize("causal", [False, True])
def test_2048_steps_need_less_than_a_third_of_the_scores(causal, rng, numpy_backend):
    """Where a key may be hidden, the composed rule has finite copies of keys and values."""
    arrays = _arrays(rng, (1, 4), 2048, 2048, 64, 64)
    with composed_only():
        assert _peak(arrays, causal) < (0.34 if causal else 0.25)
    if native.machine_refusal() is None:
        assert _peak(arrays, causal) < 0.17


@pytest.mark.parametrize(("shapes", "words"), [
    (((2, 3, 4), (2, 5, 3), (2, 5, 4)), "(2, 5, 3)"), (((2, 3, 4), (1, 5, 4), (1, 5, 4)), "(1, 5, 4)"), (((3, 4), (0, 4), (0, 4)), "at least one value along s"),
    (((3, 4), (5, 4), (6, 4)), "(6, 4)"), (((4,), (5, 4), (5, 4)), "(4,)"), (((3, 0), (5, 0), (5, 4)), "at least one value along d")])
def test_arrays_that_do_not_fit(be, shapes, words):
    tensors = [duoln.tensor(np.ones(shape, np.float32), be) for shape in shapes]
    check_error(ShapeError, lambda: attention(*tensors), "[scaled_dot_product_attention]", words)


@pytest.mark.parametrize("mask", [(4, 5), (3, 4), (2, 3, 5), (1, 1, 3, 5)], ids=str)
def test_masks_that_do_not_fit(be, mask):
    q, k = (duoln.tensor(np.ones((n, 4), np.float32), be) for n in (3, 5))
    check_error(ShapeError, lambda: attention(q, k, k, duoln.tensor(np.ones(mask, bool), be)), "mask: expected", str(mask))
