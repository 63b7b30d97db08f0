"""Pearson's and Spearman's correlation, and the mean squared error."""

from __future__ import annotations

from typing import Any

import numpy as np

from duoln.errors import DivergedError, ShapeError


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
        x, y (n,) with n of at least 2.

    Raises:
        ShapeError: other shapes.
    """
    _check("pearson", x, y)
    a, b = x.astype(np.float64), y.astype(np.float64)
    a, b = a - a.mean(), b - b.mean()
    a, b = a / (np.abs(a).max() or 1.0), b / (np.abs(b).max() or 1.0)  # otherwise the squares of tiny values become 0
    size = float(np.sqrt((a @ a) * (b @ b)))
    return float(np.clip(a @ b / size, -1.0, 1.0)) if size else 0.0


def spearman(x: np.ndarray, y: np.ndarray) -> float:
    """Spearman's correlation: Pearson's of the ranks, equal values sharing the mean of theirs.

    Shape:
        x, y (n,) with n of at least 2.
    """
    _check("spearman", x, y)
    return pearson(_ranks(x), _ranks(y))


def mean_squared_error(x: np.ndarray, y: np.ndarray) -> float:
    """The mean of (x - y)^2."""
    _check("mean_squared_error", x, y)
    return float(np.mean((x.astype(np.float64) - y) ** 2))


def _ranks(x: np.ndarray) -> np.ndarray:
    _, group, counts = np.unique(x, return_inverse=True, return_counts=True)
    ends = np.cumsum(counts)
    ranks: np.ndarray = (ends - (counts - 1) / 2)[group]
    return ranks


def _check(name: str, x: np.ndarray, y: np.ndarray) -> None:
    if x.ndim != 1 or x.shape != y.shape or len(x) < 2:
        raise ShapeError(f"[{name}] expected two arrays of one length of at least 2, found shapes {x.shape} and "
                         f"{y.shape}")
