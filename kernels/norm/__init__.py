"""Layer norm and RMS norm, of rows or of the sums of two arrays: one family, with one pass each way on every device."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

from duoln.backends.protocol import Array, Backend
from duoln.core import Op, Rule
from duoln.ops import add_layer_norm, add_rms_norm, layer_norm, rms_norm


class Norm(NamedTuple):
    """One norm of the family."""

    centred: bool = True
    """True if the mean is subtracted, as in layer norm; a bias may follow then."""
    residual: bool = False
    """True if the rows are sums of two arrays."""


LAYER = Norm()
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
        supports: `supports(norm, be, x, *arrays, eps=..., **attrs)`: None, or the reason why the rule cannot run.
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

    refusal = partial(supports, norm)
    arrays = range(1 + norm.residual) if stored else ()
    if norm.residual:
        return Rule(name, of_sum, of_sum_vjp, refusal, remark=remark, stored=arrays)
    return Rule(name, of_rows, of_rows_vjp, refusal, remark=remark, stored=arrays)
