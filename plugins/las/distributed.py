"""TIMIT and LibriSpeech as they are distributed: sound files, with their phones or transcripts beside them."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from duoln.data import read_lines
from duoln.data.files import visible
from duoln.data.text import at_line
from duoln.errors import DataFormatError, DataMissingError
from duoln.plugins.las.audio import audio_length, read_samples
from duoln.plugins.las.corpus import FOLDED, LEFT_OUT, LETTERS, MOST_BYTES, TIMIT, Corpus, Utterance, spell_transcript
from duoln.tasks import Dataset

RATE = 16000
"""Samples in a second, in both corpora."""
WHOLE = {"train": 3696, "dev": 400, "test": 192}
"""Utterances of the usual sets, without the two sentences (SA) that everybody reads."""
_CORE_TEST = (
    "mdab0 mwbt0 felc0 mtas1 mwew0 fpas0 mjmp0 mlnt0 fpkt0 mlll0 mtls0 fjlm0 mbpm0 mklt0 fnlp0 mcmj0 mjdh0 fmgd0 mgrt0 "
    "mnjm0 fdhc0 mjln0 mpam0 fmld0")
CORE_TEST = frozenset(_CORE_TEST.split())
"""The 24 speakers of the core test set (TIMIT's documentation)."""
_DEV = (
    "faks0 fdac1 fjem0 mgwt0 mjar0 mmdb1 mmdm2 mpdf0 fcmh0 fkms0 mbdg0 mbwm0 mcsh0 fadg0 fdms0 fedw0 mgjf0 mglb0 mrtk0 "
    "mtaa0 mtdt0 mthc0 mwjg0 fnmr0 frew0 fsem0 mbns0 mmjr0 mdls0 mdlf0 mdvc0 mers0 fmah0 fdrw0 mrcs0 mrjm4 fcal1 mmwh0 "
    "fjsj0 majc0 mjsw0 mreb0 fgjd0 fjmg0 mroa0 mteb0 mjfc0 mrjr0 fmml0 mrws1")
DEV = frozenset(_DEV.split())
"""The 50 speakers that are the dev set by custom (Halberstadt 1998)."""


def read_timit(folder: Path) -> Corpus:
    """`timit/TRAIN` and `timit/TEST`, in any case, each DIALECT/SPEAKER/SENTENCE.WAV with SENTENCE.PHN.

    All of TRAIN is the training set; of TEST, the dev and core test speakers are the other two.

    Raises:
        DataMissingError: a folder, or a set's utterances, are not there.
        DataError: a file is missing or damaged, or of another rate; or a label that TIMIT has not.
    """
    top = folder / "timit"
    sets: dict[str, list[Utterance]] = {"train": [], "dev": [], "test": []}
    for path in visible(p for p in top.rglob("*") if p.suffix.lower() == ".phn"):
        if path.stem.lower().startswith("sa"):
            continue
        kind, speaker = path.relative_to(top).parts[0].lower(), path.parent.name.lower()
        if kind == "train":
            sets["train"].append(_utterance(path))
        elif kind == "test" and speaker in DEV | CORE_TEST:
            sets["dev" if speaker in DEV else "test"].append(_utterance(path))
    empty = [name for name, utterances in sets.items() if not utterances]
    if empty:
        raise DataMissingError(f"{top}: expected TRAIN and TEST with DIALECT/SPEAKER/SENTENCE.WAV and .PHN, as in "
                               f"TIMIT; found no utterance of the {empty[0]} set")
    counts = {name: len(utterances) for name, utterances in sets.items()}
    whole = counts == WHOLE
    name = "TIMIT" if whole else f"TIMIT, {counts['train']:,} utterances"
    return Corpus(Dataset(name, "original" if whole else "substitute"), TIMIT, RATE, sets)


def _utterance(path: Path) -> Utterance:
    wavs = [p for p in (path.with_suffix(s) for s in (".WAV", ".wav")) if p.is_file()]
    if not wavs:
        raise DataMissingError(f"{path.with_suffix('.WAV')}: missing; {path.name} is there")
    return Utterance(str(path), read_phones(path), audio_length(wavs[0], RATE), partial(read_samples, wavs[0], RATE))


def read_phones(path: Path) -> tuple[str, ...]:
    """The phones of a .PHN file, `first sample, last sample, phone` a line, folded to the 39.

    Raises:
        DataFormatError: another form of line, a label that TIMIT has not, or no phones.
    """
    phones: list[str] = []
    for number, line in read_lines(path, MOST_BYTES, MOST_BYTES):
        words = line.split()
        if not words:
            continue
        if len(words) != 3 or not (words[0].isdigit() and words[1].isdigit()):
            raise at_line(path, number, "first sample, last sample and phone", repr(line[:60]))
        if words[2] != LEFT_OUT:
            if words[2] not in FOLDED:
                raise at_line(path, number, "one of TIMIT's 61 labels", repr(words[2][:20]))
            phones.append(FOLDED[words[2]])
    if not phones:
        raise DataFormatError(path, 0, "phones", "none")
    return tuple(phones)


PARTS = {"train": "train-*", "dev": "dev-clean", "test": "test-clean"}
"""Every training part that lies there is trained on."""
_LONGEST_NUMBER = 16


def read_librispeech(folder: Path) -> Corpus:
    """`LibriSpeech/PART/SPEAKER/CHAPTER/` with SPEAKER-CHAPTER.trans.txt and its sound files, spelled as characters.

    The provenance is "original", whatever training parts are there: the chapter does not say which it used.

    Raises:
        DataMissingError: a part, or an utterance's file, is not there.
        DataError: a file is damaged, of another rate, or has a character that the alphabet has not.
        UsageError: soundfile is not installed.
    """
    top = folder / "LibriSpeech"
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
        utterances.append(Utterance(str(sound), spell_transcript(f"{path}: {name}", text), audio_length(sound, RATE),
                                    partial(read_samples, sound, RATE)))
    return utterances
