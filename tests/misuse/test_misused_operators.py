"""Every operator with every bad kind of every argument: an error of duoln that names the operator and what it found."""

import numpy as np
import pytest
from conftest import get_backend
from misuse.calls import CALLS, run
from misuse.misuses import read, unnamed_misuses

from duoln import ops


def test_every_operator_is_called():
    assert {call.name for call in CALLS} == set(ops.__all__) - {"arange", "einsum", "eye", "full", "linspace", "ones", "zeros"}  # those have tests of their own


@pytest.mark.parametrize("call", CALLS, ids=str)
def test_the_right_call_is_right(call, be):
    read(run(call, be))


@pytest.mark.parametrize("call", CALLS, ids=str)
def test_wrong_tensors_and_attributes_are_named(call, be):
    assert unnamed_misuses(call, be, get_backend("mlx" if be.name == "numpy" else "numpy")) == {}


@pytest.mark.parametrize("axis", [np.int64(1), np.int32(1), np.uint8(1), np.array(1)])
def test_integers_of_any_library_are_integers(axis, be):
    x = next(call for call in CALLS if call.name == "softmax")
    np.testing.assert_array_equal(run(x, be, axis=axis).numpy(), run(x, be, axis=1).numpy())
    split = next(call for call in CALLS if call.name == "split")
    assert len(run(split, be, parts=axis + 1)) == 2
