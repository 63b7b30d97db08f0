"""The speller's own output: beam search, of which greedy search has one hypothesis, and its error rates."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from math import inf
from typing import NamedTuple

import numpy as np

from duoln import Tensor, ops, tensor
from duoln.nn import Params
from duoln.plugins.las.corpus import LETTERS, TIMIT, Alphabet
from duoln.plugins.las.model import EncoderOutput, Speller, Walk

_NEVER = -1e30


class Beams(NamedTuple):
    """The hypotheses of a search, as symbols and parents."""

    symbols: Tensor
    """float32 (steps, B, K): the symbol of each hypothesis."""
    parents: Tensor
    """float32 (steps, B, K): the number of the hypothesis that each one continues."""
    scores: Tensor
    """(steps, B, K): log-probability by the length's penalty, the best first."""


def spell(speller: Speller, params: Params, heard: EncoderOutput, beam: int, steps: int,
          length_penalty: float) -> Beams:
    """Beam search for the most probable text.

    Hypotheses are ranked by log P(text) / ((5 + length) / 6)^length_penalty (Wu et al. 2016, eq. 14); the end
    mark counts. A hypothesis that has ended keeps its place in the beam. All steps are computed,
    also after every hypothesis has ended, because no value is read on the host.

    Args:
        speller: the speller.
        params: its parameters.
        heard: B utterances.
        beam: hypotheses kept; 1 is greedy search.
        steps: symbols at most, the end among them.
        length_penalty: 0 ranks by probability alone; larger favours longer texts.
    """
    rows, classes = heard.keys.shape[0], speller.classes
    be = heard.keys.backend
    dtype = "float64" if heard.keys.dtype == "float64" else "float32"  # 16 bits hold neither sums nor symbols
    constant = partial(tensor, backend=be)
    wide = EncoderOutput(*(_repeat(a, beam) for a in heard))
    walk = speller.begin(params, rows * beam)

    only_end = constant(np.where(np.arange(classes) == Alphabet.end, 0.0, _NEVER).astype(dtype))
    total = constant(np.tile(np.where(np.arange(beam) == 0, 0.0, _NEVER).astype(dtype), (rows, 1)))
    length = constant(np.zeros((rows, beam), dtype))
    ended = constant(np.zeros((rows, beam), bool))
    symbols = constant(np.full((rows * beam,), Alphabet.end, np.int32))
    # Candidate k * classes + c continues hypothesis k with class c.
    of_class = constant(np.tile(np.arange(classes, dtype=dtype), beam))
    of_parent = constant(np.repeat(np.arange(beam, dtype=dtype), classes))
    written, parents, scores = [], [], []
    for t in range(steps):
        walk, logits, _ = speller.step(params, wide, walk, symbols, {}, t)
        each = ops.reshape(ops.log_softmax(logits, axis=1), shape=(rows, beam, classes))
        over = ops.expand_dims(ended, axis=2)
        totals = ops.expand_dims(total, axis=2) + ops.where(over, only_end, each)
        length = length + ops.astype(ops.logical_not(ended), dtype=dtype)
        ranks = totals / ops.expand_dims(_penalty(length, length_penalty), axis=2)
        best = _best(ops.reshape(ranks, shape=(rows, beam * classes)), beam)
        parent = ops.astype(ops.take(of_parent, best), dtype="int32")
        new = ops.astype(ops.take(of_class, best), dtype="int32")
        total = ops.take_along_axis(ops.reshape(totals, shape=(rows, beam * classes)), best, axis=1)
        length = ops.take_along_axis(length, parent, axis=1)
        ended = ops.equal(new, Alphabet.end)  # a hypothesis that has ended can only write the end
        walk = _reorder_beams(walk, parent)
        symbols = ops.reshape(new, shape=(rows * beam,))
        written.append(ops.astype(new, dtype=dtype))
        parents.append(ops.astype(parent, dtype=dtype))
        scores.append(total / _penalty(length, length_penalty))
    return Beams(ops.stack(*written), ops.stack(*parents), ops.stack(*scores))


