"""One right call of every operator, with the role of each argument. The wrong calls are generated from these.

The call of an operator that declares its arrays is drawn from its declaration: sizes for axes, values for kinds, and
attributes from their annotations. The others stand here.
"""

from __future__ import annotations

import inspect
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from duoln import ops
from duoln.core.arguments import BELOW_1, FINITE, NOT_NAN, Interval, Whole
from duoln.core.call import Attribute, attributes
from duoln.core.op import Op
from duoln.core.spec import ArraySpec, Spec
from duoln.core.tensor import constant_tensor
from duoln.ops.recurrent.variants import CELLS, has_bias, norm_shapes


@dataclass(frozen=True)
class Call:
    """A right call: its tensors in order, each with a role, and its attributes, each with a kind (see `misuses`)."""

    name: str
    tensors: tuple[tuple[np.ndarray | float | None, str], ...]
    attrs: dict[str, tuple[Any, str]] = field(default_factory=dict)
    module: Any = ops
    """Where the operator is."""
    axes: tuple[tuple[str, ...], ...] = ()
    """The names of each tensor's axes, `4 hidden` for four times as many."""

    def __str__(self) -> str:
        return self.name

    def bound_axes(self) -> list[tuple[int, int]]:
        """Each tensor and axis whose size is a number, or that of another axis."""
        uses = Counter(axis.rpartition(" ")[2] for names in self.axes for axis in names)
        return [(i, k) for i, names in enumerate(self.axes) for k, axis in enumerate(names)
                if uses[axis.rpartition(" ")[2]] > 1 or axis.isdigit()]


def floats(*shape: int) -> np.ndarray:
    """Values in (0, 1), different from each other."""
    return ((np.arange(np.prod(shape, dtype=int)) + 1) / (np.prod(shape, dtype=int) + 2)).astype(np.float32).reshape(shape)


# Drawn ------------------------------------------------------------------------------------------------

def drawn(op: Op[..., Any], module: Any = ops, sizes: dict[str, int] | None = None, **attrs: tuple[Any, str]) -> Call:
    """A right call of an operator that declares its arrays.

    Args:
        op, module: the operator, and where it is.
        sizes: of axes on which more than the declaration is asked; the others are different from each other.
        attrs: the attributes whose annotations say nothing.
    """
    assert op.spec is not None
    sizes = dict(sizes or {})
    axes = tuple([_axes(each) for each in op.spec.inputs])
    for axis in dict.fromkeys(axis.rpartition(" ")[2] for names in axes for axis in names):
        sizes.setdefault(axis, int(axis) if axis.isdigit() else 2 + len(sizes))
    sizes |= {axis: int(axis.partition(" ")[0]) * sizes[axis.partition(" ")[2]] for names in axes for axis in names if axis[0].isdigit() and " " in axis}
    tensors = tuple([(_values(each.kind, [sizes[axis] for axis in names]), _role(each, op.spec))
                     for each, names in zip(op.spec.inputs, axes, strict=True)])
    kinds = {each.name: _of_attribute(each) for each in attributes(op.function)} | attrs
    others = inspect.signature(op).parameters.keys() - {each.name for each in op.spec.inputs} - kinds.keys()
    assert not others, f"{op.name}: what are {others}?"
    return Call(op.name, tensors, kinds, module, axes)


def _axes(array: ArraySpec) -> tuple[str, ...]:
    """The name of each axis; `*rows` are two. An array of any shape has two axes, a mask of any shape none."""
    if array.axes is None:
        return () if array.kind == "bool" and array.optional else (f"{array.name}.0", f"{array.name}.1")
    return tuple([name for axis in array.axes for name in ([f"{axis}.0", f"{axis}.1"] if axis[0] == "*" else [axis])])


def _values(kind: str, shape: list[int]) -> np.ndarray:
    if kind == "bool":
        return np.ones(shape, bool)
    return np.arange(np.prod(shape, dtype=int)).reshape(shape).astype(np.int32) % 2 if kind == "int32" else floats(*shape)


def _role(array: ArraySpec, spec: Spec) -> str:
    stars = Counter(axis for each in spec.inputs for axis in each.axes or () if axis[0] == "*")
    is_ranked = array.axes is not None and all(stars[axis] != 1 for axis in array.axes)
    if array.kind == "int32":
        return "labels" if array.axes and is_ranked else "fixed integer" if array.axes == () else "ids"
    if array.kind == "bool":
        return ("optional bool" if is_ranked else "broadcast bool") if array.optional else "fixed bool" if is_ranked else "bool"
    if array.kind == "any":
        return "fixed any" if is_ranked else "any"
    return "optional" if array.optional else "fixed" if is_ranked else "float"


