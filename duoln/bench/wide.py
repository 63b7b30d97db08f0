"""The group `wide` of `duoln bench`: each part that a user meets, beside the same in PyTorch."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import Any

from duoln.bench.row import CLIP, Formula, Passes, Row, Shape


def _row(shapes: Mapping[str, Shape], formula: Formula, passes: Passes = "forward", params: int = 0,
         compiled: bool = False) -> Row:
    return Row("", next(iter(shapes.values())), passes, shapes, formula, params, compiled,
               CLIP if passes == "update" else None)


# Operators --------------------------------------------------------------------------------------------

_LARGE, _HALF, _MIDDLE = (10_000, 1_000), (10_000, 500), (1_000, 1_000)
_FUNCTIONS: dict[str, Formula] = {
    "gelu": lambda of, x: of.gelu(x), "gelu-tanh": lambda of, x: of.gelu(x, approximate="tanh"),
    "silu": lambda of, x: of.silu(x), "sigmoid": lambda of, x: of.sigmoid(x), "tanh": lambda of, x: of.tanh(x),
    "erf": lambda of, x: of.erf(x), "exp": lambda of, x: of.exp(x), "square": lambda of, x: of.square(x)}
_OF_ROWS: dict[str, Formula] = {
    "softmax": lambda of, x: of.softmax(x, -1), "log-softmax": lambda of, x: of.log_softmax(x, -1),
    "sum": lambda of, x: of.sum(x, -1), "max": lambda of, x: of.max(x, -1),
    "cumsum": lambda of, x: of.cumulative_sum(x, axis=-1)}
_LOSSES: dict[str, Formula] = {
    "huber": lambda of, x, y: of.huber(x, y), "mse": lambda of, x, y: of.squared_error(x, y),
    "bce": lambda of, x, y: of.bce_with_logits(x, y), "softplus": lambda of, x, y: of.mean(of.softplus(x))}


def _mean_of(formula: Formula, square: bool) -> Formula:
    """The mean of the values, or of their squares where they have a constant mean."""
    return lambda of, x: of.mean(of.square(formula(of, x)) if square else formula(of, x))


def _chain(of: Any, x: Any, y: Any) -> Any:
    return of.tanh(x * y + x) * of.sigmoid(y)


_OPERATORS = {
    "elementwise": {
        **{name: _row({"x": _LARGE}, formula) for name, formula in {**_FUNCTIONS, **_OF_ROWS}.items()},
        "row-add": _row({"x": _LARGE, "y": _LARGE[1:]}, lambda of, x, y: x + y),
        "concat": _row({"x": _HALF, "y": _HALF}, lambda of, x, y: of.concat([x, y], axis=-1))},
    "activations": {
        f"{name}-gradient": _row({"x": _MIDDLE}, _mean_of({**_FUNCTIONS, **_OF_ROWS}[name], "max" in name),
                                 "gradient", 1)
        for name in ("gelu", "gelu-tanh", "silu", "sigmoid", "tanh", "softmax", "log-softmax")},
    "losses": {name: _row({"x": _MIDDLE, "y_share": _MIDDLE}, formula, "gradient", 1)
               for name, formula in _LOSSES.items()},
    "chain": {
        "chain": _row({"x": _MIDDLE, "y": _MIDDLE}, _chain, compiled=True),
        "chain-gradient": _row({"x": _MIDDLE, "y": _MIDDLE}, lambda of, x, y: of.mean(_chain(of, x, y)), "gradient", 2,
                               compiled=True)},
}

# Layers -----------------------------------------------------------------------------------------------

_IMAGE = (16, 28, 28, 64)
_NORM = {"image": _IMAGE, "gain": _IMAGE[-1:], "bias": _IMAGE[-1:], "image_weights": _IMAGE}

_LAYERS = {
    "depthwise": _row({"image": _IMAGE, "w": (3, 3, 1, 64)},
                      lambda of, x, w: of.mean(of.conv2d(x, w, padding=1, groups=_IMAGE[-1])), "gradient", 2),
    "dilated": _row({"image": _IMAGE, "w": (3, 3, 64, 64)},
                    lambda of, x, w: of.mean(of.conv2d(x, w, padding=2, dilation=2)), "gradient", 2),
    "group-norm": _row(_NORM, lambda of, x, gain, bias, y: of.mean(y * of.group_norm(x, gain, bias, groups=8)),
                       "gradient", 3),
    "instance-norm": _row(_NORM, lambda of, x, gain, bias, y: of.mean(y * of.instance_norm(x, gain, bias)),
                          "gradient", 3),
}

# Networks ---------------------------------------------------------------------------------------------

_WIDTHS = (784, 512, 512, 10)


def _dense(widths: Shape) -> dict[str, Shape]:
    """Weights and biases of dense layers."""
    return {name: shape for k, (n_in, n_out) in enumerate(pairwise(widths))
            for name, shape in ((f"w{k}", (n_in, n_out)), (f"b{k}", (n_out,)))}


def _logits(activation: Formula) -> Formula:
    """A network of dense layers: weights and biases in turn, and x."""
    def formula(of: Any, *arrays: Any) -> Any:
        *params, x = arrays
        for k in range(0, len(params), 2):
            x = of.linear(x if k == 0 else activation(of, x), params[k], params[k + 1])
        return x

    return formula


def _classes(activation: Formula) -> Formula:
    """The loss of such a network."""
    logits = _logits(activation)
    return lambda of, *arrays: of.softmax_cross_entropy(logits(of, *arrays[:-1]), arrays[-1])


def _mlp(batch: int, activation: Formula) -> Row:
    return _row({**_dense(_WIDTHS), "x": (batch, _WIDTHS[0]), "labels": (batch,)}, _classes(activation), "step", 6)


def _relu(of: Any, x: Any) -> Any:
    return of.relu(x)


def _normed_classes(of: Any, w0: Any, b0: Any, gain: Any, bias: Any, w1: Any, b1: Any, x: Any, labels: Any) -> Any:
    """The loss of the network with a layer norm that README trains."""
    h = of.tanh(of.layer_norm(of.linear(x, w0, b0), gain, bias))
    return of.softmax_cross_entropy(of.linear(h, w1, b1), labels)


_NORMED = {"w0": (784, 512), "b0": (512,), "gain": (512,), "bias": (512,), "w1": (512, 10), "b1": (10,),
           "x": (128, 784), "labels": (128,)}
_BLOCK = {"gain0": (256,), "bias0": (256,), "w_qkv": (256, 768), "b_qkv": (768,), "w_out": (256, 256), "b_out": (256,),
          "gain1": (256,), "bias1": (256,), "w_up": (256, 1024), "b_up": (1024,), "w_down": (1024, 256),
          "b_down": (256,), "x": (8, 64, 256), "y": (8, 64, 256)}
_HEADS = 4


def _block(of: Any, gain0: Any, bias0: Any, w_qkv: Any, b_qkv: Any, w_out: Any, b_out: Any, gain1: Any, bias1: Any,
           w_up: Any, b_up: Any, w_down: Any, b_down: Any, x: Any, y: Any) -> Any:
    """The error of a causal block of a Transformer with layer norms before each part."""
    batch, time, width = x.shape
    qkv = of.split(of.linear(of.layer_norm(x, gain0, bias0), w_qkv, b_qkv), 3, axis=-1)
    query, key, value = (of.permute_dims(each.reshape((batch, time, _HEADS, width // _HEADS)), (0, 2, 1, 3))
                         for each in qkv)
    heads = of.permute_dims(of.attention(query, key, value, causal=True), (0, 2, 1, 3))
    attended = of.linear(heads.reshape((batch, time, width)), w_out, b_out)
    normed, x = of.add_layer_norm(attended, x, gain1, bias1)
    return of.squared_error(x + of.linear(of.gelu(of.linear(normed, w_up, b_up)), w_down, b_down), y)


_WORDS = {"x": (640, 256), "w": (256, 30_000), "b": (30_000,), "labels": (640,)}

_NETWORKS = {
    "networks": {
        "transformer": _row(_BLOCK, _block, "step", 12),
        **{f"mlp-{name}": _mlp(128, _FUNCTIONS[name]) for name in ("gelu", "gelu-tanh", "silu", "sigmoid")},
        "mlp-layer-norm": _row(_NORMED, _normed_classes, "step", 6),
        **{f"mlp-{batch}": _mlp(batch, _relu) for batch in (4, 32, 128, 1024)}},
    "words": {
        f"words-{passes}": _row(_WORDS, lambda of, x, w, b, labels: of.linear_cross_entropy(x, w, b, labels), passes, 3,
                                compiled=True) for passes in ("gradient", "step")},
}

# Updates and calls ------------------------------------------------------------------------------------

_VALUES = 30_000_000
_SMALL = {"x": (8, 64), "y": (8, 64), "z": (64, 64), "w": (64, 64), "gain": (64,), "bias": (64,)}
_SMALL_CALLS: dict[str, Formula] = {
    "add": lambda of, x, y, *_: x + y, "sum": lambda of, x, *_: of.sum(x), "matmul": lambda of, x, y, z, *_: x @ z,
    "tanh": lambda of, x, *_: of.tanh(x), "softmax": lambda of, x, *_: of.softmax(x, -1),
    "layer-norm": lambda of, x, y, z, w, gain, bias: of.layer_norm(x, gain, bias),
    "linear": lambda of, x, y, z, w, gain, bias: of.linear(x, w, bias)}


def _twice(of: Any, *arrays: Any) -> Any:
    return [array + array for array in arrays]


_OVERHEAD = {
    "adam": {f"adam-{count}": _row({f"w{k}": (_VALUES // count,) for k in range(count)}, _twice, "update", count)
             for count in (3, 300, 3000)},
    "calls": {
        "mlp-forward-1": _row({**_dense(_WIDTHS), "x": (1, _WIDTHS[0])}, _logits(_relu), compiled=True),
        **{f"call-{count}": _row({f"x{k}": (8, 64) for k in range(count)}, _twice, compiled=True)
           for count in (1, 20)}},
    "small": {
        **{f"small-{name}": _row(_SMALL, formula) for name, formula in _SMALL_CALLS.items()},
        **{f"small-mlp-{passes}": _row({**_dense((64, 64, 64, 10)), "x": (8, 64), "labels": (8,)}, _classes(_relu),
                                       passes, 6) for passes in ("gradient", "step")}},
}
FIRST = "mlp-layer-norm"
"""The row whose first step is timed from the start of a process."""
WIDE: dict[str, dict[str, Row]] = {**_OPERATORS, "layers": _LAYERS, **_NETWORKS, **_OVERHEAD}
"""The rows by their groups and names."""
