"""A corpus: utterances with their transcripts, in three sets."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from duoln import Stream
from duoln.plugins.las.alphabet import Alphabet
from duoln.tasks import Dataset
from duoln.tasks.originals import DATA_SEED

SETS = ("train", "dev", "test")
MOST_BYTES = 1 << 20
"""The largest size of a file of transcripts; that of a chapter of LibriSpeech has some 20,000 bytes."""


class Utterance(NamedTuple):
    """One utterance; its samples are read when they are needed."""

    name: str
    """The file and the utterance in it, for errors."""
    symbols: tuple[str, ...]
    """The transcript."""
    length: int
    """Samples."""
    read: Callable[[], np.ndarray]
    """The samples, float32 (length,), 1.0 the loudest."""


class Corpus(NamedTuple):
    """Utterances at one rate, written in one alphabet."""

    dataset: Dataset
    alphabet: Alphabet
    rate: int
    """Samples a second."""
    sets: dict[str, list[Utterance]]
    """The utterances by the names of `SETS`; no set is empty."""


def joined(source: Corpus, words: int) -> Corpus:
    """The same number of clips, each of `words` utterances of its set, drawn at random, one after another.

    In single words the listener can hear all there is, and the speller need not look for it; here it must.
    """
    def clip(name: str, parts: list[Utterance]) -> Utterance:
        symbols = tuple(s for k, part in enumerate(parts) for s in ((" ",) if k else ()) + part.symbols)
        return Utterance(name, symbols, sum(part.length for part in parts),
                         lambda: np.concatenate([part.read() for part in parts]))

    sets = {}
    for name, utterances in source.sets.items():
        chosen = Stream(DATA_SEED, f"las.joined.{name}").integers(len(utterances), (len(utterances), words))
        sets[name] = [clip(f"{name} clip {k}", [utterances[i] for i in row]) for k, row in enumerate(chosen)]
    dataset = source.dataset._replace(name=f"{source.dataset.name}, {words} a clip")
    return source._replace(dataset=dataset, sets=sets)
