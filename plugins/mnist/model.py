"""The network of section 6.6: 784-1000-1000-10, normalised before each non-linearity."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any, Literal

from duoln import Tensor, nn, ops
from duoln.nn.init import Initializer

Norm = Literal["none", "layer", "batch", "batch-hidden"]
Activation = Literal["relu", "tanh", "sigmoid"]
Start = Literal["glorot", "he", "uniform", "orthogonal"]

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {"relu": ops.relu, "tanh": ops.tanh, "sigmoid": ops.sigmoid}
STARTS: dict[str, Initializer] = {"glorot": nn.init.glorot, "he": nn.init.he, "uniform": nn.init.uniform(0.05),
                                  "orthogonal": nn.init.orthogonal}


def network(norm: Norm, hidden: int, activation: Activation, start: Start, unbiased: bool,
            dropout: float = 0.0) -> nn.Sequential:
    """The classifier.

    Layer norm is applied to the hidden layers but not to the logits. Batch norm is applied to all layers, also to the
    logits (section 6.6); "batch-hidden" is batch norm where layer norm is, which the paper does not have. Its variance
    is the unbiased one if requested. The norm's bias replaces that of the linear layer. Dropout, which the paper does
    not have, acts on the activations of the hidden layers.

    Shape:
        images (B, 784) -> logits (B, 10).
    """
    layers: dict[str, Any] = {}
    sizes = (784, hidden, hidden, 10)
    for i, (n_in, n_out) in enumerate(pairwise(sizes), start=1):
        is_logits = i == len(sizes) - 1
        normalised = norm == "batch" or (norm != "none" and not is_logits)
        layers[f"linear{i}"] = nn.Linear(n_in, n_out, bias=not normalised, weight_init=STARTS[start])
        if norm == "layer" and not is_logits and activation != "sigmoid":
            layers[f"norm{i}"] = nn.LayerNorm(n_out, activation=activation)  # both in one pass over memory
        else:
            if normalised:
                layers[f"norm{i}"] = nn.LayerNorm(n_out) if norm == "layer" else nn.BatchNorm(n_out, unbiased=unbiased)
            if not is_logits:
                layers[f"activation{i}"] = ACTIVATIONS[activation]
        if dropout and not is_logits:
            layers[f"dropout{i}"] = nn.Dropout(dropout)
    return nn.Sequential(**layers)
