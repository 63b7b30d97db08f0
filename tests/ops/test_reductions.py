"""Means of equal values, and reductions beside an empty axis."""

import numpy as np
import pytest
from conftest import every_second

import duoln
from duoln import ops
from duoln.core import composed_only

COUNTS = [2, 3, 7, 41, 47, 49, 55, 61, 82, 98, 103, 121, 187, 191]
"""The product of some of these and the rounded reciprocal is not 1."""


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_the_mean_of_ones_is_1(be, dtype):
    for n in COUNTS:
        ones = duoln.tensor(np.ones((3, n), dtype), be)
        for mean in (ops.mean(ones), *ops.mean(ones, axis=-1), *ops.mean(ones.T, axis=0), ones[0].mean()):
            assert mean.item() == 1.0, n
        assert ops.var(ones * 3.0).item() == ops.std(ones * 3.0).item() == 0.0
        assert duoln.value_and_grad(ops.mean)(ones)[1].numpy()[0, 0] == np.ones((), dtype) / (3 * n)


@pytest.mark.parametrize("side", [5, 7, 11])
def test_the_average_of_a_window_of_ones_is_1(be, side):
    image = ops.ones((1, side, side, 2), be)
    assert ops.avg_pool2d(image, size=side).numpy().tolist() == [[[[1.0, 1.0]]]]
    assert ops.avg_pool1d(image[0], size=side).numpy().min() == 1.0


@pytest.mark.parametrize("rules", ["fused", "composed"])
def test_normalised_equal_values_are_0(be, rules):
    for n in COUNTS:
        ones, gain = ops.ones((4, n), be), ops.ones((n,), be)
        if rules == "composed":
            with composed_only():
                y = ops.layer_norm(ones, gain)
        else:
            y = ops.layer_norm(ones, gain)
        assert not y.numpy().any(), n


REDUCTIONS = ["argmax", "argmin", "max", "min", "sum", "prod", "mean", "logsumexp", "vector_norm", "std", "var"]
SHAPES = [((0, 3), 1), ((0, 3), -1), ((4, 0), 0), ((2, 0, 5), 2), ((2, 0, 5), 0), ((0, 0, 2), 2)]


@pytest.mark.parametrize(("name", "case"), every_second(REDUCTIONS, SHAPES))
def test_beside_an_empty_axis_a_reduction_has_no_values(be, name, case):
    shape, axis = case
    for keepdims in (False, True):
        y = getattr(ops, name)(ops.zeros(shape, be), axis=axis, keepdims=keepdims)
        assert y.shape == y.numpy().shape == np.sum(np.zeros(shape), axis=axis, keepdims=keepdims).shape
        assert y.dtype == ("int32" if name.startswith("arg") else "float32")
    if not name.startswith("arg"):
        _, gradient = duoln.value_and_grad(lambda x: ops.sum(getattr(ops, name)(x, axis=axis)))(ops.zeros(shape, be))
        assert gradient.shape == gradient.numpy().shape == shape


@pytest.mark.parametrize("name", ["softmax", "log_softmax", "cumulative_sum"])
def test_beside_an_empty_axis_there_is_nothing_to_normalise(be, name):
    for shape, axis in SHAPES:
        value, gradient = duoln.value_and_grad(lambda x, axis=axis: ops.sum(getattr(ops, name)(x, axis=axis)))(
            ops.zeros(shape, be))
        assert value.item() == 0.0 and gradient.numpy().shape == shape
