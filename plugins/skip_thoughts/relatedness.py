"""The evaluation of SICK as in the paper's code: softmax regression of a pair's features on a sparse target.

The features are |u - v| and u * v. A score y gives its share floor(y) - y + 1 to the class floor(y) and the rest to the
one above (Tai et al. 2015). The prediction is the mean class. Training runs in rounds. After each round the
correlation on the trial pairs is measured. Training ends at the first round without a gain and drops its weights.
"""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

import numpy as np

from duoln import Stream
from duoln.errors import DivergedError
from duoln.nn import init

Round = Literal["keras0", "keras1"]
ROUNDS: dict[Round, tuple[int, int]] = {"keras0": (100, 128), "keras1": (10, 32)}
"""Epochs and batch of a round: the defaults of Keras until early 2016, and from 1.0 on."""
CLASSES = 5
SHUFFLE = 1234
_TRAIN, _TRIAL, _TEST = 0, 1, 2
_RATE, _BETA1, _BETA2, _EPS = 1e-3, 0.9, 0.999, 1e-8
_MOST_ROUNDS = 1000


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


class Relatedness(NamedTuple):
    """Figures on the test pairs, and after how many rounds."""

    r: float
    rho: float
    mse: float
    rounds: int


def features(u: np.ndarray, v: np.ndarray) -> np.ndarray:
    """|u - v| and u * v side by side: (pairs, width) each -> (pairs, 2 width)."""
    return np.concatenate((np.abs(u - v), u * v), axis=1)


def sparse_target(scores: np.ndarray) -> np.ndarray:
    """Scores from 1 to 5 as shares of five classes: (pairs,) -> (pairs, 5)."""
    y = scores.astype(np.float64)
    low = np.floor(y)
    target = np.zeros((len(y), CLASSES))
    rows = np.arange(len(y))
    target[rows, low.astype(int) - 1] = low - y + 1
    above = low < CLASSES
    target[rows[above], low[above].astype(int)] = (y - low)[above]
    return target


def judge(u: np.ndarray, v: np.ndarray, scores: np.ndarray, parts: np.ndarray, seed: int,
          epochs_and_batch: tuple[int, int] = ROUNDS["keras0"]) -> Relatedness:
    """Train on part 0, stop by part 1, and predict part 2.

    Args:
        u: codes of the first sentences, (pairs, width).
        v: codes of the second ones.
        scores: (pairs,).
        parts: (pairs,): 0, 1 or 2.
        seed: of the first weights, which Keras draws uniformly (Glorot and Bengio 2010).
        epochs_and_batch: of a round.

    Raises:
        DivergedError: a code is not finite.
    """
    check_codes(np.concatenate((u, v)))
    x = features(u, v).astype(np.float64)
    target = sparse_target(scores)
    order = np.flatnonzero(parts == _TRAIN)
    np.random.RandomState(SHUFFLE).shuffle(order)  # once; the epochs do not shuffle again
    model = _Softmax(x.shape[1], seed)
    trial, test = parts == _TRIAL, parts == _TEST
    best, kept, rounds = -1.0, model.weights.copy(), 0
    for _ in range(_MOST_ROUNDS):
        model.fit(x[order], target[order], *epochs_and_batch)
        score = pearson(model.scores(x[trial]), scores[trial])
        if not score > best:  # NaN, the correlation of predictions that are all equal, is no gain
            break
        best, kept, rounds = score, model.weights.copy(), rounds + 1
    model.weights = kept
    predicted, true = model.scores(x[test]), scores[test].astype(np.float64)
    return Relatedness(pearson(predicted, true), spearman(predicted, true),
                       float(np.mean((predicted - true) ** 2)), rounds)


class _Softmax:
    """Softmax regression trained by Adam; the last row of the weights is the bias."""

    def __init__(self, width: int, seed: int) -> None:
        start = init.glorot(Stream(seed, "skip_thoughts.relatedness"), (width, CLASSES))
        self.weights = np.concatenate((start.astype(np.float64), np.zeros((1, CLASSES))))
        self._m, self._v, self._step = np.zeros_like(self.weights), np.zeros_like(self.weights), 0

    def probabilities(self, x: np.ndarray) -> np.ndarray:
        logits = x @ self.weights[:-1] + self.weights[-1]
        logits -= logits.max(axis=1, keepdims=True)
        np.exp(logits, logits)
        array: np.ndarray = logits / logits.sum(axis=1, keepdims=True)
        return array

    def scores(self, x: np.ndarray) -> np.ndarray:
        """The mean class, from 1 to 5."""
        expected: np.ndarray = self.probabilities(x) @ np.arange(1.0, CLASSES + 1)
        return expected

    def fit(self, x: np.ndarray, target: np.ndarray, epochs: int, batch: int) -> None:
        gradient = np.empty_like(self.weights)
        for _ in range(epochs):
            for start in range(0, len(x), batch):
                rows = x[start:start + batch]
                difference = (self.probabilities(rows) - target[start:start + batch]) / len(rows)
                np.matmul(rows.T, difference, out=gradient[:-1])
                gradient[-1] = difference.sum(axis=0)
                self._update(gradient)

    def _update(self, gradient: np.ndarray) -> None:
        self._step += 1
        self._m += (1 - _BETA1) * (gradient - self._m)
        self._v += (1 - _BETA2) * (gradient * gradient - self._v)
        rate = _RATE * np.sqrt(1 - _BETA2 ** self._step) / (1 - _BETA1 ** self._step)
        self.weights -= rate * self._m / (np.sqrt(self._v) + _EPS)
