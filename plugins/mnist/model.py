"""The network of section 6.6: 784-1000-1000-10, normalised before each non-linearity."""

from __future__ import annotations

from itertools import pairwise
from typing import Any, Literal

from duoln import nn, ops

Norm = Literal["none", "layer", "layer-logits", "batch", "batch-hidden"]


def network(norm: Norm, hidden: int, unbiased: bool, dropout: float = 0.0) -> nn.Sequential:
    """The classifier, with ReLUs and Glorot's uniform start, of which the paper says nothing.

    Layer norm is applied to the hidden layers but not to the logits. Batch norm is applied to all layers, also to the
    logits (section 6.6). Not in the paper: "batch-hidden" is batch norm where layer norm is, "layer-logits" layer norm
    where batch norm is. Batch norm's variance is the unbiased one if requested. The norm's bias replaces that of the
    linear layer. Dropout, which the paper does not have, acts on the activations of the hidden layers.

    Shape:
        images (B, 784) -> logits (B, 10).
    """
    layers: dict[str, Any] = {}
    sizes = (784, hidden, hidden, 10)
    for i, (n_in, n_out) in enumerate(pairwise(sizes), start=1):
        is_logits = i == len(sizes) - 1
        normalised = norm in ("batch", "layer-logits") or (norm != "none" and not is_logits)
        layers[f"linear{i}"] = nn.Linear(n_in, n_out, bias=not normalised, weight_init=nn.init.glorot)
        if norm.startswith("layer") and normalised:
            # Norm and activation in one pass over memory.
            layers[f"norm{i}"] = nn.LayerNorm(n_out, activation=None if is_logits else "relu")
        else:
            if normalised:
                layers[f"norm{i}"] = nn.BatchNorm(n_out, unbiased=unbiased)
            if not is_logits:
                layers[f"activation{i}"] = ops.relu
        if dropout and not is_logits:
            layers[f"dropout{i}"] = nn.Dropout(dropout)
    return nn.Sequential(**layers)
