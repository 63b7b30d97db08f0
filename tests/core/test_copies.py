"""Copies and pickles of tensors: the values are the copy's own, the backend is the process's."""

import copy
import pickle

import numpy as np

import duoln
from duoln import nn, ops, optim, tree
from duoln.errors import GradientError
from duoln.randomness import Stream
from duoln.testing import check_error


def _t(be, x):
    return duoln.tensor(np.asarray(x, np.float32), be)


def test_a_deep_copy_works_beside_what_it_was_copied_from(be):
    x = _t(be, [1.0, 2.0])
    twin = copy.deepcopy({"x": [x]})["x"][0]
    assert twin.backend is be and twin.dtype == x.dtype
    np.testing.assert_array_equal((x + twin).numpy(), [2.0, 4.0])


def test_a_shallow_copy_shares_the_values(be):
    x = _t(be, [1.0, 2.0])
    twin = copy.copy(x)
    assert twin is not x and twin.backend is be and twin.data is x.data


def test_a_deep_copy_keeps_its_values_when_the_original_is_donated(be):
    """An optimiser that donates overwrites the parameters that it is given."""
    model = nn.Linear(3, 2)
    params = duoln.to_tensors(model.init(Stream(0, "init")), be)
    optimizer = optim.Adam(1e-2, donate=True)
    before = copy.deepcopy(params)
    values = [leaf.numpy() for leaf in tree.leaves(params)]
    gradients = tree.map(lambda p: _t(be, np.ones(p.shape)), params)
    optimizer.update(params, gradients, optimizer.init(params), _t(be, 0.1))
    for leaf, value in zip(tree.leaves(before), values, strict=True):
        np.testing.assert_array_equal(leaf.numpy(), value)


def test_within_a_gradient_a_shallow_copy_stays_on_the_tape_and_a_deep_copy_is_refused(be):
    _, gradient = duoln.value_and_grad(lambda x: ops.sum(copy.copy(x) * x))(_t(be, [3.0]))
    assert gradient.numpy() == [6.0]
    check_error(GradientError, lambda: duoln.value_and_grad(lambda x: ops.sum(copy.deepcopy(x)))(_t(be, [3.0])),
                "[deepcopy]", "stop_gradient")


def test_pickles_of_tensors_and_modules(numpy_backend):
    params = {"w": _t(numpy_backend, [[1.0, 2.0]]), "n": duoln.tensor(3, numpy_backend)}
    loaded = pickle.loads(pickle.dumps(params))
    assert loaded["w"].backend is numpy_backend and loaded["n"].dtype == "int32"
    np.testing.assert_array_equal((loaded["w"] + params["w"]).numpy(), [[2.0, 4.0]])
    module = nn.LSTM(3, 4, norm="layer")
    twin = pickle.loads(pickle.dumps(module))
    weights = duoln.to_tensors(module.init(Stream(0, "init")), numpy_backend)
    x = _t(numpy_backend, np.ones((2, 1, 3)))
    np.testing.assert_array_equal(module(weights, x)[0].numpy(), twin(weights, x)[0].numpy())


def test_a_backend_is_one_object(be):
    assert copy.copy(be) is be and copy.deepcopy(be) is be
