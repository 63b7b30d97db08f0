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


PARTS = {
    "a row": (lambda be: _t(be, np.ones((2, 3))), lambda table: table[0]),
    "a slice": (lambda be: _t(be, np.ones(5)), lambda table: table[1:4]),
    "all of it": (lambda be: _t(be, np.ones(3)), lambda table: table[...]),
    "another shape": (lambda be: _t(be, np.ones((3, 1))), lambda table: ops.reshape(table, shape=(3,))),
    "a row that lies across": (lambda be: _t(be, np.ones((3, 2))), lambda table: table.T[0]),
    "a number": (lambda be: _t(be, np.ones(3)), lambda table: table[1]),
}


@pytest.mark.filterwarnings("ignore::duoln.errors.CompileWarning")  # a graph takes no argument with gaps
@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("name", PARTS)
def test_a_part_of_an_array_that_the_caller_keeps_is_not_overwritten(be, name, compiled):
    table, part = PARTS[name][0](be), PARTS[name][1]
    optimizer, expected = optim.Adam(1e-2, donate=True), optim.Adam(1e-2)
    update = duoln.compile(optimizer.update) if compiled else optimizer.update
    for _ in range(4):
        params = {"w": part(table)}
        gradients = {"w": ops.ones_like(params["w"])}
        new, _ = update(params, gradients, optimizer.init(params), _t(be, 1e-2))
        plain, _ = expected.update({"w": part(table)}, gradients, expected.init(params), _t(be, 1e-2))
        np.testing.assert_array_equal(new["w"].numpy(), plain["w"].numpy())
        assert table.numpy().min() == table.numpy().max() == 1.0


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


def test_a_parameter_without_axes(be):
    for value in (_t(be, 2.0), _t(be, [1.0, 2.0])[1], ops.sum(_t(be, [1.0, 1.0]))):
        optimizer = optim.Adam(1e-2, donate=True)
        params, slots = {"p": value}, optimizer.init({"p": value})
        for _ in range(3):
            params, slots = optimizer.update(params, {"p": ops.sum(_t(be, [1.0, 2.0]))}, slots, 1e-2)
        assert params["p"].item() == pytest.approx(2.0 - 3e-2, rel=1e-5)


def test_moments_belong_to_the_parameter_of_their_name(be):
    """Adam, as the others, takes trees whose dicts have another order."""
    def swapped(tree):
        return {key: tree[key] for key in ("b", "a")}

    a, b = [1.0, 2.0], [3.0, 5.0]
    gradients = {"a": _t(be, [0.1, 0.2]), "b": _t(be, [-7.0, 9.0])}
    for optimizer in (optim.Adam(0.1, donate=True), optim.Adam(0.1, clip=optim.clip_global_norm(1.0)), optim.RMSProp(0.1),
                      optim.SGD(0.1, momentum=0.9)):
        results = []
        for order in (lambda tree: tree, swapped):
            params = {"a": _t(be, a), "b": _t(be, b)}
            slots = {key: order(slot) if isinstance(slot, dict) else slot for key, slot in optimizer.init(params).items()}
            for _ in range(3):
                params, slots = optimizer.update(params, order(gradients), slots, 0.1)
                slots = {key: order(slot) if isinstance(slot, dict) else slot for key, slot in slots.items()}
            results.append({key: params[key].numpy().tolist() for key in ("a", "b")})
        assert list(params) == ["a", "b"]
        np.testing.assert_allclose(results[0]["a"], results[1]["a"], rtol=1e-6)
        np.testing.assert_allclose(results[0]["b"], results[1]["b"], rtol=1e-6)
