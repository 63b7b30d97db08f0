"""Whole numbers do not wrap round, numbers that a dtype does not hold are refused by NumPy, and the nearest is there on a device."""

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


HELD = [("int32", 7, 7), ("int32", 3.0, 3), ("int32", -2**31, -2**31), ("bool", True, True), ("bool", 0, False), ("bool", 1.0, True), ("float32", 7, 7.0),
        ("float32", 0.1, np.float32(0.1)), ("float32", np.inf, np.inf), ("float64", 0.1, 0.1), ("float16", 0.1, np.float16(0.1)),
        ("bfloat16", 1.00390625, 1.0), ("float16", 65504.0, 65504.0)]
NOT_HELD = [("int32", 1.5), ("int32", 2**40), ("int32", -2**31 - 1), ("int32", np.inf), ("bool", 0.5), ("bool", 2), ("bool", -1), ("float32", 1e300),
            ("float16", 65536.0), ("bfloat16", 3.4e38), ("float32", -(2**200))]


@pytest.mark.parametrize(("dtype", "number", "expected"), HELD)
def test_what_a_dtype_holds(dtype, number, expected, be):
    like = ops.zeros((2, 3), be, dtype)
    for x in (ops.full((2, 3), number, be, dtype), ops.full_like(like, number)):
        assert x.dtype == dtype and x.shape == (2, 3)
        np.testing.assert_array_equal(x.numpy(), np.full((2, 3), expected))
    if dtype != "bool" or type(number) is not bool:
        padded = ops.pad(like, ((0, 0), (1, 0)), number)
        assert padded.dtype == dtype
        np.testing.assert_array_equal(padded.numpy()[:, 0], np.full(2, expected))


@pytest.mark.parametrize(("dtype", "number"), NOT_HELD)
def test_what_a_dtype_does_not_hold(dtype, number, be):
    like = ops.zeros((2, 3), be, dtype)
    for name, call in (("full", lambda: ops.full((2,), number, be, dtype)), ("full_like", lambda: ops.full_like(like, number)),
                       ("pad", lambda: ops.pad(like, ((0, 0), (1, 0)), number))):
        with pytest.raises(DtypeError, match=rf"^\[{name}\] \w+: expected .*, found -?[\d.inf+e]+$"):
            call()
    if dtype in ("float32", "float16", "bfloat16"):
        with pytest.raises(DtypeError, match=r"^\[linspace\] stop: expected numbers up to .*, found"):
            ops.linspace(0.0, number, 3, backend=be, dtype=dtype)
