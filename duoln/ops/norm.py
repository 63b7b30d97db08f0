"""The three normalisations that the paper compares, layer, batch and weight, and RMS norm.

What stands between two blocks of a residual network, a sum and its layer or RMS norm, is one operator too. It returns
the normalised sum and the sum itself, which the next block adds to; a fused rule reads and writes each value once.

The composed rules subtract a mean twice, and multiply values by a power of two before they square them. It changes no
bit of the usual results; without it the squares of 1e20 are infinite and those of 1e-25 are 0.

Source: Ba, Kiros, Hinton 2016, "Layer Normalization", eq. 3 and table 1; Ioffe, Szegedy 2015; Salimans,
Kingma 2016; Zhang, Sennrich 2019; of the sum He, Zhang, Ren and Sun 2016, "Deep Residual Learning for Image
Recognition", eq. 1. The paper has no epsilon; these operators add theirs, by default 1e-5, to the variance inside the
root. Group and instance norm are in `group_norm.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any, Literal, get_args

from duoln.backends.protocol import Array, Backend, Shape
from duoln.core import Rule, Tensor, op
from duoln.core.arguments import AtLeast0
from duoln.core.spec import check_float
from duoln.core.tensor import stop_gradient
from duoln.errors import ShapeError
from duoln.ops.common import check_axis_given, length_over, normal_axes
from duoln.ops.elementwise import sqrt, stored_as, widened
from duoln.ops.shape import permute_dims, reshape

Activation = Literal["relu", "tanh"]
"""The activations that a layer norm, or a product with a weight, may compute in the same pass over memory."""
ACTIVATIONS = (*get_args(Activation), None)

LEAST_EPS = 1e-12
"""From this epsilon on, the squares of small values do not count beside it."""
SCALE = {"float32": 2.0**-40, "float64": 2.0**-300}
"""The factor of values before they are squared, with such an epsilon: the sum of n squares is finite for
values below 1e31 / sqrt(n), in float64 below 1e244 / sqrt(n).
"""
_FAR = {"float32": (2.0**30, 2.0**80), "float64": (2.0**240, 2.0**500)}
"""With a smaller epsilon, mean sizes above the first number are divided by the second one, and those below its
reciprocal are multiplied by it.
"""


def check_values(name: str, x: Tensor, shape: Shape) -> None:
    """Raises ShapeError where the axes of `x` that have this shape have no values to normalise over."""
    if 0 in shape:
        raise ShapeError(f"[{name}] expected at least one value to normalise over, found shape {x.shape}")


def over_axes(name: str, x: Tensor, axis: int | Sequence[int], params: dict[str, Tensor | None],
              norm_rows: Callable[..., Tensor]) -> Tensor:
    """A normalisation over any axes, by one over the last axis: `norm_rows(rows, *params)`.

    The axes move behind those that stay and become one. The parameters have one value for each place along these axes,
    in the order in which `x` has them.

    Raises:
        ShapeError: there is no such axis, or none is named, or one has no values, or a parameter has another shape.
        DtypeError: `axis` is no integer and no tuple of integers.
    """
    check_float(name, x, *(p for p in params.values() if p is not None))
    axes = normal_axes(name, check_axis_given(name, axis), x.ndim)
    if not axes:
        raise ShapeError(f"[{name}] axis: expected at least one axis, found {axis}")
    shape = tuple(x.shape[i] for i in axes)
    for role, p in params.items():
        if p is not None and p.shape != shape:
            raise ShapeError(f"[{name}] {role}: expected shape {shape} for axes {axes} of {x.shape}, found {p.shape}")
    check_values(name, x, shape)
    kept = [i for i in range(x.ndim) if i not in axes]
    order = (*kept, *axes)
    moved = permute_dims(x, axes=order)
    line = reshape(moved, shape=(x.size,))  # one value behind the other: NumPy adds up a row with gaps less exactly
    rows = reshape(line, shape=(*(x.shape[i] for i in kept), prod(shape)))
    y = norm_rows(rows, *(None if p is None else reshape(p, shape=(p.size,)) for p in params.values()))
    return permute_dims(reshape(y, shape=moved.shape), axes=tuple(order.index(i) for i in range(x.ndim)))


def _row_axes(x: Array) -> tuple[int, ...]:
    return tuple(range(len(x.shape) - 1))


def centred(be: Backend, x: Array, axes: Sequence[int], eps: float) -> tuple[Array, Array]:
    """The differences from the mean along some axes, which stay, and the mean.

    Without an `eps`, those of equal values are exactly 0: what rounding leaves would be normalised.
    """
    axes = tuple(axes)
    mean = be.mean(x, axis=axes, keepdims=True)
    first = x - mean
    # The rounding of a large mean leaves an offset, which a second subtraction of the mean removes.
    rest = be.mean(first, axis=axes, keepdims=True)
    differences = first - rest
    if not eps:
        low, high = be.min(x, axis=axes, keepdims=True), be.max(x, axis=axes, keepdims=True)
        differences = be.where(low == high, 0.0, differences)
    return differences, mean + rest


def mean_square(be: Backend, x: Array, axes: Sequence[int], eps: float, divisor: int | None = None,
                ) -> tuple[Array, Array | float]:
    """The mean of the squares of `scale` * x along some axes, which stay, and `scale`, a power of two for each mean.

    Args:
        be: the backend.
        x: of any shape.
        axes: where the values of one mean are.
        eps: what is added to the mean square without the scale.
        divisor: what the sum is divided by; the number of values by default.
    """
    axes = tuple(axes)
    dtype = be.dtype(x)
    scale: Array | float = SCALE[dtype]
    if eps < LEAST_EPS:
        far, unit = _FAR[dtype]
        size = be.mean(be.abs(x), axis=axes, keepdims=True)
        one = be.ones(size.shape, dtype)
        scale = be.where(size > far, one / unit, be.where(size < 1 / far, one * unit, one))
    scaled = x * scale
    if divisor is None:
        return be.mean(scaled * scaled, axis=axes, keepdims=True), scale
    return be.sum(scaled * scaled, axis=axes, keepdims=True) / divisor, scale


@op("x: real[*rows, width+], gain: real[width]?, bias: real[width]? -> like x")
def layer_norm(x: Tensor, gain: Tensor | None = None, bias: Tensor | None = None, *, eps: AtLeast0 = 1e-5,
               activation: Activation | None = None, axis: int | Sequence[int] = -1) -> Tensor:
    """Layer normalisation over the last axis, or over several (eq. 3, with the gain and bias of eq. 4).

    y = gain * (x - mean) / sqrt(var + eps) + bias; the variance divides by the width. It is computed in two passes, so
    that a large mean costs no accuracy. With an `activation` the result is relu(y) or tanh(y): the values of two
    operators, in one pass over memory. An `eps` of 0 is allowed; a row of equal values then has no spread to divide by
    and gives NaN. Values may be as large as 1e31 / sqrt(width).

    Shape:
        x (..., width), gain and bias (width,) or None -> like x. With several axes, `axis=(-3, -2, -1)` for images of
        shape (B, height, width, channels), gain and bias have their sizes, here (height, width, channels).

    Raises:
        ShapeError: `[layer_norm] last axis is 5, gain has 4`; there is no such axis, or no value along it.
        UsageError: `eps` is below 0, or a name is unknown.
    """
    if type(axis) is not int or axis != -1:
        return over_axes("layer_norm", x, axis, {"gain": gain, "bias": bias}, lambda rows, gain, bias: layer_norm.apply(
            rows, gain, bias, eps=eps, activation=activation))
    layer_norm.check(x, gain, bias)
    return layer_norm.apply(x, gain, bias, eps=eps, activation=activation)


def layer_norm_forward(be: Backend, x: Array, gain: Array | None, bias: Array | None, eps: float,
                       activation: Activation | None = None) -> tuple[Array, Any]:
    differences, _ = centred(be, x, (-1,), eps)
    square, scale = mean_square(be, differences, (-1,), eps)
    rstd = scale / be.sqrt(square + eps * scale * scale)
    xhat = differences * rstd
    y = xhat if gain is None else xhat * gain
    y = y if bias is None else y + bias
    if activation:
        y = be.maximum(y, 0.0) if activation == "relu" else be.tanh(y)
    return y, (xhat, rstd, gain, activation, y if activation else None)


def layer_norm_vjp(be: Backend, saved: Any, gout: Array, needs: Sequence[bool]) -> tuple[Array | None, ...]:
    xhat, rstd, gain, activation, y = saved
    if activation:
        gout = be.where(y > 0, gout, 0.0) if activation == "relu" else gout * (1.0 - y * y)
    dx = None
    if needs[0]:
        g = gout if gain is None else gout * gain
        along = be.mean(g * xhat, axis=-1, keepdims=True)
        dx = rstd * (g - be.mean(g, axis=-1, keepdims=True) - xhat * along)
    rows = _row_axes(gout)
    return (dx, be.sum(gout * xhat, axis=rows) if needs[1] else None,
            be.sum(gout, axis=rows) if needs[2] else None)


layer_norm.add(Rule("composed", layer_norm_forward, layer_norm_vjp))


@op("x: real[*rows, width+], gain: real[width]? -> like x")
def rms_norm(x: Tensor, gain: Tensor | None = None, *, eps: AtLeast0 = 1e-5, axis: int | Sequence[int] = -1) -> Tensor:
    """Division by the root of the mean square, over the last axis or over several (Zhang and Sennrich 2019, eq. 4).

    y = gain * x / sqrt(mean(x ** 2) + eps): layer normalisation without the mean and without a bias. An `eps` of 0 is
    allowed; a row of zeros then gives NaN.

    Shape:
        x (..., width), gain (width,) or None -> like x. With several axes the gain has their sizes, as in `layer_norm`.

    Raises:
        ShapeError: `[rms_norm] last axis is 5, gain has 4`; there is no such axis. UsageError: `eps` is below 0.
    """
    if type(axis) is not int or axis != -1:
        return over_axes("rms_norm", x, axis, {"gain": gain}, lambda rows, gain: rms_norm.apply(rows, gain, eps=eps))
    rms_norm.check(x, gain)
    return rms_norm.apply(x, gain, eps=eps)


def rms_norm_forward(be: Backend, x: Array, gain: Array | None, eps: float) -> tuple[Array, Any]:
    square, scale = mean_square(be, x, (-1,), eps)
    rstd = scale / be.sqrt(square + eps * scale * scale)
    xhat = x * rstd
    return xhat if gain is None else xhat * gain, (xhat, rstd, gain)


def rms_norm_vjp(be: Backend, saved: Any, gout: Array, needs: Sequence[bool]) -> tuple[Array | None, ...]:
    xhat, rstd, gain = saved
    dx = None
    if needs[0]:
        g = gout if gain is None else gout * gain
        dx = rstd * (g - xhat * be.mean(g * xhat, axis=-1, keepdims=True))
    return dx, be.sum(gout * xhat, axis=_row_axes(gout)) if needs[1] else None


rms_norm.add(Rule("composed", rms_norm_forward, rms_norm_vjp))


@op("x: real[*rows, width+], residual: real[*rows, width], gain: real[width]?, bias: real[width]? "
    "-> y: like x, total: like residual")
def add_layer_norm(x: Tensor, residual: Tensor, gain: Tensor | None = None, bias: Tensor | None = None, *,
                   eps: AtLeast0 = 1e-5) -> tuple[Tensor, Tensor]:
    """The sum of `x` and `residual`, and its layer norm over the last axis: `layer_norm(x + residual, gain, bias)`.

    total = x + residual; y = gain * (total - mean) / sqrt(var + eps) + bias. If `residual` is float32 and `x` has 16
    bits, the sum stays float32 and y has 16 bits; y is computed from the sum before that is rounded.

    Shape:
        x (..., width), residual like x, gain and bias (width,) or None -> (y like x, total like residual).

    Raises:
        ShapeError: `[add_layer_norm] last axis is 5, gain has 4`; `residual` has another shape than `x`; the last axis
            has no values. UsageError: `eps` is below 0.
    """


@op("x: real[*rows, width+], residual: real[*rows, width], gain: real[width]? -> y: like x, total: like residual")
def add_rms_norm(x: Tensor, residual: Tensor, gain: Tensor | None = None, *,
                 eps: AtLeast0 = 1e-5) -> tuple[Tensor, Tensor]:
    """The sum of `x` and `residual`, and its RMS norm over the last axis: `rms_norm(x + residual, gain)`.

    total = x + residual; y = gain * total / sqrt(mean(total ** 2) + eps). Dtypes are those of `add_layer_norm`.

    Shape:
        x (..., width), residual like x, gain (width,) or None -> (y like x, total like residual).

    Raises:
        ShapeError: `[add_rms_norm] last axis is 5, gain has 4`; `residual` has another shape than `x`; the last axis
            has no values. UsageError: `eps` is below 0.
    """


def _sum_norm_rule(forward: Callable[..., tuple[Array, Any]], vjp: Callable[..., tuple[Array | None, ...]]) -> Rule:
    """The composed rule of a sum and its norm, from the two functions of the norm's own."""

    def of_sum(be: Backend, x: Array, residual: Array, *params: Array | None,
               eps: float) -> tuple[tuple[Array, Array], Any]:
        total = x + residual
        y, saved = forward(be, total, *params, eps)
        return (y, total), saved

    def through_sum(be: Backend, saved: Any, gouts: tuple[Array | None, Array | None],
                    needs: Sequence[bool]) -> tuple[Array | None, ...]:
        dy, d_sum = gouts
        params: list[Array | None] = [None] * len(needs[2:])
        if dy is not None:
            through, *params = vjp(be, saved, dy, (needs[0] or needs[1], *needs[2:]))
            d_sum = through if d_sum is None or through is None else through + d_sum
        return (d_sum if needs[0] else None, d_sum if needs[1] else None, *params)

    return Rule("composed", of_sum, through_sum)


