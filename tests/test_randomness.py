"""Streams: the same numbers everywhere, other numbers for other names, and the right distributions."""

import numpy as np
import pytest

import duoln
from duoln import ops
from duoln.errors import CallError, DtypeError, ShapeError, UsageError
from duoln.randomness import Stream, _exp
from duoln.system import limits
from duoln.testing import check_error


def test_pinned_values():
    # These must never change: checkpoints, curves and comparisons across machines rest on them.
    np.testing.assert_array_equal(Stream(0, "init").uniform((3,)), PINNED_UNIFORM)
    np.testing.assert_array_equal(Stream(7, "batches", 2, 5).permutation(6), PINNED_ORDER)


def test_equal_names_draw_equal_numbers():
    np.testing.assert_array_equal(Stream(1, "a", 2, 3).gaussian((5,)), Stream(1, "a", 2, 3).gaussian((5,)))


@pytest.mark.parametrize("name", [(2, "a", 0, 0), (1, "b", 0, 0), (1, "a", 1, 0), (1, "a", 0, 1)])
def test_every_part_of_the_name_counts(name):
    assert not np.array_equal(Stream(1, "a").uniform((4,)), Stream(*name).uniform((4,)))


def test_children_do_not_depend_on_what_the_parent_drew():
    a, b = Stream(0, "x"), Stream(0, "x")
    a.uniform((100,))
    np.testing.assert_array_equal(a.child("y").uniform((3,)), b.child("y").uniform((3,)))


def test_distributions():
    n = 100_000
    u, z = Stream(0, "u").uniform((n,), -1.0, 3.0), Stream(0, "z").gaussian((n + 1,))
    assert u.min() >= -1.0 and u.max() < 3.0 and abs(u.mean() - 1.0) < 0.02
    assert z.shape == (n + 1,) and np.isfinite(z).all()
    assert abs(z.mean()) < 0.02 and abs(z.std() - 1.0) < 0.02 and abs((z ** 4).mean() - 3.0) < 0.15
    counts = np.bincount(Stream(0, "i").integers(10, (n,)), minlength=10)
    assert len(counts) == 10 and (abs(counts - n / 10) < 500).all()
    assert sorted(Stream(0, "p").permutation(1000)) == list(range(1000))
    assert abs(Stream(0, "m").keep_mask((n,), 0.3).mean() - 0.3) < 0.01


@pytest.mark.parametrize("shape", [(), (0,), (3, 0, 2), (2, 3)])
def test_shapes(shape):
    s = Stream(0, "s")
    assert s.uniform(shape).shape == s.gaussian(shape).shape == s.integers(5, shape).shape == shape


PINNED_UNIFORM = [0.37053335653520825, 0.8952752246986835, 0.9738529153728618]
PINNED_ORDER = [3, 5, 0, 1, 2, 4]
PINNED_CLASSES = [[3, 3, 2], [1, 3, 2], [2, 3, 2], [3, 2, 2]]
PINNED_OF_LOGITS = [6, 6, 0, 1]


def test_uniform_numbers_are_the_first_53_bits():
    """NumPy may change how its generators make floats; these stay as they are."""
    drawn, bits = Stream(5, "x", 1, 2), Stream(5, "x", 1, 2)
    for shape in [(1001,), (3, 5), ()]:
        raw = np.asarray(bits._raw(int(np.prod(shape))), np.uint64)
        assert np.array_equal(drawn.uniform(shape), ((raw >> np.uint64(11)) * 2.0 ** -53).reshape(shape))


def test_the_same_numbers_for_any_number_of_threads(monkeypatch):
    def drawn():
        stream = Stream(3, "x")
        return [stream.uniform((3,)), stream.uniform((150_001,)), stream.uniform((2,)), stream.gaussian((300, 501)), stream.uniform((5,))]

    raw = np.asarray(Stream(3, "x")._raw(150_006), np.uint64)
    runs = []
    for threads in (1, 2, 3, 8):
        monkeypatch.setattr(limits, "workers", lambda count=threads: count)
        runs.append(drawn())
        np.testing.assert_array_equal(np.concatenate(runs[-1][:3]), (raw >> np.uint64(11)) * 2.0 ** -53)
    assert all(a.tobytes() == b.tobytes() for run in runs[1:] for a, b in zip(runs[0], run, strict=True))


@pytest.mark.parametrize("high", [1, 2, 10, 12345, (1 << 32) - 1, 1 << 32])
def test_small_bounds_keep_their_numbers(high):
    """Batches of committed runs rest on them."""
    np.testing.assert_array_equal(Stream(0, "i").integers(high, (50,)), np.floor(Stream(0, "i").uniform((50,), 0.0, high)))


