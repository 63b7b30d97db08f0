"""Symbols: arrays without values. A rule that gets symbols runs once, and what it would compute is noted as lines.

A symbol knows its shape, dtype and layout. A rule that looks at a value, or hands a symbol to what does not know
symbols, ends in an exception: it is not bound, and stays a call of Python.
"""

from __future__ import annotations

import contextlib
import math
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.lib.mixins import NDArrayOperatorsMixin

if TYPE_CHECKING:
    from duoln.core.step.trace import Trace

tracing: list[Trace] = []
"""The traces that are being made, of all threads. Whoever takes the address of an array asks this list first."""
_REDUCTIONS: dict[Any, np.ufunc] = {np.sum: np.add, np.max: np.maximum, np.min: np.minimum}
_VIEWS = (np.transpose, np.broadcast_to, np.expand_dims, np.squeeze, np.swapaxes, np.moveaxis, np.flip)


class NotBound(Exception):  # no error: the rule runs as it is
    """A rule did with a symbol what only an array can do."""


@dataclass(eq=False)
class Buffer:
    """Memory of a step.

    Attributes:
        kind: "input", "constant", "returned" by a call of Python, or "own" of the step.
        number: of the input, or the place that was returned.
        form: an array of the shape, dtype and layout of the whole, whose values nobody reads.
        array: the array of a constant.
        first, last: the lines that write or read it; -1 before there is one.
        keeps: memory that has to live as long as this one, which may be a part of it.
    """

    kind: str
    number: int
    form: np.ndarray
    array: Any = None
    first: int = -1
    last: int = -1
    keeps: list[Buffer] = field(default_factory=list)

    @property
    def size(self) -> int:
        """Bytes."""
        return self.form.nbytes

    def note_use(self, line: int) -> None:
        """Note that a line writes or reads it."""
        self.first = line if self.first < 0 else self.first
        self.last = max(self.last, line)


