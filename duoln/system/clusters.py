"""The number of clusters of blocks that a device runs at once, by NVIDIA's driver.

CuPy does not bind `cuOccupancyMaxActiveClusters`, and `cuda-bindings`, which does, is no dependency of CuPy's, so
ctypes calls it. The structures are those of cuda.h; https://docs.nvidia.com/cuda/cuda-driver-api/ has the function.
"""

from __future__ import annotations

import ctypes
import sys
from typing import Any

from duoln.errors import KernelError

_DIMENSION = 4
"""CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION."""
_INVALID_SIZE = 912
"""CUDA_ERROR_INVALID_CLUSTER_SIZE."""
_LIBRARY = "nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1"


class _Attribute(ctypes.Structure):
    """CUlaunchAttribute."""

    _fields_ = [("id", ctypes.c_int), ("pad", ctypes.c_char * 4), ("dimension", ctypes.c_uint * 3),
                ("rest", ctypes.c_char * 52)]


class _Config(ctypes.Structure):
    """CUlaunchConfig."""

    _fields_ = [("grid", ctypes.c_uint * 3), ("block", ctypes.c_uint * 3), ("shared", ctypes.c_uint),
                ("stream", ctypes.c_void_p), ("attributes", ctypes.POINTER(_Attribute)), ("count", ctypes.c_uint)]


def max_active_clusters(function: int, blocks: int, threads: int, shared: int) -> int:
    """The number of clusters of a kernel that the current device runs at once; 0 if not one fits.

    Args:
        function: the address of the driver's function.
        blocks: of a cluster.
        threads: of a block.
        shared: bytes of dynamic shared memory of a block, which the function has been set to allow.

    Raises:
        KernelError: there is no driver, it is too old for clusters, or it fails.
    """
    attribute = _Attribute(id=_DIMENSION, dimension=(blocks, 1, 1))
    config = _Config(grid=(blocks, 1, 1), block=(threads, 1, 1), shared=shared,
                     attributes=ctypes.pointer(attribute), count=1)
    active = ctypes.c_int()
    status = _query()(ctypes.byref(active), ctypes.c_void_p(function), ctypes.byref(config))
    if status not in (0, _INVALID_SIZE):
        raise KernelError(f"cuOccupancyMaxActiveClusters of {blocks} blocks with {shared} bytes ended with status "
                          f"{status}")
    return 0 if status else active.value


def _query() -> Any:
    try:
        return ctypes.CDLL(_LIBRARY).cuOccupancyMaxActiveClusters
    except (OSError, AttributeError) as error:
        raise KernelError(f"{_LIBRARY}: {error}") from None
