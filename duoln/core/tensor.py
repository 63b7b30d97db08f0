"""A Tensor: a native array, the backend it lives on, and its place on a tape, if any."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from typing import Any, Never, Union, cast

import numpy as np

from duoln.backends.protocol import Array, Axis, Backend
from duoln.core.arguments import described
from duoln.core.pytorch_names import OF_TENSORS, hinted, name_missing, present_names, refuse_operators
from duoln.core.step.repeated import constant, read_on_host, repeated
from duoln.core.tape import Node
from duoln.errors import CallError, CompileError, DtypeError, GradientError, GradientWarning, ShapeError

Operand = Union["Tensor", float, int]

_NONE: Any = None
_MOST_SHOWN = 1000
"""The largest number of values that is printed in full; NumPy has the same limit."""

_NUMBERS = {"float": 3, "int": 3, "item": 4}
"""The functions that make a number of a tensor, and how many frames above the warning their caller is."""
_COMPARISONS = "equal", "not_equal", "less", "less_equal", "greater", "greater_equal"
_SAME = "add", "subtract", "multiply", "divide", "floor_divide", "remainder", "matmul"
_OF_UFUNCS = {**{name: name for name in (*_SAME, *_COMPARISONS)},
              "power": "pow", "bitwise_and": "logical_and", "bitwise_or": "logical_or"}
"""The operators of the ufuncs that Python's operators on a NumPy value call."""

OPERATORS: dict[str, Callable[..., Tensor]] = {}
"""All operators by name, for the methods below and for advice. `duoln.ops` fills it; core does not know them."""


def _operator(name: str) -> tuple[Callable[[Any, Operand], Tensor], Callable[[Any, Operand], Tensor]]:
    """The methods by which Python computes an operator with a tensor on its left, and with one on its right alone."""
    def of_left(x: Tensor, y: Operand) -> Tensor:
        return OPERATORS[name](x, y)

    def of_right(x: Tensor, y: Operand) -> Tensor:
        return OPERATORS[name](y, x)

    return of_left, of_right


class _Size(int):
    """A number of values, which is no method as PyTorch's `size` is."""

    def __call__(self, *axis: Any) -> Never:
        raise CallError("[size] expected x.size, a number, found a call of it; in duoln: `x.shape`, `x.shape[0]`")


