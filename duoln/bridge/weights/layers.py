"""Layers of both libraries as a file of PyTorch has them: names, layouts, the order of gates.

A layer's arrays hold the same numbers in both libraries, in another order:

| layer | PyTorch | here |
| --- | --- | --- |
| Linear | weight (out, in), bias | weight (in, out), bias |
| LayerNorm, GroupNorm, InstanceNorm, RMSNorm (no bias) | weight, bias | gain, bias |
| BatchNorm | weight, bias, running_mean, running_var | gain, bias, mean, variance |
| Embedding | weight | table |
| Conv1d, Conv2d | weight (out, in / groups, ...), bias | weight (..., in / groups, out), bias |
| MultiHeadAttention | in_proj_weight (3 width, width), in_proj_bias, out_proj | projection, out, as Linear |
| TransformerBlock | of TransformerEncoderLayer: self_attn, linear1, linear2, norm1, norm2 | attention, hidden, ... |
| RNN, LSTM, GRU | those of a cell, with endings _l0, _l0_reverse, _l1 | those of cells forward0, backward0, forward1 |
| their cells | weight_ih (gates * hidden, in), weight_hh, bias_ih, bias_hh | w_x (in, gates * hidden), w_h, bias |
| those with layer norms | and layernorm_i, layernorm_h, layernorm_c (weight, bias) | and gain_x, bias_x, gain_h, ... |

An LSTM's gates stand in the same order, i, f, g, o. A GRU's stand there in the order r, z, n and here z, r, n; its
update gate keeps the state where ours renews it: that gate's weights change their sign. PyTorch adds two biases where
one is enough; they become their sum, and the second is 0 on the way back. But the two biases of a GRU's n are no sum:
`norm="recurrent-bias"` has both. With `bias="pytorch"` a cell has all of both biases, bias_ih and bias_hh.

PyTorch has no recurrent layer with norms. Modules written in it have the names of those that it has, and an
nn.LayerNorm each for what the input gives the gates, what the state gives them, and the cell. A norm lies over several
gates, so the update gate of a normalised GRU changes the sign of its gains and biases in place of its weights'.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from duoln import nn
from duoln.backends.protocol import Shape
from duoln.bridge.functions import NORMS
from duoln.errors import ShapeError, UsageError
from duoln.nn import Recurrent, RecurrentCell
from duoln.nn.module import Params, branch, parameters
from duoln.ops.recurrent.variants import CELLS, COMPARED, has_bias, norm_shapes

Arrays = Mapping[str, np.ndarray]


class Layer(NamedTuple):
    """One kind of layer as a file of PyTorch has it."""

    shapes: Callable[[Any], dict[str, Shape]]
    """`shapes(module)`: the names of its arrays in the file, with their shapes."""
    ours: Callable[[Any, Arrays], Params]
    """`ours(module, arrays)`: its parameters, from the arrays by these names."""
    theirs: Callable[[Any, Params], dict[str, np.ndarray]]
    """`theirs(module, params)`: the arrays by these names, from its parameters on the host."""
    optional: tuple[str, ...] = ()
    """The names of arrays that a file may have, or lack all together."""
    unused: tuple[str, ...] = ()
    """The names of what else PyTorch writes for it."""
    inside: Callable[[Any], Collection[str]] = lambda module: ()
    """`inside(module)`: its children whose arrays are among these; a subclass may have others."""


def check_settings(name: str, module: nn.Module, place: str) -> None:
    """Raises UsageError for a recurrent layer or a block that PyTorch has not."""
    if isinstance(module, nn.TransformerBlock) and module.norm != "layer":
        raise UsageError(f"[{name}] {place or 'model'}: expected a block that PyTorch has, with layer norms, found "
                         f"norm '{module.norm}'")
    for cell in module.cells.values() if isinstance(module, Recurrent) else (module,):
        if isinstance(cell, RecurrentCell) and (cell.learned_state or cell.norm in ("batch", *COMPARED)):
            has = ("a learned state" if cell.learned_state else "batch norm" if cell.norm == "batch" else
                   f"norm '{cell.norm}'")
            raise UsageError(f"[{name}] {place or 'model'}: expected a recurrent layer without batch norm and learned "
                             f"states, found {type(module).__name__} with {has}")


def _array(module: nn.Module, params: Params, key: str) -> np.ndarray:
    """A parameter on the host. Raises ShapeError where it is missing."""
    array: np.ndarray = parameters(type(module).__name__, params, (key,))[0]
    return array


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


_ORDER = {"rnn": (0,), "lstm": (0, 1, 2, 3), "gru": (1, 0, 2)}
"""The places of one library's gates in the other: each order is its own inverse."""
_UPDATE_HERE, _UPDATE_IN_PYTORCH = 0, 1
"""The place of a GRU's update gate."""


