"""The meaning of each entry of a tensor: which feature of which layer, and which position.

A tensor's coordinates are arrays of int32 that broadcast to its shape. One of them says for each entry its place along
an axis that the tensor, or one before it, had: of features, or of positions. Operators that move values move the
coordinates too. -1 is at entries to which a coordinate does not apply.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

import numpy as np

from duoln.backends.protocol import Shape

Kind = Literal["feature", "position", "order", "unknown"]
"""An order says where PyTorch has each entry of a flattened image; the unknown begins at what is not followed."""


@dataclass(eq=False)
class Coordinate:
    """One axis of some tensor; no two are equal.

    Attributes:
        kind: of what the axis is.
        born: a number that grows; of an operator that is not followed, its name.
        layers: the paths of the layers whose own arrays have that axis as their outputs.
        is_first: whether PyTorch has these features as the first axis after the batch.
        part: of several flattened images side by side, which one.
    """

    kind: Kind
    born: Any
    layers: frozenset[str] = frozenset()
    is_first: bool = False
    part: object = None


Coordinates = dict[Coordinate, np.ndarray]


class TracedInput(NamedTuple):
    """A tensor that an operator gets: its coordinates and its shape."""

    coordinates: Coordinates
    shape: Shape


def arange_along(axis: int, ndim: int, size: int) -> np.ndarray:
    """0 .. size - 1 along one axis, of size 1 along the others."""
    return np.arange(size, dtype=np.int32).reshape([size if k == axis else 1 for k in range(ndim)])


def new_coordinates(shape: Shape, born: int, layers: frozenset[str] = frozenset(),
                    is_first: bool = False) -> Coordinates:
    """A position along every axis but the last, which is of features."""
    last = len(shape) - 1
    return {Coordinate("feature" if axis == last else "position", born, *((layers, is_first) if axis == last else ())):
            arange_along(axis, len(shape), size) for axis, size in enumerate(shape) if size > 1}


def drop_duplicates(coordinates: Coordinates, shape: Shape, born: int) -> Coordinates:
    """Each coordinate once, without axes along which it does not vary; and at least one for each axis.

    An axis without any, such as one along which tensors were stacked, may be of features or of positions.
    """
    result: dict[Any, tuple[Coordinate, np.ndarray]] = {}
    for own, whole in coordinates.items():
        array = _varying(whole)
        if array.size == 1 and own.kind != "unknown":
            continue
        key = own.kind, own.part, array.shape, array.tobytes()
        before = result[key][0] if key in result else own
        newest = max(before, own, key=lambda c: c.born)
        layers = before.layers | own.layers
        result[key] = newest if layers == newest.layers else replace(newest, layers=layers), array
    kept = dict(result.values())
    for axis, size in enumerate(shape):
        if size > 1 and not any(array.shape[axis] > 1 for array in kept.values()):
            kept |= {Coordinate(kind, born): arange_along(axis, len(shape), size) for kind in ("feature", "position")}
    return kept


def _varying(array: np.ndarray) -> np.ndarray:
    """The array without the axes along which it does not vary; they have size 1."""
    for axis, size in enumerate(array.shape):
        if size > 1 and (array == array.take([0], axis)).all():
            array = array.take([0], axis)
    return array


def elementwise_coordinates(given: Iterable[TracedInput], shape: Shape) -> Coordinates:
    """The coordinates of an elementwise result."""
    result: Coordinates = {}
    for coordinates, _ in given:
        for own, array in aligned(coordinates, len(shape)).items():
            is_moved = own in result and not np.array_equal(result[own], array)
            result[replace(own) if is_moved else own] = array
    return result


def aligned(coordinates: Coordinates, ndim: int) -> Coordinates:
    """The coordinates of a tensor that is broadcast to so many axes."""
    return {c: x.reshape((1,) * (ndim - x.ndim) + x.shape) for c, x in coordinates.items()}


def moved_coordinates(given: Sequence[TracedInput], run: Callable[[list[np.ndarray]], Any]) -> list[Coordinates]:
    """The coordinates of results of an operator that only moves values; `run` is this operator on arrays of int32."""
    results: list[Coordinates] = []
    for coordinate in dict.fromkeys(itertools.chain.from_iterable(g.coordinates for g in given)):
        out = run([np.broadcast_to(g.coordinates.get(coordinate, np.int32(-1)), g.shape) for g in given])
        outs = out if isinstance(out, tuple) else (out,)
        results = results or [{} for _ in outs]
        for result, array in zip(results, outs, strict=True):
            result[coordinate] = np.asarray(array)
    return results


def reduced(coordinates: Coordinates, axis: int | tuple[int, ...], keepdims: bool = True) -> Coordinates:
    """The coordinates after a reduction: of the entries that become one, the greatest."""
    return {c: x.max(axis=axis, keepdims=keepdims) for c, x in coordinates.items()}


def mark_parts(given: Sequence[TracedInput], axis: int) -> list[TracedInput]:
    """Tensors that are put side by side; flattened images among them stay apart along that axis."""
    parts = [object() for _ in given]
    return [TracedInput({replace(c, part=part): x for c, x in g.coordinates.items()}, g.shape)
            if is_merged(g.coordinates, axis) else g for g, part in zip(given, parts, strict=True)]


def merged_masks(coordinates: Mapping[Coordinate, np.ndarray], axis: int) -> list[np.ndarray]:
    """For each feature and position that are merged into one axis: at which of its places both are.

    They are merged if neither follows from the other along the axis.
    """
    places = []
    of_kind = ([np.moveaxis(x, axis, -1) for c, x in coordinates.items() if c.kind == kind and x.shape[axis] > 1]
               for kind in ("feature", "position"))
    for feature, position in itertools.product(*of_kind):
        x, y = np.broadcast_arrays(feature, position)
        lines = np.unique(np.stack([x.reshape(-1, x.shape[-1]), y.reshape(-1, y.shape[-1])], -1), axis=0)
        for line in lines:
            both = line[(line >= 0).all(axis=1)]
            if len(np.unique(both, axis=0)) > max(len(np.unique(both[:, 0])), len(np.unique(both[:, 1]))):
                places.append((line >= 0).all(axis=1))
    return places


def is_merged(coordinates: Mapping[Coordinate, np.ndarray], axis: int) -> bool:
    """True if features and positions are merged into that axis."""
    return bool(merged_masks(coordinates, axis))
