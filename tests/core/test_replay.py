"""Compiled steps that are replayed: the bits of the step itself, and what must not be frozen is not."""

import itertools
import math
import os
import re
import tracemalloc
import warnings
from collections import OrderedDict
from typing import NamedTuple

import numpy as np
import pytest
from conftest import ON_NUMPY

import duoln
from duoln import Tensor, ops, optim, tree
from duoln.core import Op, Rule, derived
from duoln.errors import CompileWarning, ShapeError
from duoln.tasks import make_config
from duoln.tasks.registry import Registry
from duoln.testing import check_error
from duoln.training.train_step import make_step, start_state

TASKS = {name: entry.task for name, entry in Registry().tasks.items()}


@pytest.fixture
def applied(monkeypatch):
    """The names of the operators that were applied."""
    names = []
    apply = Op.apply
    monkeypatch.setattr(Op, "apply", lambda op, *args, **attrs: names.append(op.name) or apply(op, *args, **attrs))
    return names


def _x(be, *values):
    return duoln.tensor(np.array(values, np.float32), be)


@pytest.mark.few
@pytest.mark.parametrize(("task", "variant"), [(t, v) for t in TASKS for v in ("none", "ln") if v in TASKS[t].variants]
                         + [("las", "both"), ("mnist", "bn")])
def test_a_task_trains_with_the_bits_of_its_step(task, variant, numpy_backend, applied):
    task = TASKS[task]
    cfg = make_config(task, variant, "smoke")
    splits, model, optimizer = task.data(cfg), task.model(cfg), task.optimizer(cfg, 1000)
    step = make_step(task, model, optimizer)
    compiled = duoln.compile(step)
    states = [start_state(model, optimizer, 0, numpy_backend) for _ in range(2)]
    batch = splits.train(0)
    for k in range(4):
        rate = duoln.tensor(np.float32(1e-3 / (k + 1)), numpy_backend)
        given = duoln.to_tensors(batch, numpy_backend)
        states[0], figures = step(states[0], given, rate)
        applied.clear()
        states[1], of_compiled = compiled(states[1], given, rate)
        assert bool(applied) == (k < 2), applied
        pairs = zip(tree.items((states[0], figures)), tree.leaves((states[1], of_compiled)), strict=True)
        assert [path for (path, a), b in pairs if not np.array_equal(a.numpy(), b.numpy(), equal_nan=True)] == []


def test_the_operators_alone_are_repeated(numpy_backend, applied):
    calls = []

    def step(x):
        calls.append(1)
        return ops.exp(x) * 2.0

    compiled = duoln.compile(step)
    for k in range(5):
        np.testing.assert_array_equal(compiled(_x(numpy_backend, k, 1.0)).numpy(), np.exp(np.float32([k, 1])) * 2)
    assert (len(calls), applied) == (2, ["exp", "multiply"] * 2)


class _Scaled:
    def __init__(self, be):
        self.scales = {"out": _x(be, 1.0)}

    def step(self, x):
        return _times(x * self.scales["out"])


_FACTOR = []


def _times(x):
    return x * _FACTOR[0]


def test_a_warning_names_the_variable_that_holds_the_array(be):
    """In the step's object, and in what a function that it calls reads."""
    scaled, x = _Scaled(be), _x(be, 2.0)
    for holder, change in (("self.scales.out", lambda y: scaled.scales.update(out=y)), ("_FACTOR.0", lambda y: _FACTOR.__setitem__(slice(None), [y]))):
        _FACTOR[:] = [_x(be, 1.0)]
        compiled = duoln.compile(scaled.step)
        with pytest.warns(CompileWarning, match=re.escape(f"reads the variable {holder}, which")):
            for k in range(4):
                change(_x(be, float(k)))
                compiled(x)


@ON_NUMPY
def test_one_array_as_two_arguments_is_not_two_arrays_later(be):
    x, y = _x(be, 2.0), _x(be, 5.0)
    compiled = duoln.compile(lambda a, b: a * 10.0 + b)
    for _ in range(3):
        assert compiled(x, x).item() == 22.0
    assert [compiled(x, y).item(), compiled(y, x).item()] == [25.0, 52.0]
    for _ in range(3):
        number = ops.sum(x)  # NumPy gives a scalar, which is no array
        assert compiled(number, number).item() == 22.0
    assert compiled(number, ops.sum(y)).item() == 25.0


