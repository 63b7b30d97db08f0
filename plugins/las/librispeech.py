"""LibriSpeech as it is distributed: one FLAC file per utterance, and one transcript per chapter."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from duoln.data import read_lines
from duoln.data.files import visible
from duoln.data.text import at_line
from duoln.errors import DataMissingError
from duoln.plugins.las.alphabet import LETTERS
from duoln.plugins.las.audio import audio_length, read_samples
from duoln.plugins.las.corpus import MOST_BYTES, Corpus, Utterance
from duoln.plugins.las.spoken import spelled
from duoln.tasks import Dataset

FOLDERS = ("LibriSpeech",)
RATE = 16000
PARTS = {"train": "train-*", "dev": "dev-clean", "test": "test-clean"}
"""Every training part that lies there is trained on."""
_LONGEST_NUMBER = 16


def read(folder: Path) -> Corpus:
    """`LibriSpeech/PART/SPEAKER/CHAPTER/` with SPEAKER-CHAPTER.trans.txt and its sound files, spelled as characters.

    The provenance is "original", whatever training parts are there: the chapter does not say which it used.

    Raises:
        DataMissingError: a part, or an utterance's file, is not there.
        DataError: a file is damaged, of another rate, or has a character that the alphabet has not.
        UsageError: soundfile is not installed.
    """
    top = folder / FOLDERS[0]
    sets = {name: [u for part in sorted(top.glob(pattern)) for path in visible(part.rglob("*.trans.txt"))
                   for u in read_chapter(path)] for name, pattern in PARTS.items()}
    for name, utterances in sets.items():
        if not utterances:
            raise DataMissingError(f"{top}: expected {PARTS[name]} with SPEAKER/CHAPTER/*.trans.txt as LibriSpeech has "
                                   "them, found none")
    parts = ", ".join(p.name for p in sorted(top.glob(PARTS["train"])))
    return Corpus(Dataset(f"LibriSpeech ({parts})", "original"), LETTERS, RATE, sets)


def read_chapter(path: Path) -> list[Utterance]:
    """The utterances of a transcript, `SPEAKER-CHAPTER-NUMBER WORDS ...` a line.

    Raises:
        DataMissingError: an utterance's sound file is not there.
        DataFormatError: a line without words, a name that leads elsewhere, or a strange character.
    """
    chapter = path.name.removesuffix(".trans.txt")
    utterances = []
    for place, line in read_lines(path, MOST_BYTES, MOST_BYTES):
        if not line.strip():
            continue
        name, _, text = line.strip().partition(" ")
        number = name.removeprefix(f"{chapter}-")
        if number == name or not (number.isascii() and number.isdigit()) or not text:
            raise at_line(path, place, f"{chapter}-NUMBER and words", repr(line[:60]))
        if len(number) > _LONGEST_NUMBER:  # no file system has such a name
            raise at_line(path, place, f"a number of at most {_LONGEST_NUMBER} digits", repr(number[:40]))
        sound = path.parent / f"{name}.flac"
        if not sound.is_file():
            raise DataMissingError(f"{sound}: missing; {path.name} has a transcript of it")
        utterances.append(Utterance(str(sound), spelled(f"{path}: {name}", text), audio_length(sound, RATE),
                                    partial(read_samples, sound, RATE)))
    return utterances
