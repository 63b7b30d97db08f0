"""Generated programs, compiled and not: equal, or refused by name; none is silently different.

A program nests operators, layers, copies, closures, gradients, compiled functions and threads. It is called with equal
inputs first, because two records of a step that agree prove nothing if their inputs were equal, then with others.
"""

import contextvars
import copy
import threading
import warnings
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import duoln
from duoln import nn, ops
from duoln.core import composed_only, each_rule
from duoln.errors import CompileError, CompileWarning, DuolnError, GradientError

SIZE = 3
SEEDS, OF_MLX = range(1500), range(0, 1500, 41)
"""The programs. MLX compiles C++ for each, which takes a second; with `--long` it gets all of them."""
PARTS = 10
"""Tests of one backend; each runs its part of the programs."""


class _World:
    """What a program finds: whether `compile` compiles, and values from outside."""

    def __init__(self, be, compiles):
        self.be, self.compiles = be, compiles
        self.compiled = {}
        self.closure = duoln.tensor(np.float32([0.5, -1.5, 2.0]), be)
        self.flag = ops.any(self.closure > 1.0)
        """NumPy has one object for all that is True, so this one may be another computed flag too."""
        self.norm, self.linear = nn.LayerNorm(SIZE), nn.Linear(SIZE, SIZE)
        self.layers = duoln.to_tensors({"norm": self.norm.init(1), "linear": self.linear.init(2)}, be)

    def compile(self, key, function):
        """The function, compiled once for each key; for None anew at each call."""
        if not self.compiles:
            return function
        if key is None:
            return duoln.compile(function)
        if key not in self.compiled:
            self.compiled[key] = duoln.compile(function)
        return self.compiled[key]


def _leaf(rng):
    return [lambda w, p, x: x, lambda w, p, x: p, lambda w, p, x: x, lambda w, p, x: w.closure,
            lambda w, p, x: ops.ones((SIZE,), w.be), lambda w, p, x: duoln.tensor(np.float32([1, 2, 3]), w.be),
            lambda w, p, x: ops.arange(SIZE, backend=w.be, dtype="float32")][rng.integers(7)]


def _unary(rng, a):
    return [
        lambda w, p, x: ops.tanh(a(w, p, x)), lambda w, p, x: ops.sin(a(w, p, x)) * 1.5,
        lambda w, p, x: w.norm(w.layers["norm"], a(w, p, x)), lambda w, p, x: ops.tanh(w.linear(w.layers["linear"], a(w, p, x))),
        lambda w, p, x: ops.softmax(a(w, p, x)), lambda w, p, x: ops.tanh(ops.sum(a(w, p, x))) + a(w, p, x) * 0.5,
        lambda w, p, x: ops.astype(ops.astype(ops.tanh(a(w, p, x)) * 7.0, dtype="int32"), dtype="float32") * 0.1,
        lambda w, p, x: ops.where(ops.any(a(w, p, x) > 0.5), x, p), lambda w, p, x: ops.where(w.flag, a(w, p, x), x),
        lambda w, p, x: ops.concat(a(w, p, x)[1:], x[:1]), lambda w, p, x: duoln.stop_gradient(ops.tanh(a(w, p, x))),
        lambda w, p, x: ops.clip(a(w, p, x), -1.0, 1.0), lambda w, p, x: ops.tanh(a(w, p, x)[0]) * p,
        lambda w, p, x: ops.take(a(w, p, x), ops.argmax(a(w, p, x), axis=0), axis=0) * 0.3 + x,
    ][rng.integers(14)]


def _binary(rng, a, b):
    return [
        lambda w, p, x: ops.tanh(a(w, p, x)) + ops.tanh(b(w, p, x)), lambda w, p, x: ops.tanh(a(w, p, x) * b(w, p, x)),
        lambda w, p, x: ops.maximum(a(w, p, x), b(w, p, x)), lambda w, p, x: ops.where(a(w, p, x) > b(w, p, x), x, b(w, p, x)),
        lambda w, p, x: a(w, b(w, p, x), x), lambda w, p, x: a(w, p, ops.tanh(b(w, p, x))),
    ][rng.integers(6)]


def _copied(rng, a):
    return [
        lambda w, p, x: copy.copy(a(w, p, x)) * 1.1, lambda w, p, x: copy.deepcopy(duoln.stop_gradient(a(w, p, x))) + p,
        lambda w, p, x: copy.deepcopy({"a": [duoln.stop_gradient(a(w, p, x))]})["a"][0], lambda w, p, x: a(w, copy.copy(p), x),
    ][rng.integers(4)]


def _compiled(rng, a):
    key = object()
    return [
        lambda w, p, x: w.compile(key, lambda p, x: a(w, p, x))(p, x), lambda w, p, x: w.compile(None, lambda x: a(w, p, x))(x),
        lambda w, p, x: w.compile(key, lambda trees: {"y": a(w, trees[0], trees[1]["x"])})((p, {"x": x}))["y"],
    ][rng.integers(3)]


