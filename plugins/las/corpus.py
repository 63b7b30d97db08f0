"""The symbols that the speller writes, and a corpus: utterances with their transcripts, in three sets."""

from __future__ import annotations

import string
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from duoln import Stream
from duoln.errors import DataFormatError
from duoln.tasks import Dataset
from duoln.tasks.originals import DATA_SEED

PHONES = ("aa", "ae", "ah", "aw", "ay", "b", "ch", "d", "dh", "dx", "eh", "er", "ey", "f", "g", "hh", "ih", "iy", "jh",
          "k", "l", "m", "n", "ng", "ow", "oy", "p", "r", "s", "sh", "sil", "t", "th", "uh", "uw", "v", "w", "y", "z")
"""The 39 classes of Lee and Hon (1989)."""

FOLDED = {
    **{phone: phone for phone in PHONES if phone != "sil"}, "ao": "aa", "ax": "ah", "ax-h": "ah", "axr": "er",
    "hv": "hh", "ix": "ih", "el": "l", "em": "m", "en": "n", "nx": "n", "eng": "ng", "zh": "sh", "ux": "uw",
    **dict.fromkeys(("pcl", "tcl", "kcl", "bcl", "dcl", "gcl", "h#", "pau", "epi"), "sil")}
"""TIMIT's labels but the glottal stop, which is left out, as the 39."""
LEFT_OUT = "q"

CHARACTERS = (*string.ascii_lowercase, " ", "'")


class Alphabet:
    """Symbols as classes: `end` is 0, the symbols follow."""

    end = 0

    def __init__(self, symbols: Sequence[str]) -> None:
        self.symbols = tuple(symbols)
        self.classes = len(symbols) + 1
        self._index = {symbol: k for k, symbol in enumerate(self.symbols, start=1)}

    def __contains__(self, symbol: object) -> bool:
        return symbol in self._index

    def encode(self, symbols: Sequence[str]) -> np.ndarray:
        """Their classes, int32, without the end."""
        return np.array([self._index[symbol] for symbol in symbols], np.int32)

    def decode(self, classes: np.ndarray) -> list[str]:
        """The symbols before the first end."""
        ends = np.flatnonzero(classes == self.end)
        return [self.symbols[k - 1] for k in classes[:ends[0] if len(ends) else len(classes)]]


TIMIT, LETTERS = Alphabet(PHONES), Alphabet(CHARACTERS)


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


def concatenate_clips(source: Corpus, words: int) -> Corpus:
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


def spell_transcript(name: str, text: str) -> tuple[str, ...]:
    """A transcript as characters, in lower case, one space between words.

    Raises:
        DataFormatError: it is empty, or has a character that the alphabet has not.
    """
    characters: Sequence[str] = " ".join(text.lower().split())
    for character in characters:
        if character not in LETTERS:
            raise DataFormatError(name, 0, "a transcript of letters, spaces and '", f"{character!r} in {text!r:.60}")
    if not characters:
        raise DataFormatError(name, 0, "a transcript", "an empty one")
    return tuple(characters)
