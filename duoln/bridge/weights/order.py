"""The order of features of flattened images: PyTorch's are (channels, positions), ours (positions, channels).

A layer that takes a flattened image, and one whose outputs become an image, has its features in that order. It follows
from the model's call, see `trace.py`, where nn.Flatten in a Sequential makes it. Where the model's own code reshapes,
PyTorch's code may do the same or not, so the caller says it.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from duoln import nn
from duoln.bridge.weights.axes import Coordinate, TracedInput, merged_masks
from duoln.bridge.weights.layers import Layer
from duoln.bridge.weights.trace import CONVOLUTIONS, KEEPING, OF_IMAGES, Trace, made_up_shape
from duoln.core.arguments import check_integer, described
from duoln.errors import DtypeError, UsageError
from duoln.nn.cells import RecurrentCell
from duoln.nn.example import inputs_of
from duoln.nn.recurrent import Recurrent

Words = Mapping[str, Any]
Orders = tuple[np.ndarray | None, np.ndarray | None]
"""PyTorch's place of each feature that a layer takes, and of each of its outputs. None: the same place."""
_SIZES = 8, 64
"""Heights and widths of made-up images; the greater ones are for models that make them smaller many times."""
_OF_BLOCK = {"self_attn.in_proj_weight": 1, "self_attn.out_proj.weight": 0, "self_attn.out_proj.bias": 0,
             "norm1.weight": 0, "norm1.bias": 0, "norm2.weight": 0, "norm2.bias": 0, "linear1.weight": 1,
             "linear2.weight": 0, "linear2.bias": 0}


def _axes(module: nn.Module, names: Iterable[str]) -> tuple[dict[str, int], dict[str, int]]:
    """The axes of a layer's arrays in PyTorch, by name, along which the features lie that it takes, and gives."""
    if isinstance(module, KEEPING):
        own = _OF_BLOCK if isinstance(module, nn.TransformerBlock) else dict.fromkeys(names, 0)
        return own, own
    if isinstance(module, nn.MultiHeadAttention):
        return {"in_proj_weight": 1}, {"out_proj.weight": 0, "out_proj.bias": 0}
    if isinstance(module, Recurrent | RecurrentCell):
        return dict.fromkeys(("weight_ih", "weight_ih_l0", "weight_ih_l0_reverse"), 1), {}
    if isinstance(module, nn.Embedding):
        return {}, {"weight": 1}
    return {"weight": 1}, {"weight": 0, "bias": 0}


def orders_of(name: str, model: nn.Module, layers: Sequence[tuple[str, nn.Module, Layer]], shapes: Any,
              flattened: Words | None, unflattened: Words | None) -> dict[str, Orders]:
    """The order of features of each layer that has another one in PyTorch, by the layers' paths.

    Raises:
        UsageError: the order of a layer is not known; the message names the argument that says it. Or `flattened` or
            `unflattened` says what cannot be.
    """
    return _Ordering(name, model, layers, shapes, {"flattened": flattened, "unflattened": unflattened}).orders()


def reorder_features(module: nn.Module, arrays: Mapping[str, np.ndarray], orders: Orders, *, to_theirs: bool,
           ) -> dict[str, np.ndarray]:
    """The arrays of a layer, as they stand in PyTorch, with features in our order, or from ours in PyTorch's."""
    result = dict(arrays)
    for order, axes in zip(orders, _axes(module, arrays), strict=True):
        if order is not None:
            places = np.argsort(order) if to_theirs else order
            result |= {n: result[n].take(places, axis) for n, axis in axes.items() if n in result}
    return result


