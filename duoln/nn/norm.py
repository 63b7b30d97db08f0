"""The normalising layers."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import ClassVar

import numpy as np

from duoln import ops
from duoln.core import Tensor, stop_gradient
from duoln.core.arguments import AT_LEAST_0, check_axes, check_choice, check_flag, check_integer, check_number
from duoln.errors import ShapeError, UsageError
from duoln.nn import init, observing
from duoln.nn.convolution import Conv2d
from duoln.nn.layers import Linear, check_sizes
from duoln.nn.module import NOT_GIVEN, Module, Params, check_params, parameter, parameters
from duoln.ops.norm import ACTIVATIONS, Activation, by_statistics
from duoln.randomness import Stream


def check_width(name: str, width: int | tuple[int, ...]) -> tuple[int, ...]:
    """The sizes of the last axes, from one size or a tuple of them.

    Raises:
        ShapeError: a size is below 1, or there is none. DtypeError: one is not an integer.
    """
    sizes = width if isinstance(width, tuple) else (width,)
    if not sizes:
        raise ShapeError(f"[{name}] width: expected at least one size, found ()")
    check_axes(name, len(sizes))
    return tuple([check_integer(name, "width", size, 1) for size in sizes])


def check_gain(name: str, gain: float, affine: bool) -> None:
    """Raises UsageError for an initial gain other than 1 where a layer has no gain, DtypeError for other kinds."""
    check_number(name, "gain", gain)
    if not check_flag(name, "affine", affine) and gain != 1:
        raise UsageError(f"[{name}] gain: expected 1.0 for a layer without gain, affine=False, found {gain}")


class _Affine(Module):
    """The common base of the normalising layers: a gain and a bias, or none.

    Attributes:
        shape: the shape of the gain and of the bias.
        names: the names of the parameters.
    """

    shape: tuple[int, ...]
    names: tuple[str, ...] = ("gain", "bias")

    def __init__(self, eps: float, gain: float, affine: bool) -> None:
        self.eps = check_number(type(self).__name__, "eps", eps, AT_LEAST_0)
        check_gain(type(self).__name__, gain, affine)
        self.gain, self.affine = gain, affine

    def weights(self, rng: Stream) -> Params:
        if not self.affine:
            return {}
        starts = {"gain": init.constant(self.gain), "bias": init.zeros}
        return {name: starts[name](rng, self.shape) for name in self.names}

    def _gain_and_bias(self, params: Params, x: Tensor) -> list[Tensor | None]:
        """The gain and the bias, or None for each.

        Raises:
            ShapeError: the layer has other parameters, or it has none and `x` has other sizes along its last axes,
                which no operator would see.
        """
        kind = type(self).__name__
        if self.affine:
            return list(parameters(kind, params, self.names))
        check_params(kind, params)
        if isinstance(x, Tensor) and x.shape[-len(self.shape):] != self.shape:
            raise ShapeError(f"[{kind}] expected last axes of shape {self.shape}, found shape {x.shape}")
        return [None] * len(self.names)


class _OverLastAxes(_Affine):
    """The common base of the norms over the last axes, of one width or several."""

    activation: Activation | None = None
    _norm_of_sum: ClassVar[Callable[..., tuple[Tensor, Tensor]]]

    def __init__(self, width: int | tuple[int, ...], eps: float, gain: float, affine: bool) -> None:
        self.shape = check_width(type(self).__name__, width)
        super().__init__(eps, gain, affine)
        self.width = width

    @property
    def _axis(self) -> int | tuple[int, ...]:
        """The last axes, as many as the sizes."""
        return -1 if len(self.shape) == 1 else tuple(range(-len(self.shape), 0))

    def of_sum(self, params: Params, x: Tensor, residual: Tensor) -> tuple[Tensor, Tensor]:
        """The norm of x + residual, and this sum, by one operator where it has the layer's settings."""
        if len(self.shape) > 1 or self.activation:
            total = x + residual
            return self(params, total), total
        return self._norm_of_sum(x, residual, *self._gain_and_bias(params, x), eps=self.eps)


class LayerNorm(_OverLastAxes):
    """Layer normalisation over the last axes: `ops.layer_norm` with a gain (initially 1) and a bias (initially 0).

    An activation, "relu" or "tanh", is computed by the same operator. With `affine=False` it has no parameters, with
    `bias=False` a gain alone.

        >>> layer = nn.LayerNorm(3)
        >>> layer(duoln.init(layer, 0), duoln.tensor([[1.0, 2.0, 3.0]])).numpy().round(2).tolist()
        [[-1.22..., 0.0, 1.22...]]

    Shape:
        x (..., width) -> the same; parameters gain and bias (width,). A tuple of sizes is normalised over together:
        `LayerNorm((h, w, c))` takes x (..., h, w, c) and has gain and bias (h, w, c).
    """

    _norm_of_sum = staticmethod(ops.add_layer_norm)

    def __init__(self, width: int | tuple[int, ...], *, eps: float = 1e-5, gain: float = 1.0,
                 activation: Activation | None = None, affine: bool = True, bias: bool = True) -> None:
        super().__init__(width, eps, gain, affine)
        check_choice("LayerNorm", "activation", activation, ACTIVATIONS)
        self.bias = check_flag("LayerNorm", "bias", bias)
        self.names = ("gain", "bias") if bias else ("gain",)
        self.activation = activation

    def __call__(self, params: Params, x: Tensor = NOT_GIVEN) -> Tensor:
        given = self._gain_and_bias(params, x)
        return ops.layer_norm(x, *given, axis=self._axis, eps=self.eps, activation=self.activation)


