"""Parameters from and to files of PyTorch: a state dict in safetensors, with PyTorch's names, layouts and gate order.

`layers.py` has the table of layers.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from duoln import nn, tree
from duoln.backends.protocol import STORAGE, Backend, Shape
from duoln.bridge.weights.layers import LAYERS, Layer, check_settings, layer_of
from duoln.bridge.weights.order import Words, orders_of, reorder_features
from duoln.core import Tensor
from duoln.core.arguments import check_flag, described
from duoln.core.entering import refuse_masked
from duoln.errors import CheckpointError, DtypeError, ShapeError, UsageError
from duoln.nn.module import Params, branch_at, map_children
from duoln.runs.tensor_file import Array, TensorFile, check_name, in_foreign_bytes, opened_foreign, path_of
from duoln.runtime import backend_of, tensor, to_tensors
from duoln.system.filesystem import write_atomically

_KIND = "a state dict of PyTorch in safetensors"
_FLOATS = {"F16": "float16", "BF16": "bfloat16", "F32": "float32", "F64": "float64"}


def load_pytorch(path: str | Path, model: nn.Module, backend: Backend | str | None = None, *, prefix: str = "",
                 strict: bool = True, shapes: Any = None, flattened: Words | None = None,
                 unflattened: Words | None = None) -> Params:
    """The parameters of a model, as tensors, from a state dict of a PyTorch model with the same names of layers.

        safetensors.torch.save_file(torch_model.state_dict(), "model.safetensors")      # there
        params = duoln.load_pytorch("model.safetensors", model)                         # here

    The file has the arrays alone; settings, such as the eps of a norm, are those of `model`. A recurrent layer or
    block whose biases are not in the file (`bias=False` there) gets biases of 0. Batch norm gets the running statistics
    as those of its population, see `nn.with_population`. Layers in 16 bits stay in 16 bits.

    PyTorch has no recurrent layer with layer norms. One that is written in it may have the names of `torch.nn.LSTM`,
    weight_ih_l0, weight_hh_l0, bias_ih_l0, bias_hh_l0, and norms named layernorm_i_l0 (of what the input gives the
    gates), layernorm_h_l0 (of what the state gives them) and layernorm_c_l0 (of the cell).

    Args:
        path: the file.
        model: the module that the parameters are for; `nn.Sequential` numbers its layers as PyTorch's does.
        backend: the backend of the tensors; by default the one that `duoln.backend()` chooses.
        prefix: what begins the names of the model's arrays in the file, such as "encoder."; others are not read.
        strict: whether layers that the model has not are an error; else they are not read. An array more in a layer
            that the model has is always an error.
        shapes: what stands for an input of the model, as `duoln.summary` takes it, such as (1, 28, 28, 1). A model with
            convolutions, group norm or instance norm needs it, unless it is a Sequential that begins with a
            convolution: the model runs once, and shows where features of flattened images go, which PyTorch has in
            another order.
        flattened: for each layer that takes an image which the model's own code flattens, by its path, the channels of
            the image if PyTorch flattens it with its channels first, and 1 if PyTorch has the same order. `nn.Flatten`
            behind a convolution in one Sequential needs no entry. An array of integers says for each of the layer's
            features which place it has in PyTorch.
        unflattened: the same for each layer whose outputs become an image, such as the first one of a decoder.

    Raises:
        CheckpointError: there is no such file, it is damaged, an array is missing or too many, or has another shape or
            no floats; the message names the array, and what was expected and found.
        UsageError: the model has a layer that PyTorch has not, or the order of a layer's features in PyTorch is not
            known; the message names the argument that says it.
    """
    name, where = "load_pytorch", backend_of("load_pytorch", backend)
    path = path_of(name, path)
    check_flag(name, "strict", strict)
    layers = list(_layers(name, model))
    with opened_foreign(path, _KIND):
        pass  # what is wrong with the file is told before what it may mean
    orders = orders_of(name, model, layers, shapes, flattened, unflattened)
    params: Params = {}
    with opened_foreign(path, _KIND) as file:
        rest = {key for key in file.names if key.startswith(prefix)}
        for place, module, layer in layers:
            begins = f"{prefix}{place}." if place else prefix
            own = layer.shapes(module)
            biases = [] if isinstance(getattr(module, "bias", None), bool) else [
                name for name in own if "bias" in name and not name.startswith("layernorm")]
            absent = [name for names in (biases, layer.optional)
                      if not any(f"{begins}{name}" in rest for name in names) for name in names]
            present = [name for name in own if name not in absent]
            dtypes = {_check(path, file, rest, f"{begins}{name}", own[name], type(module).__name__) for name in present}
            arrays = {name: _in_float32(file.array(f"{begins}{name}")) for name in present}
            arrays |= {name: np.zeros(own[name], np.float32) for name in absent if name in biases}
            if place in orders:
                arrays = reorder_features(module, arrays, orders[place], to_theirs=False)
            try:
                _branch(params, place).update(tree.map(partial(_restore_dtype, dtypes), layer.ours(module, arrays)))
            except (ValueError, DtypeError) as error:  # the sum of two biases may be beyond 16 bits
                raise CheckpointError(f"{path}: {place or 'model'}: {error}") from error
            rest -= {f"{begins}{name}" for name in (*own, *layer.unused)}
        _check_rest(path, file, rest, prefix, layers, strict)
    loaded: Params = to_tensors(_fill_branches(model, params), where)
    return loaded


def save_pytorch(path: str | Path, model: nn.Module, params: Params, *, prefix: str = "", shapes: Any = None,
                 flattened: Words | None = None, unflattened: Words | None = None) -> None:
    """Write the parameters of a model as a state dict of a PyTorch model with the same names of layers.

        duoln.save_pytorch("model.safetensors", model, params)                          # here
        torch_model.load_state_dict(safetensors.torch.load_file("model.safetensors"))   # there

    The file is written aside and renamed: a kill leaves the old file or the new one. A recurrent layer, norm or block
    has biases in it; load_state_dict(..., strict=False) leaves them out there. Batch norm has running statistics where
    the parameters have those of a population. `prefix`, `shapes`, `flattened` and `unflattened` are as in
    `load_pytorch`.

    Raises:
        UsageError: the model has a layer that PyTorch has not, or the order of a layer's features in PyTorch is not
            known, or the path ends as a file of another format does, such as .pt.
        ShapeError: parameters are missing or have another shape. DtypeError: one is no tensor and no array of floats.
        CheckpointError: the file cannot be written.
    """
    path = path_of("save_pytorch", path)
    check_name("save_pytorch", path)
    layers = list(_layers("save_pytorch", model))
    orders = orders_of("save_pytorch", model, layers, shapes, flattened, unflattened)
    arrays: dict[str, Array] = {}
    for place, module, layer in layers:
        own = branch_at("save_pytorch", params, place)
        begins, kind, dtypes = f"{prefix}{place}." if place else prefix, type(module).__name__, set[str]()
        theirs = layer.theirs(module, _on_host(kind, own, dtypes))
        for name, shape in layer.shapes(module).items():
            if name in theirs and theirs[name].shape != shape:
                raise ShapeError(f"[save_pytorch] {begins + name!r}: expected shape {shape} for {kind}, "
                                 f"found {theirs[name].shape}")
        if place in orders:
            theirs = reorder_features(module, theirs, orders[place], to_theirs=True)
        arrays.update({f"{begins}{name}": _restore_dtype(dtypes, array) for name, array in theirs.items()})
    write_atomically(path, in_foreign_bytes("save_pytorch", arrays, {"format": "pt"}))


def _layers(name: str, module: nn.Module, place: str = "") -> Iterator[tuple[str, nn.Module, Layer]]:
    """Each layer with arrays of its own, with its dotted path, and how it stands in a file."""
    if not isinstance(module, nn.Module):
        raise DtypeError(f"[{name}] model: expected a Module, found {described(module)}")
    layer = layer_of(module)
    if layer is not None:
        check_settings(name, module, place)
        yield place, module, layer
    elif type(module).weights is not nn.Module.weights:
        known = ", ".join(kind.__name__ for kind in LAYERS)
        raise UsageError(f"[{name}] {place or 'model'}: expected a layer of {known}, found {type(module).__name__}")
    inside = () if layer is None else layer.inside(module)
    for key, child in module.children().items():
        if key not in inside:
            yield from _layers(name, child, f"{place}.{key}" if place else key)


def _check(path: Path, file: TensorFile, rest: set[str], key: str, shape: Shape, kind: str) -> str:
    """The dtype of an array. Raises CheckpointError for one that is missing, or is not what the layer takes."""
    if key not in rest:
        near = f"; it has {', '.join(sorted(rest)[:5])}" if rest else ""
        before = {theirs.removesuffix(key) for theirs in rest if theirs.endswith(f".{key}")}
        layer, _, own = key.rpartition(".")
        normed = next((name for name in (f"parametrizations.{own}.original", f"parametrizations.{own}.original0",
                                         f"{own}_g", f"{own}_orig") if f"{layer}.{name}".strip(".") in rest), "")
        shared = [theirs for theirs in file.names if file.shape(theirs) == shape and theirs not in rest]
        if len(shared) == 1:  # of a layer before
            near = f"; {shared[0]!r} has this shape: what two layers share is in a file once; write it under both names"
        if len(before) == 1:
            near = f"; prefix={(first := before.pop())!r} reads those that begin so, such as {first + key!r}"
        if normed:
            near = f", but {normed!r} of a parametrised weight; before saving, take that out there, with " \
                   "torch.nn.utils.parametrize.remove_parametrizations, remove_weight_norm or remove_spectral_norm"
        if key.replace("in_proj_weight", "k_proj_weight") in rest:
            near = ": the keys or values have a width of their own (kdim, vdim), which no layer here has"
        raise CheckpointError(f"{path}: {key!r}: expected shape {shape} for {kind}, found no such array{near}")
    if file.shape(key) != shape:
        raise CheckpointError(f"{path}: {key!r}: expected shape {shape} for {kind}, found {file.shape(key)}")
    if file.dtype(key) not in _FLOATS:
        raise CheckpointError(f"{path}: {key!r}: expected {', '.join(_FLOATS.values())}, found {file.dtype(key)}")
    return _FLOATS[file.dtype(key)]


def _check_rest(path: Path, file: TensorFile, rest: set[str], prefix: str,
                layers: list[tuple[str, nn.Module, Layer]], strict: bool) -> None:
    """Raises CheckpointError for arrays that are left over: always for one of a layer that the model has, because the
    layer would compute something else without it.
    """
    for key in sorted(rest, key=lambda key: (key.endswith("num_batches_tracked"), key)):
        module = next((module for place, module, _ in layers
                       if key.startswith(f"{prefix}{place}." if place else prefix)), None)
        wrong = f"{path}: expected the arrays of the model, found {key!r} of shape {file.shape(key)} too"
        if module is not None:
            advice = ""
            if key.endswith(("running_mean", "running_var")):
                advice = "; take it out of the state dict only if PyTorch's model is used in training mode, as " \
                         "without track_running_stats"
            elif key.rpartition(".")[2] == "bias" and not getattr(module, "bias", True):
                advice = "; bias=True has it"
            raise CheckpointError(f"{wrong}, with which PyTorch's layer computes and {type(module).__name__} does not"
                                  f"{advice}")
        if strict:
            raise CheckpointError(f"{wrong}, of a layer that it has not; a model that is to do without it is read with "
                                  "strict=False")


def _in_float32(x: Array) -> np.ndarray:
    """An array, that of 16 bits in float32, which is exact."""
    values = x.numpy() if isinstance(x, Tensor) else x
    return values.astype(np.float32) if values.dtype == np.float16 else values


def _restore_dtype(dtypes: set[str], x: np.ndarray) -> Array:
    """An array of a layer whose arrays have these dtypes, in 16 bits if they all have."""
    [dtype] = dtypes if len(dtypes) == 1 else ["float32"]
    if dtype not in STORAGE:
        return x
    stored = tensor(x, "numpy", dtype)
    return stored if dtype == "bfloat16" else stored.numpy()


def _branch(params: Params, place: str) -> Params:
    """The branch at a place, which is made where there is none. What will be a list is a dict yet."""
    for part in place.split(".") if place else ():
        params = params.setdefault(part, {})
    return params


def _fill_branches(module: nn.Module, params: Params) -> Params:
    """The tree with a branch for each child, also for one without arrays, in the order of `init`."""
    branches = map_children(module, lambda path, child: _fill_branches(child, _branch(params, path)))
    return {**{key: value for key, value in params.items() if key not in branches}, **branches}


def _on_host(kind: str, params: Any, dtypes: set[str]) -> Params:
    """A layer's parameters as NumPy arrays, 16 bits in float32, and into `dtypes` their dtypes; the branches of a
    recurrent layer's cells too.
    """
    if not isinstance(params, dict):
        raise ShapeError(f"[save_pytorch] expected the parameters of {kind}, found {described(params)}")
    host: Params = {}
    for key, value in params.items():
        if isinstance(value, dict):
            host[key] = _on_host(kind, value, dtypes)
            continue
        refuse_masked("save_pytorch", value)
        dtype = str(value.dtype) if isinstance(value, Tensor | np.ndarray) else described(value)
        if dtype not in _FLOATS.values():
            raise DtypeError(f"[save_pytorch] {key!r} of {kind}: expected a tensor or an array of floats, "
                             f"found {dtype}")
        dtypes.add(dtype)
        host[key] = _in_float32(value)
    return host