@ON_NUMPY
def test_an_argument_that_was_a_constant_too_is_not_later(be):
    x, y = _x(be, 2.0), _x(be, 5.0)
    compiled = duoln.compile(lambda a: a * 10.0 + x)
    assert [compiled(a).item() for a in (x, x, x, y, x)] == [22.0, 22.0, 22.0, 52.0, 22.0]


def test_noise_that_a_step_draws_is_not_frozen(be):
    def step(x):
        return ops.sum(x * duoln.tensor(np.frombuffer(os.urandom(16), np.uint8).astype(np.float32), be)), ops.sum(x)

    compiled, x = duoln.compile(step), ops.ones((16,), be)
    with pytest.warns(CompileWarning, match=r"runs as it is: .* array of shape \(16,\) that is no argument"):
        assert len({compiled(x)[0].item() for _ in range(6)}) > 1


@pytest.mark.parametrize("use", [lambda x, number: x * number, lambda x, number: ops.clip(x, max=number),
                                 lambda x, number: ops.full((1,), number, x.backend) * x,
                                 lambda x, number: ops.leaky_relu(-x, slope=number)])
def test_a_number_of_python_that_changes_is_not_frozen(be, use):
    state = {"number": 0.0}

    def step(x):
        state["number"] += 1.0
        return use(x, state["number"])

    compiled = duoln.compile(step)
    with pytest.warns(CompileWarning, match="runs as it is"):
        results = [abs(compiled(_x(be, 100.0)).item()) for _ in range(5)]
    assert results in ([1.0, 2.0, 3.0, 4.0, 5.0], [100.0, 200.0, 300.0, 400.0, 500.0])


@ON_NUMPY
def test_numbers_and_arrays_that_stay_are_constants(be):
    table, rate, calls = duoln.tensor([3.0], be), 2.0, []

    def step(x):
        calls.append(1)
        return x * rate + table + ops.ones((1,), be), ops.zeros((2,), be)

    compiled = duoln.compile(step)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for k in range(6):
            y, zeros = compiled(_x(be, k))
            assert y.item() == 2.0 * k + 4.0 and zeros.tolist() == [0.0, 0.0]
    assert len(calls) == 2 or be.name != "mlx"  # elsewhere a result is no constant, because an optimizer may write into it


def test_a_result_that_is_no_operators_is_new_at_each_call(numpy_backend):
    compiled = duoln.compile(lambda x: (x + 1.0, ops.zeros((2,), x.backend)))
    results = [compiled(_x(numpy_backend, 1.0))[1] for _ in range(4)]
    for result in results:
        result.data[:] += 1  # as an optimizer that donates
    assert [r.numpy().tolist() for r in results] == [[1.0, 1.0]] * 4


def test_indices_are_checked_at_every_call(numpy_backend):
    table = _x(numpy_backend, 1.0, 2.0, 3.0)
    compiled = duoln.compile(lambda index, rows: ops.take(rows, index, axis=0))
    for k in (0, 2, 1, 2):
        assert compiled(duoln.tensor([k], numpy_backend), table).numpy().tolist() == [k + 1.0]
    check_error(ShapeError, lambda: compiled(duoln.tensor([3], numpy_backend), table), "-3 .. 2", "found 3")


def test_arrays_that_share_memory_are_not_overwritten(numpy_backend):
    optimizer = optim.Adam(learning_rate=0.1, donate=True)
    step = duoln.compile(optimizer.update)
    rate, gradient = duoln.tensor(np.float32(0.1), numpy_backend), {"w": _x(numpy_backend, 1.0)}
    for _ in range(3):
        params = {"w": _x(numpy_backend, 1.0)}
        step(params, gradient, optimizer.init(params), rate)
    params = {"w": _x(numpy_backend, 1.0)}
    kept, slots = params["w"].data, optimizer.init(params)
    slots["m"] = params
    step(params, gradient, slots, rate)
    assert kept.item() == 1.0