add_layer_norm.add(_sum_norm_rule(layer_norm_forward, layer_norm_vjp))
add_rms_norm.add(_sum_norm_rule(rms_norm_forward, rms_norm_vjp))


@op("x: real[*rows, width], gain: real[width]?, bias: real[width]? "
    "-> y: like x, mean: real[width], variance: real[width]")
def batch_norm(x: Tensor, gain: Tensor | None = None, bias: Tensor | None = None, *, eps: AtLeast0 = 1e-5,
               unbiased: bool = False) -> tuple[Tensor, Tensor, Tensor]:
    """Batch normalisation over all axes but the last, with the statistics of this batch.

    Returns the normalised batch, and the mean and variance used for it. The variance divides by the number of rows,
    or by one less with `unbiased` (the paper's choice at batch 4, section 6.6). One row alone is refused: the result
    would be the bias, and the gradient 0, whatever the row is.

    Shape:
        x (..., width), gain and bias (width,) or None -> like x, (width,), (width,).

    Raises:
        ShapeError: the gain or bias has another size, or there are fewer than 2 rows.
    """
    batch_norm.check(x, gain, bias)
    rows = prod(x.shape[:-1])
    if x.ndim < 2 or rows < 2:
        raise ShapeError(f"[batch_norm] expected at least 2 rows to normalise over, found shape {x.shape}")
    return batch_norm.apply(x, gain, bias, eps=eps, unbiased=unbiased)


