"""Beam search against all texts there are, greedy search against a plain loop, on every backend."""

import itertools

import numpy as np
import pytest

from duoln import tree
from duoln.plugins.las.model import EncoderOutput, Speller
from duoln.plugins.las.search import backtrack, spell
from duoln.randomness import Stream
from duoln.runtime import to_tensors

CLASSES, ROWS = 3, 4


def _speller(scale=2.0):
    """A small speller with large weights, so that no two texts have nearly the same probability."""
    speller = Speller(CLASSES, 3, 4, 1, 3, "layer", "kept")
    rng = np.random.default_rng(3)
    params = tree.map(lambda a: (a + scale * rng.standard_normal(a.shape)).astype(np.float32), speller.init(Stream(0, "init")))
    memory = rng.standard_normal((ROWS, 5, 3)).astype(np.float32)
    mask = np.arange(5) < np.array([[5], [3], [4], [1]])
    return speller, params, memory, mask


def _heard(be, params, memory, mask):
    p, m, t = to_tensors((params, memory, mask), be)
    return p, EncoderOutput(m, m @ p["keys"]["weight"], t)


def _log_probability(be, text):
    """Of a text, its end included, for every row: by following it."""
    speller, params, memory, mask = _speller()
    p, heard = _heard(be, params, memory, mask)
    labels = np.tile(np.array(text, np.int32)[:, None], (1, ROWS))
    logits = speller.teacher_force(p, heard, to_tensors(labels, be), {})[0].numpy().astype(np.float64)
    wide = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    return sum(wide[t, :, c] for t, c in enumerate(text))


def _spelled(be, beam, steps, penalty, scale=2.0):
    speller, params, memory, mask = _speller(scale)
    p, heard = _heard(be, params, memory, mask)
    beams = spell(speller, p, heard, beam, steps, penalty)
    symbols, parents = beams.symbols.numpy().astype(int), beams.parents.numpy().astype(int)
    assert symbols.shape == parents.shape == (steps, ROWS, beam)
    return backtrack(symbols, parents), beams.scores.numpy()[-1]


@pytest.mark.parametrize("penalty", [0.0, 1.0, 3.0])
def test_a_beam_that_holds_everything_finds_the_best(be, penalty):
    """Every text of at most 3 symbols, ended or cut off there, ranked by eq. 14 of Wu et al. 2016."""
    steps = 3
    texts = [(*s, 0) for n in range(steps) for s in itertools.product((1, 2), repeat=n)]
    texts += list(itertools.product((1, 2), repeat=steps))
    ranks = np.array([_log_probability(be, t) / ((5 + len(t)) / 6) ** penalty for t in texts])
    spelled, scores = _spelled(be, 15, steps, penalty)
    for row in range(ROWS):
        best = texts[int(ranks[:, row].argmax())]
        assert tuple(spelled[row][:len(best)]) == best and not spelled[row][len(best):].any()
        np.testing.assert_allclose(scores[row], np.sort(ranks[:, row])[::-1], rtol=1e-4)


def test_a_beam_of_one_is_greedy(be):
    speller, params, memory, mask = _speller()
    p, heard = _heard(be, params, memory, mask)
    walk, symbols, texts, ended = speller.begin(p, ROWS), np.zeros(ROWS, np.int32), [], np.zeros(ROWS, bool)
    for t in range(6):
        walk, logits, _ = speller.step(p, heard, walk, to_tensors(symbols, be), {}, t)
        symbols = np.where(ended, 0, logits.numpy().argmax(1)).astype(np.int32)
        ended |= symbols == 0
        texts.append(symbols)
    written, _ = _spelled(be, 1, 6, 1.0)
    np.testing.assert_array_equal(np.array(written), np.array(texts).T)
