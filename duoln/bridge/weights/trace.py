"""A model's call, followed: what the features that each layer takes and gives stand for.

The model runs once on made inputs. Each operator passes on the coordinates of `axes.py`; each layer that
PyTorch has too begins new ones. An operator that is not known here makes them unknown.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from duoln import nn, ops, runtime, tree
from duoln.backends.protocol import Backend, Shape
from duoln.bridge.weights import axes
from duoln.bridge.weights.axes import Coordinate, Coordinates, TracedInput
from duoln.bridge.weights.layers import layer_of
from duoln.core import Op, Rule, Tensor
from duoln.core.op import each_rule
from duoln.nn.cells import RecurrentCell
from duoln.nn.layers import Layer
from duoln.nn.module import branch_at
from duoln.nn.observing import calls_through, own_arrays
from duoln.nn.recurrent import Recurrent
from duoln.ops import activation, elementwise

KEEPING = nn.LayerNorm, nn.RMSNorm, nn.BatchNorm, nn.GroupNorm, nn.InstanceNorm, nn.TransformerBlock
"""Layers whose outputs are the features that they take."""
CONVOLUTIONS = nn.Conv1d, nn.Conv2d
OF_IMAGES = *CONVOLUTIONS, nn.GroupNorm, nn.InstanceNorm
"""Layers for which PyTorch has the channels first."""
_SHAPED = nn.Linear, *CONVOLUTIONS, nn.LayerNorm, nn.RMSNorm, nn.BatchNorm, nn.GroupNorm, nn.InstanceNorm

_ELEMENTWISE = {each.name for module in (elementwise, activation) for each in vars(module).values()
                if isinstance(each, Op)}
_SAME_SHAPE = _ELEMENTWISE | {"softmax", "log_softmax", "cumulative_sum", "clip_gradient", "group_norm",
                              "instance_norm", "layer_norm", "rms_norm", "batch_norm", "add_layer_norm", "add_rms_norm",
                              "tril", "triu"}
_MOVING = {"reshape", "permute_dims", "broadcast_to", "split", "unstack", "getitem", "take", "take_along_axis", "pad"}
_REDUCING = {"sum", "prod", "max", "min", "all", "any", "vector_norm", "logsumexp", "argmax"}
_POOLING = {"max_pool2d", "avg_pool2d"}
_OF_IMAGES = {*_POOLING, "conv2d", "group_norm", "instance_norm"}
_PRODUCTS = {"matmul", "linear", "activated_linear"}


class Trace:
    """The record of one call of a model.

    Attributes:
        inputs: for each layer, by its path, what it takes in each call.
        outputs: for each layer whose outputs become an image, the channels of the image, and whether the channels lie
            side by side; None for one whose outputs are added to a flattened image.
        problem: why the model cannot be read at all, or "".
    """

    def __init__(self, model: nn.Module, is_made_up: bool = False) -> None:
        self.inputs: dict[str, list[TracedInput]] = {}
        self.outputs: dict[str, set[tuple[int, bool] | None]] = {}
        self.problem = ""
        self._model, self._is_made_up = model, is_made_up
        self._known: dict[int, tuple[Any, Coordinates]] = {}
        """By the identity of a native array, the array, which keeps it, and its coordinates."""
        self._changed = {id(m) for _, m in model.modules() if layer_of(m) and not _is_ours(type(m).__call__)}
        """Layers that the user's own class calls in its own way."""
        self._inside = False
        self._running: list[tuple[nn.Module, int]] = []
        self._born = 0
        self._sequential = {id(m) for _, m in model.modules()
                            if isinstance(m, nn.Sequential) and type(m).__call__ is nn.Sequential.__call__}

    def run(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        """Call the model. If the sizes of images are made up, layers are not computed, so that any size fits."""
        backend = runtime.backend("numpy")
        args, kwargs = runtime.to_tensors(list(args), backend), runtime.to_tensors(dict(kwargs), backend)
        params = self._model.init(0)
        for path, layer in self._model.modules():
            if isinstance(layer, nn.BatchNorm):  # one row has no statistics of its own
                ones = np.ones(layer.width, np.float32)
                branch_at("Trace", params, path).update(mean=0 * ones, variance=ones)
        params = runtime.to_tensors(params, backend)
        for path, layer in self._model.modules():  # for those that the model's own code uses
            for x in own_arrays(layer, params, path):
                self._set_coordinates(x.data, axes.new_coordinates(x.shape, 0, frozenset([path])))
        for x in self._tensors([args, kwargs]):
            own = axes.new_coordinates(x.shape, self._born) if _is_float(x) else {
                Coordinate("position", 0): axes.arange_along(k, x.ndim, n) for k, n in enumerate(x.shape) if n > 1}
            self._set_coordinates(x.data, own)
        with calls_through(self._model, self._trace_call), self._flattening(), each_rule(self._trace_rule):
            result = self._model(params, *args, **kwargs)
        for x in (x for x in self._tensors(result) if x.ndim > 2):
            self._record_unflattened(x)

    # What is known of arrays ------------------------------------------------------------------------
    @staticmethod
    def _tensors(of: Any) -> list[Tensor]:
        return [x for x in tree.leaves(of) if isinstance(x, Tensor)]

    def _axis_input(self, x: Tensor | np.ndarray) -> TracedInput:
        data = x.data if isinstance(x, Tensor) else x
        return TracedInput(self._known.get(id(data), (None, {}))[1], data.shape)

    def _set_coordinates(self, data: Any, coordinates: Coordinates) -> None:
        self._born += 1
        self._known[id(data)] = data, axes.drop_duplicates(coordinates, data.shape, self._born)

    def _record_unflattened(self, x: Tensor | np.ndarray) -> None:
        """Note the layers whose outputs lie along several axes of an image."""
        coordinates = self._axis_input(x).coordinates
        for path in (path for c in coordinates if c.kind == "unknown" for path in c.layers):
            self.outputs.setdefault(path, set()).add(None)
        for own, lie in coordinates.items():
            if own.kind != "feature" or not own.layers or sum(n > 1 for n in lie.shape) < 2:
                continue
            places = lie.max(axis=tuple(range(lie.ndim - 1)))
            channels = np.unique(places[places >= 0])
            if len(channels) > 1:
                for path in own.layers:
                    self.outputs.setdefault(path, set()).add((len(channels), bool((np.diff(channels) == 1).all())))

    # Layers -----------------------------------------------------------------------------------------
    def _trace_call(self, path: str, layer: nn.Module, given: list[Tensor], call: Callable[[], Any]) -> Any:
        if self._inside:
            return call()
        if not layer_of(layer):
            return self._call_untracked(layer, call)
        self._record_inputs(path, layer, given)
        self._inside = True
        try:
            result = self._zeros_output(layer, given[0]) if self._is_made_up and isinstance(layer, _SHAPED) else call()
        finally:
            self._inside = False
        self._record_outputs(path, layer, given, result)
        return result

    @staticmethod
    def _zeros_output(layer: nn.Module, x: Tensor) -> Tensor:
        width = layer.n_out if isinstance(layer, (nn.Linear, *CONVOLUTIONS)) else x.shape[-1]
        return Tensor(x.backend.zeros((*x.shape[:-1], width), "float32"), x.backend)

    def _call_untracked(self, layer: nn.Module, call: Callable[[], Any]) -> Any:
        """The result of a module that PyTorch has not, or that only has others in it."""
        self._running.append((layer, self._born))
        try:
            result = call()
        finally:
            self._running.pop()
        if not _is_ours(type(layer)):
            for y in self._tensors(result):  # the user's own module: PyTorch's may turn its image
                self._known[id(y.data)] = y.data, {
                    dataclasses.replace(c, is_first=False): a for c, a in self._axis_input(y).coordinates.items()}
        return result

    def _record_inputs(self, path: str, layer: nn.Module, given: list[Tensor]) -> None:
        if id(layer) in self._changed:
            self.inputs.setdefault(path, []).append(TracedInput(_unknown_coordinate(type(layer).__name__, 1), (0,)))
        else:
            takes = given if isinstance(layer, (*KEEPING, nn.MultiHeadAttention)) else given[:1]
            for x in filter(_is_float, takes):
                if id(x.data) not in self._known:
                    self._set_coordinates(x.data, _unknown_coordinate("an array of its own", x.ndim))
                self.inputs.setdefault(path, []).append(self._axis_input(x))
        if isinstance(layer, OF_IMAGES) or (isinstance(layer, nn.BatchNorm) and given[0].ndim > 2):
            self._record_unflattened(given[0])
        if isinstance(layer, Recurrent | RecurrentCell) and any(
                axes.is_merged(self._axis_input(x).coordinates, x.ndim - 1) for x in given[1:] if x.ndim):
            self.problem = self.problem or f"{path}: a state is a flattened image"

    def _record_outputs(self, path: str, layer: nn.Module, given: list[Tensor], result: Any) -> None:
        takes = list(filter(_is_float, given)) if isinstance(layer, KEEPING) else given[:1]
        for y in filter(_is_float, self._tensors(result)):
            is_first = isinstance(layer, OF_IMAGES) or (isinstance(layer, nn.BatchNorm) and y.ndim > 2)
            own = axes.new_coordinates(y.shape, self._born, frozenset([path]), is_first)
            for x in takes:
                own = {**self._kept_coordinates(self._axis_input(x), y.shape, isinstance(layer, KEEPING)), **own}
            if id(layer) in self._changed:
                own |= _unknown_coordinate(type(layer).__name__, y.ndim)
            self._set_coordinates(y.data, own)

    @staticmethod
    def _kept_coordinates(x: TracedInput, shape: Shape, is_kept: bool) -> Coordinates:
        """The coordinates that a layer's output of that shape keeps of its input: those of the other axes."""
        before = x.coordinates if is_kept else axes.reduced(x.coordinates, -1)
        if len(shape) == len(x.shape) + 1:  # of ids
            before = {c: a[..., None] for c, a in x.coordinates.items()}
        elif len(shape) == len(x.shape) - 1:  # a state
            before = axes.reduced(before, 0, keepdims=False)
        elif len(shape) != len(x.shape):
            return {}
        return {c: a.max(axis=tuple(k for k, n in enumerate(a.shape) if n not in (1, shape[k])), keepdims=True)
                for c, a in before.items()}

    # Flattening in a Sequential -----------------------------------------------------------------------
    @contextlib.contextmanager
    def _flattening(self) -> Iterator[None]:
        """Within this context the places of a Sequential that flatten are followed as PyTorch's `Flatten`."""
        before = [(m, m.layers) for _, m in self._model.modules()
                  if isinstance(m, nn.Sequential) and id(m) in self._sequential]
        try:
            for module, layers in before:
                module.layers = {key: self._flattened if isinstance(part, nn.Flatten) else part
                                 for key, part in layers.items()}
            yield
        finally:
            for module, layers in before:
                module.layers = layers

    def _flattened(self, x: Tensor) -> Tensor:
        """`nn.Flatten`; the order that PyTorch's has is known of what a layer of images in the same Sequential gave."""
        begun = self._born
        for module, born in reversed(self._running):
            if id(module) not in self._sequential:
                break
            begun = born
        coordinates, last = self._axis_input(x).coordinates, x.ndim - 1
        features = [c for c, a in coordinates.items() if a.shape[last] > 1 and c.kind == "feature"]
        y = nn.Flatten()({}, x)
        is_image = all(c.is_first and c.born >= begun for c in features) and not any(
            c.kind == "unknown" or (c.kind == "feature" and any(n > 1 for n in a.shape[1:last]))
            or (c.kind != "feature" and a.shape[last] > 1) for c, a in coordinates.items())
        if x.ndim > 2 and features and is_image:
            size = y.shape[1]
            order = np.moveaxis(np.arange(size, dtype=np.int32).reshape(x.shape[-1], *x.shape[1:-1]), 0, -1)
            known = self._axis_input(y).coordinates
            self._set_coordinates(y.data, {**known, Coordinate("order", self._born): order.reshape(1, size)})
        return y

    # Operators --------------------------------------------------------------------------------------
    def _trace_rule(self, op: Op[..., Any], rule: Rule) -> Rule:
        if self._inside:
            return rule

        def forward(be: Backend, *arrays: Any, **attrs: Any) -> tuple[Any, Any]:
            out, saved = rule.forward(be, *arrays, **attrs)
            if any(isinstance(x, np.ndarray) and self._axis_input(x).coordinates for x in arrays):
                self._trace_operator(op, be, arrays, attrs, out)
            return out, saved

        return dataclasses.replace(rule, forward=forward)

    def _trace_operator(self, op: Op[..., Any], be: Backend, arrays: Sequence[Any], attrs: dict[str, Any],
                        out: Any) -> None:
        name = op.name if getattr(ops, op.name, None) is op else ""
        given = [self._axis_input(x) for x in arrays if isinstance(x, np.ndarray)]
        outs = out if isinstance(out, tuple) else (out,)
        if name in _OF_IMAGES:
            self._record_unflattened(arrays[0])
        if name in _MOVING or name == "concat":
            rule = op.rules("numpy")[-1]
            attrs = {**attrs, **({"value": -1} if name == "pad" else {})}
            rest = [] if name == "concat" else list(arrays[1:])
            data = axes.mark_parts(given, attrs["axis"]) if name == "concat" else given[:1]
            results = axes.moved_coordinates(data, lambda moving: rule.forward(be, *moving, *rest, **attrs)[0])
        elif name in _SAME_SHAPE:
            self._record_addends(given, outs[0].shape)
            results = [axes.elementwise_coordinates(given, y.shape) for y in outs]
        elif name in _REDUCING:
            results = [axes.reduced(given[0].coordinates, attrs["axis"], bool(attrs.get("keepdims", False)))]
        elif name in _POOLING:
            results = [{c: x for c, x in given[0].coordinates.items() if x.shape[1:3] == (1, 1)}
                       | {Coordinate("position", self._born): axes.arange_along(k, 4, outs[0].shape[k])
                          for k in (1, 2)}]
        elif name in _PRODUCTS:
            results = [self._product(name, given[0], given[1], outs[0].shape)]
        elif name == "scaled_dot_product_attention":
            query, _, value = given[:3]
            results = [axes.reduced(query.coordinates, -1) | axes.reduced(value.coordinates, -2)]
        else:
            layers = frozenset(path for g in given for c in g.coordinates for path in c.layers)
            results = [_unknown_coordinate(op.name, y.ndim, layers) for y in outs]
        unknown = {c for g in given for c in g.coordinates if c.kind == "unknown"}
        for y, result in zip(outs, results or [{} for _ in outs], strict=True):
            self._set_coordinates(y, result | {c: np.zeros((1,) * y.ndim, np.int32) for c in unknown})

    def _record_addends(self, given: Sequence[TracedInput], shape: Shape) -> None:
        """Note layers whose outputs are added to a flattened image: their order is that of the image."""
        parts = [TracedInput(axes.aligned(g.coordinates, len(shape)), shape) for g in given if g.coordinates]
        if len(parts) < 2:
            return
        for axis in range(len(shape)):
            merged = [axes.is_merged(g.coordinates, axis) for g in parts]
            for g in (g for g, is_so in zip(parts, merged, strict=True) if any(merged) and not is_so):
                for path in (path for c, a in g.coordinates.items() if a.shape[axis] > 1 for path in c.layers):
                    self.outputs.setdefault(path, set()).add(None)

    def _product(self, name: str, x: TracedInput, y: TracedInput, shape: Shape) -> Coordinates:
        if axes.is_merged(x.coordinates, len(x.shape) - 1) != axes.is_merged(y.coordinates, len(y.shape) - 2):
            self.problem = self.problem or f"{name} multiplies a flattened image by an array, outside of a layer"
        return axes.aligned(axes.reduced(x.coordinates, -1) | axes.reduced(y.coordinates, -2), len(shape))


def _is_ours(of: Any) -> bool:
    return str(of.__module__).startswith("duoln.nn.")


def _unknown_coordinate(name: str, ndim: int, layers: frozenset[str] = frozenset()) -> Coordinates:
    """The coordinate of what is not followed, which these layers may have ordered."""
    return {Coordinate("unknown", name, layers): np.zeros((1,) * ndim, np.int32)}


def _is_float(x: Tensor) -> bool:
    return "float" in x.dtype


def made_up_shape(model: Layer, size: int) -> Shape | None:
    """The shape of an input of a Sequential that begins with a convolution, or flattens; None for another model."""
    parts = list(model.layers.values()) if isinstance(model, nn.Sequential) else []
    while parts:
        part, *parts = parts
        if isinstance(part, nn.Sequential):
            parts = [*part.layers.values(), *parts]
        elif isinstance(part, CONVOLUTIONS):
            return (2, *(size for _ in part.kernel), part.n_in)
        elif isinstance(part, nn.Flatten):
            return (2, size, size, 3)
        elif not isinstance(part, nn.Module) or not _is_ours(type(part)) or (
                layer_of(part) is not None and not isinstance(part, KEEPING)):
            return None
    return None
