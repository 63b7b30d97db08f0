"""The common norm of many tensors on CUDA: two launches, one pass over memory."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import cupy
import numpy as np

from duoln.backends.protocol import Array, Backend
from duoln.core import Rule
from duoln.kernels import launch
from duoln.kernels.settings import TENSORS
from duoln.ops import global_norm
from duoln.ops.update import norm_vjp

_FILE = "global_norm/global_norm.cu"
_THREADS = 256

_sum_squares = launch.Kernel(_FILE, "sum_squares", "pointers: uint64[2], sizes: int32[1], chunks: int32[2], "
                                                   "squares: float32[1], tensors: int32")
_root_of_sum = launch.Kernel(_FILE, "root_of_sum", "squares: float32[1], norm: float32[0], count: int32")


class Table(NamedTuple):
    """A list of tensors on the device, as tensors.cuh describes it."""

    pointers: Array
    sizes: Array
    chunks: Array
    tensors: int

    @classmethod
    def of(cls, *roles: Sequence[Array]) -> Table:
        """The table of the arrays of each role; the sizes are those of the first role's."""
        where = launch.current_device(), launch.current_stream()
        addresses = tuple([tuple([launch.address(a) for a in arrays]) for arrays in roles])
        return cls(_pointers(where, addresses), *_chunks(where, tuple([a.size for a in roles[0]])), len(roles[0]))

    @property
    def grid(self) -> tuple[int]:
        """A block for each chunk."""
        return (len(self.chunks),)

    @property
    def block(self) -> tuple[int]:
        """The threads of a block."""
        return (_THREADS,)


# What is kept is for one device and one stream: the copies to the device were queued there.

@lru_cache(maxsize=8)
def _chunks(where: tuple[int, int], sizes: tuple[int, ...]) -> tuple[Array, Array]:
    chunks = [(i, first) for i, size in enumerate(sizes) for first in range(0, size, TENSORS["CHUNK"])]
    return cupy.array(np.array(sizes, np.int32)), cupy.array(np.array(chunks, np.int32).reshape(-1, 2))


@lru_cache(maxsize=8)
def _pointers(where: tuple[int, int], addresses: tuple[tuple[int, ...], ...]) -> Array:
    """A training loop uses the same few addresses many times."""
    return cupy.array(np.array(addresses, np.uint64))


def unfit(*arrays: Array) -> str | None:
    """The reason why kernels over lists of tensors cannot take these; None if they can."""
    if any(a.dtype != np.float32 for a in arrays):
        return "the kernel is for float32"
    if not all(a.flags.c_contiguous for a in arrays):
        return "an array is not contiguous"
    return launch.too_large(*arrays) if any(a.size for a in arrays) else "there are no values"


def root_of_sum(squares: Array) -> Array:
    """The root of the sum of (n,) numbers, 0-d."""
    norm = cupy.empty((), dtype=squares.dtype)
    _root_of_sum((1,), (_THREADS,), (squares, norm, len(squares)), TENSORS)
    return norm


def _supports(be: Backend, *arrays: Array) -> str | None:
    return unfit(*arrays)


def _forward(be: Backend, *arrays: Array) -> tuple[Array, Any]:
    table = Table.of(arrays)
    squares = cupy.empty(table.grid, dtype=arrays[0].dtype)
    _sum_squares(table.grid, table.block, (table.pointers, table.sizes, table.chunks, squares, table.tensors), TENSORS)
    norm = root_of_sum(squares)
    return norm, (arrays, norm)


def attach() -> None:
    """Add the rule to `global_norm`."""
    global_norm.add(Rule("cuda two launches", _forward, norm_vjp, _supports), backend="cupy")
