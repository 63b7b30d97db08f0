"""What the MLX walk through time asks of a time step: the formula and the Metal kernels both answer it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

from duoln.backends.protocol import Array

States = tuple[Array, ...]


class Gradient(NamedTuple):
    """The gradients that one time step gives."""

    x_gates: Array
    h_proj: Array
    states: list[Array]
    """Of the states before the time step, without the part that comes through `h_proj`."""
    own: Any
    """What `parameters` makes the gradients of the bias and the norms from."""


class Steps(Protocol):
    """The time steps of one sequence, with the parameters that they read. It keeps nothing of a walk."""

    def forward(self, x_gates: Array, h_proj: Array, states: States, mask: Array | None) -> tuple[States, Any]:
        """The next states (B, H), and what the gradient needs of this time step.

        Args:
            x_gates: what the input gives the gates, (B, gates * H).
            h_proj: h W_h, (B, gates * H).
            states: before the time step.
            mask: (B,) bool, False where a row is masked and keeps its state; None if no row is.
        """
        ...

    def backward(self, kept: Any, gradients: list[Array]) -> Gradient:
        """From the gradients of the next states to those of what the time step read."""
        ...

    def parameters(self, walked: Sequence[tuple[Any, Any]]) -> list[Array]:
        """The gradients of the bias, if there is one, and the norms, from (kept, own) of all time steps."""
        ...
