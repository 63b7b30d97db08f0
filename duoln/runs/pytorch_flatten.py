"""The order of features behind `flatten`: PyTorch's images are (channels, positions), ours (positions, channels).

The layer that takes a flattened image has its features in that order, so they are put into the other one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from duoln import nn
from duoln.core.arguments import check_integer, described
from duoln.errors import DtypeError, UsageError
from duoln.nn import Recurrent, RecurrentCell
from duoln.runs.pytorch_layers import LAYERS

_NORMS = nn.LayerNorm, nn.RMSNorm, nn.BatchNorm
_MIXING = nn.Linear, Recurrent, RecurrentCell
"""Layers behind which features are no longer those of an image."""
_OF_MIXING = "weight", "weight_ih", "weight_ih_l0", "weight_ih_l0_reverse"
"""Their arrays that have a column for each feature."""


def channels_of_flattened(name: str, model: nn.Module, given: Mapping[str, int] | None) -> dict[str, int]:
    """The channels of the images that layers take flattened, by the layers' paths.

    Within a Sequential, `nn.Flatten` after a convolution shows such a layer. Elsewhere `given` names it.

    Raises:
        UsageError: `given` names no layer that can be one, or a Linear or recurrent layer after a convolution may be
            one.
    """
    if given is not None and not isinstance(given, Mapping):
        raise DtypeError(f"[{name}] flattened: expected numbers of channels by names of layers, found "
                         f"{described(given)}")
    rest = {place: check_integer(name, f"flattened[{place!r}]", count, 1) for place, count in (given or {}).items()}
    result: dict[str, int] = {}
    channels, is_flat = 0, False
    for place, part in _parts(model):
        width = _width(part)
        if width and place in rest:
            result[place] = rest.pop(place)
        elif width and channels and width != channels and width % channels == 0:
            if is_flat:
                result[place] = channels
            elif isinstance(part, _MIXING):
                raise UsageError(
                    f"[{name}] {place}: expected to know if this layer takes a flattened image of {channels} "
                    f"channels, which PyTorch has in another order; write flattened={{{place!r}: {channels}}} if it "
                    f"does, and flattened={{{place!r}: 1}} if not")
        if width and width % result.get(place, 1):
            raise UsageError(f"[{name}] flattened[{place!r}]: expected a divisor of {width}, found {result[place]}")
        if isinstance(part, nn.Conv1d | nn.Conv2d):
            channels, is_flat = part.n_out, False
        elif part is nn.flatten or isinstance(part, nn.Flatten):
            is_flat = True
        elif isinstance(part, _MIXING):
            channels = 0
    if rest:
        raise UsageError(f"[{name}] flattened: expected paths of Linear, recurrent and normalising layers, found "
                         f"{min(rest)!r}")
    return result


def to_ours(module: nn.Module, arrays: Mapping[str, np.ndarray], channels: int) -> dict[str, np.ndarray]:
    """The arrays of a layer with its features by positions, from those by channels."""
    return _turned(module, arrays, channels)


def to_theirs(module: nn.Module, arrays: Mapping[str, np.ndarray], channels: int) -> dict[str, np.ndarray]:
    """The arrays of a layer with its features by channels, from those by positions."""
    return _turned(module, arrays, _width(module) // channels)


def _turned(module: nn.Module, arrays: Mapping[str, np.ndarray], first: int) -> dict[str, np.ndarray]:
    """The features, which lie along the last axis as (first, rest), as (rest, first)."""
    return {name: x if isinstance(module, _MIXING) and name not in _OF_MIXING else
            x.reshape(*x.shape[:-1], first, -1).swapaxes(-1, -2).reshape(x.shape) for name, x in arrays.items()}


def _parts(module: nn.Module, place: str = "") -> Iterator[tuple[str, Any]]:
    """Layers and functions in their order, each with its dotted path."""
    if any(kind in LAYERS for kind in type(module).__mro__) or isinstance(module, nn.Flatten):
        yield place, module
        return
    for key, part in (module.layers if isinstance(module, nn.Sequential) else module.children()).items():
        path = f"{place}.{key}" if place else key
        if isinstance(part, nn.Module):
            yield from _parts(part, path)
        else:
            yield path, part


def _width(part: Any) -> int:
    """The number of features that a layer takes along the last axis; 0 for a layer that has them in no order."""
    if isinstance(part, _MIXING):
        width: int = part.n_in
        return width
    return part.width if isinstance(part, _NORMS) and isinstance(part.width, int) else 0
