"""`patch-kmeans`: image features from single layers of patches and from colours, instead of a trained network.

After Coates, Lee and Ng (2011, section 3): patches of 6 x 6 pixels at every position, each less its mean and divided by
its deviation, whitened; a dictionary of K patches by k-means, fitted on training images; for each patch and entry
max(0, mean distance - distance), averaged over each quarter of the image. Further features are, for each quarter, the
roots of the shares of 4 x 4 x 4 colours. Every feature is then standardised by the training images. The extractor has
not learnt the content of pictures, so it does not replace the features of a deep network.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from duoln import Stream
from duoln.errors import UsageError

NAME = "patch-kmeans"
PATCH = 6
_QUARTERS = 4
_LEVELS = 4
COLOURS = _LEVELS ** 3
_SAMPLES = 40_000
_ROUNDS = 10
_CONTRAST = 10.0
"""The value that is added to a patch's variance: flat patches stay flat (the paper's for pixels of 0 to 255)."""
_WHITENING = 0.1
_FLOOR = 1e-2
"""The share of the largest deviation that is added to a feature's deviation."""
_PIXELS = 16 * 32 * 32
"""The pixels of the images that are described at a time: their patches take 5 MB."""


class Dictionary(NamedTuple):
    """The mean, the whitening and the patches that were fitted on training images."""

    mean: np.ndarray
    whitening: np.ndarray
    """(108, 108)."""
    entries: np.ndarray
    """(K, 108), whitened."""


def extract(train: np.ndarray, others: list[np.ndarray], width: int, seed: int) -> list[np.ndarray]:
    """Features of the training images and of others: float32 (images, width) each.

    Args:
        train: uint8 (images, rows, columns, 3); the dictionary and the standardisation are fitted on these alone.
        others: more of them.
        width: of the features, 4 (K + 64).
        seed: of the patches that are sampled.

    Raises:
        UsageError: a width that is no multiple of 4, or not above 256.
    """
    entries = width // _QUARTERS - COLOURS
    if width % _QUARTERS or entries < 1:
        raise UsageError(f"[{NAME}] expected a width (image_size) that is a multiple of {_QUARTERS}, above "
                         f"{_QUARTERS * COLOURS}; found {width}")
    dictionary = fit(train, entries, seed)
    block = max(_PIXELS // (train.shape[1] * train.shape[2]), 1)
    raw = [np.concatenate([_describe(dictionary, images[i:i + block]) for i in range(0, len(images), block)])
           for images in (train, *others)]
    # NumPy adds one row after another: the sum of many in float32 drifts.
    mean, deviation = (moment(axis=0, dtype=np.float64).astype(np.float32) for moment in (raw[0].mean, raw[0].std))
    deviation += _FLOOR * max(float(deviation.max()), 1e-6)
    return [((features - mean) / deviation).astype(np.float32) for features in raw]


def fit(images: np.ndarray, entries: int, seed: int) -> Dictionary:
    """A whitening and a dictionary of patches, from a sample of the images' patches."""
    rng = Stream(seed, f"{NAME} patches")
    rows, columns = (n - PATCH + 1 for n in images.shape[1:3])
    count = min(_SAMPLES, len(images) * rows * columns)
    where = [rng.integers(n, (count,)) for n in (len(images), rows, columns)]
    windows = np.lib.stride_tricks.sliding_window_view(images, (PATCH, PATCH), axis=(1, 2))
    patches = _normalised(windows[tuple(where)].reshape(count, -1))
    mean = patches.mean(axis=0, dtype=np.float64).astype(np.float32)
    centred = (patches - mean).astype(np.float64)
    variances, directions = np.linalg.eigh(centred.T @ centred / count)
    scales = 1 / np.sqrt(np.maximum(variances, 0) + _WHITENING)
    whitening = ((directions * scales) @ directions.T).astype(np.float32)
    return Dictionary(mean, whitening, _k_means((patches - mean) @ whitening, entries, rng))


def _k_means(points: np.ndarray, count: int, rng: Stream) -> np.ndarray:
    """Lloyd's algorithm from random points; a centre that loses all its points moves to a random point."""
    centres = points[rng.integers(len(points), (count,))]
    for _ in range(_ROUNDS):
        nearest = np.argmin(0.5 * np.square(centres).sum(axis=1) - points @ centres.T, axis=1)
        sizes = np.bincount(nearest, minlength=count)
        order = np.argsort(nearest, kind="stable")
        filled = np.flatnonzero(sizes)
        starts = (np.cumsum(sizes) - sizes)[filled]
        lost = np.flatnonzero(sizes == 0)
        centres = np.empty_like(centres)
        centres[filled] = np.add.reduceat(points[order], starts, axis=0) / sizes[filled, None]
        centres[lost] = points[rng.integers(len(points), (len(lost),))]
    array: np.ndarray = centres
    return array


def _normalised(patches: np.ndarray) -> np.ndarray:
    values = patches.astype(np.float32)
    values -= values.mean(axis=1, keepdims=True)
    values /= np.sqrt(values.var(axis=1, keepdims=True) + np.float32(_CONTRAST))
    return values


def _describe(dictionary: Dictionary, images: np.ndarray) -> np.ndarray:
    """(images, 4 (K + 64)), not standardised."""
    count, height, across = images.shape[:3]
    rows, columns = height - PATCH + 1, across - PATCH + 1
    windows = np.lib.stride_tricks.sliding_window_view(images, (PATCH, PATCH), axis=(1, 2))
    points = (_normalised(windows.reshape(count * rows * columns, -1)) - dictionary.mean) @ dictionary.whitening
    squares = np.square(points).sum(axis=1, keepdims=True) + np.square(dictionary.entries).sum(axis=1)
    distances = np.sqrt(np.maximum(squares - 2 * (points @ dictionary.entries.T), 0))
    near = np.maximum(distances.mean(axis=1, keepdims=True) - distances, 0).reshape(count, rows, columns, -1)
    bins = images.astype(np.int64) * _LEVELS // 256
    colours = (bins[..., 0] * _LEVELS + bins[..., 1]) * _LEVELS + bins[..., 2]
    shares = (colours[..., None] == np.arange(COLOURS)).astype(np.float32)
    quarters = [np.concatenate((a.mean(axis=(1, 2)), np.sqrt(b.mean(axis=(1, 2)))), axis=1)
                for a, b in zip(_quarters(near), _quarters(shares), strict=True)]
    return np.concatenate(quarters, axis=1)


def _quarters(maps: np.ndarray) -> list[np.ndarray]:
    row, column = (n // 2 for n in maps.shape[1:3])
    return [maps[:, a, b] for a in (slice(0, row), slice(row, None)) for b in (slice(0, column), slice(column, None))]
