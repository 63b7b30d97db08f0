"""Checks that values are close, and that errors have the right class and words."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from duoln.errors import DuolnError

_SAFETY = 8.0
_OF_STORAGE = {"bfloat16": 1.6e-2, "float16": 1e-3}
"""The relative error that rounding to 16 bits adds: a unit in the last place and a half of bfloat16, one of float16."""


def tolerance(dtype: str, length: int) -> float:
    """The relative error to allow: 8 eps sqrt(n) for a reduction or product over n values.

    For float16 and bfloat16 the eps is that of float32, in which they are computed, and their own rounding is added.
    """
    if dtype in _OF_STORAGE:
        return _OF_STORAGE[dtype] + tolerance("float32", length)
    return float(_SAFETY * np.finfo(dtype).eps * np.sqrt(max(length, 1)))


def check_close(actual: np.ndarray, expected: np.ndarray, limit: float, what: str) -> None:
    """Raises AssertionError if shapes differ, or if the error of a value is more than `limit` times the largest value.
    Values that are not finite must be equal.
    """
    if actual.shape != expected.shape:
        raise AssertionError(f"{what}: expected shape {expected.shape}, found {actual.shape}")
    if not expected.size:
        return
    finite = np.isfinite(expected)
    if not np.array_equal(actual[~finite], expected[~finite].astype(actual.dtype), equal_nan=True):
        raise AssertionError(f"{what}: the values that are not finite differ")
    wide = expected[finite].astype(np.float64)
    if not wide.size:
        return
    error = np.abs(actual[finite].astype(np.float64) - wide)
    allowed = limit * max(float(np.max(np.abs(wide))), 1e-30)
    if not float(np.max(error)) <= allowed:
        worst = int(np.argmax(error))
        raise AssertionError(f"{what}: expected {wide[worst]:.9g}, found {actual[finite].reshape(-1)[worst]:.9g} "
                             f"at value {worst} (allowed difference {allowed:.3g})")


def check_error(kind: type[DuolnError], call: Callable[[], Any], *words: str) -> None:
    """Raises AssertionError if `call` raises no error of that class, or if a word is missing in its message."""
    try:
        call()
    except kind as error:
        lost = [w for w in words if w not in str(error)]
        if lost:
            raise AssertionError(f"expected an error that says {lost[0]!r}, found: {error}") from error
        return
    raise AssertionError(f"expected {kind.__name__}, found no error")
