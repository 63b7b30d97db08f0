"""Conversions between float32 and 16 bits, for array libraries with NumPy's interface.

NumPy and CuPy have float16 and no bfloat16. There a bfloat16 array is an array of uint16, a dtype that duoln uses for
nothing else: the upper 16 bits of the float32 with the same value. Conversions round to nearest, and to even at a tie.
"""

from __future__ import annotations

from types import ModuleType

import numpy as np

from duoln.backends.protocol import Array

BITS = np.dtype(np.uint16)
"""The dtype of the bits of bfloat16."""

_SIGN, _INFINITY, _QUIET = 0x7FFFFFFF, 0x7F800000, 0x00400000


def converting() -> np.errstate:
    """Within it NumPy tells of no event: rounding to infinity or 0 is no error, nor is a NaN that signals."""
    return np.errstate(all="ignore")


def float32_of(x: Array) -> Array:
    """The float32 values of bfloat16 bits; they are exact."""
    return (x.astype(np.uint32) << 16).view(np.float32)


def bits_of(xp: ModuleType, x: Array) -> Array:
    """The bfloat16 bits of an array of another dtype. NaN stays NaN, with its sign."""
    bits = round_to_odd(xp, x).view(np.uint32)
    # A NaN must not be rounded to infinity: it gets an upper half of its own that is not 0, and a lower half of 0.
    bits = xp.where((bits & _SIGN) > _INFINITY, (bits | _QUIET) & 0xFFFF0000, bits)
    return ((bits + (((bits >> 16) & 1) + 0x7FFF)) >> 16).astype(BITS)


def round_to_odd(xp: ModuleType, x: Array) -> Array:
    """A float32 array whose rounding to 16 bits is that of `x`.

    The float32 nearest to a float64 may be a tie of two 16-bit values where `x` itself is none. A value that is not
    exact therefore becomes that of its two neighbours in float32 whose last bit is 1: it is on the same side of a tie.
    """
    if x.dtype == np.float32:
        return x
    if x.dtype != np.float64:
        x = x.astype(np.float64)
    near = x.astype(np.float32)
    bits = near.view(np.uint32)
    is_inexact = (near != x) & ~xp.isnan(x)
    toward_zero = bits - (is_inexact & (xp.abs(near) > xp.abs(x)))
    return (toward_zero | is_inexact).astype(np.uint32).view(np.float32)