class RMSNorm(_OverLastAxes):
    """Division by the root of the mean square (Zhang and Sennrich 2019): `ops.rms_norm` with a gain (initially 1).

    With `affine=False` it has no parameters.

    Shape:
        x (..., width) -> the same; parameter gain (width,). A tuple of sizes is as in `LayerNorm`.
    """

    names = ("gain",)
    _norm_of_sum = staticmethod(ops.add_rms_norm)

    def __init__(self, width: int | tuple[int, ...], *, eps: float = 1e-5, gain: float = 1.0,
                 affine: bool = True) -> None:
        super().__init__(width, eps, gain, affine)

    def __call__(self, params: Params, x: Tensor = NOT_GIVEN) -> Tensor:
        return ops.rms_norm(x, *self._gain_and_bias(params, x), axis=self._axis, eps=self.eps)


class GroupNorm(_Affine):
    """Group normalisation (Wu and He 2018): `ops.group_norm` with a gain (initially 1) and a bias (initially 0).

    With `affine=False` it has no parameters.

    Shape:
        x (B, ..., width) -> the same, channels last; parameters gain and bias (width,).
    """

    def __init__(self, groups: int, width: int, *, eps: float = 1e-5, gain: float = 1.0, affine: bool = True) -> None:
        check_sizes("GroupNorm", groups=groups, width=width)
        if width % groups:
            raise ShapeError(f"[GroupNorm] groups: expected a divisor of width, found {groups} for {width}")
        super().__init__(eps, gain, affine)
        self.groups, self.width, self.shape = groups, width, (width,)

    def __call__(self, params: Params, x: Tensor = NOT_GIVEN) -> Tensor:
        gain, bias = self._gain_and_bias(params, x)
        return ops.group_norm(x, gain, bias, groups=self.groups, eps=self.eps)


class InstanceNorm(_Affine):
    """Instance normalisation (Ulyanov et al. 2016): `ops.instance_norm` with a gain (initially 1) and a bias (0).

    With `affine=False` it has no parameters.

    Shape:
        x (B, ..., width) with at least two positions -> the same; parameters gain and bias (width,).
    """

    def __init__(self, width: int, *, eps: float = 1e-5, gain: float = 1.0, affine: bool = True) -> None:
        check_sizes("InstanceNorm", width=width)
        super().__init__(eps, gain, affine)
        self.width, self.shape = width, (width,)

    def __call__(self, params: Params, x: Tensor = NOT_GIVEN) -> Tensor:
        gain, bias = self._gain_and_bias(params, x)
        return ops.instance_norm(x, gain, bias, eps=self.eps)


class BatchNorm(_Affine):
    """Batch normalisation over all axes but the last.

    It uses the statistics of the batch, unless the parameters hold those of a population: see `with_population`.
    There is no hidden running state and no training flag.

        >>> layer = nn.BatchNorm(2)
        >>> params = duoln.init(layer, 0)
        >>> x = duoln.tensor([[1.0, 2.0], [3.0, 6.0]])
        >>> y = layer(params, x)                                   # by the statistics of this batch
        >>> fixed = nn.with_population(layer, params, [x])
        >>> sorted(fixed), layer(fixed, x[:1]).shape               # by those of all batches
        (['bias', 'gain', 'mean', 'variance'], (1, 2))

    Shape:
        x (..., width) -> the same; parameters gain and bias (width,).
    """

    gathers = True

    def __init__(self, width: int, *, eps: float = 1e-5, unbiased: bool = False, gain: float = 1.0) -> None:
        check_sizes("BatchNorm", width=width)
        super().__init__(eps, gain, True)
        self.width, self.shape, self.unbiased = width, (width,), check_flag("BatchNorm", "unbiased", unbiased)

    def __call__(self, params: Params, x: Tensor = NOT_GIVEN) -> Tensor:
        gain, bias = parameters("BatchNorm", params, self.names)
        gathers = observing.must_report(params)
        if "mean" in params and not gathers:
            variance = parameter("BatchNorm", params, "variance")
            return by_statistics(x, gain, bias, params["mean"], variance, self.eps)
        y, mean, variance = ops.batch_norm(x, gain, bias, eps=self.eps, unbiased=self.unbiased)
        if gathers:
            rows = prod(x.shape[:-1])
            correction = 1.0 if self.unbiased else rows / (rows - 1)
            observing.report(params, {"mean": stop_gradient(mean).numpy(),
                                    "variance": stop_gradient(variance).numpy() * correction})
        return y


class WeightNorm(Module):
    """A Linear or Conv2d whose weight is gain * direction / |direction| (Salimans and Kingma 2016).

    The initial gain is |direction|, so that the layer initially computes the same as the wrapped one.

    Shape:
        As for the wrapped layer; parameters direction like its weight, gain (n_out,), bias (n_out,).
    """

    def __init__(self, layer: Linear | Conv2d) -> None:
        if not isinstance(layer, Linear | Conv2d):
            raise UsageError(f"[WeightNorm] expected a Linear or Conv2d, found {type(layer).__name__}")
        self.layer = layer

    def children(self) -> dict[str, Module]:
        own = super().children()
        del own["layer"]  # this layer holds the wrapped layer's weights itself
        return own

    def weights(self, rng: Stream) -> Params:
        params = self.layer.init(rng)
        direction = params.pop("weight")
        length = np.sqrt(np.sum(direction.astype(np.float64) ** 2, axis=tuple(range(direction.ndim - 1))))
        return {"direction": direction, "gain": length.astype(np.float32), **params}

    def __call__(self, params: Params, x: Tensor = NOT_GIVEN) -> Tensor:
        weight = ops.weight_norm(parameter("WeightNorm", params, "direction"), parameter("WeightNorm", params, "gain"))
        return self.layer({**params, "weight": weight}, x)
