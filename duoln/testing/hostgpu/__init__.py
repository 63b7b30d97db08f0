"""Runs the text of a GPU kernel on the CPU: compiles it with the C++ compiler over `device.h` and launches it.

    program = hostgpu.compile(text, {"THREADS": 32})
    program.launch("layer_norm_forward", grid=(4,), block=(128,), arguments=[x, y, np.int32(7)], seed=1)

Every load and store of the kernel calls the machine (`engine/`), which finds accesses outside an array, at an address
that is not aligned, and two accesses that nothing orders. The seed decides the order in which blocks and threads run.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from duoln.testing.hostgpu import machine, text
from duoln.testing.hostgpu.machine import HERE, HostGpuError
from duoln.testing.hostgpu.text import Entry, Parameter

__all__ = ["HERE", "SHARED_LIMIT", "HostGpuError", "Parameter", "Program", "compile"]

SHARED_LIMIT = 48 << 10
"""Bytes of shared memory that a block has without asking for more."""
CLUSTER_LIMIT = 8
"""Blocks of a cluster that every device with clusters has."""
DEVICE_SHARED = 227 << 10
"""Bytes of shared memory that a block may ask for on an H100."""
_MOST_SHARED = {"cuda.h": SHARED_LIMIT, "metal.h": 32 << 10}
_MOST_BLOCKS = (2 ** 31 - 1, 65_535, 65_535)
_MOST_THREADS = (1024, 1024, 64)


def compile(source: str, defines: Mapping[str, object] | None = None, prelude: str = "cuda.h") -> Program:
    """A program of all entry points in a text. Compiled once for each text, prelude and set of macros.

    Raises:
        HostGpuError: the compiler's log.
    """
    library = machine.kernel(text.host_text(source, prelude, defines or {}), prelude)
    return Program(library, text.entries(source), _MOST_SHARED[prelude])


class Program:
    """Compiled entry points."""

    def __init__(self, library: ctypes.CDLL, entries: Mapping[str, Entry], most_static: int) -> None:
        self._library, self.entries, self._most_static = library, entries, most_static

    def launch(self, entry: str, grid: Sequence[int], block: Sequence[int], arguments: Sequence[Any],
               shared: int = 0, seed: int = 0, cooperative: bool = False, most_shared: int | None = None,
               most_cluster: int = CLUSTER_LIMIT,
               reachable: Sequence[np.ndarray] = ()) -> None:
        """Run a kernel; what it writes into arrays is there afterwards.

        Args:
            entry: the kernel's name.
            grid: blocks, one to three numbers.
            block: threads a block, one to three numbers.
            arguments: contiguous NumPy arrays, None for a null pointer, NumPy scalars of the parameter's own type, an
                array of one structure, which begins with addresses, for a structure that is passed by value.
                Arrays that overlap share their memory, as on a device.
            shared: bytes of dynamic shared memory.
            seed: decides which blocks run together, who runs first, and on which side of its pages an array lies.
            cooperative: whether all blocks are there at once and may wait for each other.
            most_shared: bytes of dynamic shared memory that the caller has asked for; None if it has not.
            most_cluster: blocks of a cluster that the caller has asked for.
            reachable: arrays whose addresses may be in an array of uint64 or in a structure.

        Raises:
            HostGpuError: the kernel reached outside an array, hangs, races, or breaks a rule of the machine.
        """
        declared = self.entries[entry]
        if len(declared.parameters) != len(arguments):
            raise HostGpuError(f"[{entry}] expected {len(declared.parameters)} arguments, found {len(arguments)}")
        sizes, threads = (*grid, 1, 1)[:3], (*block, 1, 1)[:3]
        if any(n > most for n, most in zip((*sizes, *threads), (*_MOST_BLOCKS, *_MOST_THREADS), strict=True)) \
                or np.prod(threads) > _MOST_THREADS[0]:
            raise HostGpuError(f"[{entry}] expected at most {_MOST_BLOCKS} blocks of 1024 threads, {_MOST_THREADS}; "
                               f"found {tuple(grid)} of {tuple(block)}")
        kept: list[Any] = []
        given = [_argument(entry, p, a, kept) for p, a in zip(declared.parameters, arguments, strict=True)]
        given += [_array(entry, "an array of the table", a, machine.REACHABLE) for a in reachable]
        message = ctypes.create_string_buffer(1024)
        request = machine.Request(
            kernel=ctypes.cast(self._library[f"hostgpu_{entry}"], ctypes.c_void_p).value,
            grid=sizes, block=threads,
            most_threads=ctypes.c_uint.in_dll(self._library, f"hostgpu_threads_{entry}").value, shared=shared,
            most_shared=SHARED_LIMIT if most_shared is None else most_shared, most_static=self._most_static,
            most_total=self._most_static if most_shared is None else DEVICE_SHARED, seed=seed, cooperative=cooperative,
            cluster=ctypes.c_uint.in_dll(self._library, f"hostgpu_cluster_{entry}").value, most_cluster=most_cluster,
            count=len(given), arguments=(machine.Argument * max(len(given), 1))(*given),
            message=ctypes.cast(message, ctypes.c_char_p), message_size=len(message))
        if machine.engine().hostgpu_launch(ctypes.byref(request)):
            raise HostGpuError(f"{entry} (seed {seed}): {message.value.decode()}")


def _argument(entry: str, parameter: Parameter, given: Any, kept: list[Any]) -> machine.Argument:
    pointer = parameter.kind.endswith("*")
    if isinstance(given, np.ndarray) and pointer:
        flags = machine.CONSTANT * parameter.constant | machine.RESTRICT * parameter.restrict
        return _array(entry, parameter.name, given, flags | machine.TABLE * (given.dtype == np.uint64))
    if isinstance(given, np.ndarray) and given.size == 1 and given.dtype.names and not parameter.kind.endswith("*"):
        kept.append(given := given.copy())
        return machine.Argument(parameter.name.encode(), given.ctypes.data, given[given.dtype.names[0]].nbytes,
                                machine.TABLE)
    if given is None and pointer:
        number = np.zeros(1, np.uint64)
    elif isinstance(given, np.generic) and not pointer:
        number = np.array([given])
    else:
        raise HostGpuError(f"[{entry}] {parameter.name}: expected {parameter.kind}, found {type(given).__name__}")
    kept.append(number)
    return machine.Argument(parameter.name.encode(), number.ctypes.data, number.nbytes, 0)


def _array(entry: str, name: str, array: np.ndarray, flags: int) -> machine.Argument:
    if not array.flags.c_contiguous:
        raise HostGpuError(f"[{entry}] {name}: expected a contiguous array, found strides {array.strides}")
    return machine.Argument(name.encode(), array.ctypes.data, array.nbytes, machine.ARRAY | flags)
