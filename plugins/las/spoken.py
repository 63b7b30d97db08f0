"""Single words at 8 kHz: the Free Spoken Digit Dataset as .npz files without pickles, and synthetic sounds."""

from __future__ import annotations

import re
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from duoln import Stream
from duoln.data import read_npz
from duoln.data.npz import Expected, check_offsets, write_npz
from duoln.errors import DataFormatError, DataMissingError
from duoln.plugins.las.audio import MOST_SAMPLES, read_audio
from duoln.plugins.las.corpus import LETTERS, SETS, Corpus, Utterance, spell_transcript
from duoln.tasks import Dataset
from duoln.tasks.originals import DATA_SEED

DIGITS = {"train": "speech/fsdd_train.npz", "test": "speech/fsdd_test.npz"}
RATE = 8000
DEV_TAKES = 2
"""The last takes of the training file, of every digit and speaker, are the dev set."""
TEST_TAKES = 5
_WORDS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
_NAME = re.compile(r"(?P<digit>[0-9])_(?P<speaker>[a-z]+)_(?P<take>[0-9]{1,3})\.wav")
_ARRAYS = {"audio": Expected("i2", 1), "offsets": Expected("i8", 1), "sample_rate": Expected("i4", 0),
           "word": Expected("U", 1, "utterances"), "take": Expected("i2", 1, "utterances")}


def digits(folder: Path) -> Corpus:
    """The Free Spoken Digit Dataset, its words spelled: official test takes, and a dev set of whole takes.

    Raises:
        DataError: a file is missing or damaged, or holds another rate or what the alphabet has not.
    """
    (training, takes), (test, _) = (_read(folder / DIGITS[name]) for name in ("train", "test"))
    last = np.unique(takes)[-DEV_TAKES:]
    in_dev = np.isin(takes, last)
    sets = {"train": [u for u, h in zip(training, in_dev, strict=True) if not h],
            "dev": [u for u, h in zip(training, in_dev, strict=True) if h], "test": test}
    if not sets["train"]:
        raise DataFormatError(f"{folder / DIGITS['train']}: take", 0, f"more than {DEV_TAKES} takes",
                              len(np.unique(takes)))
    return Corpus(Dataset("spoken digits, spelled", "substitute"), LETTERS, RATE, sets)


def prepare(source: Path, target: Path) -> list[Path]:
    """The files that `digits` reads, of the data set's recordings as they are distributed.

    Args:
        source: with DIGIT_SPEAKER_TAKE.wav, such as 7_jackson_32.wav; takes 0 to 4 are the test set.
        target: a folder like DUOLN_DATA.

    Raises:
        DataMissingError: no such recordings. DataError: one is damaged, or the target cannot be written.
    """
    matches = [(path, match) for path in sorted(source.glob("*.wav")) if (match := _NAME.fullmatch(path.name))]
    recordings_of = {part: [(path, match) for path, match in matches
                            if (int(match["take"]) < TEST_TAKES) == (part == "test")] for part in DIGITS}
    written = []
    for part, recordings in recordings_of.items():
        if not recordings:
            raise DataMissingError(f"{source}: expected DIGIT_SPEAKER_TAKE.wav, takes below {TEST_TAKES} for the test "
                                   f"set and others for training, found none for {part}")
        clips = [read_audio(path, RATE).samples for path, _ in recordings]
        arrays: dict[str, Any] = {
            "audio": np.rint(np.concatenate(clips) * 2 ** 15).astype(np.int16),
            "offsets": np.cumsum([0, *map(len, clips)], dtype=np.int64), "sample_rate": np.int32(RATE),
            "word": np.array([_WORDS[int(match["digit"])] for _, match in recordings]),
            "take": np.array([int(match["take"]) for _, match in recordings], np.int16)}
        written.append(write_npz(target / DIGITS[part], arrays))
    return written


def _read(path: Path) -> tuple[list[Utterance], np.ndarray]:
    """The utterances of a file, with their takes."""
    arrays = read_npz(path, _ARRAYS)
    audio, offsets, words = arrays["audio"], arrays["offsets"], arrays["word"]
    if arrays["sample_rate"] != RATE:
        raise DataFormatError(f"{path}: sample_rate", 0, RATE, int(arrays["sample_rate"]))
    check_offsets(f"{path}: offsets", offsets, len(audio))
    if len(words) != len(offsets) - 1:
        raise DataFormatError(f"{path}: word", 0, f"{len(offsets) - 1} utterances, as the offsets have", len(words))
    longest = int(np.diff(offsets).max())
    if longest > MOST_SAMPLES:
        raise DataFormatError(f"{path}: offsets", 0, f"utterances of at most {MOST_SAMPLES} samples", longest)
    of_file = []
    for k, (first, last) in enumerate(zip(offsets[:-1].tolist(), offsets[1:].tolist(), strict=True)):
        name = f"{path}: utterance {k}"
        read = partial(lambda a: a.astype(np.float32) / 2 ** 15, audio[first:last])
        of_file.append(Utterance(name, spell_transcript(name, str(words[k])), last - first, read))
    return of_file, arrays["take"]


COUNTS = {"train": 96, "dev": 16, "test": 16}
CHORDS = {"a": (300, 900), "e": (450, 1900), "n": (250, 1300), "o": (600, 1000), "s": (2600, 3400), "t": (1600, 2900)}
"""Hertz of each letter's two tones."""
_LETTERS_MOST = 3


def synthetic_corpus() -> Corpus:
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
