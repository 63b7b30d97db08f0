"""Streams: the same numbers everywhere, other numbers for other names, and the right distributions."""

import numpy as np
import pytest

from duoln.randomness import Stream
from duoln.system import cores


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
        monkeypatch.setattr(cores, "workers", lambda count=threads: count)
        runs.append(drawn())
        np.testing.assert_array_equal(np.concatenate(runs[-1][:3]), (raw >> np.uint64(11)) * 2.0 ** -53)
    assert all(a.tobytes() == b.tobytes() for run in runs[1:] for a, b in zip(runs[0], run, strict=True))
