"""The tanh RNN on MLX: the time loop of `recurrent.mlx_walk`; there is no Metal kernel for it."""

from __future__ import annotations

from duoln.kernels.recurrent import mlx_walk
from duoln.ops import rnn


def attach() -> None:
    """Add the rule to `rnn`."""
    rnn.add(mlx_walk.formula_rule("rnn"), backend="mlx")
