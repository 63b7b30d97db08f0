"""The 57 classes of characters that the window reads."""

from __future__ import annotations

import string

import numpy as np

from duoln.errors import UsageError

CHARACTERS = string.ascii_letters + " .!?"
OTHER = len(CHARACTERS)
"""The class of every other character."""
CLASSES = OTHER + 1
PADDING = -1
"""Not a class: its one-hot row is all 0, so it adds nothing to the window."""

_INDEX = {character: k for k, character in enumerate(CHARACTERS)}


def encode(text: str) -> np.ndarray:
    """The classes of a corpus's text, int32; characters outside the alphabet are `OTHER`."""
    return np.array([_INDEX.get(character, OTHER) for character in text], np.int32)


def encode_strictly(text: str, longest: int) -> np.ndarray:
    """The classes of a text to write.

    Raises:
        UsageError: the text is empty, longer than `longest`, or has a character outside the alphabet. The model has
            one class for all those characters, so it cannot write any of them.
    """
    if not text:
        raise UsageError("[handwriting] text: expected at least one character, found none")
    if len(text) > longest:
        raise UsageError(f"[handwriting] text: expected at most {longest} characters, as the model was trained with; "
                         f"found {len(text)}")
    for position, character in enumerate(text):
        if character not in _INDEX:
            raise UsageError(f"[handwriting] text: expected letters a-z and A-Z, space and . ! ?; "
                             f"found {character!r} at position {position}")
    return encode(text)
