"""Conversions to 16 bits: every pattern of bits, every tie between two values and its neighbours, on every backend."""


import numpy as np
import pytest

import duoln
from duoln import ops
from duoln.errors import DtypeError
from duoln.testing import check_error

BITS = np.arange(1 << 16, dtype=np.uint32)
BFLOAT16 = (BITS << 16).view(np.float32)
FLOAT16 = BITS.astype(np.uint16).view(np.float16)
VALUES = {"bfloat16": BFLOAT16, "float16": FLOAT16}
FINITE = {"bfloat16": 0x7F80, "float16": 0x7C00}
"""How many patterns, from 0 on, are finite values that are not negative."""


@pytest.fixture(params=["bfloat16", "float16"])
def dtype(request):
    return request.param


def _bits(be, x):
    """The values' bits, in which all NaN are equal."""
    values = be.to_numpy(be.astype(x, "float32"))
    return np.where(np.isnan(values), 1, values.view(np.uint32))


def test_every_pattern_goes_through_float32(be, dtype):
    with np.errstate(invalid="ignore"):
        wide = VALUES[dtype].astype(np.float32)
    stored = be.astype(be.asarray(wide), dtype)
    assert be.dtype(stored) == dtype
    assert be.to_numpy(stored).dtype == ("float32" if dtype == "bfloat16" else "float16")
    np.testing.assert_array_equal(_bits(be, stored), np.where(np.isnan(wide), 1, wide.view(np.uint32)))


def _between(dtype):
    """For every pair of neighbours: the lower, the upper (infinity's place is the next power of two), and the even one."""
    count = FINITE[dtype]
    lower = VALUES[dtype][:count].astype(np.float64)
    upper = np.append(lower[1:], 2.0 ** (128 if dtype == "bfloat16" else 16))
    return lower, upper, np.where(BITS[:count] % 2 == 0, lower, upper)


def _check_ties(be, dtype, wide, convert):
    lower, upper, even = _between(dtype)
    tie = ((lower + upper) / 2).astype(wide)
    exact = np.isfinite(tie) & (tie == (lower + upper) / 2)
    assert exact.sum() >= FINITE[dtype] - 1
    largest = VALUES[dtype][FINITE[dtype] - 1]
    for sign in (1, -1):
        for values, expected in ((tie, even), (np.nextafter(tie, wide(0)), lower), (np.nextafter(tie, wide(np.inf)), upper)):
            rounded = be.to_numpy(convert(wide(sign) * values)).astype(np.float64)
            np.testing.assert_array_equal(rounded[exact], (sign * np.where(expected > largest, np.inf, expected))[exact])


def test_float32_rounds_to_nearest_even(be, dtype):
    _check_ties(be, dtype, np.float32, lambda x: be.astype(be.asarray(x), dtype))


def test_float64_is_rounded_once(be, dtype):
    """A float64 beside a tie is nearest to the tie itself in float32: rounding twice would lose its side."""
    _check_ties(be, dtype, np.float64, lambda x: be.asarray(x, dtype))
    if "float64" in be.dtypes:
        _check_ties(be, dtype, np.float64, lambda x: be.astype(be.asarray(x), dtype))


def test_integers_are_rounded_once(be):
    for low in (1 << 24, 16842753, (1 << 24) + (1 << 16), 25231361, (1 << 31) - 1 - (1 << 23)):
        integers = np.array([sign * (low + k) for k in (-1, 0, 1) for sign in (1, -1)], np.int32)
        expected = be.to_numpy(be.asarray(integers.astype(np.float64), "bfloat16"))
        np.testing.assert_array_equal(be.to_numpy(be.astype(be.asarray(integers), "bfloat16")), expected)


@pytest.mark.few
def test_special_values(be, dtype):
    values = np.array([np.inf, -np.inf, 0.0, -0.0, np.nan, -np.nan], np.float32)
    np.testing.assert_array_equal(_bits(be, be.astype(be.asarray(values), dtype)), np.where(np.isnan(values), 1, values.view(np.uint32)))
    nan = np.array([0x7F800001, 0xFF800001, 0x7FFFFFFF, 0xFFFFFFFF], np.uint32).view(np.float32)
    assert np.isnan(be.to_numpy(be.astype(be.asarray(nan), dtype))).all()


def test_no_conversion_warns(be):
    """A NaN that signals, or a value beyond a dtype, is an event of the processor, of which NumPy tells."""
    signalling = [np.array([bits], whole).view(real) for bits, whole, real in (
        (0x7C01, np.uint16, np.float16), (0x7F800001, np.uint32, np.float32), (0x7FF0000000000001, np.uint64, np.float64))]
    floats = [name for name in be.dtypes if name not in ("int32", "bool")]
    for values in (*signalling, np.array([1e300]), np.array([-1e39]), np.array([7e4], np.float32)):
        for name in floats:
            if abs(float(values[0])) > {"float16": 65504, "float64": np.inf}.get(name, 3.3e38):
                continue  # it is refused
            x = duoln.tensor(values, be, name)
            for second in floats:
                y = x.astype(second).numpy()
                assert np.isnan(y).all() == np.isnan(values).all(), (values, name, second)
            x.astype("bool")


@pytest.mark.parametrize("shape", [(), (1,), (0,), (2, 0), (3, 2)], ids=str)
def test_shapes_and_made_arrays(be, dtype, shape):
    x = np.full(shape, 1.00390625, np.float32)  # a tie of bfloat16
    assert be.astype(be.asarray(x), dtype).shape == shape
    half = np.full(shape, 0.5, np.float32)
    for made, expected in ((be.ones(shape, dtype), 2 * half), (be.full(shape, 0.5, dtype), half), (be.zeros(shape, dtype), 0 * half)):
        assert be.dtype(made) == dtype
        np.testing.assert_array_equal(be.to_numpy(made), expected)
    padded = be.pad(be.astype(be.asarray(half), dtype), ((1, 1),) * len(shape), 0.25)
    np.testing.assert_array_equal(be.to_numpy(padded), np.pad(half, 1, constant_values=0.25) if shape else half)


def test_named_errors(be):
    x, y = duoln.tensor([1.0], be, dtype="bfloat16"), duoln.tensor([1.0], be, dtype="float16")
    check_error(DtypeError, lambda: duoln.tensor([1.0], be, dtype="bf16"), "[tensor]", "did you mean 'bfloat16'")
    check_error(DtypeError, lambda: duoln.tensor([1e39], be, dtype="bfloat16"), "[tensor]", "3.38953e+38")
    for call in (lambda: x + y, lambda: ops.matmul(ops.stack(x, x), ops.stack(y, y)), lambda: ops.concat(x, y),
                 lambda: ops.layer_norm(x, y), lambda: ops.where(x > 0, x, y)):
        check_error(DtypeError, call, "expected", "bfloat16", "float16", "convert with astype")
