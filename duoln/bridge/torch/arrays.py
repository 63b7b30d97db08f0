"""PyTorch's tensors as native arrays of a backend and back, on the same memory.

On CUDA the arrays are CuPy's. Its work is queued on PyTorch's current stream, so neither library waits for the other,
and its memory comes from PyTorch's allocator, so both share one pool.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import lru_cache
from typing import Any

import numpy as np
import torch

from duoln.backends.protocol import Array, Backend
from duoln.errors import DtypeError
from duoln.runtime import backend

_DTYPES = {torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int32, torch.bool}
_BACKENDS = {"cpu": "numpy", "cuda": "cupy"}


@lru_cache
def backend_for(device: str) -> Backend:
    """The backend whose arrays lie on this type of device.

    Raises:
        DtypeError: there is none. BackendError: it cannot be used here.
    """
    if device not in _BACKENDS:
        raise DtypeError(f"[bridge] expected tensors on {' or '.join(_BACKENDS)}, found {device}; move them with "
                         "x.cpu()" + ("; on a Mac duoln.bridge.mlx has the same layers" if device == "mps" else ""))
    return backend(_BACKENDS[device])


def on_device(device: torch.device) -> AbstractContextManager[Any]:
    """In it the backend works as PyTorch does: on its current device and stream, with memory from its allocator."""
    return nullcontext() if device.type == "cpu" else _on_cuda(device)


@contextmanager
def _on_cuda(device: torch.device) -> Iterator[None]:
    import cupy

    stream = torch.cuda.current_stream(device)
    with (cupy.cuda.Device(stream.device_index), cupy.cuda.ExternalStream(stream.cuda_stream, stream.device_index),
          cupy.cuda.using_allocator(_allocator(cupy, stream))):
        yield


def _allocator(cupy: Any, stream: Any) -> Callable[[int], Any]:
    """Memory for CuPy from PyTorch's caching allocator. It goes back there with the last array that uses it."""
    def allocate(size: int) -> Any:
        room = torch.empty(max(size, 1), dtype=torch.uint8, device=stream.device)
        memory = cupy.cuda.UnownedMemory(room.data_ptr(), size, room, stream.device_index)
        return cupy.cuda.MemoryPointer(memory, 0)

    return allocate


def natives_of(role: str, tensors: Sequence[torch.Tensor | None], be: Backend) -> list[Any]:
    """The backend's arrays with the memory of tensors; bfloat16 as the backend stores it. None stays None.

    Raises:
        DtypeError: duoln has no such dtype, or a tensor is not dense; the message says what converts it.
    """
    natives: list[Any] = []
    for k, x in enumerate(tensors):
        if x is None:
            natives.append(None)
            continue
        if x.dtype not in _DTYPES or x.layout is not torch.strided:
            raise _tensor_error(f"{role} {k}", x)
        y = x.detach() if x.requires_grad else x
        if y.dtype is torch.bfloat16:
            y = y.view(torch.uint16)
        natives.append(y.numpy() if be.name == "numpy" else be.shared(y))
    return natives


def _tensor_error(role: str, x: torch.Tensor) -> DtypeError:
    if x.layout is not torch.strided:
        return DtypeError(f"[bridge] {role}: expected a dense tensor, found {x.layout}; write x.to_dense()")
    whole = x.dtype in (torch.int64, torch.int16, torch.int8, torch.uint8)
    advice = "int() for indices, x.float() for values" if whole else "float()"
    return DtypeError(f"[bridge] {role}: expected one of {', '.join(sorted(str(d) for d in _DTYPES))}, found "
                      f"{x.dtype}; write x.{advice}")


def tensor_of(x: Array, be: Backend, dtype: str) -> torch.Tensor:
    """The tensor with the memory of a native array, or a copy where that memory is a tensor's, not to be written or
    reversed.
    """
    if be.name == "numpy":
        y = torch.from_numpy(np.array(x) if _needs_copy(x) else x)
    else:
        y = torch.from_dlpack(be.exported(x, is_old=False, copy=None))
    return y.view(torch.bfloat16) if dtype == "bfloat16" else y


def unshare_arrays(arrays: Sequence[Array], be: Backend) -> list[Array]:
    """The arrays, of which each has memory of its own: PyTorch changes gradients and results in place, and a rule may
    return one array as several gradients, such as those of the biases of two norms that are added.
    """
    kept: list[Array] = []
    for x in arrays:
        is_shared = any(np.may_share_memory(x, y) if be.name == "numpy" else x.data.ptr == y.data.ptr for y in kept)
        kept.append(x.copy() if is_shared else x)
    return kept


def _needs_copy(x: Array) -> bool:
    """True if a result of NumPy has to be copied: no array, read-only, reversed, or a view of an argument."""
    if not isinstance(x, np.ndarray) or not x.flags.writeable or any(step < 0 for step in x.strides):
        return True
    base = x.base
    while isinstance(base, np.ndarray):
        base = base.base
    return isinstance(base, torch.Tensor)
