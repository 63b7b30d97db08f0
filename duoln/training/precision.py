"""What a training step in bf16 stores in 16 bits: a rounded copy of each weight, the batch, and so the activations.

The parameters themselves, the optimiser's slots and the gradients are float32: a step of the optimiser is often smaller
than half a unit in the last place of bfloat16, and would be lost.
"""

from __future__ import annotations

from typing import Any

from duoln import tree
from duoln.core import Tensor
from duoln.nn import in_16_bits
from duoln.runs.precision import BF16

_STORED = "bfloat16"


def stored_params(params: Any, precision: str) -> Any:
    """The parameters as the model computes with them. Gradients flow back through the rounding."""
    return in_16_bits(params, _STORED) if precision == BF16 else params


def stored_batch(batch: dict[str, Tensor], precision: str) -> dict[str, Tensor]:
    """The batch as the model computes with it: its floats rounded, the rest as it is."""
    if precision != BF16:
        return batch
    rounded: dict[str, Tensor] = tree.map(lambda t: t.astype(_STORED) if t.dtype == "float32" else t, batch)
    return rounded
