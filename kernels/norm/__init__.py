"""Layer norm and RMS norm, of rows or of the sums of two arrays: one family, with one pass each way on every device.

A row is read once from memory, each way, and three numbers are kept for it: the mean, the mean of what is left after it
is subtracted, and rstd; for an RMS norm rstd alone. For a norm of sums the rules keep the sums, or in 16 bits both
arrays, because rows are normalised before the sums are rounded.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from math import gcd
from typing import Any

from duoln.backends.protocol import STORAGE, Array, Backend
from duoln.core import Op, Rule
from duoln.kernels.launch import Launch, condition
from duoln.kernels.launch.declared import ACTIVATIONS, Layout
from duoln.kernels.norm import plan as plans
from duoln.kernels.norm.plan import LAYER, Norm, Plan
from duoln.ops import add_layer_norm, add_rms_norm, layer_norm, rms_norm

OPERATORS: dict[Norm, Op[Any, Any]] = {
    LAYER: layer_norm, Norm(residual=True): add_layer_norm,
    Norm(centred=False): rms_norm, Norm(centred=False, residual=True): add_rms_norm}

_Gouts = tuple[Array | None, Array | None]


def rule(norm: Norm, name: str, forward: Callable[..., Any], backward: Callable[..., Any], supports: Callable[..., Any],
         stored: bool = False, remark: Callable[[Backend], str | None] | None = None) -> Rule:
    """The rule of one operator from the passes of a device, which are those of the family.

    Args:
        norm: which operator of `OPERATORS` it is for.
        name: of the rule.
        forward: `forward(be, norm, x, residual, gain, bias, eps, activation) -> (y, total, kept)`. `residual` and the
            sums, `total`, are None where rows are no sums; `bias` is None without a mean.
        backward: `backward(norm, kept, dy, d_total, needs) -> (d_rows, d_gain, d_bias)`, those that `needs` requests.
            `d_total` is the gradient of the sums or None; `d_rows` includes it, and is that of both arrays of a sum.
        supports: that of the rule.
        stored: whether rows may be stored in 16 bits.
        remark: that of the rule.
    """

    def of_rows(be: Backend, x: Array, gain: Array | None, bias: Array | None = None, *, eps: float,
                activation: str | None = None) -> tuple[Array, Any]:
        y, _, kept = forward(be, norm, x, None, gain, bias, eps, activation)
        return y, kept

    def of_rows_vjp(be: Backend, kept: Any, dy: Array, needs: Sequence[bool]) -> Sequence[Array | None]:
        gradients: Sequence[Array | None] = backward(norm, kept, dy, None, (*needs, False)[:3])
        return gradients[:len(needs)]

    def of_sum(be: Backend, x: Array, residual: Array, gain: Array | None, bias: Array | None = None, *,
               eps: float) -> tuple[tuple[Array, Array], Any]:
        y, total, kept = forward(be, norm, x, residual, gain, bias, eps, None)
        return (y, total), kept

    def of_sum_vjp(be: Backend, kept: Any, gouts: _Gouts, needs: Sequence[bool]) -> Sequence[Array | None]:
        dy, d_rows = gouts
        d_gain = d_bias = None
        if dy is not None:
            d_rows, d_gain, d_bias = backward(norm, kept, dy, d_rows, (needs[0] or needs[1], *needs[2:], False)[:3])
        return (d_rows if needs[0] else None, d_rows if needs[1] else None, d_gain, d_bias)[:len(needs)]

    arrays = range(1 + norm.residual) if stored else ()
    if norm.residual:
        return Rule(name, of_sum, of_sum_vjp, supports, remark=remark, stored=arrays)
    return Rule(name, of_rows, of_rows_vjp, supports, remark=remark, stored=arrays)


# The launches of C++ and CUDA -----------------------------------------------------------------------------------------

def _forward_plan(centred: bool, rows: int, width: int, aligned: bool, storage: int, has_residual: bool) -> Layout:
    p = plans.plan(width, _vector(width, aligned), storage, Norm(centred, has_residual))
    return Layout((-(-rows // p.rows),), (p.threads, p.rows), p.macros, text=_text(p, "forward"))


def _backward_plan(centred: bool, rows: int, stride: int, width: int, first: int, aligned: bool, storage: int,
                   has_residual: bool, has_d_total: bool, processors: int) -> Layout:
    of_sums = has_residual or has_d_total
    p = plans.plan(width, _vector(gcd(stride, width, first), aligned), storage, Norm(centred, of_sums))
    blocks = min(-(-rows // p.rows), processors * p.blocks_per_processor)
    return Layout((blocks,), (p.threads, p.rows), p.macros, blocks * p.rows, text=_text(p, "backward"))


def _vector(width: int, aligned: bool) -> int:
    """The most values of 16 bits that are read at a time; a plan takes fewer."""
    return next(n for n in (8, 4, 1) if width % n == 0) if aligned else 1


def _texts(way: str) -> list[tuple[str, str]]:
    """Those of CUDA, of both norms: for rows that fit in registers, and for wide ones."""
    return [("norm/norm.cu", f"layer_norm_{way}"), ("norm/wide.cu", f"layer_norm_{way}_wide")]


def _text(p: Plan, way: str) -> tuple[str, str]:
    return _texts(way)[p.wide]


def _launches(centred: bool, name: str, stats: int) -> tuple[Launch, Launch]:
    """The passes of layer norm or of RMS norm."""
    forward = Launch("norm/norm", f"{name}_forward",
                     "x: stored[*rows, width], residual: like x?, gain: real[width]?, bias: real[width]?, "
                     "eps: float64, activation: int32 "
                     f"-> total: like x?, y: like x, stats: real[*rows, {stats}]",
                     partial(_forward_plan, centred), texts=_texts("forward"))
    backward = Launch("norm/norm", f"{name}_backward",
                      f"x: stored[*rows, stride], residual: like x?, stats: real[*rows, {stats}], gain: real[width]?, "
                      "bias: real[width]?, dy: like x, d_total: like x?, width: int32, first: int32, activation: int32 "
                      "-> dx: like x?, d_gain: sum[width]?, d_bias: sum[width]?",
                      partial(_backward_plan, centred), block=64,  # the rows of a block of the C++ text
                      texts=_texts("backward"))
    return forward, backward


_LAUNCHES = {True: _launches(True, "layer_norm", 3), False: _launches(False, "rms_norm", 1)}
_RULES = {"numpy": "compiled", "cupy": "cuda row"}


def _forward(be: Backend, norm: Norm, x: Array, residual: Array | None, gain: Array | None, bias: Array | None,
             eps: float, activation: str | None) -> tuple[Array, Array | None, tuple[Any, ...]]:
    number = ACTIVATIONS[activation]
    total, y, stats = _LAUNCHES[norm.centred][0][be.name](x, residual, gain, bias, eps, number, norm.residual)
    if total is not None and be.dtype(x) not in STORAGE:
        x, residual = total, None
    return y, total, (be.name, x, residual, stats, gain, bias, number)


def _backward(norm: Norm, kept: tuple[Any, ...], dy: Array, d_total: Array | None,
              needs: Sequence[bool]) -> tuple[Array | None, ...]:
    backend, *arrays, number = kept
    differentiate, width = _LAUNCHES[norm.centred][1][backend], dy.shape[-1]
    gradients: tuple[Array | None, ...] = differentiate(*arrays, dy, d_total, width, 0, number, *needs)
    return gradients


def parameter_gradients(backend: str, x: Array, stats: Array, dy: Array, first: int,
                        width: int) -> tuple[Array, Array]:
    """Gradients of the gain and bias of a layer norm over columns of wider rows.

    Args:
        backend: its name.
        x: (..., stride); `width` columns from `first` on were normalised.
        stats: three numbers a row, (..., 3).
        dy: the gradient of the normalised columns, where they are in an array like `x`.
        first, width: the columns.
    """
    _, d_gain, d_bias = _LAUNCHES[True][1][backend](x, None, stats, None, None, dy, None, width, first, 0, False)
    return d_gain, d_bias


def attach(backend: str) -> None:
    """Add the rules to the operators; those of MLX are in a file of their own."""
    if backend in _RULES:
        for norm, op in OPERATORS.items():
            supports = condition(_LAUNCHES[norm.centred][0], backend)
            op.add(rule(norm, _RULES[backend], _forward, _backward, supports, stored=backend == "cupy"),
                   backend=backend)
