"""Parameters from and to files of PyTorch: a state dict in safetensors, with PyTorch's names, layouts and gate order.

A layer's arrays hold the same numbers in both libraries, in another order:

| layer | PyTorch | here |
| --- | --- | --- |
| Linear | weight (out, in), bias | weight (in, out), bias |
| LayerNorm, GroupNorm, InstanceNorm, RMSNorm (no bias) | weight, bias | gain, bias |
| Embedding | weight | table |
| Conv1d, Conv2d | weight (out, in / groups, ...), bias | weight (..., in / groups, out), bias |
| RNN, LSTM, GRU | those of a cell, with endings _l0, _l0_reverse, _l1 | those of cells forward0, backward0, forward1 |
| their cells | weight_ih (gates * hidden, in), weight_hh, bias_ih, bias_hh | w_x (in, gates * hidden), w_h, bias |

An LSTM's gates stand there in the order i, f, g, o, and here f, i, o, g. A GRU's stand there in the order r, z, n, its
update gate keeps the state where ours renews it: that gate's weights change their sign. PyTorch adds two biases where
one is enough; they become their sum, and the second is 0 on the way back. But the two biases of a GRU's n are no sum:
`norm="recurrent-bias"` has both.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from duoln import nn
from duoln.backends.protocol import Shape
from duoln.core import Tensor
from duoln.core.arguments import described
from duoln.core.miscalled import explained
from duoln.errors import CheckpointError, DtypeError, ShapeError, UsageError
from duoln.nn.module import Params, branch, parameters
from duoln.nn.recurrent import Recurrent, RecurrentCell
from duoln.ops.recurrent.variants import GATES
from duoln.runs.tensor_file import in_foreign_bytes, opened_foreign
from duoln.system.filesystem import write_atomically

Arrays = Mapping[str, np.ndarray]

_KIND = "a state dict of PyTorch in safetensors"
_FLOATS = {"F16": "float16", "F32": "float32", "F64": "float64"}


class Layer(NamedTuple):
    """How one kind of layer stands in a file of PyTorch."""

    shapes: Callable[[Any], dict[str, Shape]]
    """`shapes(module)`: the names of its arrays in the file, with their shapes."""
    ours: Callable[[Any, Arrays], Params]
    """`ours(module, arrays)`: its parameters, from the arrays by these names."""
    theirs: Callable[[Any, Params], dict[str, np.ndarray]]
    """`theirs(module, params)`: the arrays by these names, from its parameters on the host."""


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
        _check_settings(name, module, place)
        yield place, module, layer
        return
    if type(module).weights is not nn.Module.weights:
        known = ", ".join(kind.__name__ for kind in LAYERS)
        raise UsageError(f"[{name}] {place or 'model'}: expected a layer of {known}, found {type(module).__name__}")
    for key, child in module.children().items():
        yield from _layers(name, child, f"{place}.{key}" if place else key)


def _check_settings(name: str, module: nn.Module, place: str) -> None:
    """Raises UsageError for a recurrent layer that PyTorch has not."""
    for cell in module.cells.values() if isinstance(module, Recurrent) else (module,):
        if isinstance(cell, RecurrentCell) and (cell.learned_state or cell.norm not in ("none", "recurrent-bias")):
            has = "a learned state" if cell.learned_state else f"norm '{cell.norm}'"
            raise UsageError(f"[{name}] {place or 'model'}: expected a recurrent layer that PyTorch has, without norms "
                             f"and learned states, found {type(module).__name__} with {has}")


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


def _array(module: nn.Module, params: Params, key: str) -> np.ndarray:
    """A parameter on the host. Raises ShapeError where it is missing."""
    array: np.ndarray = parameters(type(module).__name__, params, (key,))[0]
    return array


# The layers -------------------------------------------------------------------------------------------

def _renamed(names: Mapping[str, str], shapes: Callable[[Any], dict[str, Shape]],
             turn: Callable[[np.ndarray], np.ndarray] = lambda x: x,
             back: Callable[[np.ndarray], np.ndarray] = lambda x: x) -> Layer:
    """A layer whose arrays have other names; the axes of its weight are in the order that `turn` makes of PyTorch's."""

    def ours(module: Any, arrays: Arrays) -> Params:
        return {names[name]: turn(array) if name == "weight" else array for name, array in arrays.items()}

    def theirs(module: Any, params: Params) -> dict[str, np.ndarray]:
        arrays = {name: _array(module, params, names[name]) for name in shapes(module)}
        return {name: back(array) if name == "weight" else array for name, array in arrays.items()}

    return Layer(shapes, ours, theirs)


def _with_bias(module: Any, weight: Shape) -> dict[str, Shape]:
    return {"weight": weight, **({"bias": (module.n_out,)} if module.bias else {})}


def _channels_last(weight: np.ndarray) -> np.ndarray:
    """A convolution's weight (out, in, ...) as (..., in, out)."""
    return np.moveaxis(weight, (0, 1), (-1, -2))


def _channels_first(weight: np.ndarray) -> np.ndarray:
    """A convolution's weight (..., in, out) as (out, in, ...)."""
    return np.moveaxis(weight, (-1, -2), (0, 1))


_ORDER = {"rnn": (0,), "lstm": (1, 0, 3, 2), "gru": (1, 0, 2)}
"""Where the gates of one library stand in the other: each order is its own inverse."""
_UPDATE_HERE, _UPDATE_IN_PYTORCH = 0, 1
"""The place of a GRU's update gate."""


