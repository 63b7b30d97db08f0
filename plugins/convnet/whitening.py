"""The preprocessing of images, fitted on the training images only."""

from __future__ import annotations

from typing import Literal, NamedTuple

import numpy as np

Whitening = Literal["zca", "mean"]

_LARGER = 1.5
"""A larger ratio of the root mean squares is remarked; by all of CIFAR-10 it is 1.0."""
_CHUNK = 1000
"""Images at a time: the whole of them in float64 would be gigabytes."""


class Preparation(NamedTuple):
    """x = (pixels - 127.5) / 128, less the mean image, and multiplied by a matrix if there is one."""

    mean: np.ndarray
    """float64 (values,)."""
    matrix: np.ndarray | None
    """float64 (values, values), or None."""

    def __call__(self, images: np.ndarray) -> np.ndarray:
        """Images uint8 (count, ...) as float32 of the same shape."""
        out = np.empty((len(images), len(self.mean)), np.float32)
        for i in range(0, len(images), _CHUNK):
            centred = _scaled(images[i:i + _CHUNK]) - self.mean
            out[i:i + _CHUNK] = centred if self.matrix is None else centred @ self.matrix
        return out.reshape(images.shape)


def fit(images: np.ndarray, kind: Whitening, epsilon: float = 1e-5) -> Preparation:
    """The preparation that the training images ask for.

    "zca" makes the values of a pixel uncorrelated while it stays as near to the image as it can: with the covariance
    U S U^T of the values, x U (S + epsilon)^(-1/2) U^T (Krizhevsky 2009). Directions in which the training images do
    not differ, as where there are fewer images than values, are left out. There S is 0 but for rounding: no training
    image has anything in them, and what other images have would be multiplied by epsilon^(-1/2).
    """
    count = len(images)
    chunks = range(0, count, _CHUNK)
    mean = sum(_scaled(images[i:i + _CHUNK]).sum(axis=0) for i in chunks) / count
    if kind == "mean":
        return Preparation(mean, None)
    covariance = np.zeros((len(mean), len(mean)))
    for i in chunks:
        centred = _scaled(images[i:i + _CHUNK]) - mean
        covariance += centred.T @ centred
    spread, directions = np.linalg.eigh(covariance / count)
    differ = spread > spread.max() * len(spread) * np.finfo(np.float64).eps
    directions = directions[:, differ]
    return Preparation(mean, (directions / np.sqrt(spread[differ] + epsilon)) @ directions.T)


def remark(train: np.ndarray, test: np.ndarray) -> str:
    """A sentence where whitening fits the training images alone, so that prepared test images are larger; else ""."""
    mean_square = {name: float(np.vdot(x, x)) / x.size for name, x in (("train", train), ("test", test))}
    ratio = np.sqrt(mean_square["test"] / mean_square["train"]) if mean_square["train"] else 1.0
    return "" if ratio < _LARGER else (
        f"prepared test images are {ratio:.1f} times as large as training ones, because {len(train):,} images are too "
        "few to whiten by: set whitening=mean")


def _scaled(images: np.ndarray) -> np.ndarray:
    return (images.reshape(len(images), -1) - 127.5) / 128