def _batch_norm_forward(be: Backend, x: Array, gain: Array | None, bias: Array | None, eps: float,
                        unbiased: bool) -> tuple[tuple[Array, Array, Array], Any]:
    axes = _row_axes(x)
    divisor = prod(x.shape[:-1]) - unbiased
    differences, mean = centred(be, x, axes, eps)
    square, scale = mean_square(be, differences, axes, eps, divisor)
    rstd = be.reshape(scale / be.sqrt(square + eps * scale * scale), x.shape[-1:])
    xhat = differences * rstd
    y = xhat if gain is None else xhat * gain
    mean, variance = (be.reshape(a, x.shape[-1:]) for a in (mean, square / scale / scale))
    return (y if bias is None else y + bias, mean, variance), (xhat, differences, rstd, gain, divisor)


def _batch_norm_vjp(be: Backend, saved: Any, gouts: tuple[Array | None, ...],
                    needs: Sequence[bool]) -> tuple[Array | None, ...]:
    xhat, differences, rstd, gain, divisor = saved
    gout, d_mean, d_variance = gouts
    axes = _row_axes(xhat)
    rows = prod(xhat.shape[:-1])
    if gout is None:
        gout = be.zeros(xhat.shape, be.dtype(xhat))
    dx = None
    if needs[0]:
        g = gout if gain is None else gout * gain
        along = be.sum(g * xhat, axis=axes)
        dx = rstd * (g - be.mean(g, axis=axes) - xhat * (along / divisor))
        if d_mean is not None:
            dx = dx + d_mean / rows
        if d_variance is not None:
            dx = dx + differences * (d_variance * (2.0 / divisor))
    return (dx, be.sum(gout * xhat, axis=axes) if needs[1] else None,
            be.sum(gout, axis=axes) if needs[2] else None)