def _gates(cell: RecurrentCell, name: str, array: np.ndarray, update: int) -> np.ndarray:
    """An array by PyTorch's name, with the gates along its last axis in the order of the other library, where a GRU's
    update gate stands at `update`. That gate changes its sign in norms, or in the rest where none lies over the gates.
    """
    if name.startswith("layernorm_c"):
        return array
    gates = np.split(array, CELLS[cell.cell].gates, axis=-1)
    gates = [gates[k] for k in _ORDER[cell.cell]]
    if cell.cell == "gru" and name.startswith("layernorm") is (cell.norm not in ("none", "recurrent-bias")):
        gates[update] = -gates[update]
    return np.concatenate(gates, axis=-1)


def _norms(cell: RecurrentCell) -> dict[str, str]:
    """The names in the file of a cell's arrays of norms, by ours."""
    return {name: ".".join(NORMS[name]) for name in cell.norm_names if name in NORMS}


def _cell_shapes(cell: RecurrentCell) -> dict[str, Shape]:
    wide = CELLS[cell.cell].gates * cell.n_hidden
    biases = dict.fromkeys(("bias_ih", "bias_hh") if has_bias(cell.cell, cell.norm) else (), (wide,))
    own = norm_shapes(cell.cell, cell.norm, cell.n_hidden)
    return {"weight_ih": (wide, cell.n_in), "weight_hh": (wide, cell.n_hidden), **biases,
            **{theirs: own[name] for name, theirs in _norms(cell).items()}}


def _cell_ours(cell: RecurrentCell, arrays: Arrays) -> Params:
    """The parameters of one cell. Raises ValueError for a bias that its variant has not."""
    given = {name: _gates(cell, name, array.T, _UPDATE_HERE) for name, array in arrays.items()}
    params = {"w_x": given["weight_ih"], "w_h": given["weight_hh"]}
    if cell.bias == "pytorch":
        params |= {name: given[name] for name in ("bias_ih", "bias_hh")}
    elif "bias_ih" in arrays:
        first, second = arrays["bias_ih"], arrays["bias_hh"].copy()
        of_n = arrays["bias_hh"][2 * cell.n_hidden:]
        if cell.norm == "none" and cell.cell == "gru" and of_n.any():
            raise ValueError("expected a bias_hh of 0 in the gate n for a GRU with norm 'none', found others; "
                             "norm='recurrent-bias' has them")
        if cell.norm == "recurrent-bias":
            second[2 * cell.n_hidden:] = 0
        bias = np.where(second == 0, first, first + second)  # the sum with 0 would change the sign of -0
        params["bias"] = _gates(cell, "bias", bias, _UPDATE_HERE)
        params |= {"bias_n": of_n} if cell.norm == "recurrent-bias" else {}
    return params | {name: given[theirs] for name, theirs in _norms(cell).items()}


def _cell_theirs(cell: RecurrentCell, params: Params) -> dict[str, np.ndarray]:
    wide = CELLS[cell.cell].gates * cell.n_hidden
    biases = {"bias_ih": "bias_ih", "bias_hh": "bias_hh"} if cell.bias == "pytorch" else {"bias": "bias_ih"}
    names = {"w_x": "weight_ih", "w_h": "weight_hh", **(biases if has_bias(cell.cell, cell.norm) else {}),
             **_norms(cell)}
    arrays = {theirs: _array(cell, params, name) for name, theirs in names.items()}
    for name, array in arrays.items():
        width = cell.n_hidden if name.startswith("layernorm_c") else wide
        if not array.ndim or array.shape[-1] != width:
            raise ShapeError(f"[save_pytorch] {name} of {type(cell).__name__}: expected a last axis of {width}, found "
                             f"shape {array.shape}")
    written = {name: _gates(cell, name, array, _UPDATE_IN_PYTORCH).T for name, array in arrays.items()}
    if "bias_ih" in arrays and cell.bias == "one":
        written["bias_hh"] = np.zeros(wide, arrays["bias_ih"].dtype)
    if "bias_n" in cell.norm_names:
        of_n = _array(cell, params, "bias_n")
        if of_n.shape != (cell.n_hidden,):
            raise ShapeError(f"[save_pytorch] bias_n: expected shape {(cell.n_hidden,)}, found {of_n.shape}")
        written["bias_hh"][2 * cell.n_hidden:] = of_n
    return written


