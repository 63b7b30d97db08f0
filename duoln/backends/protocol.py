"""The primitives that every backend has: about fifty, with the names of the array API standard.

Arithmetic, comparison and basic slicing (`+ - * / ** @ < == [...]`) are the native arrays' own operators,
which give the same results in all three libraries if the dtypes are equal; the operators of duoln check that they
are. Dtypes are named by strings. Nothing is promoted: every primitive returns the dtype of its input, comparisons
return bool, `argmax` returns int32, and sums of bool are int32.

float16 and bfloat16 are for storage: arithmetic is float32. Only the primitives that make arrays or move values,
`astype` and `matmul` take arrays of these dtypes. Python's operators on such arrays are not defined: a library
without bfloat16 has its bits in arrays of uint16.

Devices do *not* check the range of indices (CuPy wraps round, MLX reads other memory), so rules give them none that is
out of range. The host checks them when it makes a batch, see `duoln.data.batches.check_range`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np

NAMES = ("numpy", "cupy", "mlx")
"""The backends."""

Array = Any
"""A native array: numpy.ndarray, cupy.ndarray or mlx.core.array."""

Shape = tuple[int, ...]
Axis = int | tuple[int, ...] | None

FLOATS = ("float32", "float64")
"""The dtypes of arithmetic."""
STORAGE = ("float16", "bfloat16")
"""The dtypes of values that are stored in 16 bits."""
REALS = (*FLOATS, *STORAGE)
"""The dtypes of values that may have a gradient."""
DTYPES = (*FLOATS, "int32", "bool", *STORAGE)
READS_ON_HOST = "[compile] the step reads a value on the host; return it from the step instead"
"""The text of the CompileError for such a step."""


PROVED, SET_ASIDE, TRUSTED = "proved", "set aside", "trusted"
"""The verdicts on a fused rule on a device."""
NO_CASE = "no case proves it"
"""The reason to trust a rule that has no case; the verdict is kept, so that no process searches again."""


class Proofs(Protocol):
    """The verdicts on a backend's fused rules on this device; see `duoln.kernels.proofs`."""

    def refusal(self, op: str, rule: Any, arrays: Sequence[Array], attrs: Mapping[str, Any]) -> str | None:
        """The reason why a rule of an operator must not run here; None if it may."""

    def summary(self) -> dict[str, list[str]]:
        """The rules that this process has used, by verdict."""

    def kept(self) -> list[dict[str, str]]:
        """All verdicts of earlier processes on this device, as plain data."""

    def learn(self, verdicts: Iterable[Mapping[str, str]]) -> None:
        """Keep verdicts for later processes."""


