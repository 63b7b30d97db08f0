"""An optimiser that donates overwrites its parameters: one tensor under two names is updated as without it."""

import numpy as np
import pytest

import duoln
from duoln import ops, optim, tree


def _t(be, x):
    return duoln.tensor(np.asarray(x, np.float32), be)


def _updated(be, make, donate, updates=3):
    optimizer = optim.Adam(1e-2, donate=donate)
    params, gradients = make(be)
    slots = optimizer.init(params)
    for _ in range(updates):
        params, slots = optimizer.update(params, gradients, slots, _t(be, 1e-2))
    return [leaf.numpy() for leaf in tree.leaves((params, slots))]


def _one_tensor_twice(be):
    shared = _t(be, [1.0, 2.0, 3.0])
    return {"a": shared, "b": shared}, {"a": _t(be, [1.0, -1.0, 2.0]), "b": _t(be, [0.5, 3.0, -2.0])}


def _views_of_one_tensor(be):
    whole = _t(be, np.arange(6.0))
    return ({"all": whole, "rows": ops.reshape(whole, shape=(2, 3))},
            {"all": _t(be, np.ones(6)), "rows": _t(be, -2.0 * np.ones((2, 3)))})


def _halves_that_overlap(be):
    whole = _t(be, np.arange(6.0))
    return {"low": whole[:4], "high": whole[2:]}, {"low": _t(be, np.ones(4)), "high": _t(be, -np.ones(4))}


def _gradient_that_is_a_parameter(be):
    a, b = _t(be, [1.0, 2.0]), _t(be, [3.0, 4.0])
    return {"a": a, "b": b}, {"a": b, "b": a}


@pytest.mark.parametrize("make", [_one_tensor_twice, _views_of_one_tensor, _halves_that_overlap,
                                  _gradient_that_is_a_parameter])
def test_donated_and_not_give_the_same(be, make):
    for donated, kept in zip(_updated(be, make, True, 1), _updated(be, make, False, 1), strict=True):
        np.testing.assert_array_equal(donated, kept)


def test_gradients_may_share_memory(be):
    """As those of a gain and a bias, which one launch makes."""
    if be.name == "mlx":
        pytest.skip("MLX reuses memory by itself")
    both = _t(be, [[1.0, 1.0], [2.0, 0.5]])
    params = {"gain": _t(be, [1.0, 2.0]), "bias": _t(be, [3.0, 4.0])}
    before = {name: p.data.data.ptr if be.name == "cupy" else p.data.ctypes.data for name, p in params.items()}
    optimizer = optim.Adam(1e-2, donate=True)
    new, _ = optimizer.update(params, {"gain": both[0], "bias": both[1]}, optimizer.init(params), _t(be, 1e-2))
    assert before == {name: p.data.data.ptr if be.name == "cupy" else p.data.ctypes.data for name, p in new.items()}


def test_tensors_apart_are_still_overwritten(numpy_backend):
    """What donation is for: no new array for the parameters."""
    p = _t(numpy_backend, [1.0, 2.0])
    optimizer = optim.Adam(1e-2, donate=True)
    new, _ = optimizer.update({"p": p}, {"p": _t(numpy_backend, [1.0, 1.0])}, optimizer.init({"p": p}),
                              _t(numpy_backend, 1e-2))
    assert np.shares_memory(new["p"].data, p.data)