class _Ordering:
    """One model's layers, what is known of the order of their features, and what the caller says."""

    def __init__(self, name: str, model: nn.Module, layers: Sequence[tuple[str, nn.Module, Layer]], shapes: Any,
                 words: Mapping[str, Words | None]) -> None:
        self._name, self._layers, self._is_made_up = name, layers, shapes is None
        self._words = {role: self._checked(role, given) for role, given in words.items()}
        self._has_images = shapes is not None or any(
            isinstance(m, (*OF_IMAGES, nn.Flatten))
            for place, m in model.modules() if place or isinstance(m, nn.Sequential))
        self._several = any(not isinstance(m, CONVOLUTIONS) or m.n_in > 1 for _, m, _ in layers
                            if isinstance(m, OF_IMAGES))
        """True if an image may have several channels where a layer takes it."""
        self._trace = self._run_trace(model, shapes) if self._has_images else None

    def _refusal(self, place: str, expected: str) -> UsageError:
        return UsageError(f"[{self._name}] {place}: expected {expected}")

    def _checked(self, role: str, given: Words | None) -> dict[str, Any]:
        if given is not None and not isinstance(given, Mapping):
            raise DtypeError(f"[{self._name}] {role}: expected numbers of channels by paths of layers, found "
                             f"{described(given)}")
        return {place: np.asarray(word) if isinstance(word, np.ndarray | list | tuple)
                else check_integer(self._name, f"{role}[{place!r}]", word, 1) for place, word in (given or {}).items()}

    def _run_trace(self, model: nn.Module, shapes: Any) -> Trace | None:
        if shapes is not None:
            trace = Trace(model)
            trace.run(*inputs_of(self._name, model, shapes))
            return trace
        for size in _SIZES:
            shape, trace = made_up_shape(model, size), Trace(model, is_made_up=True)
            try:
                if shape is not None:
                    trace.run([np.zeros(shape, np.float32)], {})
                    return trace
            except Exception:  # the model's own code may need true sizes: without them nothing is known
                continue
        return None

    def orders(self) -> dict[str, Orders]:
        if self._trace is not None and self._trace.problem:
            raise UsageError(f"[{self._name}] {self._trace.problem}, whose features PyTorch may have in another order; "
                             "expected a layer with weights of its own for it")
        result: dict[str, Orders] = {}
        for place, module, layer in self._layers:
            shapes = layer.shapes(module)
            taken, given = (next((shapes[n][axis] for n, axis in own.items() if n in shapes), 0)
                            for own in _axes(module, shapes))
            taken = module.n_in if isinstance(module, CONVOLUTIONS) else taken  # the weight has those of one group
            word = self._words["flattened"].pop(place, None) if taken else None
            inputs = self._input_order(place, module, taken, word) if taken else None
            word = self._words["unflattened"].pop(place, None) if given else None
            outputs = self._output_order(place, module, given, word, inputs)
            if inputs is not None or outputs is not None:
                result[place] = inputs, outputs
        for role, rest in self._words.items():
            if rest:
                kinds = "take features" if role == "flattened" else "give features that their own arrays order"
                raise self._refusal(role, f"paths of layers that {kinds}, found {min(rest)!r}")
        return result

    def _nontrivial_order(self, place: str, module: nn.Module, order: np.ndarray) -> np.ndarray | None:
        """The order where it is another one. Raises UsageError for a layer with groups, which would be others."""
        if np.array_equal(order, np.arange(len(order))):
            return None
        if getattr(module, "groups", 1) > 1:
            raise self._refusal(place, "groups of channels, found an image's features, which PyTorch puts into other "
                                       f"groups; {type(module).__name__} is not read")
        return order

    def _from_word(self, role: str, width: int, word: Any) -> np.ndarray:
        """PyTorch's order of so many features of an image with so many channels, or the order itself, checked."""
        if isinstance(word, np.ndarray):
            if word.dtype.kind not in "iu" or sorted(word.reshape(-1).tolist()) != list(range(width)):
                raise self._refusal(role, f"for each of {width} features its place in PyTorch, found other numbers, of "
                                          f"shape {word.shape}")
            return word
        if width % word:
            raise self._refusal(role, f"a divisor of {width}, found {word}")
        return _by_channels(width, word)

    # What layers take -------------------------------------------------------------------------------
    def _input_order(self, place: str, module: nn.Module, width: int, word: Any) -> np.ndarray | None:
        if not self._has_images and word is None:
            return None
        if isinstance(getattr(module, "width", 0), tuple):
            if word is None or word != 1:
                raise self._refusal(place, "a norm over the last axis beside convolutions, found one over several axes;"
                                           f" write flattened={{{place!r}: 1}} if PyTorch has them in the same order; "
                                           "another one is not read")
            return None
        uses = self._trace.inputs.get(place, []) if self._trace is not None else []
        if not uses and word is None and width > 1:
            raise self._unknown_order_error(place, width)
        order, *more = ([self._order_in_call(place, use, width, word) for use in uses] if uses else
                        [self._from_word(f"flattened[{place!r}]", width, 1 if word is None else word)])
        if any(not np.array_equal(order, second) for second in more):
            raise self._refusal(place, "features in one order in all calls of this layer, found several")
        return self._nontrivial_order(place, module, order)

    def _unknown_order_error(self, place: str, width: int) -> UsageError:
        word = f"flattened={{{place!r}: {_some_channels(width)}}}"
        if self._trace is not None and not self._is_made_up:
            return self._refusal(place, "to know whether this layer takes a flattened image, found no call of it for "
                                        f"these shapes; write {word} with the channels of the image, or 1 where there "
                                        "is none")
        return self._refusal(place, "to know whether this layer takes a flattened image, whose features PyTorch has in "
                                    "another order; give the shape of an input, shapes=(1, height, width, channels), "
                                    f"or for each layer the channels of that image, such as {word}, and 1 where there "
                                    "is none")

    def _order_in_call(self, place: str, use: TracedInput, width: int, word: Any) -> np.ndarray:
        """The order in one call of a layer."""
        role, size = f"flattened[{place!r}]", use.shape[-1]
        unknown = next((c for c in use.coordinates if c.kind == "unknown"), None)
        if unknown is not None and word is None:
            raise self._refusal(place, f"to know the order of features behind {unknown.born}, which is not followed; "
                                       f"write flattened={{{place!r}: 1}} if PyTorch has the same, and the channels of "
                                       "the image if this layer takes a flattened one")
        if unknown is not None:
            return self._from_word(role, width, word)
        line = {c: np.broadcast_to(x[(0,) * (x.ndim - 1)], (size,))  # at the first place of all other axes
                for c, x in use.coordinates.items() if x.shape[-1] > 1}
        is_merged = np.any([np.zeros(size, bool), *merged_masks(use.coordinates, -1)], axis=0)
        if size != width and not (self._is_made_up and is_merged.all()):
            raise self._unknown_order_error(place, width)
        if word is not None and not np.array_equal(word, 1) and not is_merged.any() and size > 1:
            raise self._refusal(role, f"1, because this layer takes no flattened image, found {word}")
        is_input = self._is_made_up and is_merged.any() and not any(c.layers for c in line if c.kind == "feature")
        if is_input and word is None:  # its channels are made up
            raise self._unknown_order_error(place, width)
        if is_input or isinstance(word, np.ndarray):
            return self._from_word(role, width, word)
        known = np.full(size, -1)
        for own, places in line.items():
            if own.kind == "order":
                known = np.where(places >= 0, places, known)
        order = np.arange(size)
        parts = [{id(c.part) for c, x in line.items() if x[k] >= 0 and c.part is not None} for k in range(size)]
        for run in _runs(is_merged, parts):
            order[run] = run.start + self._image_order(place, line, run, known[run], word)
        if self._is_made_up and size != width:
            channels = next((c for c in range(1, size + 1) if size % c == 0
                             and np.array_equal(order, _by_channels(size, c))), 0)
            if not channels or width % channels:
                raise self._unknown_order_error(place, width)
            order = _by_channels(width, channels)
        return order

    def _image_order(self, place: str, line: Mapping[Coordinate, np.ndarray], run: slice, known: np.ndarray,
                word: int | None) -> np.ndarray:
        """The order within the features of one flattened image."""
        count = len(known)
        if sorted(known.tolist()) == list(range(count)) and word is None:
            return known
        channels = next((c for c in range(count - 1, 1, -1) if count % c == 0 and _is_image(line, run, c)), 0)
        if word is None:
            image = f"an image of {channels} channels" if channels else "an image"
            first = f"flattened={{{place!r}: {channels}}}" if channels else "in flattened where it has each feature"
            raise self._refusal(place, f"to know PyTorch's order of the features of {image}, which the model's own "
                                       f"code makes or flattens; write {first} if PyTorch flattens an image with its "
                                       f"channels first, and flattened={{{place!r}: 1}} if it has the same order")
        if word not in (1, channels):
            words = f"{channels} channels" if channels else "the place of each feature in PyTorch"
            raise self._refusal(f"flattened[{place!r}]", f"{words} for {count} features of an image, found {word}")
        return _by_channels(count, word)

    # What layers give -------------------------------------------------------------------------------
    def _output_order(self, place: str, module: nn.Module, width: int, word: Any,
                    inputs: np.ndarray | None) -> np.ndarray | None:
        images = self._trace.outputs.get(place, set()) if self._trace is not None else set()
        is_open = self._trace is None and self._several and isinstance(module, nn.Linear | nn.Embedding) and width > 1
        role = f"unflattened[{place!r}]"
        if isinstance(module, KEEPING) and inputs is not None:
            given = [] if word is None else [self._from_word(role, width, word)]
            seen = [_by_channels(width, each[0]) for each in images if each]
            if any(not np.array_equal(inputs, order) for order in (*given, *seen)):
                raise self._refusal(place, "one order of features, found that of a flattened image, and another one in "
                                           "the image that they become")
            return None
        if images and not width:
            raise self._refusal(place, "outputs that are no image, found some that become one, or are added to a "
                                       f"flattened one, which {type(module).__name__} cannot have in another order")
        if word is None and images:
            channels = next((each[0] for each in images if each), _some_channels(width))
            raise self._refusal(place, f"to know PyTorch's order of the {width} outputs, which become an image or are "
                                       f"added to a flattened one; write unflattened={{{place!r}: {channels}}}, the "
                                       f"channels of that image, if PyTorch has them first, and unflattened="
                                       f"{{{place!r}: 1}} if it has the same order")
        if word is None and is_open:
            raise self._refusal(place, "to know whether the outputs become an image, which PyTorch has in another order"
                                       "; give the shape of an input, shapes=(1, height, width, channels), or the "
                                       f"channels of that image, such as unflattened={{{place!r}: "
                                       f"{_some_channels(width)}}}, and 1 if they become none")
        if word is None:
            return None
        if not isinstance(word, np.ndarray) and word != 1 and any(each not in (None, (word, True)) for each in images):
            raise self._refusal(role, "the channels that lie side by side in the image that the outputs become, found "
                                      f"{word}")
        return self._nontrivial_order(place, module, self._from_word(role, width, word))


