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


@pytest.mark.parametrize(("name", "function"), [("floor_divide", lambda x, y: x // y), ("remainder", lambda x, y: x % y)])
def test_division(name, function, be):
    numbers = [0, 1, -1, 2, -2, 3, -7, 10, 16777217, MOST, LEAST, MOST - 1]
    x, y = (a.reshape(-1).tolist() for a in np.meshgrid(numbers, [n for n in numbers if n]))
    for kept in ([n != LEAST for n in x], [n == LEAST for n in x]):  # NumPy refuses LEAST // -1 beside which others stand
        first, second = ([n for n, keep in zip(side, kept, strict=True) if keep] for side in (x, y))
        check(be, name, function, [function(a, b) for a, b in zip(first, second, strict=True)], first, second)
    for a in numbers:
        for b in [n for n in numbers if n]:
            check(be, name, lambda x, b=b: function(x, b), [function(a, b)], [a])
            check(be, name, lambda y, a=a: function(a, y), [function(a, b)], [b])


@pytest.mark.parametrize("name", ["floor_divide", "remainder"])
def test_a_divisor_of_0_is_refused_by_numpy_and_gives_0_on_a_device(name, be):
    operator = getattr(ops, name)
    x, y = duoln.tensor([7, -7, 0, LEAST], be), duoln.tensor([0, 2, 0, 0], be)
    with pytest.raises(DtypeError, match=rf"^\[{name}\] expected divisors of int32 other than 0, found 0; convert to a float"):
        operator(x, 0)
    for call in (operator, duoln.compile(operator), lambda x, y: operator(7, y) + operator(x, y) * 0):
        if be.name == "numpy":
            with pytest.raises(DtypeError, match=rf"^\[{name}\] expected divisors of int32 other than 0"):
                call(x, y)
        else:
            assert call(x, y).numpy()[[0, 2, 3]].tolist() == [0, 0, 0]


def test_a_compiled_step_looks_at_each_call(be):
    step = duoln.compile(lambda x: ops.sum(x * 2))
    for values in ([1, 2], [3, 4], [5, 6]):
        check(be, "sum", step, 2 * sum(values), values)
    check(be, "sum", step, 2 * (2**30 - 1) * 2, [2**30 - 1, 2**30 - 1])
