"""The paper's layers and cells, as they are printed (`duoln.testing.references`), against our operators and cells, in
float64. The paper has no epsilon, so it is 0 here.
"""

from __future__ import annotations

import numpy as np

from duoln import Stream, nn, ops
from duoln.backends.protocol import Backend
from duoln.core import Tensor
from duoln.errors import BackendError
from duoln.nn.cells import RecurrentCell
from duoln.ops.recurrent.variants import Norm
from duoln.plugins.theory.statements import Statement
from duoln.testing import references

BATCH, INPUTS, HIDDEN, STEPS = 5, 4, 6, 3


def equations(backend: Backend, seed: int = 0) -> list[Statement]:
    """The relative difference of each layer and cell from its equation: of outputs, and of states over some time steps.

    Args:
        backend: where our operators run, in float64.
        seed: of inputs and parameters.

    Raises:
        BackendError: a backend without float64.
    """
    if "float64" not in backend.dtypes:
        raise BackendError(f"[equations] expected a backend with float64, found {backend.name} on {backend.device}")
    rng = Stream(seed, "equations")
    summed, gain, bias = rng.gaussian((BATCH, HIDDEN)), 0.5 + rng.uniform((HIDDEN,)), rng.gaussian((HIDDEN,))
    batch = ops.batch_norm(*(_tensor(a, backend) for a in (summed, gain, np.zeros(HIDDEN))), eps=0.0)[0]
    layer = ops.layer_norm(*(_tensor(a, backend) for a in (summed, gain, bias)), eps=0.0)
    of_batch = _error(batch, references.batch_norm(summed, gain, eps=0.0))
    of_layer = _error(layer, references.layer_norm(summed, gain, bias, eps=0.0))
    of_cells = [(where, text, cell(INPUTS, HIDDEN, norm=norm, eps=0.0)) for where, text, cell, norm in _CELLS]
    return [Statement("eq. 2", "batch norm of summed inputs", True, of_batch),
            Statement("eq. 3, 15", "layer norm of summed inputs", True, of_layer),
            *(Statement(where, text, True, _of_cell(cell, references.STEPS[cell.cell, cell.norm], seed, backend))
              for where, text, cell in of_cells)]


def _tensor(array: np.ndarray, backend: Backend) -> Tensor:
    return Tensor(backend.asarray(array, "float64"), backend)


def _error(ours: Tensor, printed: np.ndarray) -> float:
    return float(np.linalg.norm(ours.numpy() - printed) / np.linalg.norm(printed))


def _of_cell(cell: RecurrentCell, step: references.Step, seed: int, backend: Backend) -> float:
    """The greatest relative difference of a state at a time step; all parameters are random, biases and gains too."""
    rng = Stream(seed, f"equations.{cell.cell}.{cell.norm}")
    params = {name: (0.5 if name.startswith("gain") else 0.0) + rng.gaussian(array.shape)
              for name, array in cell.init(rng).items()}
    tensors = {name: _tensor(array, backend) for name, array in params.items()}
    printed = tuple(rng.gaussian((BATCH, HIDDEN)) for _ in cell.state_names)
    ours = tuple(_tensor(state, backend) for state in printed)
    errors = []
    for x in rng.gaussian((STEPS, BATCH, INPUTS)):
        printed, ours = step(params, x, *printed, eps=0.0), cell(tensors, _tensor(x, backend), ours)
        errors += [_error(a, b) for a, b in zip(ours, printed, strict=True)]
    return float(np.max(errors))  # NumPy's, because Python's max could ignore a NaN


_CELLS: tuple[tuple[str, str, type[RecurrentCell], Norm], ...] = (
    ("eq. 4", "layer-normalised RNN", nn.RNNCell, "layer"),
    ("eq. 17-19", "LSTM", nn.LSTMCell, "none"),
    ("eq. 20-22", "layer-normalised LSTM", nn.LSTMCell, "layer"),
    ("eq. 23-25", "GRU", nn.GRUCell, "none"),
    ("eq. 26-28", "layer-normalised GRU", nn.GRUCell, "layer"),
    ("eq. 29-31", "LSTM of DRAW", nn.LSTMCell, "layer-cell"),
)
