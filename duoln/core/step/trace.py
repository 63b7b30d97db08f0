"""The trace of a program: the lines that its rules would compute, each bound to its arrays."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from duoln.core.step.symbol import Buffer, NotBound, Symbol, form_of


class Entry(NamedTuple):
    """A compiled function that takes its arguments as a row of words.

    Attributes:
        name: of the function in its text.
        address: of the function that takes words, see `BY_WORDS` of common.h.
        failures: the addresses of the library's count of failed allocations and of the function that takes this
            thread's; 0 where there is none.
    """

    name: str
    address: int
    failures: tuple[int, int]


class KernelLine(NamedTuple):
    """A call of an entry."""

    of: int
    """The number of the instruction."""
    entry: Entry
    words: Sequence[Any]
    """Symbols and arrays for their addresses, None, numbers, and tuples of words for the address of such a row."""


class NumpyLine(NamedTuple):
    """A call of NumPy's, which writes into an array."""

    of: int
    function: Callable[..., Any]
    inputs: tuple[Any, ...]
    out: Symbol
    options: tuple[Any, ...] | None = None
    """For a reduction: the axes, the dtype of the sums, and whether axes are kept."""


class UnboundLine(NamedTuple):
    """An instruction that was not bound."""

    of: int
    why: str


Line = KernelLine | NumpyLine | UnboundLine


class Trace:
    """The lines that are noted while the rules of a program run with symbols."""

    def __init__(self) -> None:
        self.lines: list[Line] = []
        self.instruction = 0
        self.apart: list[int] = []
        """The numbers of the inputs that a line overwrites: each is the only array with its memory."""

    # Memory -----------------------------------------------------------------------------------------------
    def symbol(self, kind: str, number: int, form: np.ndarray, array: Any = None) -> Symbol:
        """The symbol of an input, a constant or what a call returned."""
        return Symbol(self, Buffer(kind, number, form, array), form)

    def empty(self, shape: Any, dtype: Any) -> Symbol:
        """A new array of the step's own."""
        form = form_of(shape, dtype)
        return Symbol(self, Buffer("own", -1, form), form)

    def overwrites(self, kept: Sequence[Any], read: Sequence[Any]) -> bool:
        """True if these are whole inputs, each another one, and none is among those that are read: each call sees to it
        that no other array has their memory.
        """
        buffers = [x.buffer for x in kept
                   if type(x) is Symbol and x.buffer.kind == "input" and x.nbytes == x.buffer.size]
        others = {x.buffer for x in read if type(x) is Symbol}
        if len(set(buffers)) < len(kept) or others.intersection(buffers):
            return False
        self.apart += [buffer.number for buffer in buffers]
        return True

    # Lines ------------------------------------------------------------------------------------------------
    def launch(self, entry: Entry, words: Sequence[Any]) -> None:
        """Note a call of an entry. Raises NotBound for memory that the rule has made itself: it would be a constant."""
        _check_constants(words)
        self.lines.append(KernelLine(self.instruction, entry, _copy_writeable(words)))

    def compute(self, ufunc: np.ufunc, inputs: tuple[Any, ...], out: Symbol | None) -> Symbol:
        """Note a call of a ufunc; the result has the shape, the dtype and the layout that NumPy gives it."""
        if not all(type(x) in (Symbol, int, float, bool) or isinstance(x, np.generic | np.ndarray) for x in inputs):
            raise NotBound(f"{ufunc.__name__} of {', '.join(type(x).__name__ for x in inputs)}")
        forms = [_form(x) for x in inputs]
        arrays = [form for form in forms if form is not None]
        given = [np.dtype(bool) if type(x) is bool else type(x) if form is None else form.dtype
                 for x, form in zip(inputs, forms, strict=True)]
        dtype = ufunc.resolve_dtypes((*given, None))[-1]
        if ufunc is np.matmul:
            shape: tuple[int, ...] = _product_shape(*arrays)
        elif ufunc.signature is not None or ufunc.nout != 1:
            raise NotBound(ufunc.__name__)
        else:
            shape = np.broadcast_shapes(*[form.shape for form in arrays])
            if out is None and not all(map(is_c_like, arrays)):
                raise NotBound(f"the layout of {ufunc.__name__}")
        if out is None:
            out = self.empty(shape, dtype)
        elif type(out) is not Symbol or out.shape != shape or out.dtype != dtype:
            raise NotBound(f"another result of {ufunc.__name__}")
        self._compute(ufunc, inputs, out)
        return out

    def _compute(self, function: Callable[..., Any], inputs: tuple[Any, ...], out: Symbol, *options: Any) -> None:
        self.lines.append(NumpyLine(self.instruction, function, _copy_writeable(inputs), out, *options))

    def reduce(self, ufunc: np.ufunc, x: Any, axis: Any = 0, dtype: Any = None, out: Any = None,
               keepdims: bool = False, **options: Any) -> Symbol:
        """Note a sum, or a greatest or least value, along axes."""
        if type(x) is not Symbol or out is not None or options or not is_c_like(x.form) or not x.size:
            raise NotBound(f"{ufunc.__name__}.reduce")
        axes = tuple(range(x.ndim)) if axis is None else tuple([a % x.ndim for a in np.atleast_1d(axis).tolist()])
        kind = np.dtype(dtype) if dtype is not None else x.dtype
        if dtype is None and (ufunc is np.add and x.dtype.kind not in "f"):
            raise NotBound("a sum of integers")
        shape = [1 if k in axes else n for k, n in enumerate(x.shape) if keepdims or k not in axes]
        result = self.empty(shape, kind)
        self._compute(ufunc.reduce, (x,), result, (axes, kind, keepdims))
        return result

    def concatenate(self, arrays: Sequence[Any], axis: int = 0) -> Symbol:
        """As NumPy's, of arrays whose axes are in C order."""
        forms = [_form(x) for x in arrays]
        first = forms[0]
        if first is None or not all(form is not None and is_c_like(form) and all(form.strides) for form in forms):
            raise NotBound("the layout of arrays that are joined")
        sizes = [form.shape[axis] for form in forms if form is not None]
        shape = tuple([sum(sizes) if k == axis % first.ndim else n for k, n in enumerate(first.shape)])
        result = self.empty(shape, np.result_type(*[form.dtype for form in forms if form is not None]))
        self._compute(partial(_concatenate, axis=axis), tuple(arrays), result)
        return result

    def take(self, x: Any, indices: Any, axis: int | None = None) -> Symbol:
        """As NumPy's, along an axis of an array in C order."""
        form, of = _form(x), _form(indices)
        if form is None or of is None or axis is None or not (form.flags.c_contiguous and of.flags.c_contiguous):
            raise NotBound("the layout of what is taken")
        axis %= form.ndim
        result = self.empty((*form.shape[:axis], *of.shape, *form.shape[axis + 1:]), form.dtype)
        self._compute(partial(np.take, axis=axis), (x, indices), result)
        return result

    def where(self, condition: Any, x: Any, y: Any) -> Symbol:
        """As NumPy's, in C order."""
        forms = [_form(value) for value in (condition, x, y)]
        arrays = [form for form in forms if form is not None]
        if forms[0] is None or forms[0].dtype != np.bool_ or not all(map(is_c_like, arrays)):
            raise NotBound("a choice")
        kinds = [value if form is None else form.dtype for value, form in zip((x, y), forms[1:], strict=True)]
        result = self.empty(np.broadcast_shapes(*[form.shape for form in arrays]), np.result_type(*kinds))
        self._compute(_where, (condition, x, y), result)
        return result

    def copied(self, x: Symbol, dtype: np.dtype[Any]) -> Symbol:
        """Note a copy in C order."""
        if not is_c_like(x.form):
            raise NotBound("the layout of a copy")
        result = self.empty(x.shape, dtype)
        self._compute(copied_into, (x,), result)
        return result

    def copy_into(self, value: Any, out: Symbol) -> None:
        """Note that values, or a number, are written into an array."""
        if not (type(value) in (Symbol, int, float, bool) or isinstance(value, np.generic)):
            raise NotBound(f"values of {type(value).__name__}")
        self._compute(copied_into, (value,), out)

    def contiguous(self, x: Symbol) -> Symbol:
        """Note a copy in C order of an array of any layout."""
        result = self.empty(x.shape, x.dtype)
        self._compute(copied_into, (x,), result)
        return result


