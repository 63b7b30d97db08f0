"""Adam on CUDA: one launch updates every tensor of the model, in place if the caller donates its arrays."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import cupy
import numpy as np

from duoln.backends.protocol import Array, Backend
from duoln.core import Rule
from duoln.kernels import launch
from duoln.kernels.settings import ADAM
from duoln.ops import adam_update
from duoln.ops.update import are_apart, norm_of

_update = launch.Kernel("adam/adam.cu", "adam_update", "pointers: uint64[2], sizes: int32[1], chunks: int32[2], "
                        "rate: float32[0], eps: float32[0], scale: float32[0]?, tensors: int32, "
                        "beta1: float32, beta2: float32")


def _supports(be: Backend, rate: Array, eps: Array, scale: Array | None, *arrays: Array, **attrs: Any) -> str | None:
    if any(be.dtype(a) != "float32" for a in (rate, eps, *arrays)):
        return "the kernel is for float32"
    if not all(a.flags.c_contiguous for a in arrays):
        return "an array is not contiguous"
    return launch.too_large(*arrays) if any(a.size for a in arrays) else "there are no values"


@lru_cache(maxsize=8)
def _chunks(sizes: tuple[int, ...]) -> tuple[Array, Array]:
    """Sizes, and the tensor and start of each block's chunk, on the device."""
    chunks = [(i, first) for i, size in enumerate(sizes) for first in range(0, size, ADAM["CHUNK"])]
    return cupy.array(np.array(sizes, np.int32)), cupy.array(np.array(chunks, np.int32))


@lru_cache(maxsize=8)
def _table(addresses: tuple[int, ...]) -> Array:
    """Addresses on the device; a training loop uses the same few addresses many times."""
    return cupy.array(np.array(addresses, np.uint64).reshape(7, -1))


def _forward(be: Backend, rate: Array, eps: Array, scale: Array | None, *arrays: Array, beta1: float, beta2: float,
             donate: bool) -> tuple[tuple[Array, ...], None]:
    n = len(arrays) // 4
    kept = (*arrays[:n], *arrays[2 * n:])
    out = kept if donate and are_apart(arrays) else tuple(cupy.empty_like(a) for a in kept)
    sizes, chunks = _chunks(tuple(a.size for a in arrays[:n]))
    table = _table(tuple(launch.address(a) for a in (*arrays, *out)))
    norm = norm_of(be, arrays[n:2 * n])
    _update((len(chunks),), (256,), (table, sizes, chunks, rate, eps, scale, n, beta1, beta2), ADAM)
    return (*out, norm), None


def attach() -> None:
    """Add the rule to `adam_update`."""
    adam_update.add(Rule("cuda one launch", _forward, None, _supports), backend="cupy")
