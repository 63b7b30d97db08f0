"""What a large vocabulary needs, compiled: the gradient of an embedding, and the last layer with its loss."""

import numpy as np
import pytest

from duoln import ops, runtime
from duoln.kernels import linear_cross_entropy as last_layer, native
from duoln.testing import check_rule

pytestmark = pytest.mark.skipif(native.compiler() is None, reason="there is no C++ compiler")


def _rule(op):
    return runtime.backend("numpy") and op.rules("numpy")[0]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(("words", "width", "taken"), [(1, 1, (1,)), (7, 3, (20,)), (50, 300, (4, 9)), (9, 33, (2, 2, 2)), (5, 4, ())], ids=str)
def test_the_gradient_of_an_embedding(words, width, taken, dtype, threads, rng, numpy_backend):
    table = rng.standard_normal((words, width)).astype(dtype)
    indices = np.asarray(rng.integers(-words, words, taken), np.int32)
    check_rule(ops.take, _rule(ops.take), [table, indices], numpy_backend, {"axis": 0}, length=20)


def test_an_embedding_adds_in_one_order(rng, numpy_backend, same_bits):
    table, indices = rng.standard_normal((40, 30)).astype(np.float32), rng.integers(0, 7, 5000).astype(np.int32)
    dy = rng.standard_normal((5000, 30)).astype(np.float32)
    _, saved = _rule(ops.take).forward(numpy_backend, table, indices, 0)
    [gradient] = same_bits(lambda: _rule(ops.take).vjp(numpy_backend, saved, dy, (True, False)))
    expected = np.zeros((40, 30))
    np.add.at(expected, indices, dy.astype(np.float64))
    np.testing.assert_allclose(gradient, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("copies", "width"), [*((copies, width) for copies in (64, 65) for width in (3, 256, 300)), (200_000, 3), *(
    pytest.param(200_000, width, marks=pytest.mark.long) for width in (256, 300))])
def test_a_word_with_many_copies_keeps_the_digits_of_its_gradient(copies, width, rng, numpy_backend):
    """One chain of additions has an error of 1e-5 at 200,000 copies: values are positive, so their roundings go one way."""
    dy = rng.random((copies + 2, width), np.float32)
    indices = np.full(copies + 2, 1, np.int32)
    indices[[3, copies]] = 2
    gradient = _rule(ops.take).pooled[0](numpy_backend, [
        (_rule(ops.take).forward(numpy_backend, np.zeros((4, width), np.float32), indices, 0)[1], dy)])
    for word in range(4):
        np.testing.assert_allclose(gradient[word], dy[indices == word].sum(axis=0, dtype=np.float64), rtol=1e-6)


def test_a_table_that_is_used_twice_gets_the_sum_of_both_gradients(rng, numpy_backend):
    table = rng.standard_normal((500, 9)).astype(np.float32)
    uses, expected = [], np.zeros((500, 9))
    for shape in ((40,), (3, 7), (0,)):
        indices = rng.integers(-500, 500, shape).astype(np.int32)
        dy = rng.standard_normal((*shape, 9)).astype(np.float32)
        uses.append((_rule(ops.take).forward(numpy_backend, table, indices, 0)[1], dy))
        np.add.at(expected, indices, dy)
    gradient = _rule(ops.take).pooled[0](numpy_backend, uses)
    assert gradient.dtype == np.float32
    np.testing.assert_allclose(gradient, expected, rtol=1e-5, atol=1e-5)


def test_what_is_no_table_of_floats_is_left_to_the_composed_rule(numpy_backend):
    supports, indices = _rule(ops.take).supports, np.zeros(2, np.int32)
    for x in (np.ones((3, 4), np.int32), np.ones(3, np.float32), np.ones((0, 4), np.float32)):
        assert supports(numpy_backend, x, indices, 0)
    assert supports(numpy_backend, np.ones((3, 4), np.float32), indices, 1)


@pytest.fixture
def layer(rng, monkeypatch):
    monkeypatch.setattr(last_layer, "BLOCK", 1)  # blocks of 448 classes and a rest
    x, weight, bias = (rng.standard_normal(s).astype(np.float32) for s in ((20, 9), (9, 1001), (1001,)))
    return x, weight, bias, rng.integers(-1, 1001, 20).astype(np.int32)


@pytest.mark.parametrize("kept", [0, 1 << 20])
def test_the_last_layer_has_the_same_bits_for_any_number_of_threads(kept, layer, numpy_backend, monkeypatch, same_bits):
    monkeypatch.setattr(last_layer, "KEEP_BYTES", kept)
    rule = _rule(ops.linear_cross_entropy)

    def run():
        loss, saved = rule.forward(numpy_backend, *layer)
        return loss, *rule.vjp(numpy_backend, saved, np.ones(20, np.float32), (True, True, True, False))

    same_bits(run)


@pytest.mark.parametrize("kept", [0, 1 << 28])
def test_a_bias_far_from_zero(kept, rng, numpy_backend, monkeypatch):
    """The gradient's logits have the roundings of the value's, or they would not fit the largest one, which is kept."""
    monkeypatch.setattr(last_layer, "KEEP_BYTES", kept)
    x, weight = (rng.standard_normal(shape).astype(np.float32) for shape in ((65, 600), (600, 33)))
    bias, labels = np.zeros(33, np.float32), np.zeros(65, np.int32)
    bias[7] = 3e6
    _, saved = _rule(ops.linear_cross_entropy).forward(numpy_backend, x, weight, bias, labels)
    gradient = _rule(ops.linear_cross_entropy).vjp(numpy_backend, saved, np.ones(65, np.float32), (False, False, True, False))[2]
    expected = np.zeros(33)
    expected[7], expected[0] = 65, -65
    np.testing.assert_allclose(gradient, expected, rtol=1e-6, atol=1e-6)


def test_logits_that_are_not_finite(layer, numpy_backend):
    """A whole first block of minus infinity, as of words that are never the next, leaves the loss finite."""
    x, weight, bias, labels = layer
    labels[:] = 1000
    bias[:500] = -np.inf
    losses = [rule.forward(numpy_backend, x, weight, bias, labels)[0] for rule in ops.linear_cross_entropy.rules("numpy")]
    assert np.isfinite(losses[0]).all()
    np.testing.assert_allclose(losses[0], losses[1], rtol=1e-5)
    x[3, 0] = np.nan
    loss = _rule(ops.linear_cross_entropy).forward(numpy_backend, x, weight, bias, labels)[0]
    assert np.isnan(loss[3]) and np.isfinite(np.delete(loss, 3)).all()
