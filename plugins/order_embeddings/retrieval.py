"""Retrieval: the ranks with which captions find their images, and images their captions."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from duoln.errors import DivergedError

RECALLS = (1, 5, 10)


class Ranks(NamedTuple):
    """0-based positions of what was looked for, when all candidates are sorted by their errors."""

    of_images: np.ndarray
    """(captions,): of each caption's image among all images."""
    of_captions: np.ndarray
    """(images,): of the best of each image's captions among all captions."""


def ranks(errors: np.ndarray) -> Ranks:
    """The ranks by a matrix of errors; candidates of equal error are in the order of their numbers.

    Shape:
        errors (k N, N): captions k j to k j + k - 1 belong to image j.

    Raises:
        DivergedError: an error that is not finite: it has no place in an order.
    """
    if not np.isfinite(errors).all():
        raise DivergedError("an embedding is no longer finite: its errors have no order")
    captions, images = np.arange(len(errors)), np.arange(errors.shape[1])
    each = len(captions) // len(images)
    own = captions // each
    mine = errors[captions, own][:, None]
    of_images = (errors < mine).sum(axis=1) + ((errors == mine) & (images < own[:, None])).sum(axis=1)
    best = np.full(len(images), len(captions))
    for k in range(each):
        row = each * images + k
        theirs = errors[row, images]
        before = (errors < theirs).sum(axis=0) + ((errors == theirs) & (captions[:, None] < row)).sum(axis=0)
        np.minimum(best, before, out=best)
    return Ranks(of_images, best)


def figures(errors: np.ndarray) -> dict[str, float]:
    """R@1, R@5, R@10 in per cent, median and mean rank (from 1), of images and of captions.

    The median is rounded down, as the authors' code has it. `image_sum` is R@1 + R@5 + R@10 of images: what selects
    a checkpoint.

    Shape:
        errors (k N, N), k captions for each image.

    Raises:
        DivergedError: an error that is not finite.
    """
    figures_by_name: dict[str, float] = {}
    for name, each in zip(("image", "caption"), ranks(errors), strict=True):
        recalls = {k: 100.0 * float((each < k).mean()) for k in RECALLS}
        figures_by_name |= {f"{name}_r{k}": value for k, value in recalls.items()}
        figures_by_name[f"{name}_sum"] = sum(recalls.values())
        figures_by_name[f"{name}_median_rank"] = float(np.floor(np.median(each)) + 1)
        figures_by_name[f"{name}_mean_rank"] = float(each.mean() + 1)
    return figures_by_name
