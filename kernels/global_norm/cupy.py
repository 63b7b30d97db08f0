"""The common norm of many tensors on CUDA: two launches, one pass over memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import cupy
import numpy as np

from duoln.backends.protocol import Array, Backend
from duoln.core import Rule
from duoln.kernels.global_norm import ROOT_OF_SUM, SUM_SQUARES
from duoln.kernels.launch import cuda as launch
from duoln.kernels.tensors import Tensors
from duoln.ops import global_norm
from duoln.ops.update import norm_vjp


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


def _forward(be: Backend, *arrays: Array) -> tuple[Array, Any]:
    pieces = Tensors.of(arrays)
    squares = partial_sums(pieces)
    for piece in pieces:
        SUM_SQUARES[be.name](squares[piece.first:], piece.blocks, piece.by_value)
    norm = ROOT_OF_SUM[be.name](squares)
    return norm, (arrays, norm)


def attach() -> None:
    """Add the rule to `global_norm`."""
    global_norm.add(Rule("cuda two launches", _forward, norm_vjp, lambda be, *arrays: refusal(*arrays)), backend="cupy")
