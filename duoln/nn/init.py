"""Initial values of weights. An initialiser takes a random stream and a shape and returns a float32 NumPy array.

Weights are stored (in, out), convolutions (kernel height, kernel width, in, out).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from math import prod, sqrt

import numpy as np

from duoln.core.arguments import AT_LEAST_0, check_number
from duoln.core.public_names import only_public
from duoln.core.pytorch_names import OF_INIT, hinted
from duoln.errors import ShapeError
from duoln.randomness import Stream

Shape = tuple[int, ...]
Initializer = Callable[[Stream, Shape], np.ndarray]


class Named(partial[np.ndarray]):
    """An initialiser that is shown as it is written, such as `uniform(0.1)`, also as a default."""

    def __repr__(self) -> str:
        name = self.func.__name__.removeprefix("_")
        return f"{name}({', '.join(map(repr, self.args))})" if self.args else name


@hinted
def zeros(rng: Stream, shape: Shape) -> np.ndarray:
    """All 0, for biases."""
    return np.zeros(shape, np.float32)


@hinted
def ones(rng: Stream, shape: Shape) -> np.ndarray:
    """All 1, for gains."""
    return np.ones(shape, np.float32)


@hinted
def constant(value: float) -> Initializer:
    """All `value`."""
    check_number("constant", "value", value)
    return Named(_constant, value)


@hinted
def uniform(scale: float) -> Initializer:
    """Uniform between -scale and scale."""
    check_number("uniform", "scale", scale, AT_LEAST_0)
    return Named(_uniform, scale)


@hinted
def gaussian(scale: float) -> Initializer:
    """Gaussian with standard deviation `scale`."""
    check_number("gaussian", "scale", scale, AT_LEAST_0)
    return Named(_gaussian, scale)


# These are functions with names, not closures, so that a module can be pickled.

def _constant(value: float, rng: Stream, shape: Shape) -> np.ndarray:
    return np.full(shape, value, np.float32)


def _uniform(scale: float, rng: Stream, shape: Shape) -> np.ndarray:
    return rng.uniform(shape, -scale, scale).astype(np.float32)


def _gaussian(scale: float, rng: Stream, shape: Shape) -> np.ndarray:
    return (scale * rng.gaussian(shape)).astype(np.float32)


@hinted
def fans(shape: Shape) -> tuple[int, int]:
    """The number of inputs of an output, and the number of outputs of an input."""
    if len(shape) < 2:
        raise ShapeError(f"[init] expected a weight of at least 2 axes, found shape {shape}")
    return prod(shape[:-1]), prod(shape[:-2]) * shape[-1]


@hinted
def glorot(rng: Stream, shape: Shape) -> np.ndarray:
    """Uniform in +-sqrt(6 / (fan in + fan out)) (Glorot and Bengio 2010, eq. 16)."""
    fan_in, fan_out = fans(shape)
    return uniform(sqrt(6.0 / (fan_in + fan_out)))(rng, shape)


@hinted
def he(rng: Stream, shape: Shape) -> np.ndarray:
    """Gaussian with standard deviation sqrt(2 / fan in) (He et al. 2015, eq. 10)."""
    return gaussian(sqrt(2.0 / fans(shape)[0]))(rng, shape)


@hinted
def orthogonal(rng: Stream, shape: Shape) -> np.ndarray:
    """A matrix with orthonormal rows or columns (Saxe et al. 2014), all such matrices equally likely.

    It is Q of a Gaussian's QR. LAPACK's signs are not random: Q times those of R's diagonal is (Mezzadri 2007, section
    5).
    """
    if len(shape) != 2:
        raise ShapeError(f"[init] expected a matrix for orthogonal, found shape {shape}")
    rows, columns = shape
    q, r = np.linalg.qr(rng.gaussian((max(shape), min(shape))))
    q = q * np.copysign(1.0, np.diagonal(r))
    return np.ascontiguousarray(q if rows >= columns else q.T, np.float32)


GLOROT, ORTHOGONAL, UNIFORM = Named(glorot), Named(orthogonal), Named(_uniform, 0.1)
"""The defaults of layers."""


__all__ = ["Initializer", "constant", "gaussian", "glorot", "he", "ones", "orthogonal", "uniform", "zeros"]
only_public(globals(), OF_INIT)
