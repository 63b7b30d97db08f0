"""TIMIT as it is distributed: NIST SPHERE files (RIFF in some copies) with their phones beside them."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from duoln.data import read_lines
from duoln.data.files import visible
from duoln.data.text import at_line
from duoln.errors import DataFormatError, DataMissingError
from duoln.plugins.las.alphabet import FOLDED, LEFT_OUT, TIMIT
from duoln.plugins.las.audio import audio_length, read_samples
from duoln.plugins.las.corpus import MOST_BYTES, Corpus, Utterance
from duoln.tasks import Dataset

FOLDERS = ("timit",)
RATE = 16000
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


def read(folder: Path) -> Corpus:
    """`timit/TRAIN` and `timit/TEST`, in any case, each DIALECT/SPEAKER/SENTENCE.WAV with SENTENCE.PHN.

    All of TRAIN is the training set; of TEST, the dev and core test speakers are the other two.

    Raises:
        DataMissingError: a folder, or a set's utterances, are not there.
        DataError: a file is missing or damaged, or of another rate; or a label that TIMIT has not.
    """
    top = folder / FOLDERS[0]
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