def test_every_layout_has_its_rules(numpy_backend, rng):
    """A matrix that is transposed takes another rule than one that is not."""
    x = duoln.tensor(rng.standard_normal((4, 300)).astype(np.float32), numpy_backend)
    w = duoln.tensor(rng.standard_normal((300, 300)).astype(np.float32), numpy_backend)
    compiled = duoln.compile(lambda w: x @ w)
    for k in range(8):
        weight = Tensor(w.data.T, numpy_backend) if k > 3 else w
        np.testing.assert_array_equal(compiled(weight).numpy(), (x @ weight).numpy())

    @duoln.core.op
    def is_contiguous(x):
        return is_contiguous.apply(x)

    is_contiguous.add(Rule("composed", lambda be, x: (np.zeros(1, np.float32), None)))
    is_contiguous.add(Rule("contiguous", lambda be, x: (np.ones(1, np.float32), None), None,
                           lambda be, x: None if x.flags.c_contiguous else "it is not contiguous"), "numpy")
    compiled = duoln.compile(lambda w: is_contiguous(w))
    assert [compiled(Tensor(w.data.T, numpy_backend) if k > 3 else w).item() for k in range(8)] == [1] * 4 + [0] * 4


class _Pair(NamedTuple):
    a: Tensor
    b: Tensor


@ON_NUMPY
def test_forms_in_turn(be):
    """Each call is like the one before it in all but one respect."""
    count = itertools.count()

    def x(shape=(2, 3), dtype="float32"):
        return duoln.tensor(np.arange(math.prod(shape)).reshape(shape) + 10 * next(count), be, dtype)

    forms = [{"a": x(), "b": x()}, {"b": x(), "a": x()}, {"a": x(), "c": x()}, {"a": x((1, 3)), "b": x()},
             {"a": x(), "b": x(dtype="int32")}, {"a": x((3, 2)).T, "b": x()}, {"a": [x()], "b": x()}, {"a": x()},
             [x(), x()], (x(), x()), [x()], [], _Pair(x(), x()), OrderedDict(a=x(), b=x()), {"a": (), "b": x()}, x()]

    def step(tree, y):
        return {"sum": [ops.sum(leaf.astype("float32") * y) for leaf in duoln.tree.leaves(tree)], "tree": tree, "y": (y, y + 1.0)}

    compiled = duoln.compile(step)
    for order in ("abcdabcd", "aaaabbbb", "abbaabba"):
        for first, second in itertools.pairwise(forms):
            by_letter = {"a": first, "b": second, "c": forms[0], "d": forms[-1]}
            for k, letter in enumerate(order):
                y = duoln.tensor(np.float32(k), be)
                expected, actual = step(by_letter[letter], y), compiled(by_letter[letter], y)
                assert type(actual["tree"]) is type(expected["tree"])
                pairs = zip(tree.items(expected), tree.items(actual), strict=True)
                assert all(name == path and a.dtype == b.dtype and np.array_equal(a.numpy(), b.numpy())
                           for (name, a), (path, b) in pairs), (letter, k)


def test_what_a_rule_runs_itself_is_not_repeated_beside_it(numpy_backend):
    ran = []

    @duoln.core.op
    def counted(x):
        return counted.apply(x)

    @duoln.core.op
    def twice(x):
        return twice.apply(x)

    counted.add(Rule("composed", lambda be, x: (ran.append(1) or np.asarray(x) + x, None), lambda be, saved, g, needs: (g + g,)))
    twice.add(derived(lambda x: counted(counted(x))))
    compiled = duoln.compile(duoln.value_and_grad(lambda x: ops.sum(twice(x))))
    for k in range(5):
        before = len(ran)
        value, gradient = compiled(_x(numpy_backend, k, 1.0))
        tried = k == 1  # the rule runs with a symbol, too, when the step is bound
        assert (value.item(), gradient.numpy().tolist(), len(ran) - before) == (4 * k + 4, [4.0, 4.0], 2 + tried)


def test_contexts_are_respected(numpy_backend):
    compiled, x = duoln.compile(lambda x: ops.tanh(x)), _x(numpy_backend, 1.0)
    for _ in range(3):
        compiled(x)
    ran = []
    with duoln.core.each_rule(lambda op, rule: ran.append(op.name) or rule):
        compiled(x)
    assert ran == ["tanh"]
    with duoln.core.composed_only():
        assert [compiled(x).item() for _ in range(3)] == [ops.tanh(x).item()] * 3


def test_values_are_dropped_after_their_last_use(numpy_backend):
    def step(x):
        for _ in range(30):
            x = ops.exp(x) * 0.5
        return x

    compiled, x = duoln.compile(step), duoln.tensor(np.zeros(1 << 18, np.float32), numpy_backend)
    for _ in range(3):
        tracemalloc.start()
        compiled(x)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < 5 * x.data.nbytes
