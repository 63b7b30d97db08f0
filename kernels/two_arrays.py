"""Operators of two large arrays of one shape on the CPU, compiled."""

from __future__ import annotations

from typing import Any

import numpy as np

from duoln.backends.protocol import Array
from duoln.kernels import host, native


class OfTwoArrays:
    """A compiled function of the values at the same places of two arrays.

    Args:
        folder: below `kernels/`; its file and its entry have the folder's name.
    """

    def __init__(self, folder: str) -> None:
        self._file = f"{folder}/{folder}.cpp"
        self._run = native.Function(self._file, folder,
                                    "x: real[1], y: real[1], out: real[1], size: int64, threads: int32")

    def failure(self, x: Any, y: Any) -> str | None:
        """The reason why these are left to NumPy, which one thread runs; None if they are not."""
        if not (isinstance(x, np.ndarray) and isinstance(y, np.ndarray) and x.shape == y.shape and x.dtype == y.dtype
                and x.dtype.kind == "f" and x.itemsize >= 4):
            return "they are no floats of one shape"
        if x.nbytes < host.PARALLEL_BYTES:
            return f"it is for at least {host.PARALLEL_BYTES} bytes"
        return native.failure(self._file)

    def __call__(self, x: Array, y: Array) -> Array:
        """The function of two arrays that `failure` names no reason against, in new memory."""
        out = host.empty_like(x)
        self._run(*(np.ascontiguousarray(a).reshape(-1) for a in (x, y)), out.reshape(-1), out.size,
                  native.threads_for(out.nbytes))
        return out
