"""Pearson's and Spearman's correlation."""

from __future__ import annotations

from typing import Any

import numpy as np

from duoln.errors import DivergedError


def check_codes(codes: Any) -> None:
    """Check that codes are numbers: of others a classifier learns nothing, and has figures all the same.

    Args:
        codes: (sentences, width), dense or sparse.

    Raises:
        DivergedError: some are not finite.
    """
    finite = np.isfinite(codes.data if not isinstance(codes, np.ndarray) else codes)
    if not finite.all():
        raise DivergedError(f"[skip_thoughts] expected finite codes of {codes.shape[0]} sentences, found "
                            f"{int((~finite).sum()):,} numbers that are not")


def pearson(x: np.ndarray, y: np.ndarray) -> float:
    """Pearson's correlation; 0 where one side does not vary.

    Shape:
        x, y (n,).
    """
    a, b = x.astype(np.float64), y.astype(np.float64)
    a, b = a - a.mean(), b - b.mean()
    a, b = a / (np.abs(a).max() or 1.0), b / (np.abs(b).max() or 1.0)  # otherwise the squares of tiny values become 0
    size = float(np.sqrt((a @ a) * (b @ b)))
    return float(np.clip(a @ b / size, -1.0, 1.0)) if size else 0.0


def spearman(x: np.ndarray, y: np.ndarray) -> float:
    """Spearman's correlation: Pearson's of the ranks, equal values sharing the mean of theirs.

    Shape:
        x, y (n,).
    """
    return pearson(_ranks(x), _ranks(y))


def _ranks(x: np.ndarray) -> np.ndarray:
    _, group, counts = np.unique(x, return_inverse=True, return_counts=True)
    ends = np.cumsum(counts)
    ranks: np.ndarray = (ends - (counts - 1) / 2)[group]
    return ranks
