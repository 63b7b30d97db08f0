"""Adam and the common norm of many tensors on CUDA: a launch updates every tensor of the model, in place if the caller
donates its arrays.

The same pass adds up the squares of the gradients; a second small launch gives their norm, a third one the rates.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import cupy
import numpy as np

from duoln.backends.protocol import Array, Backend
from duoln.core import Rule
from duoln.kernels.adam import ADAM, ROOT_OF_SUM, SUM_SQUARES, UPDATE
from duoln.kernels.adam.tensors import Tensors
from duoln.kernels.launch import cuda as launch
from duoln.ops import global_norm
from duoln.ops.update import adam_update, are_apart, norm_vjp


def refusal(*arrays: Array) -> str | None:
    """The reason why kernels over lists of tensors cannot take these; None if they can."""
    if any(a.dtype != np.float32 for a in arrays):
        return "the kernel is for float32"
    if not all(a.flags.c_contiguous for a in arrays):
        return "an array is not contiguous"
    return launch.too_large(*arrays) if any(a.size for a in arrays) else "there are no values"


def partial_sums(pieces: Sequence[Tensors]) -> Array:
    """Room for a sum of squares of each block of these lists."""
    return cupy.empty(sum(piece.blocks for piece in pieces), dtype=np.float64)


def _norm_forward(be: Backend, *arrays: Array) -> tuple[Array, Any]:
    pieces = Tensors.of(arrays)
    squares = partial_sums(pieces)
    for piece in pieces:
        SUM_SQUARES[be.name](squares[piece.first:], piece.blocks, piece.by_value)
    norm = ROOT_OF_SUM[be.name](squares)
    return norm, (arrays, norm)


def _forward(be: Backend, rate: Array, eps: Array, scale: Array | None, keep: Array | None,
             *arrays: Array, beta1: float, beta2: float, donate: bool) -> tuple[tuple[Array, ...], None]:
    n = len(arrays) // 4
    kept = (*arrays[:n], *arrays[2 * n:])
    out = kept if donate and are_apart(kept, arrays[n:2 * n]) else tuple(cupy.empty_like(a) for a in kept)
    every = (*arrays, *out)
    pieces = Tensors.of(*(every[k * n:(k + 1) * n] for k in range(ADAM["ROLES"])))
    squares = partial_sums(pieces)
    for piece in pieces:
        UPDATE[be.name](rate, eps, scale, keep, squares[piece.first:], beta1, beta2, piece.blocks, piece.by_value)
    return (*out, ROOT_OF_SUM[be.name](squares)), None


def attach() -> None:
    """Add the rules to `adam_update` and `global_norm`."""
    global_norm.add(Rule("cuda two launches", _norm_forward, norm_vjp, lambda be, *arrays: refusal(*arrays)),
                    backend="cupy")
    adam_update.add(Rule("cuda one pass", _forward, None, lambda be, rate, eps, scale, keep, *arrays, **attrs:
                         refusal(rate, eps, *arrays)), backend="cupy")
