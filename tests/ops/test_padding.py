"""The values in padding change neither a result nor a gradient, even if they are NaN."""

import numpy as np
import pytest
from conftest import every_second

import duoln
from duoln import nn, ops, tree
from duoln.ops.recurrent.variants import CELLS
from duoln.randomness import Stream

_CELLS = {"lstm": nn.LSTMCell, "gru": nn.GRUCell, "rnn": nn.RNNCell}
# Recurrent batch norm takes its statistics over all rows, padding included: it is documented to.
_VARIANTS = [(cell, norm) for cell in _CELLS for norm in CELLS[cell].variants if norm != "batch"]


def _t(be, x):
    return duoln.tensor(np.asarray(x), be)


def _leaves(trees):
    return [leaf.numpy() for leaf in tree.leaves(trees)]


def _mask(kind, steps, batch, rng):
    if kind == "padding":
        lengths = rng.integers(1, steps + 1, batch)
        lengths[0] = steps
        return np.arange(steps)[:, None] < lengths
    return rng.random((steps, batch)) < 0.5


def _check_unchanged(be, outputs, params, clean, hostile):
    """The bits of outputs and of all gradients of their sum of squares are the same by both arrays; gives outputs and the array's gradient."""
    def values(x):
        def loss(p):
            out = outputs(p)
            return ops.sum(ops.square(out)), out

        return duoln.value_and_grad(loss, has_aux=True)({**params, "x": _t(be, x)})

    ((_, out), gradients), ((_, same), others) = values(hostile), values(clean)
    for a, b in zip(_leaves((out, gradients)), _leaves((same, others)), strict=True):
        np.testing.assert_array_equal(a, b)
    return out.numpy(), gradients["x"].numpy()


@pytest.mark.parametrize(("variant", "reverse", "kind", "bad"), every_second(
    _VARIANTS, [False, True], ["padding", "anywhere"], [np.nan, np.inf]), ids=str)
def test_recurrent_layers(be, rng, variant, reverse, kind, bad):
    cell, norm = variant
    if be.name == "cupy" and (reverse or bad != bad):
        pytest.skip("the emulated kernels are slow; one case of each variant is enough")
    model = _CELLS[cell](3, 4, norm=norm)
    params = duoln.to_tensors(model.init(Stream(0, "init")), be)
    mask, clean = _mask(kind, 6, 5, rng), rng.standard_normal((6, 5, 3)).astype(np.float32)
    _check_unchanged(be, lambda p: model.sequence(p["model"], p["x"], mask=_t(be, mask), reverse=reverse)[0], {"model": params}, clean,
                     np.where(mask[..., None], clean, np.float32(bad)))


@pytest.mark.parametrize("ignored", [-1, -100, 3])
@pytest.mark.parametrize(("loss", "classes"), [("linear", 7), ("linear", 300), ("softmax", 7)])
def test_losses(be, rng, loss, classes, ignored):
    labels = rng.integers(0, classes, (5, 4)).astype(np.int32)
    labels[2:, 1] = labels[4] = ignored
    counted, clean = labels != ignored, rng.standard_normal((5, 4, 3 if loss == "linear" else classes)).astype(np.float32)
    params = {name: _t(be, rng.standard_normal(s).astype(np.float32)) for name,
              s in (("weight", (3, classes)), ("bias", (classes,))) if loss == "linear"}

    def losses(p, labels, **ignored):
        if loss == "linear":
            return ops.linear_cross_entropy(p["x"], p["weight"], p["bias"], _t(be, labels), **ignored)
        return ops.softmax_cross_entropy(p["x"], _t(be, labels), **ignored)

    each, gradient = _check_unchanged(be, lambda p: losses(p, labels, ignore_index=ignored), params, clean,
                                      np.where(counted[..., None], clean, np.float32(np.nan)))
    expected = losses({**params, "x": _t(be, clean)}, np.where(counted, labels, 0)).numpy()
    np.testing.assert_allclose(each, np.where(counted, expected, 0), rtol=1e-6)
    assert (gradient[~counted] == 0).all() and (gradient[counted] != 0).all()


@pytest.mark.parametrize("ignored", [-1, -100, 3])
def test_the_mean_over_the_labels_that_count(be, rng, ignored):
    """The lines of `softmax_cross_entropy`: rows that are ignored are in neither the sum nor the count."""
    labels = rng.integers(0, 7, (5, 4)).astype(np.int32)
    labels[2:, 1] = labels[4] = ignored
    logits, weight = rng.standard_normal((5, 4, 7)).astype(np.float32), rng.random(7).astype(np.float32)
    nats = np.log(np.exp(logits.astype(np.float64)).sum(-1)) - np.take_along_axis(logits, np.maximum(labels, 0)[..., None], -1)[..., 0]
    for chosen in (labels, np.full_like(labels, ignored)):
        given, counted = _t(be, chosen), chosen != ignored
        kept = (given != ignored).astype("float32")
        losses = ops.softmax_cross_entropy(_t(be, logits), given, ignore_index=ignored)
        mean = ops.sum(losses) / ops.maximum(ops.sum(kept), 1.0)
        assert mean.item() == pytest.approx(nats[counted].mean() if counted.any() else 0, rel=1e-5)
        weighted = ops.sum(kept * ops.take(_t(be, weight), ops.where(given == ignored, 0, given), axis=0))
        assert weighted.item() == pytest.approx(weight[chosen[counted]].sum(), rel=1e-5)
