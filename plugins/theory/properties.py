"""Statements of the paper's text on a normalised layer. They are exact in float64, so an epsilon is 0."""

from __future__ import annotations

from functools import partial

import numpy as np

from duoln import Stream, nn, tree
from duoln.backends.protocol import Backend
from duoln.core import Tensor, value_and_grad
from duoln.nn import Module, Params, with_population
from duoln.plugins.theory.statements import Statement

CASES, INPUTS, UNITS = 40, 6, 8
_FACTOR = 3.0


def properties(backend: Backend, seed: int = 0) -> list[Statement]:
    """The relative change of what a statement says stays, or the relative error of what it says is equal.

    Args:
        backend: where our layers run, in float64.
        seed: of data and parameters.
    """
    rng, linear = Stream(seed, "properties"), nn.Linear(INPUTS, UNITS, bias=False)
    models: list[Module] = [
        nn.Sequential(linear=linear, norm=nn.LayerNorm(UNITS, eps=0.0)),
        nn.Sequential(linear=linear, norm=nn.BatchNorm(UNITS, eps=0.0)),
        nn.WeightNorm(linear), nn.Sequential(norm=nn.LayerNorm(INPUTS, eps=0.0), linear=linear)]
    layer, batch, weight, before = models
    to_tensor = partial(_tensor, backend=backend)
    params = {model: tree.map(lambda array: to_tensor(0.5 + rng.uniform(array.shape)), model.init(rng))
              for model in models}
    data, row = to_tensor(rng.gaussian((CASES, INPUTS))), to_tensor(rng.gaussian((INPUTS, 1)))
    at_test = {model: with_population(model, params[model], [data[:CASES // 2]]) for model in (layer, batch)}

    def of(model: Module, x: Tensor = data, given: Params | None = None) -> np.ndarray:
        output: np.ndarray = model(given or params[model], x).numpy()
        return output

    def reweighted(weight: Tensor) -> Params:
        return {**params[before], "linear": {**params[before]["linear"], "weight": weight}}

    matrix = params[before]["linear"]["weight"]
    return [
        Statement("abstract", "layer norm computes the same in training and at test", True,
                  _change(of(layer), of(layer, given=at_test[layer]))),
        Statement("abstract", "batch norm computes the same", False,
                  _change(of(batch), of(batch, given=at_test[batch]))),
        Statement("3", "layer norm: no case depends on another", True, _dependence(layer, params[layer], data)),
        Statement("3", "batch norm: no case depends on another", False, _dependence(batch, params[batch], data)),
        Statement("4", "batch norm by expected statistics is a linear layer", True,
                  _nonlinearity(data, of(batch, given=at_test[batch]))),
        Statement("4", "weight norm is a linear layer", True, _nonlinearity(data, of(weight))),
        Statement("4", "layer norm is a linear layer", False, _nonlinearity(data, of(layer))),
        Statement("5.1", "layer norm before the weights: they are re-scaled, the output stays", False,
                  _change(of(before), of(before, given=reweighted(_FACTOR * matrix)))),
        Statement("5.1", "layer norm before the weights: they are re-centred, the output stays", False,
                  _change(of(before), of(before, given=reweighted(matrix + row)))),
        Statement("7", "layer norm: the features of each case are scaled, the output stays", True,
                  _change(of(layer), of(layer, _FACTOR * data))),
        Statement("7", "layer norm: the features of each case are shifted, the output stays", False,
                  _change(of(layer), of(layer, data + _FACTOR)))]


def _tensor(array: np.ndarray, backend: Backend) -> Tensor:
    return Tensor(backend.asarray(array, "float64"), backend)


def _change(before: np.ndarray, after: np.ndarray) -> float:
    return float(np.linalg.norm(after - before) / np.linalg.norm(before))


def _dependence(model: Module, params: Params, data: Tensor) -> float:
    """The gradient of the first case's outputs with respect to the other cases, by that with respect to its own."""
    gradient = value_and_grad(lambda x: (model(params, x)[0] ** 3).sum())(data)[1].numpy()
    return float(np.linalg.norm(gradient[1:]) / np.linalg.norm(gradient[0]))


def _nonlinearity(data: Tensor, output: np.ndarray) -> float:
    """The distance of the output from the linear layer that is nearest to it on these data."""
    inputs = np.hstack((data.numpy(), np.ones((len(data), 1))))
    nearest = inputs @ np.linalg.lstsq(inputs, output, rcond=None)[0]
    return _change(output, nearest)
