"""Adam and the norm of many tensors on the CPU, compiled: all of them in one call, each value read and written once."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import chain
from typing import Any

import numpy as np

from duoln.backends.protocol import Array, Backend
from duoln.core import Factors, Rule
from duoln.core.arguments import described
from duoln.core.step.symbol import is_traced, tracing
from duoln.errors import DtypeError
from duoln.kernels import host, native
from duoln.kernels.adam.tensors import TENSORS, THREADS
from duoln.kernels.host import as_array, contiguous, empty, empty_like, row
from duoln.kernels.launch import Launch, fused
from duoln.kernels.launch.declared import Layout
from duoln.ops import global_norm
from duoln.ops.update import Correction, adam_rates, adam_update, are_apart, norm_vjp

_NORM_FILE = "adam/global_norm.cpp"

_global_norm = Launch("adam/global_norm", "global_norm", "places: own int64, sizes: own int64, norm: own, "
                                                         "tensors: int64, threads: int32")


_NORM = {**TENSORS, "ROLES": 1}
SUM_SQUARES = Launch("adam/global_norm", "sum_squares", "squares: own float64, blocks: int32, tensors: struct",
                     lambda blocks: Layout((blocks,), (THREADS,), _NORM))
ROOT_OF_SUM = Launch("adam/global_norm", "root_of_sum", "squares: float64[count] -> norm: real[]",
                     lambda: Layout((1,), (THREADS,), _NORM))
"""Those of `adam.cupy`; the second gives the root of the sum of (n,) numbers, 0-d."""


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


def _norm_supports(be: Backend, *arrays: Array) -> str | None:
    return native.refusal(_NORM_FILE, arrays[0].dtype)


def _norm_forward(be: Backend, *arrays: Array) -> tuple[Array, Any]:
    whole = [host.contiguous(host.as_array(a)) for a in arrays]
    places, sizes = table(whole)
    norm = host.empty((), arrays[0].dtype)
    _global_norm[be.name](places, sizes, norm, len(whole), native.threads_for(sum(a.nbytes for a in whole)))
    return norm, (arrays, norm)


_FILE = "adam/adam.cpp"
_PASSES = 7
"""Arrays that a value passes through."""

_update = Launch("adam/adam", "adam", "places: own int64, sizes: own int64, rights: own int64?, rate: own, eps: own, "
                                      "scale: own?, keep: own?, norm: own, tensors: int64, beta1: float64, "
                                      "beta2: float64, threads: int32")


ADAM = {**TENSORS, "ROLES": 7}
"""The macros of the CUDA text."""
UPDATE = Launch("adam/adam", "adam_update", "rate: real[], eps: real[], scale: real[]?, keep: real[]?, "
                "squares: own float64, beta1: float32, beta2: float32, blocks: int32, tensors: struct",
                lambda blocks: Layout((blocks,), (THREADS,), ADAM))
"""That of `adam.cupy`."""
_rates = Launch("adam/adam", "adam_rates", "rate: real[], updates: int32[], log_beta1: float64, log_beta2: float64, "
                "rate_by: float64, eps_by: float64, of_eps: int32, threads: int32 "
                "-> scaled: like rate, corrected: like rate, update: like updates", lambda: Layout((1,), (1,), ADAM))


def _supports(be: Backend, rate: Array, eps: Array, scale: Array | None, keep: Array | None,
              *arrays: Array, **attrs: Any) -> str | None:
    if not all(a.flags.c_contiguous for a in arrays):
        return "an array is not contiguous"
    return native.refusal(_FILE, arrays[0].dtype)


def _forward(be: Backend, rate: Array, eps: Array, scale: Array | None, keep: Array | None,
             *arrays: Array, beta1: float, beta2: float, donate: bool) -> tuple[tuple[Array, ...], None]:
    n = len(arrays) // 4
    gradients = [Factors(contiguous(g.left), contiguous(g.right)) if isinstance(g, Factors) else g
                 for g in arrays[n:2 * n]]
    read = [g.left if isinstance(g, Factors) else as_array(g) for g in gradients]
    rights = [g.right for g in gradients if isinstance(g, Factors)]
    old = [as_array(a) for a in (*arrays[:n], *arrays[2 * n:])]
    in_place = donate and all(a.flags.writeable for a in old) and are_apart(old, [*read, *rights])
    new = old if in_place else [empty_like(a) for a in old]
    places, sizes = table(old[:n], read, old[n:2 * n], old[2 * n:], *(new[k * n:(k + 1) * n] for k in range(3)))
    norm = empty((), rate.dtype)
    threads = native.threads_for(_PASSES * sum(a.nbytes for a in old[:n]))
    _update[be.name](places, sizes, _right_factors(gradients) if rights else None, as_array(rate), as_array(eps),
                     *(None if x is None else as_array(x) for x in (scale, keep)), norm, n, beta1, beta2, threads)
    return (*new, norm), None


def _right_factors(gradients: Sequence[Array | Factors]) -> Any:
    """The address of the right factor of each gradient, its rows and its columns, (n, 3); zeros for an array."""
    return row([word for g in gradients
                for word in ((g.right, *g.right.shape) if isinstance(g, Factors) else (0, 0, 0))])


def _rates_forward(be: Backend, rate: Array, updates: Array, **attrs: Any) -> tuple[tuple[Array, ...], None]:
    by = Correction.of(**attrs)
    return _rates[be.name](rate, updates, _log(by.beta1), _log(by.beta2), by.rate, by.eps, by.corrects_eps, 1), None


def _log(beta: float) -> float:
    return math.log(beta) if beta else -math.inf


def attach(backend: str) -> None:
    """Add the rules to `adam_rates`, and to `adam_update` of NumPy's arrays; the others are in files of their own."""
    if backend == "numpy":
        adam_update.add(Rule("compiled", _forward, supports=_supports, takes_factors=True), backend="numpy")
        global_norm.add(Rule("compiled", _norm_forward, norm_vjp, _norm_supports), backend="numpy")
    _attach_rates(backend)


_attach_rates = fused(adam_rates, _rates_forward, None, _rates)
