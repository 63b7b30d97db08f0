"""An optimizer that donates overwrites its parameters: one tensor under two names is updated as without it. Who reads
what was donated is told so, and what shares its memory keeps its values.
"""

import copy
from functools import partial

import numpy as np
import pytest

import duoln
from duoln import ops, optim, tree
from duoln.core.footprint import sole_owner
from duoln.errors import UsageError
from duoln.kernels import native
from duoln.testing import check_error

NEEDS_COMPILER = pytest.mark.skipif(native.machine_refusal() is not None, reason="on the CPU the compiled rule alone overwrites")


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
        kept = {"w": part(table)}
        new, _ = update(params, gradients, optimizer.init(params), _t(be, 1e-2))
        plain, _ = expected.update(kept, gradients, expected.init(kept), _t(be, 1e-2))
        np.testing.assert_array_equal(new["w"].numpy(), plain["w"].numpy())
        assert table.numpy().min() == table.numpy().max() == 1.0


@pytest.mark.parametrize("make", [_one_tensor_twice, _views_of_one_tensor, _halves_that_overlap,
                                  _gradient_that_is_a_parameter])
def test_donated_and_not_give_the_same(be, make):
    for donated, kept in zip(_updated(be, make, True, 1), _updated(be, make, False, 1), strict=True):
        np.testing.assert_array_equal(donated, kept)


@NEEDS_COMPILER
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


DONATING = {"Adam": optim.Adam(0.1, donate=True), "SGD": optim.SGD(0.1, momentum=0.9, donate=True), "RMSProp": optim.RMSProp(0.1, donate=True),
            "AdamW in two groups": optim.AdamW(0.1, donate=True, decays=lambda path, p: path == "w"),
            "Adam that clips": optim.Adam(0.1, donate=True, clip=optim.clip_global_norm(1.0))}
READERS = {
    "numpy": lambda p, step: p["w"].numpy(), "item": lambda p, step: p["b"][0].item(), "shape": lambda p, step: p["w"].shape, "dtype": lambda p, step: p["b"].dtype,
    "repr": lambda p, step: repr(p["w"]), "an operator": lambda p, step: p["w"] * 2.0, "NumPy": lambda p, step: np.asarray(p["w"]),
    "deepcopy": lambda p, step: copy.deepcopy(p), "the step": lambda p, step: step(p),
}


def _state(be, optimizer):
    params = {"w": _t(be, np.arange(6.0).reshape(2, 3)), "b": _t(be, [1.0, 2.0, 3.0])}
    return params, optimizer.init(params)


def _stepping(be, optimizer, compiled):
    def step(params, slots, rate):
        params, slots, norm = optimizer.update_with_norm(params, tree.map(lambda p: p + 1.0, params), slots, rate)
        return params, slots, norm

    run = duoln.compile(step) if compiled else step
    return lambda params, slots: run(params, slots, _t(be, 0.1))[:2]


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
@pytest.mark.parametrize("name", DONATING)
def test_who_reads_what_was_donated_is_told(be, name, compiled):
    """On every backend and at every call, whether the memory was overwritten or not."""
    optimizer = DONATING[name]
    step = _stepping(be, optimizer, compiled)
    params, slots = _state(be, optimizer)
    for _ in range(4):
        best, moments = params, slots
        params, slots = step(params, slots)
        for read in READERS.values():
            check_error(UsageError, partial(read, best, partial(step, slots=slots)), "donated", "copy.deepcopy(params)")
        for leaf in tree.leaves(moments):
            check_error(UsageError, leaf.numpy, "donated")
    assert tree.leaves(params)[0].shape == (2, 3)


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
@pytest.mark.parametrize("name", DONATING)
def test_what_shares_memory_with_a_parameter_keeps_its_values(be, name, compiled):
    if be.name == "cupy":
        pytest.skip("a CUDA graph holds the arrays that it overwrites")
    optimizer = DONATING[name]
    step = _stepping(be, optimizer, compiled)
    params, slots = _state(be, optimizer)
    for _ in range(6):
        values = params["w"].numpy()
        kept = params["w"][1], copy.copy(params["w"]), ops.reshape(params["w"], shape=(6,)), ops.squeeze(params["w"][:1], axis=0)
        params, slots = step(params, slots)
        for view, expected in zip(kept, (values[1], values, values.reshape(6), values[0]), strict=True):
            np.testing.assert_array_equal(view.numpy(), expected)


def test_an_argument_that_is_a_donated_one_too_keeps_its_values_in_the_step(be):
    """As a target network that begins as the parameters."""
    optimizer = optim.Adam(0.1, donate=True)

    def step(params, slots, target, rate):
        new, slots = optimizer.update(params, {"w": params["w"] + 1.0}, slots, rate)
        return new, slots, ops.sum(ops.abs(new["w"] - target["w"]))

    compiled = duoln.compile(step)
    for _ in range(5):
        params = {"w": _t(be, np.arange(6.0))}
        *_, distance = compiled(params, optimizer.init(params), {"w": params["w"]}, _t(be, 0.1))
        assert distance.item() == pytest.approx(0.6, rel=1e-3)


@NEEDS_COMPILER
@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
def test_a_loop_makes_no_copies(compiled, numpy_backend):
    """What nobody else holds is overwritten at every update, from the third call of a compiled step on."""
    optimizer = DONATING["Adam"]
    step = _stepping(numpy_backend, optimizer, compiled)
    params, slots = _state(numpy_backend, optimizer)
    memory = []
    for _ in range(6):
        params, slots = step(params, slots)
        memory.append([x.data.ctypes.data for x in tree.leaves((params, slots["m"], slots["v"]))])
    assert memory[2] == memory[3] == memory[4] == memory[5]


def test_a_view_is_the_sole_one_while_no_other_array_shares_its_memory():
    view = np.zeros(4)[1:]
    assert sole_owner(view) is view.base and sole_owner(view.base) is view.base
    second = view[1:]
    assert sole_owner(view) is None and sole_owner(second) is None
    del view
    assert sole_owner(second) is second.base
