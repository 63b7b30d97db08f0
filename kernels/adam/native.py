"""Adam on the CPU, compiled: all tensors of a model in one call, each value read and written once."""

from __future__ import annotations

from typing import Any

import numpy as np

from duoln.backends.protocol import Array, Backend
from duoln.core import Rule
from duoln.kernels import native
from duoln.kernels.adam.numpy import supports
from duoln.ops import adam_update

_FILE = "adam/adam.cpp"
_PASSES = 7
"""Arrays that a value passes through."""

_update = native.Function(_FILE, "adam", "addresses: int64[2], ends: int64[1], rate: real[0], eps: real[0], "
                                         "tensors: int64, beta1: float64, beta2: float64, threads: int32")


def _supports(be: Backend, rate: Array, eps: Array, *arrays: Array, **attrs: Any) -> str | None:
    return supports(be, rate, eps, *arrays, **attrs) or native.failure(_FILE)


def _forward(be: Backend, rate: Array, eps: Array, *arrays: Array, beta1: float, beta2: float,
             donate: bool) -> tuple[tuple[Array, ...], None]:
    n = len(arrays) // 4
    params, moments, squares = arrays[:n], arrays[2 * n:3 * n], arrays[3 * n:]
    old = (*params, *moments, *squares)
    new = old if donate and all(a.flags.writeable for a in old) else tuple(np.empty_like(a) for a in old)
    addresses = np.array([a.__array_interface__["data"][0] for a in (*arrays, *new)], np.int64).reshape(_PASSES, n)
    ends = np.cumsum([p.size for p in params], dtype=np.int64)
    threads = native.threads_for(_PASSES * sum(p.nbytes for p in params))
    _update(addresses, ends, np.asarray(rate), np.asarray(eps), n, beta1, beta2, threads)
    return new, None


def attach() -> None:
    """Add the rule to `adam_update`."""
    adam_update.add(Rule("compiled", _forward, supports=_supports), backend="numpy")