def _repeat(x: Tensor, count: int) -> Tensor:
    """The rows, each `count` times, one after another."""
    shape = x.shape
    wide = ops.broadcast_to(ops.expand_dims(x, axis=1), shape=(shape[0], count, *shape[1:]))
    return ops.reshape(wide, shape=(shape[0] * count, *shape[1:]))


def _penalty(length: Tensor, power: float) -> Tensor:
    return ops.exp(ops.log((length + 5.0) * (1 / 6)) * power)


def _best(ranks: Tensor, count: int) -> Tensor:
    """The positions of the `count` largest values in each row, the largest first: int32 (B, count)."""
    places = []
    for _ in range(count):
        place = ops.argmax(ranks, axis=1)
        places.append(ops.expand_dims(place, axis=1))
        ranks = ops.where(ops.one_hot(place, size=ranks.shape[1], dtype="bool"), -inf, ranks)
    return ops.concat(*places, axis=1)


def _reorder_beams(walk: Walk, parent: Tensor) -> Walk:
    """The speller's state for each hypothesis that is continued."""
    rows, beam = parent.shape

    def pick(x: Tensor) -> Tensor:
        width = x.shape[1]
        chosen = ops.broadcast_to(ops.expand_dims(parent, axis=2), shape=(rows, beam, width))
        picked = ops.take_along_axis(ops.reshape(x, shape=(rows, beam, width)), chosen, axis=1)
        return ops.reshape(picked, shape=(rows * beam, width))

    return Walk(tuple(tuple(pick(a) for a in state) for state in walk.states), pick(walk.context))


def backtrack(symbols: np.ndarray, parents: np.ndarray) -> list[np.ndarray]:
    """The classes of each utterance's best hypothesis, with its end mark and the classes after it.

    Shape:
        symbols, parents (steps, B, K) -> B arrays (steps,).
    """
    steps, rows, _ = symbols.shape
    texts = np.zeros((rows, steps), np.int32)
    for row in range(rows):
        place = 0
        for t in reversed(range(steps)):
            texts[row, t] = symbols[t, row, place]
            place = int(parents[t, row, place])
    return list(texts)


def edits(reference: Sequence[object], heard: Sequence[object]) -> int:
    """The fewest substitutions, deletions and insertions that make one text of the other (Levenshtein 1966)."""
    row = list(range(len(heard) + 1))
    for i, a in enumerate(reference, start=1):
        before, row = row, [i]
        for j, b in enumerate(heard, start=1):
            row.append(min(before[j - 1] + (a != b), before[j] + 1, row[-1] + 1))
    return row[-1]


def error_rate(references: Sequence[Sequence[object]], heard: Sequence[Sequence[object]]) -> float:
    """(S + D + I) / N, summed over a corpus of at least one symbol; N counts the spoken symbols, without end marks."""
    wrong = sum(edits(a, b) for a, b in zip(references, heard, strict=True))
    return wrong / sum(len(a) for a in references)


def rates(references: Sequence[np.ndarray], heard: Mapping[str, Sequence[np.ndarray]], phones: bool,
          ) -> dict[str, float]:
    """Error rates of several searches: `per` of symbols, and `wer` of words where the symbols are characters.

    Args:
        references: the classes of each utterance; classes after an end mark do not belong to it.
        heard: the results of each search; the key is the ending of the metric's name.
        phones: whether the symbols are phones.
    """
    alphabet = TIMIT if phones else LETTERS
    texts = [alphabet.decode(a) for a in references]
    error_rates = {}
    for name, search in heard.items():
        guesses = [alphabet.decode(a) for a in search]
        error_rates[f"per{name}"] = error_rate(texts, guesses)
        if not phones:
            error_rates[f"wer{name}"] = error_rate([words(t) for t in texts], [words(g) for g in guesses])
    return error_rates


def words(characters: Sequence[str]) -> list[str]:
    """Characters as words, parted by spaces."""
    return "".join(characters).split()