class Backend(Protocol):
    """One array library on one device. Every tensor has its backend; there is no hidden current backend."""

    name: str
    device: str
    """The name of the device, for people."""
    dtypes: tuple[str, ...]
    narrow: frozenset[Any]
    """The library's own dtypes of arrays that store 16 bits."""
    wide: frozenset[Any]
    """Its dtypes in which rules compute: float32 and float64."""
    natives: Mapping[str, Any]
    """Its dtype of each name in `dtypes`."""
    lazy: bool
    """True if values are computed when they are read; `compile` then traces a function once."""
    queues: bool
    """True if a device computes while the host goes on, so that figures are better read a step late."""
    proofs: Proofs | None
    """The verdicts of a device whose fused rules are proved before they are trusted; None for other devices."""

    # The edges -----------------------------------------------------------------------------------
    def asarray(self, host: Any, dtype: str | None = None) -> Array:
        """A native array with the values of a NumPy array or a number."""

    def to_numpy(self, x: Array) -> np.ndarray:
        """The values on the host; those of bfloat16 as float32, which is exact.

        Waits for the device; raises CompileError inside a compiled step.
        """

    def shared(self, x: Any) -> Array:
        """A native array with the memory of an array that exports it by DLPack, not to be written.

        Raises what the libraries raise where they cannot.
        """

    def exported(self, x: Array, is_old: bool, copy: bool | None) -> Array:
        """The array that another library takes by DLPack: computed, and read-only where the library has that.

        It is a copy in the place of what libraries refuse or misread: negative strides, of which PyTorch ends the
        process. A reader that names no version of DLPack, `is_old`, gets contiguous memory that it may write into.

        Raises:
            BufferError: a copy is needed, and `copy` is False.
        """

    def join(self) -> None:
        """Let this thread compute with arrays of other threads, and they with its arrays."""

    def begin(self, arrays: Sequence[Array]) -> None:
        """Start to compute lazy arrays without a wait, so that their inputs can be freed.

        It does nothing inside a compiled step.
        """

    def wait(self, arrays: Sequence[Array]) -> None:
        """Ends a step: returns when the arrays are computed."""

    def end_step(self, arrays: Sequence[Array], figures: Sequence[Array]) -> Callable[[], list[np.ndarray]]:
        """Ends a step without a wait where work is queued.

        The function that it returns gives the values of `figures`; it waits for this step, not for later ones.
        """

    def compile(self, fn: Callable[..., Any]) -> Callable[..., Any]:
        """A function of native arrays, which returns a list of them, that gives the same values and may be faster."""

    def repeat(self, run: Callable[..., list[Array]], unchanged: Collection[int]) -> Callable[..., list[Array]]:
        """The same function, faster if the device can repeat its work: it runs the same operators at every call.

        `unchanged` are the numbers of the arguments that are results as they come.
        """

    def clock(self) -> float:
        """Waits until the device is idle; returns seconds from an arbitrary start."""

    def info(self) -> dict[str, str]:
        """The library, its version, the device, its memory and the flags that change arithmetic."""

    def free_memory(self) -> int:
        """The free bytes of the memory that holds the arrays."""

    def dtype(self, x: Array) -> str: ...

    def stray_index(self, indices: Array, low: int, stop: int) -> int | None:
        """An int32 index that is not in low .. stop - 1; None if there is none.

        It also returns None if reading the values would wait for a device.
        """

    # Creation ------------------------------------------------------------------------------------
    def zeros(self, shape: Shape, dtype: str = "float32") -> Array: ...
    def ones(self, shape: Shape, dtype: str = "float32") -> Array: ...
    def full(self, shape: Shape, value: float, dtype: str = "float32") -> Array: ...
    def arange(self, stop: int, dtype: str = "int32") -> Array: ...
    def astype(self, x: Array, dtype: str) -> Array:
        """The values in another dtype: rounded to nearest, to even at a tie, and once only.

        As int32, floats lose their fractions. NaN, infinity and what int32 does not hold raise a DtypeError; where that
        would wait for a device, they are 0 and the nearest number that int32 holds.
        """

    def exactly(self, *arrays: Array | int, name: str, compute: Callable[..., Array]) -> Array:
        """`compute(*arrays)` of int32 arrays and integers, computed with 64 bits, as int32.

        A result that int32 does not hold raises a DtypeError that names the operator; where that would wait for a
        device, it is the nearest number that int32 holds.
        """

    # Elementwise ---------------------------------------------------------------------------------
    def abs(self, x: Array) -> Array: ...
    def exp(self, x: Array) -> Array: ...
    def expm1(self, x: Array) -> Array: ...
    def log(self, x: Array) -> Array: ...
    def log1p(self, x: Array) -> Array: ...
    def sqrt(self, x: Array) -> Array: ...
    def sin(self, x: Array) -> Array: ...
    def cos(self, x: Array) -> Array: ...
    def tanh(self, x: Array) -> Array: ...
    def sign(self, x: Array) -> Array: ...
    def floor(self, x: Array) -> Array: ...
    def round(self, x: Array) -> Array:
        """The nearest integer, the even one at a tie."""

    def isfinite(self, x: Array) -> Array: ...
    def signbit(self, x: Array) -> Array:
        """True where the sign bit of a float is set, also that of -0 and of NaN."""

    def fmod(self, x: Array, y: Array) -> Array:
        """The exact remainder of x / y for a quotient that is rounded towards 0; it has the sign of x."""

    def maximum(self, x: Array, y: Array | float) -> Array: ...
    def minimum(self, x: Array, y: Array | float) -> Array: ...
    def where(self, condition: Array, x: Array | float, y: Array | float) -> Array: ...
    def logical_and(self, x: Array, y: Array) -> Array: ...
    def logical_or(self, x: Array, y: Array) -> Array: ...
    def logical_not(self, x: Array) -> Array: ...

    # Reductions ----------------------------------------------------------------------------------
    def sum(self, x: Array, *, axis: Axis = None, keepdims: bool = False) -> Array: ...
    def mean(self, x: Array, *, axis: Axis = None, keepdims: bool = False) -> Array: ...
    def max(self, x: Array, *, axis: Axis = None, keepdims: bool = False) -> Array: ...
    def min(self, x: Array, *, axis: Axis = None, keepdims: bool = False) -> Array: ...
    def all(self, x: Array, *, axis: Axis = None, keepdims: bool = False) -> Array: ...
    def any(self, x: Array, *, axis: Axis = None, keepdims: bool = False) -> Array: ...
    def argmax(self, x: Array, axis: int = -1) -> Array: ...
    def cumulative_sum(self, x: Array, axis: int) -> Array: ...

    # Shape ---------------------------------------------------------------------------------------
    def reshape(self, x: Array, shape: Shape) -> Array: ...
    def permute_dims(self, x: Array, axes: tuple[int, ...]) -> Array: ...
    def expand_dims(self, x: Array, axis: int) -> Array: ...
    def squeeze(self, x: Array, axis: int) -> Array: ...
    def broadcast_to(self, x: Array, shape: Shape) -> Array: ...
    def concat(self, arrays: Sequence[Array], axis: int = 0) -> Array: ...
    def flip(self, x: Array, axis: int) -> Array: ...
    def pad(self, x: Array, widths: tuple[tuple[int, int], ...], value: float = 0.0) -> Array: ...

    # Indexing ------------------------------------------------------------------------------------
    def take(self, x: Array, indices: Array, axis: int) -> Array: ...
    def take_along_axis(self, x: Array, indices: Array, axis: int) -> Array: ...
    def index_add(self, x: Array, indices: Array, values: Array) -> Array:
        """`x` with `values[k]` added to row `indices[k]`, for every k; repeated rows add up. `x` is not changed."""

    def slice_add(self, x: Array, key: Any, values: Array) -> Array:
        """`x` with `values` added to `x[key]`, for a basic slice. `x` is not changed."""

    # Linear algebra ------------------------------------------------------------------------------
    def matmul(self, x: Array, y: Array, dtype: str | None = None) -> Array:
        """The product. Values of 16 bits are multiplied and added in float32.

        Args:
            x, y: arrays of one dtype.
            dtype: "float32" keeps the sums of 16-bit values; by default they are rounded to the dtype of `x`.
        """


EDGES = ("asarray", "to_numpy", "shared", "exported", "join", "begin", "wait", "end_step", "compile", "repeat", "clock",
         "info", "free_memory", "dtype", "stray_index")
OPTIONAL_EDGES = ("device_seconds",)
"""A function of CuPy alone, for benchmarks: it times work by the device's own clock."""
PRIMITIVES = tuple(
    name for name, member in vars(Backend).items()
    if callable(member) and not name.startswith("_") and name not in EDGES
)
