"""The GRU on MLX: the time loop of `recurrent.mlx_walk`, with Metal kernels if there is a Metal device."""

from __future__ import annotations

from duoln.kernels.gru.metal import MetalGru, refusal
from duoln.kernels.norm.metal import MOST_COLUMNS
from duoln.kernels.recurrent import mlx_walk
from duoln.ops import gru

_VARIANTS = ("layer", "layer-theano")
_MOST_HIDDEN = MOST_COLUMNS // 2
"""The common norm of z and r must fit layer_norm's kernel, which computes the gradients of the gains."""


def attach() -> None:
    """Add the rules to `gru`."""
    gru.add(mlx_walk.formula_rule("gru"), backend="mlx")
    supports = mlx_walk.metal_supports(_VARIANTS, _MOST_HIDDEN, refusal)
    gru.add(mlx_walk.rule("metal cells", "gru", MetalGru, supports), backend="mlx")
