"""Synthetic images, in the forms of CIFAR-10 and of MNIST."""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from duoln.data.digits import make_digits
from duoln.plugins.convnet.corpus import Images
from duoln.randomness import Stream


@lru_cache(maxsize=4)  # drawing them takes longer than a smoke run's steps
def make_grey(count: int, seed: int, split: str) -> Images:
    """Made digits, uint8 (count, 28, 28, 1)."""
    images, labels = make_digits(count, seed, split)
    return Images(images[..., None], labels.astype(np.int32))


@lru_cache(maxsize=4)
def make_coloured(count: int, seed: int, split: str) -> Images:
    """Made digits in a colour of their own on another, uint8 (count, 32, 32, 3)."""
    grey, labels = make_grey(count, seed, split)
    ink = np.pad(grey, ((0, 0), (2, 2), (2, 2), (0, 0))) / 255
    behind, before = Stream(seed, f"made colours {split}").uniform((2, count, 1, 1, 3), 0, 255)
    return Images((behind * (1 - ink) + before * ink).astype(np.uint8), labels)
