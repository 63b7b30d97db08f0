"""The inputs of the layers for a batch: their distribution tells how much they shift in training."""

from __future__ import annotations

import numpy as np

from duoln import Tensor, ops
from duoln.nn import Params
from duoln.plugins.las.model import Batch, LasModel


def layer_inputs(model: LasModel, params: Params, batch: Batch) -> dict[str, np.ndarray]:
    """The inputs of the listener's layers, of the attention and of the softmax, without padding and without dropout.

    The "gates" of a layer are the x_gates of its forward cells, with their norm if they have one: W_x x is what the
    input gives each gate. The first layer's inputs are the features, which do not move.

    Shape:
        -> arrays (steps of all utterances, units).
    """
    heard = {"x": batch["x"], "mask": batch["mask"]}
    inputs: dict[str, np.ndarray] = {}
    *layers, (values, mask) = model.listener.walk(params["listener"], heard)
    for k, (x, of_layer) in enumerate(layers):
        if k:
            inputs[f"listener {k + 1}"] = _rows(x, of_layer)
        inputs[f"listener {k + 1}, gates"] = _rows(_x_gates(params["listener"][f"layer{k}"]["forward0"], x), of_layer)
    inputs["attention"] = _rows(values, mask)
    logits, _ = model.speller.follow(params["speller"], model.speller.attend_to(params["speller"], values, mask),
                                     batch["labels"], {})
    inputs["softmax"] = logits.numpy()[batch["weight"].numpy() > 0]
    return inputs


def _x_gates(cell: Params, x: Tensor) -> Tensor:
    """The product x W_x, normalised where the cell has a norm of it, and its bias: (steps, rows, 4 H)."""
    steps, rows, width = x.shape
    x_proj = ops.matmul(ops.reshape(x, shape=(steps * rows, width)), cell["w_x"])
    if "gain_x" in cell:
        x_proj = ops.layer_norm(x_proj, cell["gain_x"], cell["bias_x"])
    return ops.reshape(x_proj + cell["bias"], shape=(steps, rows, x_proj.shape[1]))


def _rows(x: Tensor, mask: Tensor) -> np.ndarray:
    """The steps at which there is an utterance: (steps of all, units)."""
    array: np.ndarray = x.numpy()[mask.numpy()]
    return array
