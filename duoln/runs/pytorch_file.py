"""Parameters from and to files of PyTorch: a state dict in safetensors, with PyTorch's names, layouts and gate order.

`pytorch_layers.py` has the table of layers.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from duoln import nn
from duoln.backends.protocol import Shape
from duoln.core import Tensor
from duoln.core.arguments import described
from duoln.core.miscalled import explained
from duoln.errors import CheckpointError, DtypeError, ShapeError, UsageError
from duoln.nn.module import Params, branch
from duoln.runs.pytorch_layers import LAYERS, Layer, check_settings
from duoln.runs.tensor_file import in_foreign_bytes, opened_foreign
from duoln.system.filesystem import write_atomically

_KIND = "a state dict of PyTorch in safetensors"
_FLOATS = {"F16": "float16", "F32": "float32", "F64": "float64"}


@explained
def load_pytorch(path: str | Path, model: nn.Module) -> Params:
    """The parameters of a model, as NumPy arrays, from a state dict of a PyTorch model with the same names of layers.

        safetensors.torch.save_file(torch_model.state_dict(), "model.safetensors")      # there
        params = duoln.to_tensors(duoln.load_pytorch("model.safetensors", model))       # here

    The file has the arrays alone; settings, such as the eps of a norm, are those of `model`.

    Args:
        path: the file.
        model: the module that the parameters are for; `nn.Sequential` numbers its layers as PyTorch's does.

    Raises:
        CheckpointError: there is no such file, it is damaged, an array is missing or too many, or has another shape or
            no floats; the message names the array, and what was expected and found.
        UsageError: the model has a layer that PyTorch has not.
    """
    _check_model("load_pytorch", model)
    layers = list(_layers("load_pytorch", model))
    path = Path(path)
    params: Params = {}
    with opened_foreign(path, _KIND) as file:
        present = set(file.keys())
        for place, module, layer in layers:
            arrays = {}
            for name, shape in layer.shapes(module).items():
                key = f"{place}.{name}" if place else name
                arrays[name] = _read(path, file, present, key, shape, type(module).__name__)
                present.discard(key)
            try:
                own = layer.ours(module, arrays)
            except ValueError as error:
                raise CheckpointError(f"{path}: {place or 'model'}: {error}") from error
            _put(params, place, own)
        if present:
            raise CheckpointError(f"{path}: expected the arrays of the model, found {min(present)!r} of shape "
                                  f"{tuple(file.get_slice(min(present)).get_shape())} too")
    return _whole(model, params)


@explained
def save_pytorch(path: str | Path, model: nn.Module, params: Params) -> None:
    """Write the parameters of a model as a state dict of a PyTorch model with the same names of layers.

        duoln.save_pytorch("model.safetensors", model, params)                          # here
        torch_model.load_state_dict(safetensors.torch.load_file("model.safetensors"))   # there

    The file is written aside and renamed: a kill leaves the old file or the new one.

    Raises:
        UsageError: the model has a layer that PyTorch has not.
        ShapeError: parameters are missing or have another shape. DtypeError: one is no tensor and no array of floats.
        CheckpointError: the file cannot be written.
    """
    _check_model("save_pytorch", model)
    arrays: dict[str, np.ndarray] = {}
    for place, module, layer in _layers("save_pytorch", model):
        own = params
        for part in place.split(".") if place else ():
            own = branch("save_pytorch", own, part)
        theirs = layer.theirs(module, _on_host(type(module).__name__, own))
        for name, shape in layer.shapes(module).items():
            key = f"{place}.{name}" if place else name
            if theirs[name].shape != shape:
                raise ShapeError(f"[save_pytorch] {key!r}: expected shape {shape} for {type(module).__name__}, "
                                 f"found {theirs[name].shape}")
            arrays[key] = np.ascontiguousarray(theirs[name])
    write_atomically(Path(path), in_foreign_bytes(arrays, {"format": "pt"}))


def _check_model(name: str, model: Any) -> None:
    if not isinstance(model, nn.Module):
        raise DtypeError(f"[{name}] model: expected a Module, found {described(model)}")


def _layers(name: str, module: nn.Module, place: str = "") -> Iterator[tuple[str, nn.Module, Layer]]:
    """Each layer with arrays of its own, with its dotted path, and how it stands in a file."""
    layer = next((LAYERS[kind] for kind in type(module).__mro__ if kind in LAYERS), None)
    if layer is not None:
        check_settings(name, module, place)
        yield place, module, layer
        return
    if type(module).weights is not nn.Module.weights:
        known = ", ".join(kind.__name__ for kind in LAYERS)
        raise UsageError(f"[{name}] {place or 'model'}: expected a layer of {known}, found {type(module).__name__}")
    for key, child in module.children().items():
        yield from _layers(name, child, f"{place}.{key}" if place else key)


def _read(path: Path, file: Any, present: set[str], key: str, shape: Shape, kind: str) -> np.ndarray:
    if key not in present:
        near = f"; it has {', '.join(sorted(present)[:5])}" if present else ""
        raise CheckpointError(f"{path}: {key!r}: expected shape {shape} for {kind}, found no such array{near}")
    entry = file.get_slice(key)
    if tuple(entry.get_shape()) != shape:
        raise CheckpointError(f"{path}: {key!r}: expected shape {shape} for {kind}, found {tuple(entry.get_shape())}")
    if entry.get_dtype() not in _FLOATS:
        raise CheckpointError(f"{path}: {key!r}: expected {', '.join(_FLOATS.values())}, found {entry.get_dtype()}")
    array: np.ndarray = file.get_tensor(key)
    return array


def _put(params: Params, place: str, own: Params) -> None:
    for part in place.split(".") if place else ():
        params = params.setdefault(part, {})
    params.update(own)


def _whole(module: nn.Module, params: Params) -> Params:
    """The tree with a branch for each child, also for one without arrays, in the order of `init`."""
    children = module.children()
    own = {key: value for key, value in params.items() if key not in children}
    return {**own, **{key: _whole(child, params.get(key, {})) for key, child in children.items()}}


def _on_host(kind: str, params: Any) -> Params:
    """A layer's parameters as NumPy arrays; the branches of a recurrent layer's cells too."""
    if not isinstance(params, dict):
        raise ShapeError(f"[save_pytorch] expected the parameters of {kind}, found {described(params)}")
    host: Params = {}
    for key, value in params.items():
        if isinstance(value, dict):
            host[key] = _on_host(kind, value)
            continue
        array = value.numpy() if isinstance(value, Tensor) else value
        if not isinstance(array, np.ndarray) or array.dtype.name not in _FLOATS.values():
            raise DtypeError(f"[save_pytorch] {key!r} of {kind}: expected a tensor or an array of floats, "
                             f"found {array.dtype if isinstance(array, np.ndarray) else described(value)}")
        host[key] = array
    return host
