"""Sums and products of int32 do not wrap round: what int32 does not hold is refused by NumPy, and the nearest number on a device."""

import math

import numpy as np
import pytest

import duoln
from duoln import ops
from duoln.errors import DtypeError

MOST, LEAST = 2**31 - 1, -(2**31)


def check(be, name, function, expected, *arrays):
    """`expected` is exact: a list of integers of any size."""
    call = lambda: function(*(duoln.tensor(np.array(a, np.int32), be) for a in arrays))  # noqa: E731
    exact = np.array(expected, object)
    nearest = np.clip(exact, LEAST, MOST)
    if be.name == "numpy" and (nearest != exact).any():
        with pytest.raises(DtypeError, match=rf"^\[{name}\] expected results that int32 holds, .* found -?\d+; convert to a float dtype"):
            call()
        return
    result = call()
    assert result.dtype == "int32"
    np.testing.assert_array_equal(result.numpy(), np.array(nearest, np.int32))


def test_sums(be):
    for value, shape in ((255, (3000, 3000)), (-255, (3000, 3000)), (255, (300, 300)), (MOST, (3, 2))):
        x = np.full(shape, value)
        check(be, "sum", ops.sum, x.sum(), x)
        check(be, "sum", lambda x: ops.sum(x, axis=0), x.sum(axis=0), x)
    check(be, "sum", lambda x: ops.sum(x, axis=1, keepdims=True), [[MOST], [LEAST]], [[MOST, MOST, -MOST], [LEAST, -1, 1]])
    check(be, "sum", ops.sum, 0, np.zeros((0, 3)))


def test_products_of_an_array(be):
    for x in ([2**20, 2**20, 0, 5], [2**20, 2**20, 2**20, 2**20], [-2] * 31, [2] * 31, [-2] * 33, [46340, 46340], [46341, 46341], [3, 7, -11], [MOST, -1, -1], [],
              [0] + [MOST] * 70, [MOST] * 71):
        check(be, "prod", ops.prod, math.prod(x), x)
    check(be, "prod", lambda x: ops.prod(x, axis=1), [6, 20], [[1, 2, 3], [4, 5, 1]])


@pytest.mark.parametrize(("name", "function"), [("add", lambda x, y: x + y), ("subtract", lambda x, y: x - y), ("multiply", lambda x, y: x * y)])
def test_arithmetic(name, function, be):
    numbers = [0, 1, -1, 2, 46341, -46341, MOST, LEAST, MOST - 1]
    for x in numbers:
        for y in numbers:
            exact = function(x, y)
            check(be, name, function, [exact], [x], [y])
            check(be, name, lambda x, y=y: function(x, y), [exact], [x])
            check(be, name, lambda y, x=x: function(x, y), [exact], [y])
            check(be, name, function, exact, x, y)


def test_a_compiled_step_looks_at_each_call(be):
    step = duoln.compile(lambda x: ops.sum(x * 2))
    for values in ([1, 2], [3, 4], [5, 6]):
        check(be, "sum", step, 2 * sum(values), values)
    check(be, "sum", step, 2 * (2**30 - 1) * 2, [2**30 - 1, 2**30 - 1])
