"""State of Python that a compiled step reads: which changes are found, and when.

A step reads places that change before its n-th call. It is called compiled, and then as it is. Where results differ, a
CompileWarning was given at the latest when the calls had doubled, and from then on results are those of the step.
"""

import datetime
import functools
import itertools
import os
import random
import time
import warnings
from types import SimpleNamespace

import numpy as np
import pytest

import duoln
from duoln import ops, optim
from duoln.core.step import variables
from duoln.errors import CompileError, CompileWarning
from duoln.randomness import Stream

CALLS, LATE = 34, 20
"""The calls, and that before which a place changes; the last look is at call 32."""

_SCALE, _COUNT = 2.0, 0


class _Holder:
    scale = 2.0

    def __init__(self):
        self.scale, self.deep, self.count = 2.0, SimpleNamespace(scale=2.0), 0

    @property
    def doubled(self):
        return self.scale * 2.0

    @property
    def is_late(self):
        return time.time() < 0

    def of_method(self):
        return self.deep.scale

    def counted(self):
        self.count += 1
        return self.count

    def __call__(self):
        return self.scale


class _Slotted:
    __slots__ = ("scale",)

    def __init__(self):
        self.scale = 2.0


_HOLDER = _Holder()


def _of_global():
    return _SCALE


def _set_global(value):
    global _SCALE  # noqa: PLW0603
    _SCALE = value


def _times_2(x):
    return x * 2.0


def _times_3(x):
    return x * 3.0


def _with_default(holder=[2.0]):  # noqa: B006
    return holder[0]


# Each place gives a function that reads a scale, and one that changes it; the scale is 2.0 before and 3.0 after.

def _closure():
    scale = 2.0

    def change():
        nonlocal scale
        scale = 3.0

    return lambda: scale, change


def _replaced_object():
    holder = _Holder()

    def change():
        nonlocal holder
        holder = SimpleNamespace(scale=3.0)

    return lambda: holder.scale, change


def _global(read):
    _set_global(2.0)
    return read, lambda: _set_global(3.0)


def _of(holder, read, *path):
    return read, lambda: setattr(functools.reduce(getattr, path[:-1], holder), path[-1], 3.0)


def _entry(holder, read, key, after=3.0):
    return read, lambda: holder.__setitem__(key, after)


def _class():
    _Holder.scale = 2.0
    return lambda: _Holder.scale, lambda: setattr(_Holder, "scale", 3.0)


def _default():
    _with_default.__defaults__[0][0] = 2.0
    return _entry(_with_default.__defaults__[0], _with_default, 0)


def _environment(read):
    os.environ["SCALE_OF_A_TEST"] = "2.0"
    return _entry(os.environ, read, "SCALE_OF_A_TEST", "3.0")


def _schedule():
    rate, holder = optim.piecewise(2.0, {1: 3.0}), SimpleNamespace(update=0)
    return lambda: rate(holder.update), lambda: setattr(holder, "update", 1)


def _other_schedule():
    holder = SimpleNamespace(rate=optim.piecewise(2.0, {1: 3.0}))
    return lambda: holder.rate(0), lambda: setattr(holder, "rate", lambda update: 3.0)


def _other_function():
    holder = SimpleNamespace(scale=_times_2)
    return lambda: holder.scale(1.0), lambda: setattr(holder, "scale", _times_3)


FOUND = {
    "closure": _closure, "in global": lambda: _global(_of_global), "in nested function": lambda: _global(lambda: next(map(lambda _: _SCALE, [0]))),
    "attribute": lambda: _of(holder := _Holder(), lambda: holder.scale, "scale"),
    "of attribute": lambda: _of(holder := _Holder(), lambda: holder.deep.scale, "deep", "scale"),
    "slot": lambda: _of(holder := _Slotted(), lambda: holder.scale, "scale"),
    "property": lambda: _of(holder := _Holder(), lambda: holder.doubled, "scale"),
    "method": lambda: _of(holder := _Holder(), lambda: holder.of_method(), "deep", "scale"),
    "called object": lambda: _of(holder := _Holder(), lambda: holder(), "scale"),
    "partial": lambda: _of(holder := _Holder(), functools.partial(lambda scale: holder.scale * scale, 1.0), "scale"),
    "class": _class, "replaced object": _replaced_object,
    "entry": lambda: _entry(holder := {"scale": 2.0}, lambda: holder["scale"], "scale"),
    "entry by method": lambda: _entry((holder := {"deep": [2.0, (1.0,)]})["deep"], lambda: holder.get("deep")[0], 0),
    "default": _default, "environment": lambda: _environment(lambda: float(os.environ["SCALE_OF_A_TEST"])),
    "scalar of NumPy": lambda: _entry(holder := {"scale": np.float32(2.0)}, lambda: float(holder["scale"]), "scale", np.float32(3.0)),
    "array of NumPy": lambda: _entry(holder := [np.full(1, 2.0)], lambda: float(holder[0][0]), 0, np.full(1, 3.0)),
    "schedule": _schedule, "other schedule": _other_schedule, "other function": _other_function,
}


# Each of these changes with each run of its Python; it gives a function that tells whether the scale is another one.

def _counted(n):
    count = 0

    def is_late():
        nonlocal count
        count += 1
        return count >= n

    return is_late