def _of_attribute(attribute: Attribute) -> tuple[Any, str]:
    """A right value and a kind."""
    kind = attribute.kind
    if isinstance(kind, Interval):
        value, word = 0.5, "number" if kind in (FINITE, NOT_NAN) else "share" if kind == BELOW_1 else "positive"
    elif isinstance(kind, Whole):
        value, word = (2, "count") if kind.low > 0 else (-1, "integer")
    elif kind is bool:
        value, word = False, "flag"
    else:
        value, word = kind[0], "choice"
    return value, f"optional {word}" if attribute.optional else word


# Written by hand --------------------------------------------------------------------------------------

def _recurrent(name: str) -> Call:
    cell = name.partition("_")[0]
    hidden, gates = 3, CELLS[cell].gates
    sequence = name == cell
    norms = {key: floats(*shape) for key, shape in norm_shapes(cell, "layer", hidden).items()}
    bias = floats(gates * hidden) if has_bias(cell, "layer") else None
    states = ((floats(2, hidden), "fixed"),) * (2 if cell == "lstm" else 1)
    attrs: dict[str, tuple[Any, str]] = {"norms": (norms, "norms"), "norm": ("layer", "choice"), "eps": (1e-5, "positive")}
    if sequence:
        attrs |= {"reverse": (False, "flag"), "gradient_limit": (1.0, "optional positive")}
    mask = ((np.ones((2, 2), bool), "optional bool"),) if sequence else ()
    time, gate = ("T",) if sequence else (), f"{gates} hidden"
    axes = ((*time, "B", "in"), *(("B", "hidden"),) * len(states), ("in", gate), ("hidden", gate), () if bias is None else (gate,), (*time, "B"))
    return Call(name, ((floats(*((2,) if sequence else ()), 2, 4), "fixed"), *states, (floats(4, gates * hidden), "fixed"),
                       (floats(hidden, gates * hidden), "fixed"), (bias, "absent" if bias is None else "fixed"), *mask),
                attrs, axes=axes if sequence else axes[:-1])


_IDS = np.array([[0, 2], [1, 0]], np.int32)
_BOOLS = np.array([[True, False], [False, True]])

BY_HAND: list[Call] = [
    Call("full_like", ((floats(3, 4), "any"),), {"fill_value": (2.0, "number")}),
    Call("zeros_like", ((floats(3, 4), "any"),)), Call("ones_like", ((floats(3, 4), "any"),)),
    Call("clip", ((floats(3, 4), "float"),), {"min": (0.1, "optional bound"), "max": (0.9, "optional bound")}),
    *(Call(name, ((floats(3, 4), "paired"), (floats(3, 4), "paired")))
      for name in ("add", "subtract", "multiply", "divide", "maximum", "minimum", "pow", "floor_divide", "remainder", "hypot",
                   "logaddexp")),
    *(Call(name, ((floats(3, 4), "compared"), (floats(3, 4), "compared")))
      for name in ("equal", "not_equal", "less", "less_equal", "greater", "greater_equal")),
    *(Call(name, ((_BOOLS, "paired bool"), (_BOOLS, "paired bool"))) for name in ("logical_and", "logical_or")),
    Call("where", ((_BOOLS, "bool"), (floats(2, 2), "compared"), (floats(2, 2), "compared"))),
    Call("astype", ((floats(2), "any"),), {"dtype": ("float32", "dtype")}),
    Call("expand_dims", ((floats(3, 4), "any"),), {"axis": (1, "new axis")}),
    Call("squeeze", ((floats(3, 1), "any"),), {"axis": (1, "some axes")}),
    Call("matrix_transpose", ((floats(3, 4), "any"),)),
    Call("moveaxis", ((floats(3, 4), "any"),), {"source": (1, "some axes"), "destination": (0, "some axes")}),
    Call("broadcast_arrays", ((_IDS, "any"), (_IDS[:1], "any"))),
    Call("tile", ((floats(3, 4), "any"),), {"repetitions": ((2, 1), "counts")}),
    Call("repeat", ((floats(3, 4), "any"),), {"repeats": (2, "width"), "axis": (1, "optional axis")}),
    Call("roll", ((floats(3, 4), "any"),), {"shift": (2, "shifts"), "axis": (1, "moved axes")}),
    Call("concat", ((floats(3, 4), "joined"), (floats(3, 4), "joined")), {"axis": (1, "optional axis")}),
    Call("stack", ((floats(3, 4), "joined"), (floats(3, 4), "joined")), {"axis": (1, "new axis")}),
    Call("flip", ((floats(3, 4), "any"),), {"axis": (1, "axes")}),
    Call("take_along_axis", ((floats(2, 3), "fixed any"), (_IDS, "ids")), {"axis": (1, "axis")}),
    Call("matmul", ((floats(3, 4), "float"), (floats(4, 2), "float"))),
    Call("outer", ((floats(3), "fixed"), (floats(4), "fixed"))),
    Call("vecdot", ((floats(3, 4), "float"), (floats(3, 4), "float")), {"axis": (-1, "last axis")}),
    Call("tensordot", ((floats(3, 4), "float"), (floats(4, 2), "float")), {"axes": (1, "meeting axes")}),
    Call("global_norm", ((floats(3, 4), "float"), (floats(2), "float"))),
    Call("adam_update", ((np.float32(0.1), "fixed"), (np.float32(0.1), "fixed"), (np.float32(0.5), "optional"),
                         (np.float32(0.9), "optional"), *((floats(3, 4), "fixed"),) * 4),
         {"beta1": (0.9, "share"), "beta2": (0.9, "share"), "donate": (False, "flag")}),
    *(_recurrent(name) for name in ("rnn", "rnn_step", "lstm", "lstm_step", "gru", "gru_step")),
    Call("lstm_cell", ((floats(2, 12), "fixed"), (floats(2, 12), "fixed"), (floats(2, 3), "fixed"), (floats(12), "fixed")),
         {"norms": ({k: floats(*s) for k, s in norm_shapes("lstm", "layer", 3).items()}, "norms"), "norm": ("layer", "choice"),
          "eps": (1e-5, "positive")}, axes=(("B", "4 H"), ("B", "4 H"), ("B", "H"), ("4 H",))),
]
"""Those that take numbers in the place of tensors, or any number of tensors, and those that other operators compute."""