def _by_channels(width: int, channels: int) -> np.ndarray:
    """PyTorch's place of each feature of a flattened image."""
    return np.arange(width).reshape(channels, -1).T.reshape(-1)


def _some_channels(width: int) -> int:
    """A number of channels that an image of so many features may have, for an advice."""
    return next((k for k in range(2, width) if width % k == 0), width)


def _runs(is_merged: np.ndarray, parts: Sequence[set[int]]) -> list[slice]:
    """The places of flattened images: neighbours of one part."""
    groups = itertools.groupby(range(len(parts)), lambda k: (bool(is_merged[k]), parts[k]))
    runs = [list(places) for (merged, _), places in groups if merged]
    return [slice(places[0], places[-1] + 1) for places in runs]


def _is_image(line: Mapping[Coordinate, np.ndarray], run: slice, channels: int) -> bool:
    """True if these features are positions with so many channels each, in our order and each of them once."""
    own = {c: x[run] for c, x in line.items() if c.kind in ("feature", "position")}
    count = run.stop - run.start
    own = {c: x for c, x in own.items() if len(np.unique(x)) < count}  # a layer has numbered all features anew
    for c, x in own.items():
        table = x.reshape(-1, channels) if c.kind == "position" else x.reshape(-1, channels).T
        if ((table != table.max(axis=1, keepdims=True)) & (table >= 0)).any():
            return False
    return bool(own) and np.unique(np.stack(list(own.values())), axis=1).shape[1] == count
