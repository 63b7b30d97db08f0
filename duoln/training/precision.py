"""What a training step in bf16 stores in 16 bits: a rounded copy of each weight, the batch, and so the activations.

The parameters themselves, the optimiser's slots and the gradients are float32: a step of the optimiser is often smaller
than half a unit in the last place of bfloat16, and would be lost.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from duoln import tree
from duoln.core import Tensor
from duoln.runs.precision import BF16

_STORED = "bfloat16"
_LEAST_AXES = 2
"""Gains and biases, with one axis, stay in float32."""


def stored_params(params: Any, precision: str) -> Any:
    """The parameters as the model computes with them. Gradients flow back through the rounding."""
    return _rounded(params, precision, lambda t: t.ndim >= _LEAST_AXES)


def stored_batch(batch: dict[str, Tensor], precision: str) -> dict[str, Tensor]:
    """The batch as the model computes with it: its floats rounded, the rest as it is."""
    rounded: dict[str, Tensor] = _rounded(batch, precision, lambda t: True)
    return rounded


def _rounded(tensors: Any, precision: str, is_chosen: Callable[[Tensor], bool]) -> Any:
    if precision != BF16:
        return tensors
    return tree.map(lambda t: t.astype(_STORED) if t.dtype == "float32" and is_chosen(t) else t, tensors)
