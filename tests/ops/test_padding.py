"""What stands in padding reaches neither a value nor a gradient, not even where it is not a number."""

import numpy as np
import pytest

import duoln
from duoln import nn, ops, tree
from duoln.ops.recurrent.variants import _PARAMETERS, NORMS
from duoln.randomness import Stream

_CELLS = {"lstm": nn.LSTMCell, "gru": nn.GRUCell, "rnn": nn.RNNCell}
# Recurrent batch norm takes its statistics over all rows, padding included: it is documented to.
_VARIANTS = [(cell, norm) for cell in _CELLS for norm in NORMS if norm != "batch" and (cell, norm) in _PARAMETERS]


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


@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize("kind", ["padding", "anywhere"])
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize(("cell", "norm"), _VARIANTS)
def test_recurrent_layers(be, rng, cell, norm, reverse, kind, bad):
    if be.name == "cupy" and (reverse or bad != bad):
        pytest.skip("the emulated kernels are slow; one case of each variant is enough")
    model = _CELLS[cell](3, 4, norm=norm)
    params = duoln.to_tensors(model.init(Stream(0, "init")), be)
    mask = _mask(kind, 6, 5, rng)
    clean = rng.standard_normal((6, 5, 3)).astype(np.float32)
    hostile = np.where(mask[..., None], clean, np.float32(bad))

    def values(x):
        def loss(p):
            out = model.sequence(p["model"], p["x"], mask=_t(be, mask), reverse=reverse)
            return ops.sum(ops.square(out[0])), out[0]

        (_, out), gradients = duoln.value_and_grad(loss, has_aux=True)({"model": params, "x": _t(be, x)})
        return _leaves((out, gradients))

    for a, b in zip(values(hostile), values(clean), strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("classes", [7, 300])
def test_linear_cross_entropy(be, rng, classes):
    labels = rng.integers(0, classes, (5, 4)).astype(np.int32)
    labels[2:, 1] = labels[4] = -1
    clean = rng.standard_normal((5, 4, 3)).astype(np.float32)
    hostile = np.where((labels >= 0)[..., None], clean, np.float32(np.nan))
    start = {"weight": _t(be, rng.standard_normal((3, classes)).astype(np.float32)),
             "bias": _t(be, rng.standard_normal(classes).astype(np.float32))}

    def values(x):
        def loss(p):
            each = ops.linear_cross_entropy(p["x"], p["weight"], p["bias"], _t(be, labels))
            return ops.sum(each), each

        (_, each), gradients = duoln.value_and_grad(loss, has_aux=True)({**start, "x": _t(be, x)})
        return _leaves((each, gradients))

    for a, b in zip(values(hostile), values(clean), strict=True):
        np.testing.assert_array_equal(a, b)
