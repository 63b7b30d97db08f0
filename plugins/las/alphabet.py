"""The symbols that the speller writes: 39 phones or characters, and the mark that ends an utterance."""

from __future__ import annotations

import string
from collections.abc import Sequence

import numpy as np

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
