"""The interface between the MLX time loop and a time step; the formula and the Metal kernels implement it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

from duoln.backends.protocol import Array

States = tuple[Array, ...]


class Gradient(NamedTuple):
    """The gradients of one time step."""

    x_gates: Array
    h_proj: Array
    states: list[Array]
    """The gradients of the states before the time step, without the part that comes through `h_proj`."""
    own: Any
    """The values from which `parameters` computes the gradients of the bias and the norms."""


class Steps(Protocol):
    """The time steps of one sequence, with the parameters that they read. It stores no values of a call."""

    def forward(self, x_gates: Array, h_proj: Array, states: States, mask: Array | None) -> tuple[States, Any]:
        """The next states (B, H), and the values of this time step that the gradient needs.

        Args:
            x_gates: the contribution of the input to the gates, (B, gates * H).
            h_proj: h W_h, (B, gates * H).
            states: the states before the time step.
            mask: (B,) bool, False where a row is masked and keeps its state; None if no row is.
        """
        ...

    def backward(self, kept: Any, gradients: list[Array]) -> Gradient:
        """The gradients of the time step's arguments, from those of the next states."""
        ...

    def parameters(self, walked: Sequence[tuple[Any, Any]]) -> list[Array]:
        """The gradients of the bias, if there is one, and the norms, from (kept, own) of all time steps."""
        ...
