"""The 76 classes of characters that the model reads and writes."""

from __future__ import annotations

import string
from collections.abc import Iterable

import numpy as np

from duoln.errors import UsageError

CHARACTERS = string.ascii_letters + string.digits + " \n" + ".,;:!?'\"-()"
OTHER = len(CHARACTERS)
"""The class of every other character."""
CLASSES = OTHER + 1

_ASCII = 128
_CLASS_OF = np.full(_ASCII + 1, OTHER, np.uint8)
"""The class by the number of a character; the last entry is of all those above ASCII."""
_CLASS_OF[[ord(character) for character in CHARACTERS]] = np.arange(OTHER)


def encode(text: str) -> np.ndarray:
    """The classes of a text, uint8 (characters,); characters outside the alphabet are `OTHER`."""
    numbers = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), "<u4")
    classes: np.ndarray = _CLASS_OF[np.minimum(numbers, _ASCII)]
    return classes


def encode_strictly(text: str) -> np.ndarray:
    """The classes of a text that the model is to continue, uint8.

    Raises:
        UsageError: the text is empty or has a character outside the alphabet.
    """
    if not text:
        raise UsageError("[transformer] text: expected at least one character, found none")
    for position, character in enumerate(text):
        if character not in CHARACTERS:
            raise UsageError(f"[transformer] text: expected characters of {CHARACTERS!r}; found {character!r} at "
                             f"position {position}")
    return encode(text)


def decode(classes: Iterable[int]) -> str:
    """The characters of classes below `OTHER`."""
    return "".join(CHARACTERS[k] for k in classes)