class Tensor:
    """An immutable array on one backend.

    Tensors come from `duoln.tensor` and from operators. Mixed dtypes or backends in one operation raise an error.
    A Python number takes the dtype of the tensor beside it. `x += y` makes a new tensor and binds `x` to it: no
    operation writes into a tensor.

    Comparisons, also `==` and `!=`, are elementwise and give bool tensors. The hash of a tensor depends on its
    identity, not on its values, so that it can be a key. `in` and `list.index` do not work with tensors, because they
    compare by `==`.

        >>> x = duoln.tensor([[1.0, 2.0], [3.0, 4.0]])
        >>> (2 * x + 1).sum().item(), x[:, 0].tolist()
        (24.0, [1.0, 3.0])

    Attributes:
        data: the array of the backend's own library: NumPy's, MLX's or CuPy's. Do not write into it.
        backend: where the tensor is, as `duoln.backend` gives it.
        node: its place on the tape of a gradient that is being computed; else None.
    """

    __slots__ = ("backend", "data", "node")

    def __init__(self, data: Array, backend: Backend = _NONE, node: Node | None = None) -> None:
        if backend is None:
            raise CallError("[Tensor] expected an array of a backend and that backend; duoln.tensor(x) makes a tensor "
                            "of numbers, lists and NumPy arrays")
        self.data = data
        self.backend = backend
        self.node = node

    @property
    def shape(self) -> tuple[int, ...]:
        """The sizes of the axes."""
        shape: tuple[int, ...] = self.data.shape
        return shape

    @property
    def ndim(self) -> int:
        """The number of axes."""
        return len(self.data.shape)

    @property
    def size(self) -> int:
        """The number of values."""
        return _Size(self.data.size)

    @property
    def dtype(self) -> str:
        """The name of the dtype, such as "float32"."""
        return self.backend.dtype(self.data)

    @hinted
    def numpy(self) -> np.ndarray:
        """The values on the host, as a copy; those of bfloat16 as float32, which is exact. Waits for the device.

        Raises:
            GradientError: the tensor is part of a gradient that is still being computed, where its values on the host
                would be constants; `stop_gradient(x).numpy()` says that constants are meant.
        """
        return self._on_host("numpy")

    def _on_host(self, name: str) -> np.ndarray:
        """The values for the function `name`, which its error names."""
        read_on_host(self.data)
        values = self.backend.to_numpy(self.data)
        self._refuse_recorded(name)
        return values

    def _refuse_recorded(self, name: str) -> None:
        if self._is_recorded():
            raise GradientError(f"[{name}] expected a tensor outside a gradient, found one of shape {self.shape} whose "
                                "gradient would be lost: NumPy's values are constants. Operators of duoln.ops have "
                                "gradients; duoln.stop_gradient(x) is for values that are meant as constants")

    def _is_recorded(self) -> bool:
        """True if a gradient that is still being computed needs this tensor."""
        return self.node is not None and not self.node.tape.closed

    @property
    def T(self) -> Tensor:
        """The transposed matrix.

        Raises:
            ShapeError: the tensor has not two axes; `ops.permute_dims` takes any number.
        """
        if self.ndim != 2:
            raise ShapeError(f"[T] expected two axes, found shape {self.shape}; use ops.permute_dims")
        return OPERATORS["permute_dims"](self, axes=(1, 0))

    @hinted
    def sum(self, axis: Axis = None, keepdims: bool = False) -> Tensor:
        """The sum along axes; None means all axes."""
        return OPERATORS["sum"](self, axis=axis, keepdims=keepdims)

    @hinted
    def mean(self, axis: Axis = None, keepdims: bool = False) -> Tensor:
        """The arithmetic mean along axes; None means all axes."""
        return OPERATORS["mean"](self, axis=axis, keepdims=keepdims)

    @hinted
    def max(self, axis: Axis = None, keepdims: bool = False) -> Tensor:
        """The greatest value along axes; None means all axes."""
        return OPERATORS["max"](self, axis=axis, keepdims=keepdims)

    @hinted
    def min(self, axis: Axis = None, keepdims: bool = False) -> Tensor:
        """The smallest value along axes; None means all axes."""
        return OPERATORS["min"](self, axis=axis, keepdims=keepdims)

    def reshape(self, *shape: Any) -> Tensor:
        """The same values in another shape: `x.reshape(4, 3)`, or `x.reshape((4, 3))`; one entry may be -1."""
        whole = shape[0] if len(shape) == 1 and isinstance(shape[0], tuple | list) else shape
        return OPERATORS["reshape"](self, shape=tuple(whole))

    @hinted
    def astype(self, dtype: str) -> Tensor:
        """The values in another dtype."""
        return OPERATORS["astype"](self, dtype=dtype)

    @hinted
    def item(self) -> float | int | bool:
        """The only value as a Python number. Inside a gradient it is a constant, of which a GradientWarning tells.

        Raises:
            ShapeError: the tensor has not exactly one value.
        """
        return self._only_value("item")

    def _only_value(self, name: str, advice: str = "") -> float | int | bool:
        """As `item`, for the function `name`, which its error names."""
        if self.size != 1:
            raise ShapeError(f"[{name}] expected one value, found shape {self.shape}{advice}")
        read_on_host(self.data)
        value: float | int | bool = self.backend.to_numpy(self.data).item()
        if name in _NUMBERS and self._is_recorded():
            warnings.warn(f"[{name}] found a tensor inside a gradient: the number is a constant, without a gradient. "
                          "Operators take x itself; duoln.stop_gradient(x) is for numbers that are meant as constants, "
                          "such as those of a log", GradientWarning, stacklevel=_NUMBERS[name])
        return value

    @hinted
    def tolist(self) -> Any:
        """The values as nested lists of Python numbers; a number for a tensor without axes."""
        return self._on_host("tolist").tolist()

    def __deepcopy__(self, memo: dict[int, Any]) -> Tensor:
        """A tensor with its own copy of the values, because an optimizer that donates may overwrite the original.

        Raises:
            GradientError: the tensor is part of a gradient that is still being computed.
        """
        if self._is_recorded():
            raise GradientError(f"[deepcopy] expected a tensor outside a gradient, found one of shape {self.shape} "
                                "whose gradient would be lost; copy stop_gradient(x)")
        return Tensor(repeated(self.backend.asarray, self.data), self.backend)

    def __reduce__(self) -> tuple[Callable[..., Tensor], tuple[np.ndarray, Backend, str]]:
        return _from_host, (self.numpy(), self.backend, self.dtype)

    def __copy__(self) -> Tensor:
        return Tensor(self.data, self.backend, self.node)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        """The values for NumPy's functions, always a copy, so that a change of the array never changes the tensor.

        Raises:
            ValueError: the caller asked for `copy=False`. GradientError: as `numpy`.
        """
        if copy is False:
            raise ValueError("[array] expected copy=None or copy=True, found copy=False: a tensor's values are copied")
        values = self._on_host("array")
        return values if dtype is None else values.astype(dtype)

    def __dlpack__(self, *, stream: Any = None, max_version: tuple[int, int] | None = None,
                   dl_device: tuple[int, int] | None = None, copy: bool | None = None) -> Any:
        """The memory of the values for another library's `from_dlpack`, without a copy where that library can take it.

        A copy leaves if `copy` is True, and of values that are reversed, a scalar, or at an address that is not
        aligned. A library that gives no `max_version`, as JAX, gets a copy of what is read-only or strided.
        NumPy's memory is exported as read-only. PyTorch and CuPy have no such arrays: what they write there changes
        this tensor, and what is computed from it later. On a GPU the consumer's `stream` waits for the work that is
        queued. The arguments and their meaning are those of the array API standard.

        Raises:
            BufferError: the library has no such dtype or device, or `copy` is False where a copy is needed.
            GradientError: as `numpy`. CompileError: inside a compiled step.
        """
        read_on_host(self.data)
        self._refuse_recorded("dlpack")
        if self.dtype == "bfloat16" and self.backend.name != "mlx":
            raise BufferError(f"[dlpack] expected a dtype that {self.backend.name} has, found bfloat16; export "
                              "x.astype('float32')")
        is_old = max_version is None or max_version[0] < 1
        exported = self.backend.exported(self.data, is_old, copy)
        return exported.__dlpack__(stream=stream, max_version=max_version, dl_device=dl_device, copy=copy)

    def __dlpack_device__(self) -> tuple[int, int]:
        """The type and the number of the device: (1, 0) is the host, (2, n) a CUDA device, (8, 0) Metal."""
        device: tuple[int, int] = self.data.__dlpack_device__() if self.backend.name != "numpy" else (1, 0)
        return device

    def __array_function__(self, function: Callable[..., Any], types: Any, args: Any, kwargs: Any) -> Any:
        """NumPy's functions, such as `np.mean(x)`, take the values as arrays and return NumPy's result."""
        name = function.__name__
        return function(*_on_host(args, name), **_on_host(kwargs, name))

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **kwargs: Any) -> Tensor:
        """Arithmetic with a NumPy number on its left, `np.float32(2) * x`, is the tensor's. Other ufuncs are refused.

        Raises:
            DtypeError: the ufunc was called, as in `np.exp(x)`; the message names the operator, if there is one.
        """
        name = ufunc.__name__
        if method == "__call__" and not kwargs and not isinstance(inputs[0], Tensor) and name in _OF_UFUNCS:
            left, *others = inputs
            if name in _COMPARISONS and isinstance(left, np.ndarray) and not left.ndim:
                left = left[()]  # NumPy makes an array of the number that it compares
            return OPERATORS[_OF_UFUNCS[name]](left, *others)
        called = name if method == "__call__" else f"{name}.{method}"
        operator = _OF_UFUNCS.get(name, name)
        ours = f"ops.{operator}, or " if method == "__call__" and operator in OPERATORS else ""
        raise DtypeError(f"[{name}] expected NumPy arrays for np.{called}, found a duoln.Tensor; use {ours}"
                         f"np.{called}(x.numpy()) for values on the host")

    def __setitem__(self, key: Any, value: Any) -> Never:
        raise DtypeError("[setitem] expected a new tensor, found an assignment to a part of one, which is immutable; "
                         "use ops.where(mask, x, y) or ops.concat(x, y)")

    def __dir__(self) -> list[str]:
        """The attributes that a tensor has, without the names of PyTorch's that only have an error."""
        return present_names(self, super().__dir__())

    def __format__(self, form: str) -> str:
        """One value in a number's format, such as `f"{loss:.3f}"`; without a format, as `str`."""
        return format(self._only_value("format"), form) if form else str(self)

    def __round__(self, digits: int | None = None) -> float | int:
        return round(self._only_value("round"), digits)

    def __float__(self) -> float:
        return float(self._only_value("float"))

    def __int__(self) -> int:
        return int(self._only_value("int"))

    def __index__(self) -> int:
        if self.dtype != "int32" or self.size != 1:
            raise DtypeError(f"[index] expected one int32 value, found shape {self.shape} of {self.dtype}")
        return int(self.item())

    def __bool__(self) -> bool:
        return bool(self._only_value("bool", "; ops.any, ops.all and ops.where take several"))

    def __len__(self) -> int:
        if not self.shape:
            raise DtypeError("[len] expected a tensor with axes, found one of no dimensions; x.numpy() is what another "
                             "library takes")
        return self.shape[0]

    def __iter__(self) -> Iterator[Tensor]:
        """The slices along the first axis."""
        if not self.shape:
            raise DtypeError("[iter] expected a tensor with axes, found one of no dimensions")
        return iter(cast(Any, OPERATORS["unstack"])(self))

    def __repr__(self) -> str:
        """Values as NumPy prints them, cut where there are many. A compiled step reads no values: the form only."""
        form = f"shape={self.shape}, dtype={self.dtype}, backend={self.backend.name}"
        try:
            read_on_host(self.data)
            values = self.backend.to_numpy(self.data)
        except CompileError:
            return f"Tensor({form})"
        return f"Tensor({np.array2string(values, separator=', ', prefix='Tensor(', threshold=_MOST_SHOWN)}, {form})"

    __add__, __radd__ = _operator("add")
    __sub__, __rsub__ = _operator("subtract")
    __mul__, __rmul__ = _operator("multiply")
    __truediv__, __rtruediv__ = _operator("divide")
    __floordiv__, __rfloordiv__ = _operator("floor_divide")
    __mod__, __rmod__ = _operator("remainder")
    __pow__, __rpow__ = _operator("pow")
    __matmul__, __rmatmul__ = _operator("matmul")
    __and__, __rand__ = _operator("logical_and")
    __or__, __ror__ = _operator("logical_or")
    __lt__, __gt__ = _operator("less")[0], _operator("greater")[0]
    __le__, __ge__ = _operator("less_equal")[0], _operator("greater_equal")[0]
    __eq__, __ne__ = _operator("equal")[0], _operator("not_equal")[0]  # type: ignore[assignment]
    __hash__ = object.__hash__

    def __divmod__(self, y: Operand) -> tuple[Tensor, Tensor]:
        return self // y, self % y

    def __rdivmod__(self, x: Operand) -> tuple[Tensor, Tensor]:
        return x // self, x % self

    def __neg__(self) -> Tensor:
        return OPERATORS["negative"](self)

    def __pos__(self) -> Tensor:
        return self

    def __abs__(self) -> Tensor:
        return OPERATORS["abs"](self)

    def __invert__(self) -> Tensor:
        return OPERATORS["logical_not"](self)

    def __getitem__(self, key: Any) -> Tensor:
        return OPERATORS["getitem"](self, key=key)


name_missing(Tensor, OF_TENSORS)
refuse_operators(Tensor)


def _on_host(values: Any, name: str) -> Any:
    """Tuples, lists and dicts of arguments of np.NAME, with NumPy arrays instead of tensors."""
    if isinstance(values, Tensor):
        return values._on_host(name)
    if isinstance(values, dict):
        return {key: _on_host(value, name) for key, value in values.items()}
    return type(values)(_on_host(value, name) for value in values) if isinstance(values, tuple | list) else values


def constant_tensor(native: Array, backend: Backend) -> Tensor:
    """A tensor whose values depend on no other tensor: a compiled step that makes it may keep it."""
    return Tensor(constant(native), backend)


def _from_host(values: np.ndarray, backend: Backend, dtype: str) -> Tensor:
    return constant_tensor(backend.asarray(values, dtype), backend)


@hinted
def stop_gradient(x: Tensor) -> Tensor:
    """The same values as a constant: no gradient flows back through the result.

    Raises:
        DtypeError: `x` is not a tensor.
    """
    if not isinstance(x, Tensor):
        raise DtypeError(f"[stop_gradient] expected a duoln.Tensor, found {described(x)}")
    return Tensor(x.data, x.backend)
