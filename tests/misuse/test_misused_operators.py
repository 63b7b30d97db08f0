"""Every operator with every bad kind of every argument: an error of duoln that names the operator and what it found."""

import numpy as np
import pytest
from conftest import get_backend
from misuse.calls import CALLS, run
from misuse.misuses import of_attributes, of_tensors, outcome

from duoln import ops


def _read(result):
    for tensor in result if isinstance(result, tuple) else (result,):
        tensor.numpy()


def test_every_operator_is_called():
    assert {call.name for call in CALLS} == set(ops.__all__) - {"arange", "full", "ones", "zeros"}  # test_misused_creation


@pytest.mark.parametrize("call", CALLS, ids=str)
def test_the_right_call_is_right(call, be):
    _read(run(call, be))


@pytest.mark.parametrize("call", CALLS, ids=str)
def test_wrong_tensors_and_attributes_are_named(call, be):
    elsewhere = get_backend("mlx" if be.name == "numpy" else "numpy")
    wrong = [*of_tensors(call, be, elsewhere), *of_attributes(call, be)]
    assert len(wrong) >= len(call.tensors) * 5
    unnamed = {label: text for label, misuse in wrong if (text := outcome(call.name, misuse, _read))}
    assert unnamed == {}


@pytest.mark.parametrize("axis", [np.int64(1), np.int32(1), np.uint8(1), np.array(1)])
def test_integers_of_any_library_are_integers(axis, be):
    x = next(call for call in CALLS if call.name == "softmax")
    np.testing.assert_array_equal(run(x, be, axis=axis).numpy(), run(x, be, axis=1).numpy())
    split = next(call for call in CALLS if call.name == "split")
    assert len(run(split, be, parts=axis + 1)) == 2
