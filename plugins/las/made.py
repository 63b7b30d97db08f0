"""Synthetic speech: each letter has a chord of its own, a little off pitch, with noise and pauses."""

from __future__ import annotations

from functools import partial

import numpy as np

from duoln import Stream
from duoln.plugins.las.alphabet import LETTERS
from duoln.plugins.las.corpus import SETS, Corpus, Utterance
from duoln.tasks import Dataset
from duoln.tasks.originals import DATA_SEED

RATE = 8000
"""The rate of the spoken digits, in whose place these stand."""
COUNTS = {"train": 96, "dev": 16, "test": 16}
CHORDS = {"a": (300, 900), "e": (450, 1900), "n": (250, 1300), "o": (600, 1000), "s": (2600, 3400), "t": (1600, 2900)}
"""Hertz of each letter's two tones."""
_LETTERS_MOST = 3


def made() -> Corpus:
    """Words of one to three letters, always the same."""
    return Corpus(Dataset("made sounds", "synthetic"), LETTERS, RATE, {
        name: [_utterance(Stream(DATA_SEED, f"las.made.{name}", step=k), f"made {name} {k}")
               for k in range(COUNTS[name])]
        for name in SETS})


def _utterance(rng: Stream, name: str) -> Utterance:
    letters = sorted(CHORDS)
    count = 1 + int(rng.integers(_LETTERS_MOST, ()))
    word = [letters[k] for k in rng.integers(len(letters), (count,))]
    lengths = (RATE * rng.uniform((count,), 0.06, 0.10)).astype(int)
    pitch = float(rng.uniform((), 0.95, 1.05))
    parts = []
    for letter, length in zip(word, lengths, strict=True):
        seconds = np.arange(length) / RATE
        tones = sum(np.sin(2 * np.pi * pitch * hertz * seconds) for hertz in CHORDS[letter])
        parts.append(0.2 * tones * np.sin(np.pi * np.arange(length) / length))
        parts.append(np.zeros(RATE // 100))
    samples = np.concatenate(parts)
    samples += 0.002 * rng.gaussian(samples.shape)
    return Utterance(name, tuple(word), len(samples), partial(np.copy, samples.astype(np.float32)))
