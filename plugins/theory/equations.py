"""The paper's layers and cells, as they are printed (`duoln.testing.references`), against our operators and cells, and
its text on a normalised layer. All is in float64; the paper has no epsilon, so it is 0 here.
"""

from __future__ import annotations

import numpy as np

from duoln import Stream, nn, ops, tree
from duoln.backends.protocol import Backend
from duoln.core import Tensor, value_and_grad
from duoln.nn import Module, Params, with_population
from duoln.nn.cells import RecurrentCell
from duoln.plugins.theory.report import Report, Statement, check_float64, most, of_statements, relative, tensor
from duoln.testing import references

BATCH, INPUTS, HIDDEN, STEPS = 5, 4, 6, 3
CASES, FEATURES, UNITS = 40, 6, 8
_FACTOR = 3.0


def measure(backend: Backend, seed: int = 0) -> Report:
    """The relative errors of equations and of statements of the text.

    Args:
        backend: where our operators run, in float64.
        seed: of inputs and parameters.

    Raises:
        BackendError: a backend without float64.
    """
    check_float64("equations", backend)
    cells, texts = equations(backend, seed), properties(backend, seed)
    summary = (f"{sum(s.agrees for s in cells)} of {len(cells)} layers and cells are their equations, to a relative "
               f"{max(s.error for s in cells):.0e}; {sum(s.agrees for s in texts)} of {len(texts)} statements on a "
               "layer are as known")
    return of_statements("Our layers and cells against the paper's equations and text: relative errors", summary,
                         [*cells, *texts])


def equations(backend: Backend, seed: int) -> list[Statement]:
    """The relative difference of each layer and cell from its equation: of outputs, and of states over some steps."""
    rng = Stream(seed, "equations")
    summed, gain, bias = rng.gaussian((BATCH, HIDDEN)), 0.5 + rng.uniform((HIDDEN,)), rng.gaussian((HIDDEN,))
    x, g, b, zero = (tensor(array, backend) for array in (summed, gain, bias, np.zeros(HIDDEN)))
    return [
        Statement("eq. 2", "batch norm of summed inputs", True, relative(
            ops.batch_norm(x, g, zero, eps=0.0)[0].numpy(), references.batch_norm(summed, gain, eps=0.0))),
        Statement("eq. 3, 15", "layer norm of summed inputs", True, relative(
            ops.layer_norm(x, g, b, eps=0.0).numpy(), references.layer_norm(summed, gain, bias, eps=0.0))),
        *(Statement(where, text, True, of_cell(cell, references.STEPS[cell.cell, cell.norm], seed, backend))
          for where, text, cell in (
              ("eq. 4", "layer-normalised RNN", nn.RNNCell(INPUTS, HIDDEN, norm="layer", eps=0.0)),
              ("eq. 17-19", "LSTM", nn.LSTMCell(INPUTS, HIDDEN, norm="none", eps=0.0)),
              ("eq. 20-22", "layer-normalised LSTM", nn.LSTMCell(INPUTS, HIDDEN, norm="layer", eps=0.0)),
              ("eq. 23-25", "GRU", nn.GRUCell(INPUTS, HIDDEN, norm="none", eps=0.0)),
              ("eq. 26-28", "layer-normalised GRU", nn.GRUCell(INPUTS, HIDDEN, norm="layer", eps=0.0)),
              ("eq. 29-31", "LSTM of DRAW", nn.LSTMCell(INPUTS, HIDDEN, norm="layer-cell", eps=0.0))))]