batch_norm.add(Rule("composed", _batch_norm_forward, _batch_norm_vjp))


def by_statistics(x: Tensor, gain: Tensor, bias: Tensor | None, mean: Tensor, variance: Tensor, eps: float) -> Tensor:
    """Batch norm by a mean and a variance that are given and have no gradient, in float32, stored as `x` is."""
    mean, variance = stop_gradient(mean), stop_gradient(variance)
    y = (widened(x) - mean) * (gain / sqrt(widened(variance) + eps))
    return stored_as(y if bias is None else y + bias, x)


@op("direction: real[*fans, n_in, out], gain: real[out] -> like direction")
def weight_norm(direction: Tensor, gain: Tensor) -> Tensor:
    """Weight normalisation: each output's weights are gain * v / |v| (Salimans and Kingma 2016, eq. 2).

    A direction of zeros gives weights of 0, without a gradient.

    Shape:
        direction (..., in, out), gain (out,) -> like direction; the norm runs over all axes but the last.

    Raises:
        ShapeError: the direction has fewer than two axes, or the gain has another size.
    """


def _weight_norm_forward(be: Backend, v: Array, gain: Array) -> tuple[Array, Any]:
    length = be.reshape(length_over(be, v, _row_axes(v)), gain.shape)
    unit = v / be.where(length == 0, 1.0, length)
    return unit * gain, (unit, length, gain)


def _weight_norm_vjp(be: Backend, saved: Any, gout: Array, needs: Sequence[bool]) -> tuple[Array | None, ...]:
    unit, length, gain = saved
    along = be.sum(gout * unit, axis=_row_axes(unit))
    reach = be.where(length == 0, 0.0, gain / be.where(length == 0, 1.0, length))
    return ((gout - unit * along) * reach if needs[0] else None, along if needs[1] else None)


weight_norm.add(Rule("composed", _weight_norm_forward, _weight_norm_vjp))
