"""Convolutional layers, channels last."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar, Literal

import numpy as np

from duoln import ops
from duoln.core import Tensor
from duoln.core.arguments import check_choice, check_flag, check_function, check_integer
from duoln.errors import ShapeError
from duoln.nn import init
from duoln.nn.layers import check_sizes
from duoln.nn.module import NOT_GIVEN, Module, Params, parameter
from duoln.ops.conv import Padding, Sizes, check_pair
from duoln.ops.elementwise import stored_as
from duoln.randomness import Stream


class _Convolution(Module):
    """The common base of both convolutions: sizes, weights and bias. Each group is initialised on its own."""

    _operator: ClassVar[Callable[..., Tensor]]
    stride: Any
    padding: Any
    dilation: Any

    def __init__(self, n_in: int, n_out: int, kernel: tuple[int, ...], groups: int, bias: bool,
                 weight_init: init.Initializer) -> None:
        kind = type(self).__name__
        check_sizes(kind, n_in=n_in, n_out=n_out, groups=groups)
        check_flag(kind, "bias", bias)
        check_function(kind, "weight_init", weight_init)
        if n_in % groups or n_out % groups:
            raise ShapeError(f"[{kind}] groups: expected a divisor of n_in and n_out, found {groups} for {n_in} and "
                             f"{n_out}")
        self.n_in, self.n_out, self.groups = n_in, n_out, groups
        self.bias, self.weight_init = bias, weight_init
        self.kernel = kernel
        """The size along each axis."""

    def weights(self, rng: Stream) -> Params:
        shape = (*self.kernel, self.n_in // self.groups, self.n_out // self.groups)
        own = rng.child("weight")
        params = {"weight": np.concatenate([self.weight_init(own, shape) for _ in range(self.groups)], axis=-1)}
        if self.bias:
            params["bias"] = init.zeros(rng, (self.n_out,))
        return params

    def __call__(self, params: Params, x: Tensor = NOT_GIVEN) -> Tensor:
        kind = type(self).__name__
        y = self._operator(x, parameter(kind, params, "weight"), stride=self.stride, padding=self.padding,
                           dilation=self.dilation, groups=self.groups)
        return stored_as(y + parameter(kind, params, "bias"), y) if self.bias else y


class Conv2d(_Convolution):
    """Two-dimensional convolution, channels last. Sizes, strides, padding, dilation, groups are those of `ops.conv2d`.

    `weight_init` starts each group alone: it gets the shape (size, size, n_in / groups, n_out / groups).

        >>> layer = nn.Conv2d(3, 8, size=3, padding="same")
        >>> layer(duoln.init(layer, 0), duoln.tensor(np.zeros((2, 6, 6, 3), np.float32))).shape
        (2, 6, 6, 8)

    Shape:
        x (B, H, W, n_in) -> (B, H', W', n_out); parameters weight (size, size, n_in / groups, n_out), bias (n_out,).
    """

    _operator = staticmethod(ops.conv2d)

    def __init__(self, n_in: int, n_out: int, size: Sizes, *, stride: Sizes = 1, padding: Padding = 0,
                 bias: bool = True, weight_init: init.Initializer = init.GLOROT, dilation: Sizes = 1, groups: int = 1,
                 ) -> None:
        super().__init__(n_in, n_out, check_pair("Conv2d", "size", size, 1), groups, bias, weight_init)
        check_pair("Conv2d", "stride", stride, 1)
        check_pair("Conv2d", "dilation", dilation, 1)
        if isinstance(padding, str):
            check_choice("Conv2d", "padding", padding, ("same",))
        else:
            check_pair("Conv2d", "padding", padding, 0)
        self.size, self.stride, self.padding, self.dilation = size, stride, padding, dilation


class Conv1d(_Convolution):
    """One-dimensional convolution, channels last. Size, stride, padding, dilation and groups are those of `ops.conv1d`.

    `weight_init` starts each group alone: it gets the shape (size, n_in / groups, n_out / groups).

    Shape:
        x (B, T, n_in) -> (B, T', n_out); parameters weight (size, n_in / groups, n_out), bias (n_out,).
    """

    _operator = staticmethod(ops.conv1d)

    def __init__(self, n_in: int, n_out: int, size: int, *, stride: int = 1, padding: int | Literal["same"] = 0,
                 bias: bool = True, weight_init: init.Initializer = init.GLOROT, dilation: int = 1, groups: int = 1,
                 ) -> None:
        check_sizes("Conv1d", size=size, stride=stride, dilation=dilation)
        super().__init__(n_in, n_out, (size,), groups, bias, weight_init)
        if isinstance(padding, str):
            check_choice("Conv1d", "padding", padding, ("same",))
        else:
            check_integer("Conv1d", "padding", padding, 0)
        self.size, self.stride, self.padding, self.dilation = size, stride, padding, dilation
