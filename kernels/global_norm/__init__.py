"""The common norm of many tensors on the CPU, compiled: one call, one pass over memory."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import Any

import numpy as np

from duoln.backends.protocol import Array, Backend
from duoln.core import Rule
from duoln.core.arguments import described
from duoln.core.step.symbol import is_traced, tracing
from duoln.errors import DtypeError
from duoln.kernels import host, native
from duoln.kernels.launch import Launch
from duoln.kernels.launch.declared import Layout
from duoln.kernels.tensors import TENSORS, THREADS
from duoln.ops import global_norm
from duoln.ops.update import norm_vjp

_FILE = "global_norm/global_norm.cpp"

_norm = Launch("global_norm/global_norm", "global_norm", "places: own int64, sizes: own int64, norm: own, "
                                                         "tensors: int64, threads: int32")


_NORM = {**TENSORS, "ROLES": 1}
SUM_SQUARES = Launch("global_norm/global_norm", "sum_squares", "squares: own float64, blocks: int32, tensors: struct",
                     lambda blocks: Layout((blocks,), (THREADS,), _NORM))
ROOT_OF_SUM = Launch("global_norm/global_norm", "root_of_sum", "squares: float64[count] -> norm: real[]",
                     lambda: Layout((1,), (THREADS,), _NORM))
"""Those of `global_norm.cupy`; the second gives the root of the sum of (n,) numbers, 0-d."""


def table(*roles: Sequence[Array]) -> tuple[Any, Array]:
    """The places (`host.places`) of the arrays of each role, (roles, tensors), and the number of values of each tensor.

    Raises:
        DtypeError: one is not an array; the scalars of NumPy have no address that lasts.
    """
    arrays = list(chain(*roles))
    for a in arrays:
        if not isinstance(a, np.ndarray):
            raise DtypeError(f"[table] expected arrays, found {described(a)}")
    sizes = np.array([a.size for a in roles[0]], np.int64)
    if tracing and is_traced(arrays):
        return tuple([(a,) for a in arrays]), sizes
    return host.places(arrays).reshape(len(roles), -1), sizes


def _supports(be: Backend, *arrays: Array) -> str | None:
    return native.refusal(_FILE, arrays[0].dtype)


def _forward(be: Backend, *arrays: Array) -> tuple[Array, Any]:
    whole = [host.contiguous(host.as_array(a)) for a in arrays]
    places, sizes = table(whole)
    norm = host.empty((), arrays[0].dtype)
    _norm[be.name](places, sizes, norm, len(whole), native.threads_for(sum(a.nbytes for a in whole)))
    return norm, (arrays, norm)


def attach(backend: str) -> None:
    """Add the rule to `global_norm` of NumPy's arrays; those of the other libraries are in files of their own."""
    if backend == "numpy":
        global_norm.add(Rule("compiled", _forward, norm_vjp, _supports), backend="numpy")
