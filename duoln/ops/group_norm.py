"""Group norm and instance norm: normalisations over the positions of each example, channels last.

Source: Wu, He 2018, "Group Normalization", eq. 7; Ulyanov, Vedaldi, Lempitsky 2016, "Instance Normalization". Instance
norm is group norm with one channel in each group. Each group of an example is a row of the layer norm that computes it.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

from duoln.backends.protocol import Array, Backend, Shape
from duoln.core import Rule, Tensor, op
from duoln.core.arguments import AtLeast0, AtLeast1
from duoln.errors import ShapeError
from duoln.ops.norm import check_values, layer_norm_forward, layer_norm_vjp


@op("x: real[n, *positions, channels], gain: real[channels]?, bias: real[channels]? -> like x")
def group_norm(x: Tensor, gain: Tensor | None = None, bias: Tensor | None = None, *, groups: AtLeast1,
               eps: AtLeast0 = 1e-5) -> Tensor:
    """Group normalisation: over all positions of an example and the channels of a group (Wu and He 2018).

    y = gain * (x - mean) / sqrt(var + eps) + bias, with a mean and a variance for each example and each group of
    neighbouring channels; gain and bias belong to the channels. One group normalises over all but the first axis. A
    group of one value gives the bias, as in PyTorch and as a layer norm of one value does.

    Shape:
        x (B, ..., channels), gain and bias (channels,) or None -> like x.

    Raises:
        ShapeError: `x` has fewer than 2 axes or no positions, the groups do not divide the channels, or the gain or
            bias has another size. UsageError: `eps` is below 0.
    """
    group_norm.check(x, gain, bias)
    check_values("group_norm", x, x.shape[1:])
    if x.shape[-1] % groups:
        raise ShapeError(f"[group_norm] groups: expected a divisor of the channels, found {groups} for {x.shape[-1]}")
    return group_norm.apply(x, gain, bias, groups=groups, eps=eps)


@op("x: real[n, position, *positions, channels], gain: real[channels]?, bias: real[channels]? -> like x")
def instance_norm(x: Tensor, gain: Tensor | None = None, bias: Tensor | None = None, *, eps: AtLeast0 = 1e-5) -> Tensor:
    """Instance normalisation: over the positions of an example, each channel alone (Ulyanov et al. 2016).

    y = gain * (x - mean) / sqrt(var + eps) + bias, with a mean and a variance for each example and each channel. One
    position alone is refused, as in PyTorch: the result would be the bias, and the gradient 0, whatever the values are.

    Shape:
        x (B, position, ..., channels), gain and bias (channels,) or None -> like x.

    Raises:
        ShapeError: `x` has fewer than 3 axes or 2 positions, or the gain or bias has another size. UsageError: `eps` is
            below 0.
    """
    instance_norm.check(x, gain, bias)
    check_values("instance_norm", x, x.shape[1:])
    if prod(x.shape[1:-1]) < 2:
        raise ShapeError(f"[instance_norm] expected at least 2 positions to normalise over, found shape {x.shape}")
    return instance_norm.apply(x, gain, bias, groups=x.shape[-1], eps=eps)


def _rows(be: Backend, x: Array, groups: int) -> Array:
    """The values of each group of each example as a row: (B, ..., channels) -> (B, groups, positions * share).

    The values lie one behind the other, since NumPy adds up a row with gaps less exactly.
    """
    batch, positions, share = _sizes(x.shape, groups)
    apart = be.permute_dims(be.reshape(x, (batch, positions, groups, share)), (0, 2, 1, 3))
    return be.reshape(be.reshape(apart, (prod(x.shape),)), (batch, groups, positions * share))


def _channels_last(be: Backend, rows: Array, shape: Shape, groups: int) -> Array:
    """The rows back in the places from which `_rows` took them."""
    batch, positions, share = _sizes(shape, groups)
    apart = be.permute_dims(be.reshape(rows, (batch, groups, positions, share)), (0, 2, 1, 3))
    return be.reshape(apart, shape)


def _sizes(shape: Shape, groups: int) -> tuple[int, int, int]:
    """The numbers of examples, of positions in each, and of channels in a group."""
    return shape[0], prod(shape[1:-1]), shape[-1] // groups if groups else 0


def _group_norm_forward(be: Backend, x: Array, gain: Array | None, bias: Array | None, groups: int,
                        eps: float) -> tuple[Array, Any]:
    rows, of_rows = layer_norm_forward(be, _rows(be, x, groups), None, None, eps)
    xhat = _channels_last(be, rows, x.shape, groups)
    y = xhat if gain is None else xhat * gain
    return y if bias is None else y + bias, (xhat, of_rows, gain, groups)


def _group_norm_vjp(be: Backend, saved: Any, gout: Array, needs: Sequence[bool]) -> tuple[Array | None, ...]:
    xhat, of_rows, gain, groups = saved
    dx = None
    if needs[0]:
        g = gout if gain is None else gout * gain
        d_rows = layer_norm_vjp(be, of_rows, _rows(be, g, groups), (True, False, False))[0]
        dx = _channels_last(be, d_rows, gout.shape, groups)
    axes = tuple(range(len(gout.shape) - 1))
    return (dx, be.sum(gout * xhat, axis=axes) if needs[1] else None, be.sum(gout, axis=axes) if needs[2] else None)


group_norm.add(Rule("composed", _group_norm_forward, _group_norm_vjp))
instance_norm.add(Rule("composed", _group_norm_forward, _group_norm_vjp))
