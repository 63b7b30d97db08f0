"""The one language of shapes and kinds, for operators, for launches of kernels and for the `Shape:` of docstrings.

    x: real[*rows, width], gain: real[width]?, labels: int32[*rows] -> y: like x, rstd: real[*rows]

An array has a name, a kind and its axes. Kinds are `real` (a float dtype, one for all of a call; 16 bits are
widened), `stored` (the same, of a launch that takes 16 bits as they are), `int32`, `bool` and `any`. An axis is a
name, which stands for one size in the whole call, or a number; `2 width` is twice that size, `width+` has at least
one value, and `*rows` stands for any number of axes. Without brackets an array has any shape; `*arrays: real` takes
any number of them. `?` lets an argument be None. An array is `like` an argument, or a `sum` of parts that the driver
of a launch adds in a fixed order. Where a condition is needed, Python is written.

A launch also takes numbers, `eps: float64`, which may be sizes of a result's axes; `or one` lets an argument be one
number that is broadcast. `own` is memory of the launch's caller, in a layout that only the text knows: it is not
checked, never copied, and the text may write into it; `own int64[*rows]`, and `own`, which is `own real`. A `struct`
is a structure that a CUDA text takes by value.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from duoln.backends.protocol import REALS
from duoln.core.arguments import how_to_unpack, how_to_wrap, kind_name
from duoln.core.storage import common_dtype
from duoln.core.tensor import Tensor
from duoln.errors import DtypeError, MixedBackendError, ShapeError, UsageError

NUMBERS = ("int32", "int64", "float32", "float64")
OF_OPERATORS = ("real", "int32", "bool", "any")
KINDS = ("real", "stored", "bool", "any", "sum", "uint32", "struct", *NUMBERS)
_ARRAY = re.compile(r"(?:(\*?\w+): )?(own\b ?)?(?:like (\w+)|(\w+)?(?:\[([^\]]*)\])?)(\?)?( or one)?$")
_AXIS = re.compile(r"(\*[a-zA-Z_]\w*|\d+|(\d+ )?[a-zA-Z_]\w*\+?)$")


class ArraySpec(NamedTuple):
    """An argument or a result."""

    name: str
    kind: str
    """One of KINDS or NUMBERS, or "like"."""
    axes: tuple[str, ...] | None
    """Names, numbers, and a name after a star; None for any shape, or that of what it is like."""
    optional: bool = False
    like: str | None = None
    """The argument whose shape and dtype a result has."""
    filled: tuple[str, ...] = ()
    """The axes that have at least one value."""
    or_one: bool = False
    """True if a launch also takes one number that is broadcast."""
    own: bool = False
    """True for memory of the caller's own, which is not checked."""

    @property
    def is_number(self) -> bool:
        """True for a number that a launch takes."""
        return self.axes is None and self.kind in (*NUMBERS, "struct") and not self.own


