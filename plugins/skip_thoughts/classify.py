"""MR, CR, SUBJ and MPQA as the code behind the paper judges them: logistic regression in nested cross-validation."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec
from typing import Any, NamedTuple

import numpy as np

from duoln.errors import DataError, UsageError
from duoln.plugins.skip_thoughts.relatedness import check_codes

FOLDS = 10
GRID = tuple(2.0 ** k for k in range(9))
"""Inverse strengths of the L2 penalty: 2^0 to 2^8."""
SHUFFLE = 1234
_ITERATIONS = 1000


class Accuracy(NamedTuple):
    """The mean accuracy of the outer folds in percent, and the strength that each chose."""

    percent: float
    chosen: tuple[float, ...]


def check_library() -> None:
    """Raises UsageError where scikit-learn is not installed; the message says which line installs it."""
    if find_spec("sklearn") is None:
        raise UsageError("[skip_thoughts] judging MR, CR, SUBJ and MPQA needs scikit-learn: pip install 'duoln[eval]', "
                         "or pip install scikit-learn; --set judge=none trains without judging codes")


def folds(count: int, parts: int = FOLDS) -> list[np.ndarray]:
    """The rows of contiguous folds; the first `count % parts` have one more, as in scikit-learn's `KFold`."""
    if count < parts:
        raise DataError(f"[skip_thoughts] expected at least {parts} sentences for {parts} folds, found {count}")
    return np.array_split(np.arange(count), parts)


def nested(x: Any, classes: np.ndarray, name: str, parts: int = FOLDS, grid: Sequence[float] = GRID) -> Accuracy:
    """Mean accuracy over outer folds; in each the strength is the first best by inner folds of the rest.

    A grid of one strength needs no inner folds.

    Args:
        x: features, (sentences, width), dense or sparse; in the order of the corpus, class 1 first.
        classes: (sentences,), 0 or 1.
        name: of the set, for errors.
        parts: outer and inner folds.
        grid: inverse strengths.

    Raises:
        DataError: fewer sentences than folds, or training folds of one class. DivergedError: a feature is not finite.
    """
    check_codes(x)
    order = np.arange(len(classes))
    np.random.RandomState(SHUFFLE).shuffle(order)
    x, classes = x[order], classes[order]
    accuracies, chosen = [], []
    for test in folds(len(classes), parts):
        train = np.setdiff1d(np.arange(len(classes)), test)
        strength = grid[0] if len(grid) == 1 else _best(x[train], classes[train], name, parts, grid)
        chosen.append(strength)
        accuracies.append(_accuracies(x, classes, train, test, name, [strength])[0])
    return Accuracy(100 * float(np.mean(accuracies)), tuple(chosen))


def _best(x: Any, classes: np.ndarray, name: str, parts: int, grid: Sequence[float]) -> float:
    totals = np.zeros(len(grid))
    for validation in folds(len(classes), parts):
        totals += _accuracies(x, classes, np.setdiff1d(np.arange(len(classes)), validation), validation, name, grid)
    return grid[int(np.argmax(totals))]  # the first of the largest


def _accuracies(x: Any, classes: np.ndarray, train: np.ndarray, test: np.ndarray, name: str,
                grid: Sequence[float]) -> list[float]:
    """The accuracy on `test` for each strength. A fit starts where the one before it ended; the optimum is the same."""
    from sklearn.linear_model import LogisticRegression

    if len(np.unique(classes[train])) < 2:
        raise DataError(f"[skip_thoughts] {name}: expected sentences of both classes in every training fold, found "
                        f"{len(train)} of class {classes[train][0]} only")
    model = LogisticRegression(warm_start=True, max_iter=_ITERATIONS)
    accuracies = []
    rows, answers, held_out = x[train], classes[train], x[test]
    for strength in grid:
        model.C = strength
        model.fit(rows, answers)
        accuracies.append(float(np.mean(model.predict(held_out) == classes[test])))
    return accuracies