def _gates(cell: str, array: np.ndarray, update: int) -> np.ndarray:
    """The gates along the last axis in the order of the other library, where a GRU's update gate stands at `update`."""
    gates = np.split(array, GATES[cell], axis=-1)
    gates = [gates[k] for k in _ORDER[cell]]
    if cell == "gru":
        gates[update] = -gates[update]
    return np.concatenate(gates, axis=-1)


def _cell_shapes(cell: RecurrentCell) -> dict[str, Shape]:
    wide = GATES[cell.cell] * cell.n_hidden
    return {"weight_ih": (wide, cell.n_in), "weight_hh": (wide, cell.n_hidden), "bias_ih": (wide,), "bias_hh": (wide,)}


def _cell_ours(cell: RecurrentCell, arrays: Arrays) -> Params:
    """The parameters of one cell. Raises ValueError for a bias that its variant has not."""
    first, second = arrays["bias_ih"], arrays["bias_hh"]
    params = {"w_x": _gates(cell.cell, arrays["weight_ih"].T, _UPDATE_HERE),
              "w_h": _gates(cell.cell, arrays["weight_hh"].T, _UPDATE_HERE)}
    if cell.cell == "gru":
        of_n = second[2 * cell.n_hidden:]
        if cell.norm == "recurrent-bias":
            params["bias_n"] = of_n
        elif of_n.any():
            raise ValueError("expected a bias_hh of 0 in the gate n for a GRU with norm 'none', found others; "
                             "norm='recurrent-bias' has them")
        second = np.concatenate([second[:2 * cell.n_hidden], np.zeros_like(of_n)])
    bias = np.where(second == 0, first, first + second)  # the sum with 0 would change the sign of -0
    own = {"w_x": params["w_x"], "w_h": params["w_h"], "bias": _gates(cell.cell, bias, _UPDATE_HERE)}
    return {**own, **{key: value for key, value in params.items() if key not in own}}


def _cell_theirs(cell: RecurrentCell, params: Params) -> dict[str, np.ndarray]:
    kind, wide = type(cell).__name__, GATES[cell.cell] * cell.n_hidden
    first = _array(cell, params, "bias")
    second = np.zeros(wide, first.dtype)
    if cell.norm == "recurrent-bias":
        of_n = _array(cell, params, "bias_n")
        if of_n.shape != (cell.n_hidden,):
            raise ShapeError(f"[save_pytorch] bias_n: expected shape {(cell.n_hidden,)}, found {of_n.shape}")
        second[2 * cell.n_hidden:] = of_n
    arrays = {"weight_ih": _array(cell, params, "w_x"), "weight_hh": _array(cell, params, "w_h"), "bias_ih": first}
    for name, array in arrays.items():
        if not array.ndim or array.shape[-1] != wide:
            raise ShapeError(f"[save_pytorch] {name} of {kind}: expected a last axis of {wide}, found shape "
                             f"{array.shape}")
    return {**{name: _gates(cell.cell, array, _UPDATE_IN_PYTORCH).T for name, array in arrays.items()},
            "bias_hh": second}


def _endings(layer: Recurrent) -> dict[str, str]:
    """What ends PyTorch's names of each cell's arrays."""
    return {name: f"_l{name.removeprefix('forward').removeprefix('backward')}"
                  f"{'_reverse' if name.startswith('backward') else ''}" for name in layer.cells}


def _layers_shapes(layer: Recurrent) -> dict[str, Shape]:
    return {f"{name}{ending}": shape for cell, ending in _endings(layer).items()
            for name, shape in _cell_shapes(layer.cells[cell]).items()}


def _layers_ours(layer: Recurrent, arrays: Arrays) -> Params:
    return {cell: _cell_ours(layer.cells[cell], {name: arrays[f"{name}{ending}"]
                                                 for name in _cell_shapes(layer.cells[cell])})
            for cell, ending in _endings(layer).items()}


def _layers_theirs(layer: Recurrent, params: Params) -> dict[str, np.ndarray]:
    return {f"{name}{ending}": array for cell, ending in _endings(layer).items()
            for name, array in _cell_theirs(layer.cells[cell], branch(type(layer).__name__, params, cell)).items()}


_SAME = {"weight": "weight", "bias": "bias"}
_OF_NORMS = {"weight": "gain", "bias": "bias"}


def _of_norm(module: Any) -> dict[str, Shape]:
    return {name: module.shape for name, own in _OF_NORMS.items() if module.affine and own in module.names}


LAYERS: dict[type[nn.Module], Layer] = {
    nn.Linear: _renamed(_SAME, lambda m: _with_bias(m, (m.n_out, m.n_in)), np.transpose, np.transpose),
    **dict.fromkeys((nn.LayerNorm, nn.GroupNorm, nn.InstanceNorm, nn.RMSNorm), _renamed(_OF_NORMS, _of_norm)),
    nn.Embedding: _renamed({"weight": "table"}, lambda m: {"weight": (m.words, m.width)}),
    **dict.fromkeys((nn.Conv1d, nn.Conv2d), _renamed(
        _SAME, lambda m: _with_bias(m, (m.n_out, m.n_in // m.groups, *m.kernel)), _channels_last, _channels_first)),
    Recurrent: Layer(_layers_shapes, _layers_ours, _layers_theirs),
    RecurrentCell: Layer(_cell_shapes, _cell_ours, _cell_theirs),
}
"""The layers that both libraries have. A class below one of these is written as that one."""
