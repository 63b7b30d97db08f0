"""Example inputs of a model, made from their shapes."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

import numpy as np

from duoln.core import Tensor
from duoln.core.arguments import check_integers_in, described
from duoln.errors import DtypeError
from duoln.nn.module import Module

_DTYPES = ("float32", "int32", "bool")


def inputs_of(name: str, model: Module, shapes: Any) -> tuple[list[Any], dict[str, Any]]:
    """The arguments of a model's call after the parameters, by position and by name, as `duoln.summary` says.

    Raises:
        DtypeError: an entry describes no input. ShapeError: a size is below 0.
    """
    if isinstance(shapes, Mapping):
        entries = {str(key): _input(name, key, spec) for key, spec in shapes.items()}
        arguments = list(inspect.signature(type(model).__call__).parameters)[2:]
        return ([], entries) if any(name in entries for name in arguments) else ([entries], {})
    if isinstance(shapes, list | tuple) and not _is_one(shapes):
        return [_input(name, k, spec) for k, spec in enumerate(shapes)], {}
    return [_input(name, "", shapes)], {}


def _is_one(spec: Any) -> bool:
    """True if this describes one input: an array, a shape, or a shape with a dtype."""
    if not isinstance(spec, tuple):
        return isinstance(spec, np.ndarray | Tensor)
    is_shape = all(isinstance(n, int | np.integer) and not isinstance(n, bool) for n in spec)
    return is_shape or (len(spec) == 2 and isinstance(spec[0], tuple | list) and isinstance(spec[1], str))


def _input(name: str, key: object, spec: Any) -> np.ndarray:
    role = f"shapes[{key!r}]" if key != "" else "shapes"
    if isinstance(spec, Tensor):
        return spec.numpy()
    if isinstance(spec, np.ndarray):
        return spec
    shape, dtype = spec if isinstance(spec, tuple | list) and len(spec) == 2 and isinstance(spec[1], str) \
        else (spec, "float32")
    if not isinstance(shape, tuple | list):
        raise DtypeError(f"[{name}] {role}: expected a shape such as (8, 50), a shape with a dtype such as ((8, 50), "
                         f"'int32'), or an array, found {described(spec)}")
    if dtype not in _DTYPES:
        raise DtypeError(f"[{name}] {role}: expected a dtype of {', '.join(_DTYPES)}, found {dtype!r}")
    sizes = check_integers_in(name, role, shape, 0)
    if dtype == "float32":
        return np.random.default_rng(0).standard_normal(sizes, np.float32)
    return np.zeros(sizes, np.int32) if dtype == "int32" else np.ones(sizes, np.bool_)
