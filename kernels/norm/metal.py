"""The gradient of a layer norm or RMS norm on Apple GPUs: one kernel over groups of rows, then one sum over the groups.

MLX's own kernel writes the gain's gradient of every row and then adds them, in the input's dtype. Here a threadgroup
adds its rows in registers, in float32, also where x, dy and dx are stored in 16 bits. `differentiable` is for code that
uses MLX's own differentiation.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import mlx.core as mx

from duoln.backends.protocol import Array
from duoln.kernels.launch import Launch, metal
from duoln.kernels.launch.declared import ACTIVATIONS, Layout

MOST_COLUMNS = 8192
_MOST_GROUPS = 512
"""The number of partial sums of the parameters' gradients; it is small, so that their sum costs little time."""
_LADDER = ((32, 1), (32, 4), (128, 2), (128, 4), (256, 4), (256, 8), (512, 8), (512, 16))
"""The threads, and the values of each thread; an entry holds rows up to the product of both."""



def _plan(centred: bool, rows: int, width: int, storage: int, activation: int) -> Layout:
    threads, units = _layouts.plan(width, centred, _DTYPES[storage])
    groups = min(rows, _MOST_GROUPS)
    macros = {"UNITS": units, "ACTIVATION": activation, **({} if centred else {"CENTRED": 0})}
    return Layout((groups,), (threads,), macros, groups)


_DTYPES = {number: dtype for dtype, number in metal.STORAGES.items()}
_BACKWARD = {centred: Launch(
    "norm/layer_norm_backward", "layer_norm_backward",
    "x: stored[*rows, width], residual: like x?, gain: real[width]?, bias: real[width]?, dy: like x, d_total: like x?, "
    "eps: float64, activation: int32 -> dx: like x?, d_gain: sum[width]?, d_bias: sum[width]?",
    partial(_plan, centred))["mlx"]
    for centred in (True, False)}


def _trial(width: int, centred: bool, dtype: mx.Dtype) -> list[Array]:
    """The gradients of one row by the kernel of this norm that needs most registers."""
    row, gain = mx.zeros((1, width), dtype), mx.zeros((width,))
    residual = None if dtype == mx.float32 else row
    made = backward(row, gain, gain if centred else None, row, 1e-5, "tanh" if centred else None,
                    (True, True, centred), centred, residual, row)
    return [a for a in made if a is not None]


_layouts = metal.Layouts(_LADDER, _trial)
refusal = _layouts.refusal
"""The reason why the device's pipelines allow no layout for a width, with a mean or without, and a dtype; else None."""


def supports(x: Array, centred: bool = True) -> str | None:
    """The reason why the kernel cannot take these rows; None if it can."""
    if x.dtype not in metal.STORAGES:
        return f"the kernel is for float32 and 16 bits, not {x.dtype}"
    if not x.size:
        return "there are no values"
    if x.shape[-1] > MOST_COLUMNS:
        return f"rows of {x.shape[-1]} are wider than {MOST_COLUMNS}"
    return f"{x.size} values are more than 2^31" if x.size >= 1 << 31 else refusal(x.shape[-1], centred, x.dtype)


def backward(x: Array, gain: Array | None, bias: Array | None, dy: Array, eps: float, activation: str | None,
             needs: Sequence[bool], centred: bool = True, residual: Array | None = None,
             d_total: Array | None = None) -> tuple[Array | None, ...]:
    """The gradients of the rows, gain and bias that `needs` requests.

    Args:
        x: the rows that were normalised, or what is added to `residual` to have them.
        gain: of the norm, or None.
        bias: of a layer norm, or None.
        dy: the gradient of the result.
        eps: of the norm.
        activation: what followed a layer norm.
        needs: whether to compute the gradient of the rows, of the gain and of the bias.
        centred: whether it was a layer norm.
        residual: where 16 bits do not hold the sum that was normalised.
        d_total: the gradient of the sum itself, which is added to that of the rows.

    Shape:
        x, residual, dy and d_total (..., width), of one dtype, gain and bias (width,) or None -> like x, (width,),
        (width,).
    """
    made: tuple[Array | None, ...] = _BACKWARD[centred](
        x, residual, gain, bias, dy, d_total, eps, ACTIVATIONS[activation], needs[0], needs[1], needs[2] and centred)
    return made
