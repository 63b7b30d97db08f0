"""State of Python that a compiled step reads: which changes are found, and which are not, as the guide says.

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
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import duoln
from duoln import ops, optim
from duoln.core.step import variables
from duoln.errors import CompileError, CompileWarning
from duoln.randomness import Stream

CALLS = 34
"""So many that the last look, at call 32, is after each change."""
CHANGES = 1, 2, 3, 5, 20
GUIDE = Path(duoln.__file__).parent / "docs/guide.md"

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


def _in_global():
    _set_global(2.0)
    return _of_global, lambda: _set_global(3.0)


def _in_nested_function():
    _set_global(2.0)
    return lambda: next(map(lambda _: _SCALE, [0])), lambda: _set_global(3.0)


def _of(holder, read, *path):
    def change():
        setattr(functools.reduce(getattr, path[:-1], holder), path[-1], 3.0)

    return read, change


def _attribute():
    return _of(holder := _Holder(), lambda: holder.scale, "scale")


def _of_attribute():
    return _of(holder := _Holder(), lambda: holder.deep.scale, "deep", "scale")


def _slot():
    return _of(holder := _Slotted(), lambda: holder.scale, "scale")


def _property():
    return _of(holder := _Holder(), lambda: holder.doubled, "scale")


def _method():
    return _of(holder := _Holder(), lambda: holder.of_method(), "deep", "scale")


def _called_object():
    return _of(holder := _Holder(), lambda: holder(), "scale")


def _partial():
    return _of(holder := _Holder(), functools.partial(lambda scale: holder.scale * scale, 1.0), "scale")


def _class():
    _Holder.scale = 2.0
    return lambda: _Holder.scale, lambda: setattr(_Holder, "scale", 3.0)


def _replaced_object():
    holder = _Holder()

    def change():
        nonlocal holder
        holder = SimpleNamespace(scale=3.0)

    return lambda: holder.scale, change


def _entry():
    holder = {"scale": 2.0}
    return lambda: holder["scale"], lambda: holder.update(scale=3.0)


def _entry_by_method():
    holder = {"deep": [2.0, (1.0,)]}
    return lambda: holder.get("deep")[0], lambda: holder["deep"].__setitem__(0, 3.0)


def _default():
    _with_default.__defaults__[0][0] = 2.0
    return _with_default, lambda: _with_default.__defaults__[0].__setitem__(0, 3.0)


def _environment():
    os.environ["SCALE_OF_A_TEST"] = "2.0"
    return lambda: float(os.environ["SCALE_OF_A_TEST"]), lambda: os.environ.update(SCALE_OF_A_TEST="3.0")


def _scalar_of_numpy():
    holder = {"scale": np.float32(2.0)}
    return lambda: float(holder["scale"]), lambda: holder.update(scale=np.float32(3.0))


def _array_of_numpy():
    holder = [np.full(1, 2.0)]
    return lambda: float(holder[0][0]), lambda: holder.__setitem__(0, np.full(1, 3.0))


def _schedule():
    rate, holder = optim.piecewise(2.0, {1: 3.0}), SimpleNamespace(update=0)
    return lambda: rate(holder.update), lambda: setattr(holder, "update", 1)


def _other_schedule():
    holder = SimpleNamespace(rate=optim.piecewise(2.0, {1: 3.0}))
    return lambda: holder.rate(0), lambda: setattr(holder, "rate", lambda update: 3.0)


def _other_function():
    holder = SimpleNamespace(scale=_times_2)
    return lambda: holder.scale(1.0), lambda: setattr(holder, "scale", _times_3)


FOUND = [_closure, _in_global, _in_nested_function, _attribute, _of_attribute, _slot, _property, _method, _called_object, _partial,
         _class, _replaced_object, _entry, _entry_by_method, _default, _environment, _scalar_of_numpy, _array_of_numpy, _schedule,
         _other_schedule, _other_function]


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


def _counted_attribute(n):
    holder = _Holder()
    return lambda: holder.counted() >= n


def _counted_entry(n):
    holder = {"count": 0}

    def is_late():
        holder["count"] += 1
        return holder["count"] >= n

    return is_late


def _iterator(n):
    numbers = itertools.count(1)
    return lambda: next(numbers) >= n


def _generator(n):
    numbers = (k >= n for k in itertools.count(1))
    return lambda: next(numbers)


def _random(n):
    random.seed(n)
    return lambda: random.random() < 0.05


def _random_object(n):
    drawn = random.Random(n)
    return lambda: drawn.random() < 0.05


def _random_of_numpy(n):
    np.random.seed(n)
    return lambda: np.random.rand() < 0.05


def _generator_of_numpy(n):
    drawn = np.random.default_rng(n)
    return lambda: drawn.random() < 0.05


COUNTING = [_counted, _counted_global, _counted_attribute, _counted_entry, _iterator, _generator, _random, _random_object,
            _random_of_numpy, _generator_of_numpy]
CLOCKS = [lambda: time.time() < 0, lambda: time.perf_counter() < 0, lambda: datetime.datetime.now().year < 0, lambda: _HOLDER.is_late]


def _part(place, n):
    """A part of a step, and what is called before its call k."""
    if place in COUNTING:
        is_late = place(n)
        return lambda x: x * 3.0 if is_late() else x * 2.0, lambda k: None
    read, change = place()
    return lambda x: x * read(), lambda k: change() if k == n else None


def _results(be, places, compiles):
    """The results of the calls, and the call that gave a warning."""
    parts = [_part(*place) for place in places]
    functions = [function for function, _ in parts]

    def step(x):
        for function in functions:
            x = ops.tanh(function(x))
        return x

    run, results, told = duoln.compile(step) if compiles else step, [], None
    x = duoln.tensor(np.float32([0.01, -0.02]), be)
    for k in range(1, CALLS + 1):
        for _, before in parts:
            before(k)
        with warnings.catch_warnings(record=True) as captured:
            warnings.simplefilter("always")
            results.append(run(x).numpy())
        assert all(w.category is CompileWarning for w in captured)
        told = k if captured and told is None else told
    return np.stack(results), told


def _check(be, places):
    compiled, told = _results(be, places, compiles=True)
    plain, _ = _results(be, places, compiles=False)
    wrong = [k + 1 for k in range(CALLS) if not np.allclose(compiled[k], plain[k], rtol=1e-5)]
    assert not wrong or (told is not None and told // 2 <= wrong[0] and wrong[-1] < told), (wrong, told)
    return told


def _names(places):
    return [place.__name__.strip("_") for place in places]


@pytest.mark.parametrize("place", FOUND + COUNTING, ids=_names(FOUND + COUNTING))
def test_a_late_change_is_found(be, place):
    assert _check(be, [(place, 20)]) == (3 if place in COUNTING else 32)


@pytest.mark.parametrize("seed", range(200))
def test_no_composition_is_silently_wrong(numpy_backend, seed):
    drawn = np.random.default_rng(seed)
    every = FOUND + COUNTING
    chosen = drawn.choice(len(every), size=drawn.integers(1, 4), replace=False)
    _check(numpy_backend, [(every[k], int(drawn.choice(CHANGES))) for k in chosen])


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

def _length():
    holder = [None]
    return lambda: 1.0 + len(holder), lambda: holder.append(None)


def _set():
    holder = {1}
    return lambda: 3.0 if 2 in holder else 2.0, lambda: holder.add(2)


def _in_place():
    holder = np.full(1, 2.0)
    return lambda: float(holder[0]), lambda: holder.__setitem__(0, 3.0)


def _by_text():
    holder = SimpleNamespace(scale=2.0)
    return lambda: getattr(holder, "scale"), lambda: setattr(holder, "scale", 3.0)  # noqa: B009


def _other_module():
    os.environ["SCALE_OF_A_TEST"] = "2.0"
    return lambda: float(os.getenv("SCALE_OF_A_TEST")), lambda: os.environ.update(SCALE_OF_A_TEST="3.0")


def _object_in_an_entry():
    holder = [SimpleNamespace(scale=2.0)]
    return lambda: holder[0].scale, lambda: setattr(holder[0], "scale", 3.0)


NOT_FOUND = {_length: "lengths", _set: "sets", _in_place: "entries of arrays", _by_text: "`getattr`", _other_module: "other modules",
             _object_in_an_entry: "objects from calls or entries"}


@pytest.mark.parametrize("place", NOT_FOUND, ids=_names(NOT_FOUND))
def test_the_guide_lists_what_is_not_found(numpy_backend, place):
    section = GUIDE.read_text().split("## Compile\n")[1].split("\n## ")[0]
    assert NOT_FOUND[place] in " ".join(section.split())
    (compiled, told), (plain, _) = (_results(numpy_backend, [(place, 20)], compiles) for compiles in (True, False))
    assert told is None and (compiled != plain).any()


def test_a_value_that_changes_back_is_not_found(numpy_backend):
    holder = {"scale": 2.0}
    compiled, x = duoln.compile(lambda x: x * holder["scale"]), ops.ones((2,), numpy_backend)
    for k in range(1, CALLS):
        holder["scale"] = 3.0 if k == 20 else 2.0
        assert compiled(x).tolist() == [2.0] * 2
    assert "changes back" in GUIDE.read_text()


def test_what_stays_gives_no_warning_and_is_looked_at_rarely(numpy_backend, monkeypatch):
    """Also what the first call puts into a cache, and what a step notes."""
    looks, caches, notes, reads = [], {}, [], [place()[0] for place in FOUND]
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