def _concatenate(*arrays: Any, axis: int, out: Any) -> None:
    np.concatenate(arrays, axis, out=out)


def _where(condition: Any, x: Any, y: Any, out: Any) -> None:
    np.copyto(out, y, "unsafe")
    np.copyto(out, x, "unsafe", where=condition)


def _copy_writeable(values: Sequence[Any]) -> tuple[Any, ...]:
    """The values; an array that the rule may still write to is copied."""
    return tuple([x.copy() if type(x) is np.ndarray and x.flags.writeable else
                  _copy_writeable(x) if type(x) is tuple else x for x in values])


def _check_constants(words: Sequence[Any]) -> None:
    for word in words:
        if type(word) is tuple:
            _check_constants(word)
        elif type(word) is np.ndarray and word.flags.writeable and word.dtype != np.int64:
            raise NotBound("memory that the rule has made itself")


def copied_into(x: Any, out: Any) -> None:
    np.copyto(out, x, "unsafe")


def _form(x: Any) -> np.ndarray | None:
    return x.form if type(x) is Symbol else np.asarray(x) if isinstance(x, np.ndarray | np.generic) else None


def _product_shape(a: np.ndarray, b: np.ndarray) -> tuple[int, ...]:
    if min(a.ndim, b.ndim) < 2 or (max(a.ndim, b.ndim) > 2 and not all(
            x.flags.c_contiguous or x.swapaxes(-1, -2).flags.c_contiguous for x in (a, b))):
        raise NotBound("the layout of a product")
    return (*np.broadcast_shapes(a.shape[:-2], b.shape[:-2]), a.shape[-2], b.shape[-1])


def is_c_like(form: np.ndarray) -> bool:
    """True if the axes along which values are apart have decreasing strides: what NumPy computes is in C order then."""
    steps = [step for step, n in zip(form.strides, form.shape, strict=True) if n > 1 and step]
    return all(step > 0 for step in steps) and steps == sorted(steps, reverse=True)
