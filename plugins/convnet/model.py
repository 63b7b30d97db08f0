"""A small convolutional network, normalised before each non-linearity."""

from __future__ import annotations

from math import prod
from typing import Literal

from duoln import Stream, Tensor, nn, ops
from duoln.errors import ShapeError
from duoln.nn import Module, Params
from duoln.nn.init import Initializer

Norm = Literal["none", "batch", "layer", "weight"]
Gains = Literal["unit", "channel"]
Start = Literal["gaussian", "he"]
Shape = tuple[int, int, int]
"""Height, width, channels."""

SLOPE = 0.1
"""The slope of the leaky ReLU below 0."""
_SMALLEST = 12
"""The side, in pixels, of the smallest image with an input for the last 3 x 3 kernel."""
STARTS: dict[str, Initializer] = {"gaussian": nn.init.gaussian(0.05), "he": nn.init.he}


class ImageLayerNorm(Module):
    """Layer norm over channels x height x width of one image, the paper's definition of a layer (eq. 3).

    The gain and bias are those of each unit, as in eq. 4, or of each channel, as a convolution has its weights.

    Shape:
        x (B, H, W, C) -> the same; parameters gain and bias (H * W * C,) or (C,).
    """

    def __init__(self, shape: Shape, gains: Gains) -> None:
        self.shape, self.gains = shape, gains

    def weights(self, rng: Stream) -> Params:
        width = prod(self.shape) if self.gains == "unit" else self.shape[2]
        return {"gain": nn.init.ones(rng, (width,)), "bias": nn.init.zeros(rng, (width,))}

    def __call__(self, params: Params, x: Tensor) -> Tensor:
        flat = ops.reshape(x, shape=(x.shape[0], prod(self.shape)))
        if self.gains == "unit":
            return ops.reshape(ops.layer_norm(flat, params["gain"], params["bias"]), shape=x.shape)
        y: Tensor = ops.reshape(ops.layer_norm(flat), shape=x.shape) * params["gain"] + params["bias"]
        return y.astype(x.dtype)


class Block(Module):
    """Convolution, norm, leaky ReLU.

    With "layer" and "batch" the norm's bias replaces that of the convolution; "weight" normalises the convolution's
    weights, and "none" normalises nothing.

    Shape:
        x (B, *shape) -> (B, *self.out).
    """

    def __init__(self, shape: Shape, channels: int, size: int, padding: int, norm: Norm, gains: Gains,
                 start: Start) -> None:
        height, width = (n + 2 * padding - size + 1 for n in shape[:2])
        self.out = (height, width, channels)
        conv = nn.Conv2d(shape[2], channels, size, padding=padding, bias=norm in ("none", "weight"),
                         weight_init=STARTS[start])
        self.conv = nn.WeightNorm(conv) if norm == "weight" else conv
        if norm in ("layer", "batch"):
            self.norm = ImageLayerNorm(self.out, gains) if norm == "layer" else nn.BatchNorm(channels)

    def __call__(self, params: Params, x: Tensor) -> Tensor:
        y = self.conv(params["conv"], x)
        if "norm" in params:
            y = self.norm(params["norm"], y)
        return ops.leaky_relu(y, slope=SLOPE)


class ConvNet(Module):
    """Noise; 3 x conv 3x3; pool; dropout; 3 x conv 3x3, twice the channels; pool; dropout; conv 3x3 without padding,
    2 x conv 1x1; mean over all positions; ten logits: the network of the code beside Salimans and Kingma 2016.

    The noise and the dropout masks are part of a training batch; an evaluation has none, so its images are unchanged.
    The logits are not normalised, except for the weights of "weight".

    Shape:
        batch["x"] (B, H, W, C), batch["noise"] like it, batch["first"] and batch["second"] (B, *shape) with the shapes
        of `mask_shapes` -> logits (B, 10).
    """

    def __init__(self, image: Shape, channels: int, norm: Norm, gains: Gains, start: Start) -> None:
        if min(image[:2]) < _SMALLEST or channels < 1:
            raise ShapeError(f"[convnet] expected images of at least {_SMALLEST} x {_SMALLEST} and at least 1 channel, "
                             f"found {image[:2]} and {channels}")
        same, wide, how = ((3, 1),) * 3, 2 * channels, (norm, gains, start)
        self.first = self._stage(image, channels, same, *how)
        self.second = self._stage(_pooled(image, channels), wide, same, *how)
        self.third = self._stage(_pooled(_pooled(image), wide), wide, ((3, 0), (1, 0), (1, 0)), *how)
        logits = nn.Linear(wide, 10, weight_init=STARTS[start])
        self.logits = nn.WeightNorm(logits) if norm == "weight" else logits

    @staticmethod
    def _stage(shape: Shape, channels: int, kernels: tuple[tuple[int, int], ...], norm: Norm,
               gains: Gains, start: Start) -> nn.Sequential:
        blocks = {}
        for k, (size, padding) in enumerate(kernels, start=1):
            block = Block(shape, channels, size, padding, norm, gains, start)
            blocks[f"block{k}"], shape = block, block.out
        return nn.Sequential(**blocks)

    def __call__(self, params: Params, batch: dict[str, Tensor]) -> Tensor:
        x = batch["x"] + batch["noise"] if "noise" in batch else batch["x"]
        for name in ("first", "second"):
            x = ops.max_pool2d(getattr(self, name)(params[name], x), size=2)
            if name in batch:
                x = x * batch[name]
        y: Tensor = self.logits(params["logits"], ops.mean(self.third(params["third"], x), axis=(1, 2)))
        return y


def mask_shapes(image: Shape, channels: int) -> dict[str, Shape]:
    """The shapes of the dropout masks: those of the pooled images of the first and second stage."""
    return {"first": _pooled(image, channels), "second": _pooled(_pooled(image), 2 * channels)}


def _pooled(shape: Shape, channels: int = 0) -> Shape:
    return shape[0] // 2, shape[1] // 2, channels
