"""Adam on CUDA: one launch updates every tensor of the model, in place if the caller donates its arrays.

The same pass adds up the squares of the gradients; a second small launch gives their norm, a third one the rates.
"""

from __future__ import annotations

import math
from typing import Any

import cupy

from duoln.backends.protocol import Array, Backend
from duoln.core import Rule
from duoln.kernels.global_norm.cupy import partial_sums, refusal, root_of_sum
from duoln.kernels.launch import cuda as launch
from duoln.kernels.launch.declared import Layout
from duoln.kernels.settings import ADAM
from duoln.kernels.tensors import THREADS, Tensors
from duoln.ops import adam_rates, adam_update
from duoln.ops.update import Correction, are_apart

_FILE = "adam/adam.cu"

_update = launch.Kernel(_FILE, "adam_update", "tensors: struct, rate: float32[0], eps: float32[0], "
                        "scale: float32[0]?, keep: float32[0]?, squares: float64[1], beta1: float32, beta2: float32")
_rates = launch.launch(_FILE, "adam_rates", "rate: real[], updates: int32[], log_beta1: float32, log_beta2: float32, "
                       "rate_by: float32, eps_by: float32, of_eps: int32 "
                       "-> scaled: like rate, corrected: like rate, update: like updates",
                       lambda: Layout((1,), (1,), ADAM))


def _supports(be: Backend, rate: Array, eps: Array, scale: Array | None, keep: Array | None,
              *arrays: Array, **attrs: Any) -> str | None:
    return refusal(rate, eps, *arrays)


def _forward(be: Backend, rate: Array, eps: Array, scale: Array | None, keep: Array | None,
             *arrays: Array, beta1: float, beta2: float, donate: bool) -> tuple[tuple[Array, ...], None]:
    n = len(arrays) // 4
    kept = (*arrays[:n], *arrays[2 * n:])
    out = kept if donate and are_apart(kept, arrays[n:2 * n]) else tuple(cupy.empty_like(a) for a in kept)
    every = (*arrays, *out)
    pieces = Tensors.of(*(every[k * n:(k + 1) * n] for k in range(ADAM["ROLES"])))
    squares = partial_sums(pieces)
    for piece in pieces:
        _update((piece.blocks,), (THREADS,),
                (piece.by_value, rate, eps, scale, keep, squares[piece.first:], beta1, beta2), ADAM)
    return (*out, root_of_sum(squares)), None


def _rates_support(be: Backend, rate: Array, updates: Array, **attrs: Any) -> str | None:
    if be.dtype(rate) != "float32" or be.dtype(updates) != "int32":
        return f"the kernel is for float32 and int32, not {be.dtype(rate)} and {be.dtype(updates)}"
    return None


def _rates_forward(be: Backend, rate: Array, updates: Array, **attrs: Any) -> tuple[tuple[Array, ...], None]:
    by = Correction.of(**attrs)
    made = _rates(rate, updates, _log(by.beta1), _log(by.beta2), by.rate, by.eps, int(by.corrects_eps))
    return made, None


def _log(beta: float) -> float:
    return math.log(beta) if beta else -math.inf


def attach() -> None:
    """Add the rules to `adam_update` and `adam_rates`."""
    adam_update.add(Rule("cuda one pass", _forward, None, _supports), backend="cupy")
    adam_rates.add(Rule("cuda one launch", _rates_forward, None, _rates_support), backend="cupy")
