"""The evaluation of sentence codes: logistic regression in nested folds for classes, and the figures of table 3."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib.util import find_spec
from typing import Any

import numpy as np

from duoln.data import Batch
from duoln.errors import DataError, UsageError
from duoln.plugins.skip_thoughts import relatedness
from duoln.plugins.skip_thoughts.relatedness import check_codes

FOLDS = 10
GRID = tuple(2.0 ** k for k in range(9))
"""Inverse strengths of the L2 penalty: 2^0 to 2^8."""
SHUFFLE = 1234
_ITERATIONS = 1000


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


def nested(x: Any, classes: np.ndarray, name: str, parts: int = FOLDS, grid: Sequence[float] = GRID) -> float:
    """Mean accuracy in percent over outer folds; in each the strength is the first best by inner folds of the rest.

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
    accuracies = []
    for test in folds(len(classes), parts):
        train = np.setdiff1d(np.arange(len(classes)), test)
        strength = grid[0] if len(grid) == 1 else _best(x[train], classes[train], name, parts, grid)
        accuracies.append(_accuracies(x, classes, train, test, name, [strength])[0])
    return 100 * float(np.mean(accuracies))


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


_ROWS = 256
"""Sentences a forward pass."""


def codes(encode: Callable[[Batch], np.ndarray], words: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """The code of each sentence, of length 1.

    Args:
        encode: words (L, B) and mask (L, B) -> (B, width).
        words: (sentences, longest), padded.
        lengths: (sentences,).

    Raises:
        DivergedError: a code is not finite.
    """
    order = np.argsort(lengths, kind="stable")
    parts = []
    for start in range(0, len(order), _ROWS):
        chosen = order[start:start + _ROWS]
        longest = lengths[chosen].max()
        mask = np.arange(longest)[:, None] < lengths[chosen]
        parts.append(encode({"words": np.ascontiguousarray(words[chosen, :longest].T), "mask": mask}))
    rows = np.concatenate(parts)
    relatedness.check_codes(rows)
    rows /= np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), np.finfo(rows.dtype).tiny)
    back = np.empty_like(order)
    back[order] = np.arange(len(order))
    result: np.ndarray = rows[back]
    return result


def figures_of(x: Any, answers: np.ndarray, parts: np.ndarray, name: str, seed: int, epochs_and_batch: tuple[int, int],
               grid: Sequence[float]) -> dict[str, float]:
    """The figures of one set from its sentences' codes: r, rho and mse for pairs, else the accuracy in percent.

    Args:
        x: codes, (sentences, width).
        answers: as in `sets.TestSet`.
        parts: as in `sets.TestSet`.
        name: the name of the set, for errors.
        seed: the seed of the initial weights of SICK's regression.
        epochs_and_batch: the epochs and the batch size of a round of SICK's regression.
        grid: the strengths of the penalty for classes.
    """
    if len(parts):
        half = len(answers)
        judged = relatedness.judge(x[:half], x[half:], answers, parts, seed, epochs_and_batch)
        return {"r": judged.r, "rho": judged.rho, "mse": judged.mse}
    return {"accuracy": nested(x, answers, name, grid=grid)}


def nats_of(nats: Callable[[Batch], np.ndarray], split: Batch) -> dict[str, float]:
    """Nats per word of the neighbouring sentences, and the same figure from the frequencies of the training targets.

    `unigram` is the cross-entropy of the same words under the frequency of each as a target in training, with one added
    to every count.
    """
    targets = split["targets"]
    real = targets >= 0
    keys = ("words", "mask", "given", "targets")
    total = sum(float(nats({key: split[key][k] for key in keys}).astype(np.float64).sum()) for k in range(len(targets)))
    counts = split["counts"].astype(np.float64) + 1
    unigram = -np.log(counts / counts.sum())
    return {"nats": total / int(real.sum()), "unigram": float(unigram[targets[real]].mean())}