@pytest.mark.parametrize("high", [(1 << 32) + 1, 3 << 51, 1 << 53, (1 << 53) + 1, 1 << 60, 3 << 61, (1 << 63) - 1, 1 << 63])
def test_every_integer_below_a_large_bound_is_as_likely(high):
    drawn = Stream(0, "i").integers(high, (40, 250))
    assert drawn.dtype == np.int64 and drawn.shape == (40, 250) and drawn.min() >= 0 and drawn.max() < high
    for divisor in (2, 3, 128):
        counts = np.bincount((drawn % divisor).reshape(-1), minlength=divisor)
        expected = drawn.size / divisor
        assert (abs(counts - expected) < 5 * np.sqrt(expected)).all(), divisor
    counts, _ = np.histogram(drawn / high, bins=8, range=(0, 1))
    assert (abs(counts - drawn.size / 8) < 5 * np.sqrt(drawn.size / 8)).all()


def test_a_bound_that_the_sum_is_rounded_to_is_not_drawn():
    for low, high in ((1e6, 1e6 + 2.0 ** -33), (-(1 + 2.0 ** -52), -1.0), (0.0, 5e-324)):
        drawn = Stream(0, "u").uniform((2000,), low, high)
        assert drawn.min() >= low and drawn.max() < high


BAD = {
    "Stream, a seed that is no integer": (DtypeError, lambda s: Stream(1.0, "a"), "[Stream] seed"),
    "Stream, a bool": (DtypeError, lambda s: Stream(True, "a"), "[Stream] seed"),
    "Stream, a negative seed": (ShapeError, lambda s: Stream(-1, "a"), "[Stream] seed"),
    "Stream, a name that is no text": (DtypeError, lambda s: Stream(0, 3), "[Stream] name"),
    "Stream, an epoch of 0.5": (DtypeError, lambda s: Stream(0, "a", 0.5), "[Stream] epoch"),
    "Stream, a step below 0": (ShapeError, lambda s: Stream(0, "a", step=-1), "[Stream] step"),
    "child": (DtypeError, lambda s: s.child(3), "[Stream.child] name"),
    **{f"{name}, shape {shape!r}": (kind, lambda s, draw=draw, shape=shape: draw(s, shape), f"[Stream.{name}] shape")
       for name, draw in (("uniform", lambda s, shape: s.uniform(shape)), ("gaussian", lambda s, shape: s.gaussian(shape)),
                          ("integers", lambda s, shape: s.integers(3, shape)), ("keep_mask", lambda s, shape: s.keep_mask(shape, 0.5)))
       for shape, kind in (((-1,), ShapeError), ((2.0,), DtypeError), (None, DtypeError), ("3", DtypeError), (True, DtypeError))},
    "uniform, high below low": (UsageError, lambda s: s.uniform((2,), 1, 0), "[Stream.uniform] high"),
    "uniform, NaN": (UsageError, lambda s: s.uniform((2,), float("nan"), 1.0), "[Stream.uniform] low"),
    "uniform, infinity": (UsageError, lambda s: s.uniform((2,), 0.0, float("inf")), "[Stream.uniform] high"),
    "uniform, a difference beyond float64": (UsageError, lambda s: s.uniform((2,), -1e308, 1e308), "[Stream.uniform] high"),
    "uniform, a text": (DtypeError, lambda s: s.uniform((2,), "0", 1.0), "[Stream.uniform] low"),
    **{f"integers, {high!r}": (kind, lambda s, high=high: s.integers(high, (2,)), "[Stream.integers] high")
       for high, kind in ((0, ShapeError), (-5, ShapeError), ((1 << 63) + 1, ShapeError), (1 << 64, ShapeError), (2.0, DtypeError), (None, DtypeError))},
    "categorical, nothing": (CallError, lambda s: s.categorical(), "[Stream.categorical] expected logits=x or probabilities=p"),
    "categorical, both": (CallError, lambda s: s.categorical(logits=[0.5], probabilities=[1.0]), "[Stream.categorical]"),
    "categorical, integers": (DtypeError, lambda s: s.categorical(logits=[1, 2]), "[Stream.categorical] logits"),
    "categorical, a text": (DtypeError, lambda s: s.categorical(probabilities="half"), "[Stream.categorical] probabilities"),
    "categorical, no classes": (ShapeError, lambda s: s.categorical(logits=np.zeros((3, 0))), "[Stream.categorical] logits"),
    "categorical, a number": (ShapeError, lambda s: s.categorical(probabilities=1.0), "[Stream.categorical] probabilities"),
    **{f"categorical, logits {row}": (UsageError, lambda s, row=row: s.categorical(logits=[[0.0, 1.0], row]), "[Stream.categorical] logits")
       for row in ([-np.inf, -np.inf], [np.nan, 0.0], [-np.inf, np.nan], [np.inf, 0.0])},
    **{f"categorical, probabilities {row}": (UsageError, lambda s, row=row: s.categorical(probabilities=[[0.5, 0.5], row]), "[Stream.categorical] probabilities")
       for row in ([0.0, 0.0], [0.3, 0.3], [1.0, 1.0], [-0.5, 1.5], [np.nan, 1.0], [np.inf, 0.0], [0.98, 0.0])},
    "permutation, -1": (ShapeError, lambda s: s.permutation(-1), "[Stream.permutation] n"),
    "permutation, 2.0": (DtypeError, lambda s: s.permutation(2.0), "[Stream.permutation] n"),
    **{f"keep_mask, {keep!r}": (kind, lambda s, keep=keep: s.keep_mask((2,), keep), "[Stream.keep_mask] keep")
       for keep, kind in ((-0.1, UsageError), (1.5, UsageError), (float("nan"), UsageError), ("1", DtypeError), (True, DtypeError))},
}