_SAME = {"weight": "weight", "bias": "bias"}
_OF_NORMS = {"weight": "gain", "bias": "bias"}
_OF_BATCH_NORM = {**_OF_NORMS, "running_mean": "mean", "running_var": "variance"}
_OF_BLOCK = {"attention": "self_attn.{}", "hidden": "linear1.{}", "out": "linear2.{}", "attention_norm": "norm1.{}",
             "hidden_norm": "norm2.{}"}


class _Part(NamedTuple):
    """A layer inside another: its arrays' names in the file from those that it has alone, and the layer."""

    named: Callable[[str], str]
    module: nn.Module


def _stacked_name(cell: str, name: str) -> str:
    """A cell's name of an array in a layer: weight_ih_l0, layernorm_i_l0_reverse.weight."""
    first, dot, rest = name.partition(".")
    ending = cell.removeprefix("forward").removeprefix("backward")
    return f"{first}_l{ending}{'_reverse' if cell.startswith('backward') else ''}{dot}{rest}"


def _composite_layer(parts: Callable[[Any], dict[str, _Part]]) -> Layer:
    """A layer whose arrays are those of its parts."""

    def each(module: Any) -> Iterator[tuple[str, _Part, Layer]]:
        for key, part in parts(module).items():
            layer = layer_of(part.module)
            assert layer is not None
            yield key, part, layer

    def shapes(module: Any) -> dict[str, Shape]:
        return {part.named(name): shape for _, part, layer in each(module)
                for name, shape in layer.shapes(part.module).items()}

    def ours(module: Any, arrays: Arrays) -> Params:
        return {key: layer.ours(part.module, {name: arrays[part.named(name)] for name in layer.shapes(part.module)})
                for key, part, layer in each(module)}

    def theirs(module: Any, params: Params) -> dict[str, np.ndarray]:
        return {part.named(name): array for key, part, layer in each(module) for name, array in
                layer.theirs(part.module, branch(type(module).__name__, params, key)).items()}

    return Layer(shapes, ours, theirs, inside=parts)


LAYERS: dict[type[nn.Module], Layer] = {
    nn.Linear: _renamed(_SAME, lambda m: _with_bias(m, (m.n_out, m.n_in)), np.transpose, np.transpose),
    **dict.fromkeys((nn.LayerNorm, nn.GroupNorm, nn.InstanceNorm, nn.RMSNorm), _renamed(
        _OF_NORMS, lambda m: {name: m.shape for name, own in _OF_NORMS.items() if m.affine and own in m.names})),
    nn.BatchNorm: Layer(
        lambda m: dict.fromkeys(_OF_BATCH_NORM, (m.width,)),
        lambda m, arrays: {own: arrays[name] for name, own in _OF_BATCH_NORM.items() if name in arrays},
        lambda m, params: {name: _array(m, params, own) for name, own in (
            _OF_BATCH_NORM if "mean" in params else _OF_NORMS).items()},
        optional=("running_mean", "running_var"), unused=("num_batches_tracked",)),
    nn.Embedding: _renamed({"weight": "table"}, lambda m: {"weight": (m.words, m.width)}),
    **dict.fromkeys((nn.Conv1d, nn.Conv2d), _renamed(
        _SAME, lambda m: _with_bias(m, (m.n_out, m.n_in // m.groups, *m.kernel)),
        lambda weight: np.moveaxis(weight, (0, 1), (-1, -2)), lambda weight: np.moveaxis(weight, (-1, -2), (0, 1)))),
    nn.MultiHeadAttention: _composite_layer(lambda layer: {
        "projection": _Part("in_proj_{}".format, layer.projection), "out": _Part("out_proj.{}".format, layer.out)}),
    nn.TransformerBlock: _composite_layer(lambda block: {
        key: _Part(name.format, getattr(block, key)) for key, name in _OF_BLOCK.items()}),
    Recurrent: _composite_layer(lambda layer: {
        key: _Part(partial(_stacked_name, key), cell) for key, cell in layer.cells.items()}),
    RecurrentCell: Layer(_cell_shapes, _cell_ours, _cell_theirs),
}
"""The layers that both libraries have. A class below one of these is written as that one."""


def layer_of(module: nn.Module) -> Layer | None:
    """The entry of a layer in the table; None for a module that PyTorch has not, or that only has others in it."""
    return next((LAYERS[kind] for kind in type(module).__mro__ if kind in LAYERS), None)
