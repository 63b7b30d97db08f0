"""The made data of the tasks: they do not change, so that curves on them can be compared."""

import hashlib

import numpy as np
import pytest

from duoln.data.digits import make_digits
from duoln.plugins.attentive_reader import data as reader
from duoln.plugins.convnet.data import make_coloured
from duoln.plugins.handwriting.data import make_lines
from duoln.plugins.las.spoken import synthetic_corpus as make_sounds
from duoln.plugins.order_embeddings.data import make_pictures
from duoln.plugins.skip_thoughts.made import make_books, make_labelled, make_pairs
from duoln.plugins.transformer.corpus import make_books as make_characters
from duoln.randomness import Stream


def _texts():
    questions = [reader.make_question(Stream(0, "test", step=k)) for k in range(8)]
    return {
        "questions": [[*q.passage, *q.question, q.answer] for q in questions],
        "lines": [[line.text] for line in make_lines(40, 0, "train")],
        "sounds": [u.symbols for u in make_sounds().sets["train"]],
        "captions": make_pictures(20, 0, "train").captions,
        "books": make_books(0), "labelled": [[text, str(good)] for text, good in make_labelled(0, "MR")],
        "pairs": [[p.first, p.second] for p in make_pairs(0, "train")],
        "characters": [["### A made book\n" + "\n".join([*lines, ""])] for lines in make_characters(0)]}


def _arrays():
    lines = make_lines(40, 0, "train")
    digits, _ = make_digits(200, 0, "train")
    return {
        "strokes": np.concatenate([line.offsets for line in lines]), "ends": np.concatenate([line[3] for line in lines]),
        "sounds": np.concatenate([u.read() for u in make_sounds().sets["train"][:20]]),
        "pictures": make_pictures(20, 0, "train").images, "coloured digits": make_coloured(20, 0, "train").images,
        "upper halves of digits": digits[:, 7:14], "lower halves of digits": digits[:, 14:21],
        "scores": np.array([p.score for p in make_pairs(0, "train")])}


def _summary(array):
    """Length, mean size, deviation, and how much neighbours differ."""
    flat = array.astype(np.float64).reshape(-1)
    return [len(flat), np.abs(flat).mean(), flat.std(), np.abs(np.diff(flat)).mean()]


def _hash(texts):
    return hashlib.sha256("\n".join(" ".join(words) for words in texts).encode()).hexdigest()[:16]


TEXTS = {
    "questions": "82d1276bef01a692",
    "lines": "bb53e07c5372551e",
    "sounds": "20631d8dff8d224b",
    "captions": "8d48873a119adac5",
    "books": "dee79e21525748d0",
    "labelled": "0d751c2eddd9aa07",
    "pairs": "b41787e71fd7afbd",
    "characters": "5c96d50a5b14c038",
}
ARRAYS = {
    "strokes": [8868, 27.21234, 45.97084, 43.50648],
    "ends": [4434, 0.1535859, 0.3605514, 0.3070156],
    "sounds": [25709, 0.09367342, 0.1335053, 0.08635564],
    "pictures": [61440, 119.0621, 86.98919, 76.39109],
    "upper halves of digits": [39200, 46.35276, 87.67942, 24.01561],
    "lower halves of digits": [39200, 45.89255, 87.33718, 23.62851],
    "coloured digits": [61440, 126.5269, 76.1603, 80.81997],
    "scores": [24, 3.141052, 1.248085, 1.63195],
}


@pytest.mark.parametrize("name", TEXTS)
def test_texts_to_the_letter(name):
    assert _hash(_texts()[name]) == TEXTS[name]


@pytest.mark.parametrize("name", ARRAYS)
def test_numbers_but_for_rounding(name):
    np.testing.assert_allclose(_summary(_arrays()[name]), ARRAYS[name], rtol=1e-4)