@pytest.mark.parametrize("name", BAD)
def test_bad_arguments_are_refused(name):
    kind, call, words = BAD[name]
    check_error(kind, lambda: call(Stream(0, "a")), words, "expected", "found")


def test_classes_have_their_probabilities():
    n, p = 50_000, np.array([0.0, 0.1, 0.0, 0.4, 0.5, 0.0])
    with np.errstate(divide="ignore"):
        logits = np.log(p) + 300
    for drawn in (Stream(0, "c").categorical(probabilities=np.tile(p, (n, 1))), Stream(0, "c").categorical(logits=np.tile(logits, (n, 1)))):
        counts = np.bincount(drawn, minlength=6)
        assert drawn.dtype == np.int64 and drawn.shape == (n,)
        assert (counts[p == 0] == 0).all() and (abs(counts - n * p) <= 5 * np.sqrt(n * p)).all()


def test_classes_that_are_drawn_never_change():
    """What was sampled on one machine is sampled on each."""
    rows = np.array([[0.1, 0.2, 0.3, 0.4], [0.25, 0.25, 0.25, 0.25], [0.0, 0.0, 1.0, 0.0]])
    assert Stream(3, "c").categorical(probabilities=np.stack([rows] * 4)).tolist() == PINNED_CLASSES
    assert Stream(3, "c").categorical(logits=np.linspace(-3, 3, 28).reshape(4, 7)).tolist() == PINNED_OF_LOGITS


@pytest.mark.parametrize(("u", "expected"), [(0.0, 1), (0.25 - 2 ** -53, 1), (0.25, 3), (1 - 2 ** -53, 3)])
def test_the_class_is_the_first_whose_sum_is_above_the_number(u, expected, monkeypatch):
    monkeypatch.setattr(Stream, "_fill", lambda self, out: out.fill(u))
    for scale in (1.0, 1 - 2 ** -9, 1 + 2 ** -9):  # what 16 bits round
        assert Stream(0, "c").categorical(probabilities=np.array([0, 0.25, 0, 0.75, 0]) * scale) == expected
    with np.errstate(divide="ignore"):
        assert Stream(0, "c").categorical(logits=np.log([0, 1.0, 0, 3.0, 0])) == expected


def test_exponentials_are_right_to_the_last_digit():
    x = np.concatenate([np.linspace(-708, 0, 4001), -np.geomspace(1e-300, 700, 4001), [0.0, -708.5, -1e300, -np.inf]])
    expected = np.exp(x)
    expected[x < -708] = 0
    np.testing.assert_allclose(_exp(x), expected, rtol=4e-16, atol=0)


def test_shapes_and_dtypes_of_classes(be):
    assert Stream(0, "c").categorical(logits=np.zeros((0, 3))).shape == (0,) and Stream(0, "c").categorical(logits=[0.0]).shape == ()
    logits = np.linspace(-2, 2, 12, dtype=np.float32).reshape(2, 2, 3)
    expected = Stream(1, "c").categorical(logits=logits)
    assert expected.shape == (2, 2) and np.array_equal(Stream(1, "c").categorical(logits=duoln.tensor(logits, be)), expected)
    for dtype in ("float16", "bfloat16"):
        probabilities = ops.softmax(duoln.tensor(logits, be), axis=-1).astype(dtype)
        assert Stream(1, "c").categorical(probabilities=probabilities).shape == (2, 2)
    stream = Stream(1, "c")
    stream.categorical(logits=logits)
    assert stream.position == 4


@pytest.mark.parametrize("drawn", [0, 1, 3, 4, 5, 4097, 1 << 18])
def test_a_stream_goes_on_from_its_position(drawn):
    stream = Stream(1, "a", 2, 3)
    stream.uniform(drawn)
    assert stream.position == drawn
    np.testing.assert_array_equal(Stream(1, "a", 2, 3, stream.position).uniform(9), stream.uniform(9))
    check_error(ShapeError, lambda: Stream(1, "a", position=-1), "[Stream] position")