class Symbol(NDArrayOperatorsMixin):
    """An array of a step that is being bound.

    Attributes:
        trace: to which it belongs.
        buffer: its memory.
        form: an array of this shape, dtype and layout, whose values nobody reads.
        offset: bytes from the buffer's begin to the first value.
    """

    __slots__ = ("buffer", "form", "offset", "trace")
    __class__: ClassVar[Any] = property(lambda self: np.ndarray)  # so that rules take the way of arrays

    def __init__(self, trace: Trace, buffer: Buffer, form: np.ndarray, offset: int = 0) -> None:
        self.trace, self.buffer, self.form, self.offset = trace, buffer, form, offset

    shape = property(lambda self: self.form.shape)
    dtype = property(lambda self: self.form.dtype)
    strides = property(lambda self: self.form.strides)
    flags = property(lambda self: self.form.flags)
    ndim = property(lambda self: self.form.ndim)
    size = property(lambda self: self.form.size)
    nbytes = property(lambda self: self.form.nbytes)
    itemsize = property(lambda self: self.form.itemsize)

    def __len__(self) -> int:
        return len(self.form)

    def __hash__(self) -> int:
        return id(self)

    # Views ------------------------------------------------------------------------------------------------
    def _view(self, form: Any) -> Symbol:
        """The symbol of a view of the form; a copy is none."""
        base = form if form is self.form else getattr(form, "base", None)
        while base is not None and base is not self.form and base is not self.form.base:
            base = base.base
        if base is None:
            raise NotBound("a copy of an array")
        if form is not self.form and not self.buffer.form.flags.c_contiguous:
            raise NotBound("a part of an array that is not contiguous")
        return Symbol(self.trace, self.buffer, form, self.offset + _address(form) - _address(self.form))

    def reshape(self, *shape: Any) -> Symbol:
        """See `numpy.ndarray`, as below: a view, or one of a copy."""
        sizes = shape[0] if len(shape) == 1 else shape
        try:
            return self._view(np.reshape(self.form, sizes, copy=False))
        except ValueError:  # there is no such view, or no such shape
            if self.form.flags.c_contiguous:
                raise
            return self.trace.contiguous(self).reshape(*shape)

    def extend_view(self, shape: Any) -> Symbol:
        """An array that begins as this one, with its strides, over more of the same memory."""
        return Symbol(self.trace, self.buffer, form_of(shape, self.dtype, self.strides), self.offset)

    def transpose(self, *axes: Any) -> Symbol:
        return self._view(self.form.transpose(*axes))

    @property
    def T(self) -> Symbol:  # NumPy's name
        return self._view(self.form.T)

    def view(self, dtype: Any = None) -> Symbol:
        return self._view(self.form.view() if dtype is None else self.form.view(dtype))

    def __getitem__(self, key: Any) -> Symbol:
        parts = key if type(key) is tuple else (key,)
        if not all(part is None or part is Ellipsis or isinstance(part, slice | int) for part in parts):
            raise NotBound("an index that is an array")
        return self._view(self.form[(*parts, Ellipsis)] if Ellipsis not in parts else self.form[key])

    def __setitem__(self, key: Any, value: Any) -> None:
        self.trace.copy_into(value, self[key])

    # What is computed -------------------------------------------------------------------------------------
    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, out: Any = (), **options: Any) -> Any:
        target = out[0] if out else None
        if method == "reduce":
            return self.trace.reduce(ufunc, inputs[0], out=target, **options)
        if method != "__call__" or options:
            raise NotBound(f"{ufunc.__name__}.{method}")
        return self.trace.compute(ufunc, inputs, target)

    def __array_function__(self, function: Any, types: Any, args: Any, kwargs: Any) -> Any:
        if function in (np.reshape, np.ravel) and type(args[0]) is Symbol and not kwargs:
            return args[0].reshape(*args[1:] or (-1,))
        if function in _VIEWS and type(args[0]) is Symbol:
            return args[0]._view(function(args[0].form, *args[1:], **kwargs))
        if function is np.empty_like and len(args) == 1 and not kwargs:
            return self.trace.empty(args[0].shape, args[0].dtype)
        if function in (np.ndim, np.shape, np.size) and not kwargs and len(args) == 1:
            return getattr(args[0], function.__name__)
        if function in _REDUCTIONS and type(args[0]) is Symbol:
            over_all = {"axis": None} if len(args) == 1 else {}
            return self.trace.reduce(_REDUCTIONS[function], *args, **over_all | kwargs)
        if function in (np.concatenate, np.take, np.where):
            return getattr(self.trace, function.__name__)(*args, **kwargs)
        raise NotBound(f"numpy.{getattr(function, '__name__', function)}")

    def __array__(self, *args: Any, **kwargs: Any) -> Any:
        raise NotBound("an array that something else reads")

    def __bool__(self) -> bool:
        raise NotBound("a truth value")

    def __iter__(self) -> Any:
        raise NotBound("an iteration")

    def astype(self, dtype: Any, copy: bool = True) -> Symbol:
        return self if not copy and self.dtype == dtype else self.trace.copied(self, np.dtype(dtype))

    def copy(self) -> Symbol:
        return self.trace.copied(self, self.dtype)

    def sum(self, axis: Any = None, dtype: Any = None, keepdims: bool = False) -> Symbol:
        return self.trace.reduce(np.add, self, axis, dtype, keepdims=keepdims)


_of_thread = threading.local()


def is_tracing() -> bool:
    """True if this thread makes a trace."""
    return hasattr(_of_thread, "trace")


def current_trace() -> Trace:
    """The trace that this thread makes."""
    made: Trace = _of_thread.trace
    return made


@contextlib.contextmanager
def trace_rules(made: Trace) -> Iterator[None]:
    """In this context rules of this thread are traced."""
    _of_thread.trace = made
    tracing.append(made)
    try:
        yield
    finally:
        tracing.remove(made)
        del _of_thread.trace


def form_of(shape: Any, dtype: Any, strides: Any = None) -> np.ndarray:
    """An array, by default in C order, that takes no memory. Nobody may read it, and it has no copies."""
    one = np.empty(1, dtype)
    sizes = tuple(shape) if isinstance(shape, tuple | list) else (shape,)
    if not all(sizes):
        return np.empty(sizes, dtype)
    steps = strides or [one.itemsize * math.prod(sizes[k + 1:]) for k in range(len(sizes))]
    return np.lib.stride_tricks.as_strided(one, sizes, steps)


def _address(form: np.ndarray) -> int:
    address: int = form.__array_interface__["data"][0]
    return address


def is_symbol(x: Any) -> bool:
    """True for a symbol, which `isinstance` takes for an array."""
    return type(x) is Symbol


def is_traced(values: Any) -> bool:
    """True if a symbol is among these values, or in the tuples and lists among them."""
    return any(type(x) is Symbol or (type(x) in (tuple, list) and is_traced(x)) for x in values)