def of_cell(cell: RecurrentCell, step: references.Step, seed: int, backend: Backend) -> float:
    """The greatest relative difference of a state at a time step; all parameters are random, biases and gains too."""
    rng = Stream(seed, f"equations.{cell.cell}.{cell.norm}")
    params = {name: (0.5 if name.startswith("gain") else 0.0) + rng.gaussian(array.shape)
              for name, array in cell.init(rng).items()}
    tensors = {name: tensor(array, backend) for name, array in params.items()}
    printed = tuple(rng.gaussian((BATCH, HIDDEN)) for _ in cell.state_names)
    ours = tuple(tensor(state, backend) for state in printed)
    errors = []
    for x in rng.gaussian((STEPS, BATCH, INPUTS)):
        printed, ours = step(params, x, *printed, eps=0.0), cell(tensors, tensor(x, backend), ours)
        errors += [relative(a.numpy(), b) for a, b in zip(ours, printed, strict=True)]
    return most(errors)


def properties(backend: Backend, seed: int) -> list[Statement]:
    """The relative change of what a statement says stays, or the relative error of what it says is equal."""
    rng, linear = Stream(seed, "properties"), nn.Linear(FEATURES, UNITS, bias=False)
    models: list[Module] = [
        nn.Sequential(linear=linear, norm=nn.LayerNorm(UNITS, eps=0.0)),
        nn.Sequential(linear=linear, norm=nn.BatchNorm(UNITS, eps=0.0)),
        nn.WeightNorm(linear), nn.Sequential(norm=nn.LayerNorm(FEATURES, eps=0.0), linear=linear)]
    layer, batch, weight, before = models
    params = {model: tree.map(lambda array: tensor(0.5 + rng.uniform(array.shape), backend), model.init(rng))
              for model in models}
    data, row = tensor(rng.gaussian((CASES, FEATURES)), backend), tensor(rng.gaussian((FEATURES, 1)), backend)
    at_test = {model: with_population(model, params[model], [data[:CASES // 2]]) for model in (layer, batch)}

    def change(model: Module, x: Tensor = data, given: Params | None = None) -> float:
        after: np.ndarray = model(given or params[model], x).numpy()
        return relative(after, model(params[model], data).numpy())

    def reweighted(weight: Tensor) -> Params:
        return {**params[before], "linear": {**params[before]["linear"], "weight": weight}}

    def nonlinearity(model: Module, given: Params) -> float:
        """The distance of the output from the linear layer that is nearest to it on these data."""
        output: np.ndarray = model(given, data).numpy()
        inputs = np.hstack((data.numpy(), np.ones((CASES, 1))))
        return relative(inputs @ np.linalg.lstsq(inputs, output, rcond=None)[0], output)

    def dependence(model: Module) -> float:
        """The gradient of the first case's outputs with respect to the other cases, by that with respect to its own."""
        gradient = value_and_grad(lambda x: (model(params[model], x)[0] ** 3).sum())(data)[1].numpy()
        return float(np.linalg.norm(gradient[1:]) / np.linalg.norm(gradient[0]))

    matrix = params[before]["linear"]["weight"]
    return [Statement(*row_of_text) for row_of_text in (
        ("abstract", "layer norm computes the same in training and at test", True, change(layer, given=at_test[layer])),
        ("abstract", "batch norm computes the same", False, change(batch, given=at_test[batch])),
        ("3", "layer norm: no case depends on another", True, dependence(layer)),
        ("3", "batch norm: no case depends on another", False, dependence(batch)),
        ("4", "batch norm by expected statistics is a linear layer", True, nonlinearity(batch, at_test[batch])),
        ("4", "weight norm is a linear layer", True, nonlinearity(weight, params[weight])),
        ("4", "layer norm is a linear layer", False, nonlinearity(layer, params[layer])),
        ("5.1", "layer norm before the weights: they are re-scaled, the output stays", False,
         change(before, given=reweighted(_FACTOR * matrix))),
        ("5.1", "layer norm before the weights: they are re-centred, the output stays", False,
         change(before, given=reweighted(matrix + row))),
        ("7", "layer norm: the features of each case are scaled, the output stays", True,
         change(layer, _FACTOR * data)),
        ("7", "layer norm: the features of each case are shifted, the output stays", False,
         change(layer, data + _FACTOR)))]
