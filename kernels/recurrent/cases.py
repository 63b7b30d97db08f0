"""The shapes of the recurrent rules' benchmarks, and the operations and bytes that a run needs, as plain data."""

from __future__ import annotations

from typing import NamedTuple

from duoln.ops.recurrent.variants import GATES


class Shape(NamedTuple):
    """Time steps, rows, inputs, hidden units."""

    steps: int
    batch: int
    n_in: int
    hidden: int


SHAPES = (Shape(100, 8, 3, 400), Shape(100, 128, 256, 256), Shape(30, 64, 620, 1024))
"""Handwriting synthesis, a middle size, and sentence encoders."""

KEPT = {("lstm", "layer"): 10, ("lstm", "layer-theano"): 10, ("lstm", "layer-cell"): 6, ("lstm", "none"): 6,
        ("gru", "layer"): 7, ("gru", "layer-theano"): 7, ("gru", "none"): 5, ("rnn", "layer"): 2, ("rnn", "none"): 2}
"""Floats kept for the gradient per time step, row and hidden unit, by the compiled rules of the CPU; for few inputs the
LSTM of `layer` keeps 6.
"""


def flops(cell: str, shape: Shape, backward: bool) -> int:
    """Floating-point operations of the products of one run; backward adds two products for each one of forward."""
    t, b, n, h = shape
    return 2 * t * b * (n + h) * GATES[cell] * h * (3 if backward else 1)


def least_bytes(cell: str, shape: Shape, itemsize: int = 4) -> int:
    """The least bytes that forward moves: it reads inputs, weights and x_proj, and writes x_proj and hidden states."""
    t, b, n, h = shape
    gates = GATES[cell] * h
    return itemsize * (t * b * (n + 2 * gates + h) + (n + h) * gates)
