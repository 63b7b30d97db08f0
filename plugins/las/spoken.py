"""The corpora that come as an .npz without pickles: spoken digits, and ten read utterances."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import numpy as np
from duoln.plugins.las.alphabet import LETTERS
from duoln.plugins.las.corpus import Corpus, Utterance

from duoln.data import Expected, read_npz
from duoln.errors import DataFormatError
from duoln.tasks import Dataset

DIGITS = {"train": "speech/fsdd_train.npz", "test": "speech/fsdd_test.npz"}
DIGITS_RATE = 8000
DEV_TAKES = 2
"""The last takes of the training file, of every digit and speaker, are the dev set."""
UTTERANCES = "speech/pocketsphinx_utterances.npz"
UTTERANCES_RATE = 16000
_ARRAYS = {"audio": Expected("i2", 1), "offsets": Expected("i8", 1), "sample_rate": Expected("i4", 0)}


def digits(folder: Path) -> Corpus:
    """The Free Spoken Digit Dataset, its words spelled: official test takes, and a dev set of whole takes.

    Raises:
        DataError: a file is missing or damaged, or holds another rate or what the alphabet has not.
    """
    training, takes = _read(folder / DIGITS["train"], DIGITS_RATE, "word", "take")
    test, _ = _read(folder / DIGITS["test"], DIGITS_RATE, "word", "take")
    last = np.unique(takes)[-DEV_TAKES:]
    held = np.isin(takes, last)
    sets = {"train": [u for u, h in zip(training, held, strict=True) if not h],
            "dev": [u for u, h in zip(training, held, strict=True) if h], "test": test}
    if not sets["train"]:
        raise DataFormatError(f"{folder / DIGITS['train']}: take", 0, f"more than {DEV_TAKES} takes",
                              len(np.unique(takes)))
    return Corpus(Dataset("spoken digits, spelled", "substitute"), LETTERS, DIGITS_RATE, sets)


def utterances(folder: Path) -> Corpus:
    """Ten read utterances, for trying things out: six, two and two.

    Raises:
        DataError: the file is missing or damaged, or holds another rate or what the alphabet has not.
    """
    path = folder / UTTERANCES
    found, _ = _read(path, UTTERANCES_RATE, "text", None)
    if len(found) < 3:
        raise DataFormatError(path, 0, "at least 3 utterances, for three sets", len(found))
    held = max(len(found) // 5, 1)
    return Corpus(Dataset(f"{len(found)} read utterances", "substitute"), LETTERS, UTTERANCES_RATE,
                  {"train": found[2 * held:], "dev": found[:held], "test": found[held:2 * held]})


def _read(path: Path, rate: int, texts: str, takes: str | None) -> tuple[list[Utterance], np.ndarray]:
    """The utterances of a file, with their takes."""
    expected = {**_ARRAYS, texts: Expected("U", 1), **({takes: Expected("i2", 1)} if takes else {})}
    arrays = read_npz(path, expected)
    audio, offsets, words = arrays["audio"], arrays["offsets"], arrays[texts]
    if arrays["sample_rate"] != rate:
        raise DataFormatError(f"{path}: sample_rate", 0, rate, int(arrays["sample_rate"]))
    if len(offsets) < 2 or offsets[0] != 0 or offsets[-1] != len(audio) or (np.diff(offsets) < 1).any():
        raise DataFormatError(f"{path}: offsets", 0, f"offsets that climb from 0 to {len(audio)}",
                              f"{offsets[0]} to {offsets[-1]}" if len(offsets) else "none")
    for name in (texts, *([takes] if takes else [])):
        if len(arrays[name]) != len(offsets) - 1:
            raise DataFormatError(f"{path}: {name}", 0, f"{len(offsets) - 1} entries, as the offsets have",
                                  len(arrays[name]))
    found = []
    for k, (first, last) in enumerate(zip(offsets[:-1].tolist(), offsets[1:].tolist(), strict=True)):
        name = f"{path}: utterance {k}"
        found.append(Utterance(name, spelled(name, _text(f"{path}: {texts}", words, k)), last - first,
                               _cut(audio, first, last)))
    return found, arrays[takes] if takes else np.zeros(len(found), np.int16)


def _text(where: str, words: np.ndarray, k: int) -> str:
    try:
        return str(words[k])
    except ValueError as error:  # four bytes that are no character
        raise DataFormatError(where, 0, "characters of Unicode", str(error)) from error


def _cut(audio: np.ndarray, first: int, last: int) -> Callable[[], np.ndarray]:
    return partial(lambda a: a.astype(np.float32) / 2 ** 15, audio[first:last])


def spelled(name: str, text: str) -> tuple[str, ...]:
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