def _counted_global(n):
    global _COUNT  # noqa: PLW0603
    _COUNT = 0

    def is_late():
        global _COUNT  # noqa: PLW0603
        _COUNT += 1
        return n <= _COUNT

    return is_late


def _counted_entry(n):
    holder = {"count": 0}

    def is_late():
        holder["count"] += 1
        return holder["count"] >= n

    return is_late


def _random(n):
    random.seed(n)
    return lambda: random.random() < 0.05


def _random_of_numpy(n):
    np.random.seed(n)
    return lambda: np.random.rand() < 0.05


def _drawn(generator):
    return lambda: generator.random() < 0.05


def _iterated(numbers, n):
    return lambda: next(numbers) >= n


COUNTING = {
    "counted": _counted, "counted global": _counted_global, "counted entry": _counted_entry, "random": _random, "random of NumPy": _random_of_numpy,
    "counted attribute": lambda n: (holder := _Holder()) and (lambda: holder.counted() >= n), "iterator": lambda n: _iterated(itertools.count(1), n),
    "generator": lambda n: _iterated((k for k in itertools.count(1)), n), "random object": lambda n: _drawn(random.Random(n)),
    "generator of NumPy": lambda n: _drawn(np.random.default_rng(n)),
}
CLOCKS = [lambda: time.time() < 0, lambda: time.perf_counter() < 0, lambda: datetime.datetime.now().year < 0, lambda: _HOLDER.is_late]


def _part(place):
    """A step that reads the place, and what is called before its call k."""
    if place in COUNTING:
        is_late = COUNTING[place](LATE)
        return lambda x: ops.tanh(x * 3.0 if is_late() else x * 2.0), lambda k: None
    read, change = FOUND[place]()
    return lambda x: ops.tanh(x * read()), lambda k: change() if k == LATE else None


def _results(be, place, compiles):
    """The results of the calls, and the call that gave a warning."""
    step, before = _part(place)
    run, results, told = duoln.compile(step) if compiles else step, [], None
    x = duoln.tensor(np.float32([0.01, -0.02]), be)
    for k in range(1, CALLS + 1):
        before(k)
        with warnings.catch_warnings(record=True) as captured:
            warnings.simplefilter("always")
            results.append(run(x).numpy())
        assert all(w.category is CompileWarning for w in captured)
        told = k if captured and told is None else told
    return np.stack(results), told


@pytest.mark.parametrize("place", [*FOUND, *COUNTING])
def test_a_late_change_is_found(be, place):
    """Results differ from those of the step itself, if at all, from the half of the calls before the warning on."""
    (compiled, told), (plain, _) = (_results(be, place, compiles) for compiles in (True, False))
    wrong = [k + 1 for k in range(CALLS) if not np.allclose(compiled[k], plain[k], rtol=1e-5)]
    assert told == (3 if place in COUNTING else 32)
    assert not wrong or (told // 2 <= wrong[0] and wrong[-1] < told), (wrong, told)


@pytest.mark.parametrize("read", CLOCKS)
def test_a_clock_is_found(be, read):
    compiled, x = duoln.compile(lambda x: x * 3.0 if read() else x * 2.0), ops.ones((2,), be)
    with pytest.warns(CompileWarning, match="does not stay the same"):
        for _ in range(3):
            compiled(x)


@pytest.mark.parametrize("draw", [lambda s: s.uniform(()), lambda s: s.gaussian((1,)), lambda s: s.permutation(3)[0],
                                  lambda s: s.integers(2, (1,)), lambda s: s.keep_mask((1,), 0.5)])
def test_draws_of_a_stream_from_outside_are_refused(be, draw):
    """One that the step makes draws the same numbers at every call, as the proofs of a kernel do at its first use."""
    stream = Stream(0, "x")
    compiled = duoln.compile(lambda x: x * 3.0 if draw(stream) < 0 else x * 2.0)
    for _ in range(2):
        with pytest.raises(CompileError, match="expected draws outside of the compiled step"):
            compiled(ops.ones((2,), be))
    compiled = duoln.compile(lambda x: x * 3.0 if draw(Stream(0, "x")) < 0 else x * 2.0)
    assert [compiled(ops.ones((2,), be)).tolist() for _ in range(4)] == [[2.0] * 2 if draw(Stream(0, "x")) >= 0 else [3.0] * 2] * 4


# What is not found: the words with which the guide lists it, how it is read, and how it is changed.


def test_what_stays_gives_no_warning_and_is_looked_at_rarely(numpy_backend, monkeypatch):
    """Also what the first call puts into a cache, and what a step notes."""
    looks, caches, notes, reads = [], {}, [], [place()[0] for place in FOUND.values()]
    looked = variables.variables
    monkeypatch.setattr("duoln.core.compiling.variables", lambda step: looks.append(1) or looked(step))

    def step(x):
        notes.append(None)
        if x.shape not in caches:
            caches[x.shape] = ops.ones(x.shape, x.backend) * 2.0
        for read in reads:
            x = x * read() * 0.5
        return x * caches[x.shape]

    compiled = duoln.compile(step)
    for k in range(1, 70):
        compiled(ops.ones((2 if k % 2 else 3,), numpy_backend))
    assert len(looks) == 2 * (3 + 4) and len(notes) == 2 * 3
