"""A Tensor: a native array, the backend it lives on, and its place on a tape, if any."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Union

import numpy as np

from duoln.core.arguments import described
from duoln.errors import DtypeError, GradientError, ShapeError

if TYPE_CHECKING:
    from duoln.backends.protocol import Array, Backend
    from duoln.core.tape import Node

Operand = Union["Tensor", float, int]

OPERATORS: dict[str, Callable[..., Any]] = {}
"""The functions behind the methods below, by name. `duoln.ops` fills it; core does not know the operators."""


class Tensor:
    """An immutable array on one backend.

    Tensors come from `duoln.tensor` and from operators. Mixed dtypes or backends in one operation raise;
    Python numbers take the dtype of the tensor they meet.
    """

    __slots__ = ("backend", "data", "node")
    __array_ufunc__ = None  # numpy_array * tensor must reach our __rmul__, which explains the mistake

    def __init__(self, data: Array, backend: Backend, node: Node | None = None) -> None:
        self.data = data
        self.backend = backend
        self.node = node

    @property
    def shape(self) -> tuple[int, ...]:
        shape: tuple[int, ...] = self.data.shape
        return shape

    @property
    def ndim(self) -> int:
        return len(self.data.shape)

    @property
    def size(self) -> int:
        return int(self.data.size)

    @property
    def dtype(self) -> str:
        return self.backend.dtype(self.data)

    def numpy(self) -> np.ndarray:
        """The values on the host, as a copy. Waits for the device."""
        return self.backend.to_numpy(self.data)

    def item(self) -> float | int | bool:
        """The one value as a Python number.

        Raises:
            ShapeError: the tensor has more or fewer than one value.
        """
        if self.size != 1:
            raise ShapeError(f"[item] expected one value, found shape {self.shape}")
        value: float | int | bool = self.numpy().item()
        return value

    def __deepcopy__(self, memo: dict[int, Any]) -> Tensor:
        """A tensor with values of its own: an optimiser that donates may overwrite those of the original.

        Raises:
            GradientError: the tensor is part of a gradient that is still being computed.
        """
        if self.node is not None and not self.node.tape.closed:
            raise GradientError(f"[deepcopy] expected a tensor outside a gradient, found one of shape {self.shape} "
                                "whose gradient would be lost; copy stop_gradient(x)")
        return Tensor(self.backend.asarray(self.data), self.backend)

    def __reduce__(self) -> tuple[Callable[..., Tensor], tuple[np.ndarray, Backend]]:
        return _from_host, (self.numpy(), self.backend)

    def __copy__(self) -> Tensor:
        return Tensor(self.data, self.backend, self.node)

    def __float__(self) -> float:
        return float(self.item())

    def __bool__(self) -> bool:
        return bool(self.item())

    def __len__(self) -> int:
        if not self.shape:
            raise DtypeError("[len] expected a tensor with axes, found one of no dimensions")
        return self.shape[0]

    def __iter__(self) -> Iterator[Tensor]:
        """The slices along the first axis."""
        if not self.shape:
            raise DtypeError("[iter] expected a tensor with axes, found one of no dimensions")
        return iter(OPERATORS["unstack"](self))

    def __repr__(self) -> str:
        return f"Tensor(shape={self.shape}, dtype={self.dtype}, backend={self.backend.name})"

    def __add__(self, other: Operand) -> Tensor:
        return OPERATORS["add"](self, other)

    def __radd__(self, other: Operand) -> Tensor:
        return OPERATORS["add"](other, self)

    def __sub__(self, other: Operand) -> Tensor:
        return OPERATORS["subtract"](self, other)

    def __rsub__(self, other: Operand) -> Tensor:
        return OPERATORS["subtract"](other, self)

    def __mul__(self, other: Operand) -> Tensor:
        return OPERATORS["multiply"](self, other)

    def __rmul__(self, other: Operand) -> Tensor:
        return OPERATORS["multiply"](other, self)

    def __truediv__(self, other: Operand) -> Tensor:
        return OPERATORS["divide"](self, other)

    def __rtruediv__(self, other: Operand) -> Tensor:
        return OPERATORS["divide"](other, self)

    def __pow__(self, exponent: float) -> Tensor:
        return OPERATORS["power"](self, exponent=exponent)

    def __rpow__(self, base: object) -> Tensor:
        return OPERATORS["power"](base, exponent=self)

    def __neg__(self) -> Tensor:
        return OPERATORS["negative"](self)

    def __matmul__(self, other: Tensor) -> Tensor:
        return OPERATORS["matmul"](self, other)

    def __rmatmul__(self, other: object) -> Tensor:
        return OPERATORS["matmul"](other, self)

    def __eq__(self, other: object) -> Tensor:  # type: ignore[override]
        return OPERATORS["equal"](self, other)

    def __ne__(self, other: object) -> Tensor:  # type: ignore[override]
        return OPERATORS["not_equal"](self, other)

    __hash__ = object.__hash__

    def __lt__(self, other: Operand) -> Tensor:
        return OPERATORS["less"](self, other)

    def __le__(self, other: Operand) -> Tensor:
        return OPERATORS["less_equal"](self, other)

    def __gt__(self, other: Operand) -> Tensor:
        return OPERATORS["greater"](self, other)

    def __ge__(self, other: Operand) -> Tensor:
        return OPERATORS["greater_equal"](self, other)

    def __getitem__(self, key: Any) -> Tensor:
        return OPERATORS["getitem"](self, key=key)


def _from_host(values: np.ndarray, backend: Backend) -> Tensor:
    return Tensor(backend.asarray(values), backend)


def stop_gradient(x: Tensor) -> Tensor:
    """The same values, off the tape: no gradient flows back through the result.

    Raises:
        DtypeError: no tensor.
    """
    if not isinstance(x, Tensor):
        raise DtypeError(f"[stop_gradient] expected a duoln.Tensor, found {described(x)}")
    return Tensor(x.data, x.backend)
