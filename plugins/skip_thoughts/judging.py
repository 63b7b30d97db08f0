"""The evaluation of sentence codes: from sentences to the figures of table 3."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from duoln.data import Batch
from duoln.plugins.skip_thoughts import classify, relatedness

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
        relatedness_figures = relatedness.judge(x[:half], x[half:], answers, parts, seed, epochs_and_batch)
        return {"r": relatedness_figures.r, "rho": relatedness_figures.rho, "mse": relatedness_figures.mse}
    return {"accuracy": classify.nested(x, answers, name, grid=grid).percent}


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
