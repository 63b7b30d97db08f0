"""The normalising layers, and the computation of population statistics for batch normalisation."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from math import prod
from typing import Any

import numpy as np

from duoln import ops, tree
from duoln.core import Tensor
from duoln.core.arguments import AT_LEAST_0, check_choice, check_flag, check_number, described
from duoln.core.miscalled import explained
from duoln.errors import DtypeError, ShapeError, UsageError
from duoln.nn import init
from duoln.nn.convolution import Conv2d
from duoln.nn.layers import Linear, check_sizes
from duoln.nn.module import NOT_GIVEN, Module, Params, parameter
from duoln.ops.norm import ACTIVATIONS, Activation, EpsilonPlace, check_epsilon
from duoln.randomness import Stream


class LayerNorm(Module):
    """Layer normalisation over the last axis: `ops.layer_norm` with a gain (initially 1) and a bias (initially 0).

    An activation, "relu" or "tanh", is computed by the same operator.

    Shape:
        x (..., width) -> the same; parameters gain and bias (width,).
    """

    def __init__(self, width: int, eps: float = 1e-5, eps_place: EpsilonPlace = "inside", gain: float = 1.0,
                 activation: Activation | None = None) -> None:
        check_sizes("LayerNorm", width=width)
        check_epsilon("LayerNorm", eps, eps_place)
        check_number("LayerNorm", "gain", gain)
        check_choice("LayerNorm", "activation", activation, ACTIVATIONS)
        self.width, self.eps, self.eps_place, self.gain = width, eps, eps_place, gain
        self.activation: Activation | None = activation

    def weights(self, rng: Stream) -> Params:
        return {"gain": init.constant(self.gain)(rng, (self.width,)), "bias": init.zeros(rng, (self.width,))}

    def __call__(self, params: Params, x: Tensor = NOT_GIVEN) -> Tensor:
        return ops.layer_norm(x, parameter("LayerNorm", params, "gain"), parameter("LayerNorm", params, "bias"),
                              eps=self.eps, eps_place=self.eps_place, activation=self.activation)


class BatchNorm(Module):
    """Batch normalisation over all axes but the last.

    It uses the statistics of the batch, unless the parameters hold those of a population: see `with_population`.
    There is no hidden running state and no training flag.

    Shape:
        x (..., width) -> the same; parameters gain and bias (width,).
    """

    def __init__(self, width: int, eps: float = 1e-5, unbiased: bool = False, gain: float = 1.0) -> None:
        check_sizes("BatchNorm", width=width)
        check_number("BatchNorm", "eps", eps, AT_LEAST_0)
        check_number("BatchNorm", "gain", gain)
        check_flag("BatchNorm", "unbiased", unbiased)
        self.width, self.eps, self.unbiased, self.gain = width, eps, unbiased, gain

    def weights(self, rng: Stream) -> Params:
        return {"gain": init.constant(self.gain)(rng, (self.width,)), "bias": init.zeros(rng, (self.width,))}

    def __call__(self, params: Params, x: Tensor = NOT_GIVEN) -> Tensor:
        gain, bias = parameter("BatchNorm", params, "gain"), parameter("BatchNorm", params, "bias")
        if "mean" in params:
            scale = gain / ops.sqrt(parameter("BatchNorm", params, "variance") + self.eps)
            result: Tensor = x * scale + (bias - params["mean"] * scale)
            return result
        y, mean, variance = ops.batch_norm(x, gain, bias, eps=self.eps, unbiased=self.unbiased)
        if "gather" in params:
            rows = prod(x.shape[:-1])
            params["gather"].append((mean.numpy(), variance.numpy(), rows))
        return y


@explained
def with_population(model: Module, params: Params, batches: Iterable[Any],
                    forward: Callable[[Params, Any], Any] | None = None) -> Params:
    """Parameters with which every BatchNorm of the model normalises by the statistics of a population.

    Runs the model over `batches` with batch statistics and adds to each BatchNorm's parameters the mean of
    the batch means and of the unbiased batch variances (Ioffe and Szegedy 2015, algorithm 2). Returns
    `params` itself where the model has no BatchNorm.

    Args:
        model: the model.
        params: its parameters, as tensors.
        batches: the inputs of `forward`; together a few hundred rows or more.
        forward: `forward(params, batch)`; the model itself if None.

    Raises:
        ShapeError: a batch has one row and therefore no variance.
        UsageError: there are no batches.
    """
    if not isinstance(model, Module):
        raise DtypeError(f"[with_population] model: expected a Module, found {described(model)}")
    layers = {path: module for path, module in model.modules() if isinstance(module, BatchNorm)}
    if not layers:
        return params
    gathering = tree.map(lambda x: x, params)
    for path in layers:
        _at(gathering, path)["gather"] = []
    for batch in batches:
        (forward or model)(gathering, batch)
    result: Params = tree.map(lambda x: x, params)
    for path, module in layers.items():
        gathered = _at(gathering, path)["gather"]
        if not gathered:
            raise UsageError(f"[with_population] BatchNorm at '{path}' saw no batch; expected at least one")
        if min(rows for *_, rows in gathered) < 2:
            raise ShapeError(f"[with_population] BatchNorm at '{path}': expected batches of at least 2 rows, found 1")
        own, like = _at(result, path), _at(params, path)["gain"]
        means = np.mean([mean for mean, _, _ in gathered], axis=0, dtype=np.float64)
        corrections = [1.0 if module.unbiased else rows / (rows - 1) for *_, rows in gathered]
        variances = np.mean([v * c for (_, v, _), c in zip(gathered, corrections, strict=True)],
                            axis=0, dtype=np.float64)
        for key, value in (("mean", means), ("variance", variances)):
            own[key] = Tensor(like.backend.asarray(value.astype(like.dtype)), like.backend)
    return result


def _at(params: Params, path: str) -> Params:
    for key in path.split(".") if path else ():
        params = params[key]
    return params


class WeightNorm(Module):
    """A Linear or Conv2d whose weight is gain * direction / |direction| (Salimans and Kingma 2016).

    The initial gain is |direction|, so that the layer initially computes the same as the wrapped one.

    Shape:
        As for the wrapped layer; parameters direction like its weight, gain (n_out,), bias (n_out,).
    """

    def __init__(self, layer: Linear | Conv2d) -> None:
        if not isinstance(layer, Linear | Conv2d):
            raise UsageError(f"[WeightNorm] expected a Linear or Conv2d, found {type(layer).__name__}")
        self.layer = layer

    def children(self) -> dict[str, Module]:
        return {}  # this layer holds the wrapped layer's weights itself

    def weights(self, rng: Stream) -> Params:
        params = self.layer.init(rng)
        direction = params.pop("weight")
        length = np.sqrt(np.sum(direction.astype(np.float64) ** 2, axis=tuple(range(direction.ndim - 1))))
        return {"direction": direction, "gain": length.astype(np.float32), **params}

    def __call__(self, params: Params, x: Tensor = NOT_GIVEN) -> Tensor:
        weight = ops.weight_norm(parameter("WeightNorm", params, "direction"), parameter("WeightNorm", params, "gain"))
        return self.layer({**params, "weight": weight}, x)
