"""The ways in which one array can lie in memory.

    for layout in layouts_of(values, backend.name):
        view = layout.place(backend, values)

Each view has the values, or (`same_values` is False) values that are alike along an axis. What lies between and around
them is NaN, and the largest integer where the array holds integers, so that a rule which reads it is found. Views on
NumPy cannot be written to.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from duoln.backends.protocol import Array, Backend

_POISON = {"f": np.nan, "i": np.iinfo(np.int32).max, "b": True}


@dataclass(frozen=True)
class Layout:
    """One way: the axes in the order in which memory has them, the step along each, and what lies around.

    Attributes:
        order: the axes, the one with the widest stride first, from their number.
        steps: of each axis in memory, from their number; negative where the axis lies the wrong way round.
        border: values on both sides of each axis that do not belong to the view.
        bytes_off: how far behind an aligned address the view begins.
        unit_step: the stride of axes of length 1 in values; None leaves it as it comes.
        alike: the axis along which all values are one value in memory; None for none.
        margin: values before and behind the block in which the view lies: a wrong step of a few ends in them.
    """

    name: str
    order: Callable[[int], Sequence[int]] = range
    steps: Callable[[int], Sequence[int]] = lambda axes: [1] * axes
    border: int = 0
    bytes_off: int = 0
    unit_step: int | None = None
    alike: int | None = None
    margin: int = 64

    def __str__(self) -> str:
        return self.name

    @property
    def same_values(self) -> bool:
        """Whether the view has the values that it was made from."""
        return self.alike is None

    def place(self, backend: Backend, values: np.ndarray) -> Array:
        """The view, as an array of the backend."""
        if self.alike is not None:
            return backend.broadcast_to(backend.asarray(np.take(values, [0], self.alike)), values.shape)
        order, steps = list(self.order(values.ndim)), self.steps(values.ndim)
        sizes = [max(n - 1, 0) * abs(s) + min(n, 1) + 2 * self.border for n, s in zip(values.shape, steps, strict=True)]
        key = tuple(slice(self.border, n - self.border, abs(s)) for n, s in zip(sizes, steps, strict=True))
        turns = [i for i, s in enumerate(steps) if s < 0]
        block = np.full(sizes, _POISON[values.dtype.kind], values.dtype)
        block[key] = np.flip(values, turns)
        flat = np.pad(block.transpose(order).reshape(-1), self.margin, constant_values=_POISON[values.dtype.kind])
        back = tuple(order.index(i) for i in range(values.ndim))
        block_view = backend.reshape(self._moved(backend, flat)[self.margin:self.margin + block.size], tuple(sizes[i] for i in order))
        view = backend.permute_dims(block_view, back)[key]
        for axis in turns:
            view = backend.flip(view, axis)
        return _sealed(view, self.unit_step) if backend.name == "numpy" else view

    def _moved(self, backend: Backend, flat: np.ndarray) -> Array:
        if not self.bytes_off:
            return backend.asarray(flat)
        raw = np.zeros(flat.nbytes + self.bytes_off, np.uint8)
        moved = raw[self.bytes_off:].view(flat.dtype)
        moved[...] = flat
        return moved


def _sealed(view: np.ndarray, unit_step: int | None) -> np.ndarray:
    strides = view.strides
    if unit_step is not None:
        strides = tuple(unit_step * view.itemsize if n == 1 or not view.size else s
                        for n, s in zip(view.shape, strides, strict=True))
    return np.lib.stride_tricks.as_strided(view, strides=strides, writeable=False)


def _turned(axis: int) -> Callable[[int], list[int]]:
    return lambda axes: [-1 if i == axis % axes else 1 for i in range(axes)]


PLAIN = Layout("plain")
ANYWHERE = (
    Layout("Fortran order", order=lambda axes: range(axes)[::-1]),
    Layout("last axes swapped", order=lambda axes: [*range(axes - 2), axes - 1, axes - 2]),
    Layout("first axis innermost", order=lambda axes: [*range(1, axes), 0]),
    Layout("every second value", steps=lambda axes: [2] * axes),
    Layout("every third, turned", steps=lambda axes: [-3] * axes),
    Layout("first axis turned", steps=_turned(0)),
    Layout("last axis turned", steps=_turned(-1)),
    Layout("cut out", border=1),
    Layout("cut out, turned, Fortran order", order=lambda axes: range(axes)[::-1], steps=lambda axes: [-1] * axes, border=2),
    Layout("one value along the first axis", alike=0),
    Layout("one value along the last axis", alike=-1),
)
"""Those that every library can make."""
OF_NUMPY = (
    Layout("at an odd byte", bytes_off=1),
    Layout("every second value at an odd byte", steps=lambda axes: [2] * axes, bytes_off=3),
    Layout("axes of length 1 stand still", unit_step=0),
    Layout("axes of length 1 step far", unit_step=7),
    Layout("axes of length 1 step back", unit_step=-5),
)
FAR = Layout("axes of length 1 step out of memory", unit_step=1 << 40)
"""Only where a fault is a result: a rule that takes the step ends the process."""


def layouts_of(values: np.ndarray, library: str) -> list[Layout]:
    """The layouts that make a difference to an array."""
    if not values.ndim:
        return [one for one in OF_NUMPY if one.bytes_off == 1] if library == "numpy" else []
    long = sum(n > 1 for n in values.shape)
    chosen = []
    for layout in (*ANYWHERE, *(OF_NUMPY if library == "numpy" else ())):
        if layout.unit_step is not None and long == values.ndim:
            continue
        if layout.order(values.ndim) != range(values.ndim) and (values.ndim < 2 or (long < 2 and values.size)):
            continue
        if layout.bytes_off and values.itemsize == 1:
            continue
        if not layout.same_values and (values.shape[layout.alike or 0] <= 1):
            continue
        chosen.append(layout)
    return chosen