def _gradient(rng, a):
    key = object()

    def scalar(w, p, x):
        return ops.sum(ops.tanh(a(w, p, x)))

    return [
        lambda w, p, x: duoln.value_and_grad(lambda p: scalar(w, p, x))(p)[1] + x,
        lambda w, p, x: duoln.value_and_grad(lambda x: scalar(w, p, x))(x)[1] * duoln.value_and_grad(scalar_of(w, x))(p)[0],
        lambda w, p, x: w.compile(key, duoln.value_and_grad(lambda p, x: scalar(w, p, x)))(p, x)[1],
        lambda w, p, x: duoln.value_and_grad(lambda t: scalar(w, t["p"], t["x"][0]))({"p": p, "x": [x]})[1]["x"][0],
    ][rng.integers(4)]


def scalar_of(w, x):
    return lambda p: ops.sum(ops.tanh(p * x))


def _run(go, function):
    got = []

    def keep():
        try:
            got.append(function())
        except BaseException as error:
            got.append(error)

    go(keep)
    if isinstance(got[0], BaseException):
        raise got[0]
    return got[0]


def _alone(function):
    thread = threading.Thread(target=function)
    thread.start()
    thread.join()


def _in_pool(function):
    with ThreadPoolExecutor(1) as pool:
        pool.submit(function).result()


def _threaded(rng, a):
    go = [_alone, _in_pool, lambda f: _alone(lambda context=contextvars.copy_context(): context.run(f))][rng.integers(3)]
    return [lambda w, p, x: _run(go, lambda: a(w, p, x)) + x,
            lambda w, p, x: duoln.tensor(_run(go, lambda: duoln.stop_gradient(a(w, p, x)).numpy()), w.be) * 0.5,
            lambda w, p, x: x * float(_run(go, lambda: ops.tanh(duoln.stop_gradient(a(w, p, x))[0]).item()))][rng.integers(3)]


def _in_context(rng, a):
    def composed(w, p, x):
        with composed_only():
            return a(w, p, x)

    def seen(w, p, x):
        with each_rule(lambda op, rule: rule):
            return a(w, p, x)

    return [composed, seen][rng.integers(2)]


def _read(rng, a):
    return lambda w, p, x: x * duoln.stop_gradient(ops.tanh(a(w, p, x))).numpy()[0].item()


def _repeated(rng, a):
    def loop(w, p, x):
        for _ in range(3):
            x = ops.tanh(a(w, p, x)) + p * 0.1
        return x

    return loop


KINDS = [_unary, _unary, _unary, _copied, _compiled, _compiled, _gradient, _in_context, _repeated, _threaded]


def _program(rng, depth):
    if depth == 0:
        return _leaf(rng)
    if rng.random() < 0.3:
        return _binary(rng, _program(rng, depth - 1), _program(rng, depth - 1))
    if rng.random() < 0.02:
        return _read(rng, _program(rng, depth - 1))
    kind = KINDS[rng.integers(len(KINDS) - (rng.random() < 0.6))]  # threads in fewer programs
    return kind(rng, _program(rng, depth - 1))


INPUTS = [np.float32([0.5, -0.25, 1.0])] * 3 + [np.float32([-2.0, 0.75, 0.1]), np.float32([-0.3, -0.2, -0.1])]


def _outcomes(be, program, compiles):
    """What each call gives: the values, or the class of the error."""
    world, p = _World(be, compiles), np.float32([0.3, -0.7, 1.2])
    whole = world.compile("whole", lambda p, x: program(world, p, x))
    for k, x in enumerate(INPUTS):
        try:
            yield whole(duoln.tensor(p + (k > 3), be), duoln.tensor(x, be)).numpy()
        except DuolnError as error:
            yield type(error)


def _compare(be, seeds):
    equal = refused = 0
    for seed in seeds:
        program = _program(np.random.default_rng(seed), 2 + seed % 4)
        plain = list(_outcomes(be, program, False))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", CompileWarning)
            compiled = list(_outcomes(be, program, True))
        for k, (a, b) in enumerate(zip(plain, compiled, strict=True)):
            where = f"program {seed}, call {k}"
            if isinstance(b, type):
                assert b in (CompileError, GradientError), (where, b)
                assert isinstance(a, type) or b is CompileError, (where, a, b)
                refused += 1
            else:
                assert not isinstance(a, type), (where, a)
                np.testing.assert_allclose(b, a, rtol=2e-5, atol=2e-6, err_msg=where)
                equal += 1
    assert equal >= (2 * refused if len(seeds) > 9 else 1), (equal, refused)  # of a few, most may be refused by chance


EVERY_DAY = pytest.mark.parametrize("part", [part if part < 1 else pytest.param(part, marks=pytest.mark.long) for part in range(PARTS)])


@EVERY_DAY
def test_compiled_and_not_are_equal_or_refused(numpy_backend, part):
    _compare(numpy_backend, SEEDS[part::PARTS])


@pytest.mark.long
@EVERY_DAY
def test_compiled_and_not_are_equal_or_refused_on_mlx(request, part):
    _compare(duoln.backend("mlx"), (SEEDS if request.config.getoption("--long") else OF_MLX)[part::PARTS])
