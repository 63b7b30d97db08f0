"""One right call of every operator, with the role of each argument. The wrong calls are generated from these."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from duoln import ops
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

    def __str__(self) -> str:
        return self.name


def floats(*shape: int) -> np.ndarray:
    """Values in (0, 1), different from each other."""
    return ((np.arange(np.prod(shape, dtype=int)) + 1) / (np.prod(shape, dtype=int) + 2)).astype(np.float32).reshape(shape)


def _of_floats(name: str, **attrs: tuple[Any, str]) -> Call:
    return Call(name, ((floats(3, 4), "float"),), attrs)


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
    return Call(name, ((floats(*((2,) if sequence else ()), 2, 4), "fixed"), *states, (floats(4, gates * hidden), "fixed"),
                       (floats(hidden, gates * hidden), "fixed"), (bias, "absent" if bias is None else "fixed"), *mask), attrs)


_IDS = np.array([[0, 2], [1, 0]], np.int32)
_LABELS = np.array([0, 3, 1], np.int32)
_BOOLS = np.array([[True, False], [False, True]])
_IMAGES = floats(2, 5, 5, 3)

CALLS: list[Call] = [
    Call("full_like", ((floats(3, 4), "any"),), {"fill_value": (2.0, "number")}),
    Call("zeros_like", ((floats(3, 4), "any"),)), Call("ones_like", ((floats(3, 4), "any"),)),
    *(_of_floats(name) for name in ("abs", "ceil", "cos", "erf", "exp", "expm1", "floor", "isfinite", "isinf", "isnan", "log",
                                    "log1p", "negative", "relu", "round", "rsqrt", "sigmoid", "sign", "silu", "sin", "softplus", "sqrt",
                                    "square", "tanh")),
    _of_floats("elu", alpha=(1.0, "positive")), _of_floats("gelu", approximate=("none", "choice")), _of_floats("leaky_relu", slope=(0.1, "number")),
    _of_floats("clip", min=(0.1, "optional bound"), max=(0.9, "optional bound")),
    _of_floats("clip_gradient", limit=(1.0, "positive")),
    *(Call(name, ((floats(3, 4), "paired"), (floats(3, 4), "paired")))
      for name in ("add", "subtract", "multiply", "divide", "maximum", "minimum", "pow")),
    *(Call(name, ((floats(3, 4), "compared"), (floats(3, 4), "compared")))
      for name in ("equal", "not_equal", "less", "less_equal", "greater", "greater_equal")),
    *(Call(name, ((_BOOLS, "paired bool"), (_BOOLS, "paired bool"))) for name in ("logical_and", "logical_or")),
    Call("logical_not", ((_BOOLS, "bool"),)),
    Call("where", ((_BOOLS, "bool"), (floats(2, 2), "compared"), (floats(2, 2), "compared"))),
    Call("astype", ((floats(2), "any"),), {"dtype": ("float32", "dtype")}),
    *(Call(name, ((floats(3, 4), kind),), {"axis": (1, "axes"), "keepdims": (False, "flag")})
      for name, kind in (("sum", "any"), ("mean", "float"), ("max", "float"), ("min", "float"), ("prod", "any"))),
    *(_of_floats(name, axis=(1, "axes"), keepdims=(False, "flag"), correction=(0.5, "number")) for name in ("var", "std")),
    _of_floats("vector_norm", axis=(1, "axes"), keepdims=(False, "flag"), ord=(2, "number")),
    *(Call(name, ((_BOOLS, "bool"),), {"axis": (1, "axes"), "keepdims": (False, "flag")}) for name in ("all", "any")),
    *(_of_floats(name, axis=(1, "optional axis"), keepdims=(False, "flag")) for name in ("argmax", "argmin")),
    _of_floats("cumulative_sum", axis=(1, "axis"), include_initial=(False, "flag")),
    _of_floats("logsumexp", axis=(1, "axis"), keepdims=(False, "flag")),
    _of_floats("softmax", axis=(1, "axis")), _of_floats("log_softmax", axis=(1, "axis")),
    Call("reshape", ((floats(3, 4), "any"),), {"shape": ((2, 6), "shape")}),
    Call("permute_dims", ((floats(3, 4), "any"),), {"axes": ((1, 0), "order")}),
    Call("expand_dims", ((floats(3, 4), "any"),), {"axis": (1, "new axis")}),
    Call("squeeze", ((floats(3, 1), "any"),), {"axis": (1, "some axes")}),
    Call("matrix_transpose", ((floats(3, 4), "any"),)),
    Call("moveaxis", ((floats(3, 4), "any"),), {"source": (1, "some axes"), "destination": (0, "some axes")}),
    Call("broadcast_arrays", ((_IDS, "any"), (_IDS[:1], "any"))),
    Call("tile", ((floats(3, 4), "any"),), {"repetitions": ((2, 1), "counts")}),
    Call("repeat", ((floats(3, 4), "any"),), {"repeats": (2, "width"), "axis": (1, "optional axis")}),
    Call("roll", ((floats(3, 4), "any"),), {"shift": (2, "shifts"), "axis": (1, "moved axes")}),
    *(Call(name, ((floats(3, 4), "any"),), {"k": (1, "shift")}) for name in ("tril", "triu")),
    Call("broadcast_to", ((floats(3, 1), "any"),), {"shape": ((3, 4), "shape")}),
    Call("concat", ((floats(3, 4), "joined"), (floats(3, 4), "joined")), {"axis": (1, "optional axis")}),
    Call("stack", ((floats(3, 4), "joined"), (floats(3, 4), "joined")), {"axis": (1, "new axis")}),
    Call("split", ((floats(3, 4), "any"),), {"parts": (2, "parts"), "axis": (1, "axis")}),
    Call("unstack", ((floats(3, 4), "any"),), {"axis": (1, "axis")}),
    Call("flip", ((floats(3, 4), "any"),), {"axis": (1, "axes")}),
    Call("pad", ((floats(3, 4), "any"),), {"widths": (((1, 0), (0, 2)), "widths"), "value": (0.5, "number")}),
    Call("getitem", ((floats(3, 4), "any"),), {"key": (1, "key")}),
    Call("take", ((floats(3, 4), "any"), (_IDS, "ids")), {"axis": (0, "axis")}),
    Call("embedding", ((floats(3, 4), "fixed any"), (_IDS, "ids")), {"padding_idx": (0, "optional index")}),
    Call("take_along_axis", ((floats(2, 3), "fixed any"), (_IDS, "ids")), {"axis": (1, "axis")}),
    Call("one_hot", ((_IDS, "ids"),), {"size": (3, "count"), "dtype": ("float32", "dtype")}),
    Call("matmul", ((floats(3, 4), "float"), (floats(4, 2), "float"))),
    Call("outer", ((floats(3), "fixed"), (floats(4), "fixed"))),
    Call("vecdot", ((floats(3, 4), "float"), (floats(3, 4), "float")), {"axis": (-1, "last axis")}),
    Call("tensordot", ((floats(3, 4), "float"), (floats(4, 2), "float")), {"axes": (1, "meeting axes")}),
    Call("linear", ((floats(3, 4), "float"), (floats(4, 2), "fixed"), (floats(2), "optional"))),
    Call("activated_linear", ((floats(3, 4), "float"), (floats(4, 2), "fixed"), (floats(2), "optional")), {"activation": ("relu", "choice")}),
    Call("conv2d", ((_IMAGES, "fixed"), (floats(2, 2, 3, 4), "fixed")), {"stride": (1, "pair of counts"), "padding": (1, "padding"), "dilation": (1, "pair of counts"),
                                                                           "groups": (1, "count of groups")}),
    Call("conv1d", ((floats(2, 5, 4), "fixed"), (floats(2, 2, 6), "fixed")), {"stride": (1, "count"), "padding": (1, "padding of time"), "dilation": (1, "count"),
                                                                             "groups": (2, "count of groups")}),
    *(Call(name, ((_IMAGES, "fixed"),), {"size": (2, "pair of counts"), "stride": (1, "optional pair of counts"), "padding": (1, "pool padding")})
      for name in ("max_pool2d", "avg_pool2d")),
    *(Call(name, ((_IMAGES[:, 0], "fixed"),), {"size": (2, "count"), "stride": (1, "optional count"), "padding": (1, "pool padding")})
      for name in ("max_pool1d", "avg_pool1d")),
    Call("layer_norm", ((floats(3, 4), "float"), (floats(4), "optional"), (floats(4), "optional")),
         {"eps": (1e-5, "positive"), "activation": ("relu", "optional choice"), "axis": (-1, "some axes")}),
    Call("rms_norm", ((floats(3, 4), "float"), (floats(4), "optional")), {"eps": (1e-5, "positive"), "axis": (-1, "some axes")}),
    Call("add_layer_norm", ((floats(3, 4), "fixed"), (floats(3, 4), "fixed"), (floats(4), "optional"), (floats(4), "optional")), {"eps": (1e-5, "positive")}),
    Call("add_rms_norm", ((floats(3, 4), "fixed"), (floats(3, 4), "fixed"), (floats(4), "optional")), {"eps": (1e-5, "positive")}),
    Call("group_norm", ((floats(2, 3, 4), "float"), (floats(4), "optional"), (floats(4), "optional")),
         {"groups": (2, "count of groups"), "eps": (1e-5, "positive")}),
    Call("instance_norm", ((floats(2, 3, 4), "float"), (floats(4), "optional"), (floats(4), "optional")), {"eps": (1e-5, "positive")}),
    Call("batch_norm", ((floats(3, 4), "float"), (floats(4), "optional"), (floats(4), "optional")),
         {"eps": (1e-5, "positive"), "unbiased": (False, "flag")}),
    Call("weight_norm", ((floats(3, 4), "float"), (floats(4), "fixed"))),
    Call("softmax_cross_entropy", ((floats(3, 4), "fixed"), (_LABELS, "labels")), {"label_smoothing": (0.1, "share")}),
    Call("linear_cross_entropy", ((floats(3, 5), "fixed"), (floats(5, 4), "fixed"), (floats(4), "fixed"), (_LABELS, "labels"))),
    *(Call(name, ((floats(3, 4), "fixed"), (floats(3, 4), "fixed"))) for name in ("soft_cross_entropy", "mse_loss", "l1_loss", "kl_div")),
    Call("huber_loss", ((floats(3, 4), "fixed"), (floats(3, 4), "fixed")), {"delta": (1.0, "positive")}),
    Call("bce_with_logits", ((floats(3, 4), "fixed"), (floats(3, 4), "fixed"))),
    Call("scaled_dot_product_attention", ((floats(2, 3, 4), "fixed"), (floats(2, 5, 4), "fixed"), (floats(2, 5, 4), "fixed"), (np.ones((3, 5), bool), "broadcast bool")),
         {"causal": (False, "flag"), "scale": (0.5, "optional positive")}),
    Call("additive_attention", ((floats(2, 4), "fixed"), (floats(2, 3, 4), "fixed"), (floats(4), "fixed"),
                                (floats(2, 3, 5), "fixed"), (np.ones((2, 3), bool), "bool"))),
    Call("global_norm", ((floats(3, 4), "float"), (floats(2), "float"))),
    Call("adam_rates", ((np.float32(0.1), "fixed"), (np.int32(3), "fixed integer")),
         {"beta1": (0.9, "share"), "beta2": (0.9, "share"), "eps": (1e-8, "positive"), "bias_correction": ("standard", "choice")}),
    Call("adam_update", ((np.float32(0.1), "fixed"), (np.float32(0.1), "fixed"), (np.float32(0.5), "optional"),
                         (np.float32(0.9), "optional"), *((floats(3, 4), "fixed"),) * 4),
         {"beta1": (0.9, "share"), "beta2": (0.9, "share"), "donate": (False, "flag")}),
    *(_recurrent(name) for name in ("rnn", "rnn_step", "lstm", "lstm_step", "gru", "gru_step")),
    Call("lstm_cell", ((floats(2, 12), "fixed"), (floats(2, 12), "fixed"), (floats(2, 3), "fixed"), (floats(12), "fixed")),
         {"norms": ({k: floats(*s) for k, s in norm_shapes("lstm", "layer", 3).items()}, "norms"), "norm": ("layer", "choice"),
          "eps": (1e-5, "positive")}),
]


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
