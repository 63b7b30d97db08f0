"""A stand-in for the `cupy` module on NumPy arrays, so that the CuPy backend's own file runs without a GPU.

It offers only what that file uses; a name it lacks is an AttributeError, as a misspelt CuPy name would be.
"""

from __future__ import annotations

import types

import numpy as np

_NAMES = ["abs", "exp", "expm1", "log", "log1p", "sqrt", "sin", "cos", "tanh", "sign", "floor", "isfinite", "maximum", "minimum", "where", "logical_and", "logical_or", "logical_not", "sum", "mean", "max", "min", "all", "any", "argmax", "cumsum", "reshape", "transpose", "expand_dims", "squeeze", "broadcast_to", "concatenate", "flip", "take", "take_along_axis", "matmul", "zeros", "ones", "full", "arange", "array", "argsort", "flatnonzero", "ndarray", "add"]


class _Stream:
    def synchronize(self) -> None:
        pass


def make() -> types.ModuleType:
    """The module; put it into sys.modules as "cupy"."""
    module = types.ModuleType("cupy")
    for name in _NAMES:
        setattr(module, name, getattr(np, name))
    module.__version__ = "14.0.0"
    module.asnumpy = lambda x: np.array(x)
    properties = {"name": b"stand-in", "major": 0, "minor": 0, "totalGlobalMem": 1 << 30}
    module.cuda = types.SimpleNamespace(
        Device=lambda: types.SimpleNamespace(id=0), get_current_stream=_Stream,
        runtime=types.SimpleNamespace(getDeviceProperties=lambda i: properties, driverGetVersion=lambda: 0))
    return module
