"""Batches depend only on the number of the update."""

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from duoln.data import Batches
from duoln.data.batches import check_range
from duoln.errors import DataError, DtypeError, ShapeError, UsageError
from duoln.testing import check_error


def _rows(batches, steps):
    return [tuple(batches(step)["row"]) for step in steps]


def _batches(rows=10, batch_size=3, seed=0):
    return Batches({"row": np.arange(rows), "twice": 2 * np.arange(rows)}, batch_size, seed)


def test_the_order_of_calls_does_not_matter():
    forwards = _rows(_batches(), range(12))
    assert _rows(_batches(), reversed(range(12))) == forwards[::-1]
    jumping = _batches()
    for step in (7, 0, 11, 7, 3, 3):
        assert _rows(jumping, [step]) == [forwards[step]]


def test_a_batch_that_is_written_into_is_unharmed_the_next_time():
    batches = _batches()
    before = batches(0)["row"].copy()
    batches(0)["row"][:] = -1
    np.testing.assert_array_equal(batches(0)["row"], before)


def test_the_rows_of_all_arrays_stay_together():
    batches = _batches()
    for step in range(6):
        np.testing.assert_array_equal(batches(step)["twice"], 2 * batches(step)["row"])


@settings(derandomize=True, deadline=None)
@given(rows=st.integers(1, 40), seed=st.integers(0, 5), data=st.data())
def test_an_epoch_has_each_row_at_most_once_in_batches_of_one_size(rows, seed, data):
    batch_size = data.draw(st.integers(1, rows))
    batches = _batches(rows, batch_size, seed)
    steps = rows // batch_size
    assert (batches.rows, batches.steps_per_epoch) == (rows, steps)
    for epoch in range(2):
        drawn = _rows(batches, range(epoch * steps, (epoch + 1) * steps))
        assert {len(batch) for batch in drawn} == {batch_size}
        flat = [row for batch in drawn for row in batch]
        assert len(set(flat)) == len(flat) and set(flat) <= set(range(rows))


def test_the_rows_left_over_are_other_ones_each_epoch():
    batches = _batches(rows=10, batch_size=9)
    seen = {row for step in range(10) for row in batches(step)["row"]}
    assert seen == set(range(10))
    assert len({frozenset(batches(step)["row"]) for step in range(10)}) > 3


def test_each_epoch_and_each_seed_has_an_order_of_its_own():
    first, second = (_rows(_batches(100, 100), [epoch]) for epoch in (0, 1))
    assert first != second
    assert _rows(_batches(100, 100, seed=1), [0]) not in (first, second)
    assert _rows(_batches(100, 100), [0, 1]) == [*first, *second]


def test_the_order_is_the_same_on_every_machine():
    assert _rows(_batches(), range(4)) == [(4, 5, 0), (3, 7, 6), (9, 2, 8), (5, 2, 4)]


def test_arrays_of_different_lengths():
    arrays = {"x": np.zeros(3), "y": np.zeros(4)}
    check_error(ShapeError, lambda: Batches(arrays, 1, 0), "one length", "'x': 3", "'y': 4")


def test_no_arrays():
    check_error(ShapeError, lambda: Batches({}, 1, 0), "one length")


@pytest.mark.parametrize("batch_size", [0, -1, 11])
def test_batch_size_that_does_not_fit(batch_size):
    check_error(UsageError, lambda: _batches(10, batch_size), "between 1 and 10", f"found {batch_size}")


@pytest.mark.parametrize("dtype", ["uint8", "int32", "int64"])
def test_range_that_is_kept(dtype):
    checked = check_range("label", np.array([[0, 9], [3, 4]], dtype), 10)
    assert checked.dtype == np.int32 and checked.tolist() == [[0, 9], [3, 4]]


@pytest.mark.parametrize(("values", "bad", "position"),
                         [([0, 10], 10, 1), ([0, 3, -1, 99], -1, 2), ([2**40], 2**40, 0)])
def test_range_that_is_not_kept(values, bad, position):
    check_error(DataError, lambda: check_range("label", np.array(values), 10),
                "[label]", "0 .. 9", f"found {bad} at position {position}")


def test_position_in_an_array_of_several_axes():
    check_error(DataError, lambda: check_range("token", np.array([[0, 1], [7, 8]]), 7), "found 7 at position 2")


@pytest.mark.parametrize("values", [[0.5], [np.nan], [True]])
def test_range_of_what_is_no_integer(values):
    check_error(DtypeError, lambda: check_range("label", np.array(values), 10), "[label]", "integers")
