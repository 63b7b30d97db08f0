"""Adam on CUDA: one launch updates every tensor of the model, in place if the caller donates its arrays.

The same pass adds up the squares of the gradients; a second small launch gives their norm, a third one the rates.
"""

from __future__ import annotations

import cupy

from duoln.backends.protocol import Array, Backend
from duoln.core import Rule
from duoln.kernels.adam import ADAM, UPDATE
from duoln.kernels.global_norm import ROOT_OF_SUM
from duoln.kernels.global_norm.cupy import partial_sums, refusal
from duoln.kernels.tensors import Tensors
from duoln.ops.update import adam_update, are_apart


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
    """Add the rule to `adam_update`."""
    adam_update.add(Rule("cuda one pass", _forward, None, lambda be, rate, eps, scale, keep, *arrays, **attrs:
                         refusal(rate, eps, *arrays)), backend="cupy")
