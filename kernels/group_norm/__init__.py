"""Group norm and instance norm on the CPU, compiled: a thread reads an example once from memory, each way.

Three numbers are kept for each group of an example: the mean, the mean of what is left after it is subtracted, and
rstd.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

from duoln.backends.protocol import Array, Backend
from duoln.kernels.launch import Launch, fused
from duoln.ops import group_norm, instance_norm

_TEXT = "group_norm/group_norm"
_PARTS = 64
"""The parts of the gain's and bias's gradients, of examples that follow each other, as in the C++ text."""

_normalise = Launch(_TEXT, "group_norm_forward",
                    "x: real[n, positions, channels], gain: real[channels]?, bias: real[channels]?, groups: int64, "
                    "eps: float64 -> y: like x, stats: real[n, groups, 3]")
_differentiate = Launch(_TEXT, "group_norm_backward",
                        "x: real[n, positions, channels], dy: like x, stats: real[n, groups, 3], "
                        "gain: real[channels]?, groups: int64 "
                        "-> dx: like x?, d_gain: sum[channels], d_bias: sum[channels]",
                        block=lambda count, channels: min(count, _PARTS))


def _rows(be: Backend, x: Array) -> Array:
    """The positions as one axis: (B, ..., channels) -> (B, positions, channels)."""
    return be.reshape(x, (x.shape[0], prod(x.shape[1:-1]), x.shape[-1]))


def _forward(be: Backend, x: Array, gain: Array | None, bias: Array | None, groups: int,
             eps: float) -> tuple[Array, tuple[Any, ...]]:
    rows = _rows(be, x)
    y, stats = _normalise[be.name](rows, gain, bias, groups, eps)
    return be.reshape(y, x.shape), (rows, stats, gain, groups)


def _vjp(be: Backend, saved: tuple[Any, ...], gout: Array, needs: Sequence[bool]) -> list[Array | None]:
    rows, stats, gain, groups = saved
    dx, d_gain, d_bias = _differentiate[be.name](rows, _rows(be, gout), stats, gain, groups, needs[0])
    return [be.reshape(dx, gout.shape) if needs[0] else None, d_gain if needs[1] else None,
            d_bias if needs[2] else None]


_of_groups, _of_instances = (fused(op, _forward, _vjp, _normalise) for op in (group_norm, instance_norm))


def attach(backend: str) -> None:
    """Add the rule to both operators."""
    _of_groups(backend)
    _of_instances(backend)
