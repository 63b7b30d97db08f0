"""duoln: layer-normalised networks on NVIDIA GPUs, Apple silicon and any CPU.

Importing duoln loads neither CuPy nor MLX nor any plug-in; names below are resolved on first use.
Environment variables that the array libraries read only once are set here, before anything loads them.
"""

from __future__ import annotations

import importlib
import os
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from duoln.system import openblas, stopping

stopping.end_quietly_on_interrupt()  # before what takes long to import

__version__ = "0.1.0"

# An uninstalled checkout, and a wheel run from the checkout's root, find the outside folders here.
_ROOT = Path(__file__).resolve().parent.parent
if (_ROOT / "pyproject.toml").is_file() and (_ROOT / "kernels").is_dir():
    __path__.append(str(_ROOT))

# float32 means float32: both libraries can silently use TF32. `--tf32` opts in before they load.
os.environ.setdefault("MLX_ENABLE_TF32", "0")
os.environ.setdefault("CUPY_TF32", "0")
if "numpy" not in sys.modules:
    openblas.choose_core()
openblas.limit_threads()
openblas.spin_briefly()

if TYPE_CHECKING:
    from duoln import data, errors, extend, nn, ops, optim, tasks, testing, tree
    from duoln.bridge.weights import load_pytorch, save_pytorch
    from duoln.core import Tensor, compile, custom_gradient, stop_gradient, value_and_grad, vjp
    from duoln.distributed.own_loop import average_gradients, ranks
    from duoln.nn.observing import observed
    from duoln.randomness import Stream
    from duoln.runs.parameters import load, load_arrays, save
    from duoln.runs.state import load_state, save_state
    from duoln.runtime import backend, from_dlpack, init, tensor, to_tensors
    from duoln.training.rate_test import find_rate
    from duoln.training.summary import summary

_LAZY = {
    **dict.fromkeys(("Tensor", "compile", "custom_gradient", "stop_gradient", "value_and_grad", "vjp"), "duoln.core"),
    **dict.fromkeys(("backend", "from_dlpack", "init", "tensor", "to_tensors"), "duoln.runtime"),
    **dict.fromkeys(("load", "load_arrays", "save"), "duoln.runs.parameters"),
    **dict.fromkeys(("load_pytorch", "save_pytorch"), "duoln.bridge.weights"),
    **dict.fromkeys(("load_state", "save_state"), "duoln.runs.state"),
    **dict.fromkeys(("average_gradients", "ranks"), "duoln.distributed.own_loop"),
    "Stream": "duoln.randomness",
    "observed": "duoln.nn.observing",
    "find_rate": "duoln.training.rate_test",
    "summary": "duoln.training.summary",
}
_MODULES = ("data", "errors", "extend", "nn", "ops", "optim", "tasks", "testing", "tree")

__all__ = [
    "Stream", "Tensor", "average_gradients", "backend", "compile", "custom_gradient", "data", "errors", "extend",
    "find_rate", "from_dlpack", "init", "load", "load_arrays", "load_pytorch", "load_state", "nn", "observed",
    "ops", "optim", "ranks", "save", "save_pytorch", "save_state", "stop_gradient", "summary", "tasks", "tensor",
    "testing", "to_tensors", "tree", "value_and_grad", "vjp",
]


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return importlib.import_module(f"duoln.{name}")
    if name in _LAZY:
        value = getattr(importlib.import_module(_LAZY[name]), name)
        globals()[name] = value
        return value
    # Python imports a submodule after this error, from a folder or a zip.
    if name.startswith("_") or ("." not in name and find_spec(f"duoln.{name}") is not None):
        raise AttributeError(f"module 'duoln' has no attribute {name!r}", name=name, obj=None)
    names = importlib.import_module("duoln.core.pytorch_names")
    # `duoln.relu` and `duoln.Linear` are in a module below; names of PyTorch's functions have the answers of duoln.ops.
    below = {each: f"duoln.{module}.{each}" for module in ("optim", "data", "nn", "ops")
             for each in importlib.import_module(f"duoln.{module}").__all__}
    remedies = {**names.of_standard(), **names.OF_OPS, **names.OF_DATA, **below, **names.OF_DUOLN}
    raise importlib.import_module("duoln.core.public_names").unknown_name("duoln", name, remedies, __all__)


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