class Spec(NamedTuple):
    """The arguments and the results of an operator or of a launch."""

    inputs: tuple[ArraySpec, ...]
    outputs: tuple[ArraySpec, ...]
    text: str

    @classmethod
    def of(cls, text: str) -> Spec:
        """Read a declaration.

        Raises:
            ValueError: a piece is none, a result's axis is no argument's, or two arguments have one name.
        """
        before, _, after = text.partition("->")
        inputs, outputs = (tuple([_array(piece) for piece in re.split(r",(?![^\[]*\])", side) if piece.strip()])
                           for side in (before, after))
        by_name = {each.name: each for each in inputs}
        if not inputs or len(by_name) < len(inputs):
            raise ValueError(f"expected arguments, each with a name of its own, found {text!r}")
        axes = {axis for each in inputs for axis in each.axes or ((each.name,) if each.is_number else ())}
        for each in (*inputs, *outputs):
            absent = [axis for axis in each.axes or () if axis not in axes and not axis.isdigit()]
            if absent or (each.like is not None and each.like not in by_name):
                raise ValueError(f"expected a result in axes of the arguments, found {absent or each.like} in {text!r}")
        whole = [each if each.like is None else by_name[each.like]._replace(name=each.name, optional=each.optional)
                 for each in inputs]
        return cls(tuple(whole), outputs, text)

    @classmethod
    def of_operator(cls, text: str, function: Callable[..., Any]) -> Spec:
        """Read the declaration of an operator. Raises UsageError, also for an array that `function` does not take."""
        name, code = function.__name__, inspect.unwrap(function).__code__
        count = code.co_argcount + code.co_kwonlyargcount + bool(code.co_flags & inspect.CO_VARARGS)
        taken = code.co_varnames[:count]
        try:
            spec = cls.of(text)
        except ValueError as error:
            raise UsageError(f"[{name}] declaration: {error}") from None
        if spec.inputs[0].optional:
            raise UsageError(f"[{name}] declaration: expected a first array that is never None, found {text!r}")
        for each in spec.inputs:
            if each.name.lstrip("*") not in taken:
                raise UsageError(f"[{name}] declaration: expected arguments of the function, {', '.join(taken)}; found "
                                 f"{each.name!r} in {text!r}")
            if each.kind not in OF_OPERATORS or each.or_one or each.own:
                raise UsageError(f"[{name}] declaration: expected a kind of {', '.join(OF_OPERATORS)}, found "
                                 f"{'own ' * each.own + each.kind + ' or one' * each.or_one!r} in {text!r}")
        return spec

    @property
    def like(self) -> tuple[int | None, ...] | None:
        """For each result the argument as which it is stored, None for float32; see `core.storage`."""
        names = [each.name for each in self.inputs]
        return tuple([names.index(each.like) if each.like else None for each in self.outputs]) or None

    def check(self, name: str, *args: Any) -> None:
        """Check the arguments of the operator `name`.

        Raises:
            DtypeError: one is no tensor, or has another dtype. MixedBackendError: they are on several backends.
            ShapeError: the axes do not fit together; for example `[layer_norm] last axis is 5, gain has 4`.
        """
        for each, x in self._present_arguments(args):
            if each.kind == "real" and not isinstance(x, Tensor):
                raise not_tensor_error(name, x, self._role(each))
        check_float(name, *[x for each, x in self._present_arguments(args) if each.kind == "real"])
        first = next(x for _, x in self._present_arguments(args))
        for each, x in self._present_arguments(args):
            if each.kind in ("int32", "bool"):
                check_beside(name, each.name, x, each.kind, first)
            elif each.kind == "any":
                check_tensors(name, first, x)
        sizes: dict[str, Any] = {}
        for each, x in self._present_arguments(args):
            if each.axes is not None:
                self._check_axes(name, each, x, sizes, first)

    def _present_arguments(self, args: Sequence[Any]) -> list[tuple[ArraySpec, Any]]:
        return [(each, x) for each, x in zip(self.inputs, args, strict=True) if not (x is None and each.optional)]

    def _check_axes(self, name: str, array: ArraySpec, x: Tensor, sizes: dict[str, Any], first: Tensor) -> None:
        """Bind the axes that are new, and compare the others."""
        assert array.axes is not None
        fixed = [axis for axis in array.axes if axis[0] != "*"]
        spare = len(x.shape) - len(fixed)
        if spare < 0 or (spare and len(fixed) == len(array.axes)):
            if all(axis in sizes for axis in array.axes):
                raise self._misfit(name, array, x, sizes, first)
            words = "at least " if len(fixed) < len(array.axes) else ""
            many = "one axis" if len(fixed) == 1 else f"{len(fixed)} axes"
            if len(fixed) == len(array.axes) > 1:
                many += f" ({', '.join(array.axes)})"
            raise ShapeError(f"[{name}] {self._role(array)}expected {words}{many}, found shape {x.shape}")
        place = 0
        for axis in array.axes:
            count = spare if axis[0] == "*" else 1
            size: Any = x.shape[place:place + count] if axis[0] == "*" else x.shape[place]
            place += count
            if axis in array.filled and not size:
                raise ShapeError(f"[{name}] {self._role(array)}expected at least one value along {axis}, found shape "
                                 f"{x.shape}")
            times, _, of = axis.rpartition(" ")
            if times:
                is_right = size % int(times) == 0 and size == int(times) * sizes.setdefault(of, size // int(times))
            else:
                is_right = size == (int(axis) if axis.isdigit() else sizes.setdefault(axis, size))
            if not is_right:
                raise self._misfit(name, array, x, sizes, first)

    def _role(self, array: ArraySpec) -> str:
        return f"{array.name}: " if len(self.inputs) > 1 and array is not self.inputs[0] else ""

    def _misfit(self, name: str, array: ArraySpec, x: Tensor, sizes: dict[str, Any], first: Tensor) -> ShapeError:
        """The error of an argument whose axes are not those of the arguments before it."""
        lead, axes = self.inputs[0], array.axes or ()
        if len(axes) == 1 and axes[0][0] != "*" and lead.axes and axes[0] == lead.axes[-1] and axes[0] in sizes:
            actual = f"has {x.shape[0]}" if len(x.shape) == 1 else f"has shape {x.shape}"
            return ShapeError(f"[{name}] last axis is {sizes[axes[0]]}, {array.name} {actual}")
        wanted = [n for axis in axes for n in (sizes[axis] if axis[0] == "*" else (sizes.get(axis, axis),))]
        shape = f"({', '.join(map(str, wanted))}{',' if len(wanted) == 1 else ''})"
        if array is lead:
            expected = f"shape {shape}"
        else:
            expected = (f"the shape of {lead.name}, {shape}" if axes == lead.axes else
                        f"shape {shape} for {lead.name} {first.shape}")
        return ShapeError(f"[{name}] {self._role(array)}expected {expected}, found {x.shape}")

    def test(self) -> str:
        """The condition, in Python, under which `check` finds nothing: of all common calls, and of no wrong one.

        Arguments are names; `Tensor` is that class. Arguments of several float dtypes are left to `check`.
        """
        lead = self.inputs[0]
        bound: dict[str, str] = {}
        parts: list[str] = []
        for each in self.inputs:
            if each.optional and each.axes and not {axis.rpartition(" ")[2] for axis in each.axes} <= set(bound):
                return "False"  # an axis of an argument that may be None is none of the others'
            x = each.name
            tests = [f"type({x}) is Tensor"]
            if each is not lead:
                tests.append(f"{x}.backend is {lead.name}.backend")
            if each.kind == "real":
                tests.append(f"{x}.data.dtype in {x}.backend.wide" if each is lead or lead.kind != "real" else
                             f"{x}.data.dtype == {lead.name}.data.dtype")
            elif each.kind != "any":
                tests.append(f"{x}.data.dtype == {x}.backend.natives[{each.kind!r}]")
            tests += _axes_tests(each, bound)
            whole = " and ".join(tests)
            parts.append(f"({x} is None or {whole})" if each.optional else whole)
        return " and ".join(parts)


def _axes_tests(array: ArraySpec, bound: dict[str, str]) -> list[str]:
    """The conditions on one argument's axes; binds the axes that are new to expressions."""
    if array.axes is None:
        return []
    shape, count = f"{array.name}.data.shape", len(array.axes)
    star = next((place for place, axis in enumerate(array.axes) if axis[0] == "*"), count)
    if star == count and all(axis in bound for axis in array.axes):
        return [f"{shape} == ({''.join(f'{bound[axis]}, ' for axis in array.axes)})"]
    tests = [f"len({shape}) {'==' if star == count else '>='} {count - (star < count)}"] if count > 1 or star else []
    for place, axis in enumerate(array.axes):
        from_end = place - count
        if place == star:
            size = f"{shape}[{star or ''}:{from_end + 1 or ''}]" if count > 1 else shape
        else:
            size = f"{shape}[{place if place < star else from_end}]"
        times, _, of = axis.rpartition(" ")
        if axis.isdigit():
            tests.append(f"{size} == {axis}")
        elif times and of in bound:
            tests.append(f"{size} == {times} * {bound[of]}")
        elif times:
            tests.append(f"{size} % {times} == 0")
            bound[of] = f"{size} // {times}"
        elif axis in bound:
            tests.append(f"{size} == {bound[axis]}")
        else:
            bound[axis] = size
        if axis in array.filled:
            tests.append(size)
    return tests


def _array(piece: str) -> ArraySpec:
    match = _ARRAY.match(" ".join(piece.split()))
    if not match:
        raise ValueError(f"expected 'name: kind', 'name: kind[axes]' or 'like name', found {piece!r}")
    name, own, like, kind, axes, optional, or_one = match.groups()
    kind = kind or ("real" if own else kind)
    if like is None and kind not in KINDS:
        raise ValueError(f"expected a kind of {', '.join(KINDS)}, found {kind!r} in {piece!r}")
    words = [axis.strip() for axis in (axes or "").split(",") if axis.strip()]
    wrong = [word for word in words if not _AXIS.match(word)]
    if wrong or sum(word[0] == "*" for word in words) > 1:
        raise ValueError(f"expected axes such as width, 4, 2 width, width+, and at most one *rows, found {piece!r}")
    named = None if axes is None else tuple([word.rstrip("+") for word in words])
    filled = tuple([word[:-1] for word in words if word.endswith("+")])
    return ArraySpec(name or "y", kind or "like", named, bool(optional), like, filled, bool(or_one), bool(own))


def check_tensors(name: str, *tensors: Any) -> None:
    """Check that all arguments are tensors of one backend; their dtypes may differ.

    Raises:
        DtypeError: one is not a tensor; the message says what to do. MixedBackendError: they are on several backends.
    """
    for x in tensors:
        if not isinstance(x, Tensor):
            raise not_tensor_error(name, x)
        if x.backend is not tensors[0].backend:
            raise MixedBackendError(f"[{name}] expected one backend, found {tensors[0].backend.name} and "
                                    f"{x.backend.name}")


def check_float(name: str, *tensors: Any) -> None:
    """Raises DtypeError unless all are float tensors that belong together, MixedBackendError if on several backends.

    Those of one dtype do, and those of float32 and one dtype of 16 bits.
    """
    backend = dtype = None
    for x in tensors:
        if not isinstance(x, Tensor):
            raise not_tensor_error(name, x)
        if x.backend is backend and x.data.dtype == dtype:  # native dtypes compare faster than their names
            continue
        if x.dtype not in REALS:
            raise DtypeError(f"[{name}] expected a float dtype, found {x.dtype}; convert with astype")
        if backend is None:
            backend, dtype = x.backend, x.data.dtype
        elif x.backend is not backend:
            raise MixedBackendError(f"[{name}] expected one backend, found {backend.name} and {x.backend.name}")
        else:
            common_dtype(name, [t.dtype for t in tensors if isinstance(t, Tensor)])


def check_beside(name: str, role: str, x: Any, dtype: str, like: Tensor) -> None:
    """Raises DtypeError unless `x` is a tensor of that dtype, MixedBackendError unless `like` has the same backend."""
    if not isinstance(x, Tensor) or x.dtype != dtype:
        raise DtypeError(f"[{name}] {role}: expected {'an' if dtype[0] == 'i' else 'a'} {dtype} tensor, "
                         f"found {x.dtype if isinstance(x, Tensor) else _described_and_remedied(x)}")
    if x.backend is not like.backend:
        raise MixedBackendError(f"[{name}] expected one backend, found {like.backend.name} and {x.backend.name}")


def not_tensor_error(name: str, value: Any, role: str = "") -> DtypeError:
    """The error for an argument that should have been a tensor; `role` is its name, with a colon."""
    if isinstance(value, list | tuple) and any(isinstance(x, Tensor) for x in value):
        remedy = f"give the tensors one by one, {name}(x, y)"
    elif how_to_unpack(value) == "give list(x)":
        remedy = f"give its tensors one by one, {name}(*list(x))"
    else:
        return DtypeError(f"[{name}] {role}expected a duoln.Tensor, found {_described_and_remedied(value)}")
    return DtypeError(f"[{name}] {role}expected a duoln.Tensor, found {kind_name(type(value))}; {remedy}")


def _described_and_remedied(value: Any) -> str:
    """The kind of a value that is no tensor, and what makes a tensor of it."""
    return "None" if value is None else f"{kind_name(type(value))}; {how_to_wrap(value)}"
