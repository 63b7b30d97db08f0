"""What the MLX rule of the recurrent operators asks of a step, whoever computes it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

from duoln.backends.protocol import Array

States = tuple[Array, ...]


class Gradient(NamedTuple):
    """What one step gives back."""

    side: Array
    """Of the input's side."""
    product: Array
    """Of the state's product."""
    states: list[Array]
    """Of the states before the step, beside the product."""
    own: Any
    """What `parameters` makes the gradients of the bias and the norms from."""


class Steps(Protocol):
    """The steps of one sequence, with the parameters that they read. Nothing of a walk is kept in here."""

    def forward(self, side: Array, product: Array, states: States, keep: Array | None) -> tuple[States, Any]:
        """The next states (B, H), and what the gradient needs of this step.

        Args:
            side: what the input brings, (B, gates * H).
            product: the state's product, (B, gates * H).
            states: before the step.
            keep: (B,) bool, False where a row keeps its state; None if none does.
        """
        ...

    def backward(self, kept: Any, gradients: list[Array]) -> Gradient:
        """From the gradients of the next states to those of what the step read."""
        ...

    def parameters(self, walked: Sequence[tuple[Any, Any]]) -> list[Array]:
        """The gradients of the bias, if there is one, and the norms, from (kept, own) of all steps."""
        ...