_IMAGES = {"height": 5, "width": 5, "channels": 3, "kh": 2, "kw": 2, "group": 3, "out": 4}
_PAIRS = {"stride": (1, "pair of counts"), "padding": (1, "padding"), "dilation": (1, "pair of counts")}
_IMAGES_1D = {"time": 5, "channels": 4, "k": 2, "group": 2, "out": 6}
_POOL = {"size": (2, "pair of counts"), "stride": (1, "optional pair of counts"), "padding": (1, "pool padding")}

SIZES: dict[str, dict[str, int]] = {"conv2d": _IMAGES, "max_pool2d": _IMAGES, "avg_pool2d": _IMAGES, "conv1d": _IMAGES_1D, "group_norm": {"channels": 4},
                                    "broadcast_to": {"x.0": 3, "x.1": 1}, "reshape": {"x.0": 3, "x.1": 4}}
"""Sizes of axes on which an operator asks more than it declares."""
ATTRS: dict[str, dict[str, tuple[Any, str]]] = {
    **{name: {"axis": (1, "axes")} for name in ("sum", "max", "min", "prod", "all", "any", "vector_norm", "mean", "var", "std")},
    **{name: {"axis": (1, "optional axis")} for name in ("argmax", "argmin")},
    "take": {"axis": (0, "axis")}, "embedding": {"padding_idx": (0, "optional index")}, "one_hot": {"dtype": ("float32", "dtype")},
    **{name: {"axis": (1, "axis")} for name in ("cumulative_sum", "logsumexp", "softmax", "log_softmax", "unstack")},
    **{name: {"axis": (-1, "some axes")} for name in ("layer_norm", "rms_norm")},
    "split": {"parts": (2, "parts"), "axis": (0, "axis")},
    "reshape": {"shape": ((2, 6), "shape")}, "permute_dims": {"axes": ((1, 0), "order")}, "broadcast_to": {"shape": ((3, 4), "shape")},
    "pad": {"widths": (((1, 0), (0, 2)), "widths"), "value": (0.5, "number")},
    "getitem": {"key": (1, "key")},
    "conv2d": {**_PAIRS, "groups": (1, "count of groups")}, "max_pool2d": _POOL, "avg_pool2d": _POOL,
    "conv1d": {"padding": (1, "padding of time"), "groups": (2, "count of groups")},
    **{name: {"padding": (1, "pool padding")} for name in ("max_pool1d", "avg_pool1d")},
    "group_norm": {"groups": (2, "count of groups")}, **{name: {"class_weights": (None, "optional weights")} for name in ("softmax_cross_entropy", "probability_cross_entropy")},
}
"""The attributes whose annotations do not say all: a right value and a kind."""

_HELD = {call.name for call in BY_HAND}
CALLS = [*BY_HAND, *(drawn(op, sizes=SIZES.get(name), **ATTRS.get(name, {})) for name, op in vars(ops).items()
                     if name not in _HELD and isinstance(op, Op) and op.spec)]


def run(call: Call, be: Any, tensors: list[Any] | None = None, **attrs: Any) -> Any:
    """The call on one backend, with some of its arguments replaced."""
    given = [as_tensor(a, be) for a, _ in call.tensors] if tensors is None else tensors
    values = {key: value for key, (value, _) in call.attrs.items()} | attrs
    if isinstance(values.get("norms"), dict):
        values["norms"] = {key: as_tensor(value, be) if isinstance(value, np.ndarray) else value
                           for key, value in values["norms"].items()}
    return getattr(call.module, call.name)(*given, **values)


def as_tensor(array: np.ndarray | np.generic | None, be: Any) -> Any:
    """The array as a tensor; None stays."""
    return None if array is None else constant_tensor(be.asarray(np.asarray(array)), be)
