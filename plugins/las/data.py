"""Utterances as batches: features in buckets of similar length, labels, and the random values of each batch."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, Literal

import numpy as np

from duoln import Stream
from duoln.data import Batch, Batches
from duoln.errors import DataFormatError, UsageError
from duoln.plugins.las import corpus, distributed, spoken
from duoln.plugins.las.corpus import LETTERS, TIMIT, Alphabet, Corpus, Utterance
from duoln.plugins.las.features import features, frame_count, width
from duoln.plugins.las.spoken import RATE, synthetic_corpus
from duoln.tasks import Splits
from duoln.tasks.originals import blame_missing_data, first_there, original_or_made
from duoln.tasks.settings import check_least

Source = Literal["auto", "timit", "librispeech", "digits", "made"]

_KEPT = 4096
"""Utterances whose features stay in memory: all of TIMIT's, 0.6 GB."""
READERS: dict[str, tuple[tuple[str, ...], Callable[[Path], Corpus]]] = {
    "timit": (("timit",), distributed.read_timit), "librispeech": (("LibriSpeech",), distributed.read_librispeech),
    "digits": (tuple(spoken.DIGITS.values()), spoken.digits)}
"""The files of a corpus below a data folder, and its reader, which takes that folder."""
_WHERE_FROM = {
    "timit": "the LDC gives it out under a licence: put its TRAIN and TEST into a folder timit",
    "librispeech": "openslr.org/12 has it: unpack its archives there",
    "digits": "`duoln data prepare las --from DIR` makes them of the Free Spoken Digit Dataset's recordings"}
_DEEPEST = 16
BATCH_AXES = dict.fromkeys(("x", "mask", "labels", "weight", "coin", "gumbel",
                            *(f"keep_{part}{k}" for part in ("listener", "speller") for k in range(_DEEPEST))), 1)
"""Everything is time-major."""


def alphabet_of(source: Source) -> Alphabet:
    """The alphabet of the corpora of a source."""
    return TIMIT if source == "timit" else LETTERS


def rate_of(source: Source) -> int:
    """Samples a second of the corpora of a source."""
    return distributed.RATE if source in ("timit", "librispeech") else RATE


def load(cfg: Any, root: Path | None) -> tuple[Corpus, str]:
    """The corpus of a configuration, with as many recordings a clip as it asks for; and why it is synthetic sounds
    ("" where it is not). The source "auto" is the spoken digits, and synthetic sounds where nothing of them is there.

    Raises:
        DataMissingError: the corpus was requested and is not available; the message says where to put it.
        DataError: a file is damaged or missing.
        UsageError: phones are to be joined as words, or a text of dev or test is longer than the search may write.
    """
    source, why = original_or_made(cfg.source, partial(_find, cfg.source, root), synthetic_corpus)
    if cfg.words > 1 and source.alphabet is not LETTERS:
        raise UsageError(f"[las] words: expected 1 where the symbols are phones, found {cfg.words}")
    source = source if cfg.words == 1 else corpus.concatenate_clips(source, cfg.words)
    symbols = 1 + max(len(u.symbols) for name in ("dev", "test") for u in source.sets[name])
    if symbols > cfg.longest:
        raise UsageError(f"[las] longest: expected at least {symbols}, the symbols of the longest text to recognise "
                         f"and its end, found {cfg.longest}: no search could write that text")
    return source, why


def _find(source: Source, root: Path | None) -> Callable[[], Corpus]:
    """The function that reads the corpus of a source; "auto" is the spoken digits."""
    name = "digits" if source == "auto" else source
    files, reader = READERS[name]
    advice = f"{_WHERE_FROM[name]}; `--preset small` needs no more than spoken digits, `--preset smoke` nothing"
    return partial(reader, first_there({name: files}, (name,), root, advice).home)


def splits(cfg: Any, root: Path | None) -> Splits:
    """Training batches of a configuration, and its dev and test sets.

    For the loss alone, as many utterances of the training set as dev has are evaluated, too.

    Raises:
        as `load`. DataError: an utterance is too short. UsageError: a setting out of range.
    """
    check(cfg)
    source, why = load(cfg, root)
    for utterance in (u for part in source.sets.values() for u in part):
        if not frame_count(utterance.length, source.rate):
            raise DataFormatError(utterance.name, 0, "a clip of at least one frame (25 ms)",
                                  f"{utterance.length} samples at {source.rate} Hz")
    training = source.sets["train"]
    with blame_missing_data(cfg.source, why):
        if not 1 <= cfg.batch_size <= len(training):
            raise UsageError(f"[las] expected a batch_size between 1 and {len(training)}, found {cfg.batch_size}")
        train = Training(training, source, cfg)
    chosen = {**source.sets, "train": evenly_spaced(training, len(source.sets["dev"]))}
    evaluation = {name: as_split(utterances, source, cfg.mels, 2 ** cfg.pyramids, searched=name != "train")
                  for name, utterances in chosen.items()}
    return Splits(source.dataset, train, train.steps_per_epoch, evaluation, (why,))


def check(cfg: Any) -> None:
    """Raises UsageError for a setting out of range."""
    check_least("las", cfg, mels=1, buckets=1, pyramids=0, layers=0, beam=1, longest=1, words=1, listener_hidden=1,
                speller_hidden=1, speller_layers=1, attention=1)
    if cfg.pyramids + cfg.layers < 1:
        raise UsageError("[las] expected at least one layer in the listener, found none")
    for name in ("dropout", "sampling"):
        if not 0 <= getattr(cfg, name) < 1:
            raise UsageError(f"[las] expected {name} in [0, 1), found {getattr(cfg, name)}")
    if not np.isfinite(cfg.constant):
        raise UsageError(f"[las] expected a finite constant, found {cfg.constant}")
    if not 0 <= cfg.noise < np.inf:
        raise UsageError(f"[las] expected a finite noise of at least 0, found {cfg.noise}")


def evenly_spaced(utterances: Sequence[Utterance], count: int) -> list[Utterance]:
    """So many utterances at most, evenly spread, because the digits are sorted by word."""
    count = min(count, len(utterances))
    return [utterances[k * len(utterances) // count] for k in range(count)]


class Training:
    """The training batch of a step, a pure function of its number.

    Utterances are in buckets by length. A batch comes from one bucket, so each bucket has one shape. In each epoch
    every bucket and the buckets' batches have a new order. A bucket that is smaller than a batch is one batch.
    """

    def __init__(self, utterances: Sequence[Utterance], source: Corpus, cfg: Any) -> None:
        if cfg.buckets > len(utterances):
            raise UsageError(f"[las] expected at most {len(utterances)} buckets, one an utterance; found {cfg.buckets}")
        self.cfg, self.classes = cfg, source.alphabet.classes
        frames = np.array([frame_count(u.length, source.rate) for u in utterances])
        self.labels = [source.alphabet.encode(u.symbols) for u in utterances]
        self.members = np.array_split(np.argsort(frames, kind="stable"), cfg.buckets)
        step = 2 ** cfg.pyramids
        self.shapes = [(-(-int(frames[m].max()) // step) * step, 1 + max(len(self.labels[k]) for k in m))
                       for m in self.members]
        self.batches = [Batches({"row": m}, min(cfg.batch_size, len(m)), cfg.seed) for m in self.members]
        self.plan = [(b, k) for b, batches in enumerate(self.batches) for k in range(batches.steps_per_epoch)]
        self.steps_per_epoch = len(self.plan)
        self.features = lru_cache(maxsize=_KEPT)(
            lambda k: features(utterances[k].read(), source.rate, cfg.mels, utterances[k].name))

    def __call__(self, step: int) -> Batch:
        epoch, place = divmod(step, self.steps_per_epoch)
        order = Stream(self.cfg.seed, "las.order", epoch).permutation(self.steps_per_epoch)
        bucket, number = self.plan[order[place]]
        rows = self.batches[bucket](epoch * self.batches[bucket].steps_per_epoch + number)["row"]
        batch = as_batch([self.features(int(k)) for k in rows], [self.labels[k] for k in rows], *self.shapes[bucket])
        return {**batch, **self._randomness(Stream(self.cfg.seed, "las.noise", step=step), batch)}

    def _randomness(self, rng: Stream, batch: Batch) -> Batch:
        """Noisy features, masks for dropout, and the draws of scheduled sampling."""
        cfg, arrays = self.cfg, {}
        (steps, rows, _), labels = batch["x"].shape, len(batch["labels"])
        if cfg.noise:
            noise = rng.child("input").gaussian(batch["x"].shape).astype(np.float32)
            arrays["x"] = batch["x"] + np.float32(cfg.noise) * noise
        if cfg.dropout:
            keep = np.float32(1 - cfg.dropout)
            shapes = {f"keep_listener{k}": (steps >> min(k, cfg.pyramids), rows, 2 * cfg.listener_hidden)
                      for k in range(cfg.pyramids + cfg.layers)}
            shapes |= {f"keep_speller{k}": (labels, rows, cfg.speller_hidden) for k in range(cfg.speller_layers)}
            arrays |= {name: rng.child(name).keep_mask(shape, float(keep)) / keep for name, shape in shapes.items()}
        if cfg.sampling:
            arrays["coin"] = rng.child("coin").uniform((labels, rows)) < cfg.sampling
            unit = rng.child("gumbel").uniform((labels, rows, self.classes))
            arrays["gumbel"] = (-np.log(-np.log(unit + 2.0 ** -54))).astype(np.float32)
        return arrays


def as_batch(heard: Sequence[np.ndarray], labels: Sequence[np.ndarray], steps: int, length: int) -> Batch:
    """Utterances side by side.

    Args:
        heard: the features of each, float32 (frames, width).
        labels: the classes of each, without the end.
        steps: frames, with padding.
        length: labels, with the end and padding.

    Shape:
        x float32 (steps, B, width); mask bool (steps, B): where an utterance is; labels int32 (length, B), each row
        ended; weight float32 (length, B): 1 / labels of the utterance, the end counted, and 0 after it.
    """
    rows = len(heard)
    x, mask = np.zeros((steps, rows, heard[0].shape[1]), np.float32), np.zeros((steps, rows), bool)
    written, weight = np.full((length, rows), Alphabet.end, np.int32), np.zeros((length, rows), np.float32)
    for k, (values, classes) in enumerate(zip(heard, labels, strict=True)):
        x[:len(values), k], mask[:len(values), k] = values, True
        written[:len(classes), k] = classes
        weight[:len(classes) + 1, k] = 1.0 / (len(classes) + 1)
    return {"x": x, "mask": mask, "labels": written, "weight": weight}


def as_split(utterances: Sequence[Utterance], source: Corpus, mels: int, multiple: int, searched: bool) -> Batch:
    """A whole set: the features of all utterances one after another, and their labels likewise, with where each begins.

    Shape:
        x float32 (frames of all, width), x_starts (utterances + 1,), labels int32 (labels of all,), label_starts
        (utterances + 1,), phones bool (): whether the symbols are phones, of which no words are made, multiple int ():
        what the listener's steps must be a multiple of, searched bool (): whether the set's texts are searched for, not
        only the cross-entropy of the known ones taken.
    """
    x = [features(u.read(), source.rate, mels, u.name) for u in utterances]
    labels = [source.alphabet.encode(u.symbols) for u in utterances]
    return {"x": np.concatenate([np.zeros((0, width(mels)), np.float32), *x]),
            "x_starts": np.cumsum([0, *map(len, x)]), "labels": np.concatenate(labels),
            "label_starts": np.cumsum([0, *map(len, labels)]), "phones": np.array(source.alphabet is TIMIT),
            "multiple": np.array(multiple), "searched": np.array(searched)}


def parts(split: Batch, rows: int) -> Iterator[Batch]:
    """A whole set as batches of utterances of like length."""
    x = np.split(split["x"], split["x_starts"][1:-1])
    labels = np.split(split["labels"], split["label_starts"][1:-1])
    order, step = np.argsort([len(a) for a in x], kind="stable"), int(split["multiple"])
    for k in range(0, len(order), rows):
        chosen = order[k:k + rows]
        yield as_batch([x[i] for i in chosen], [labels[i] for i in chosen],
                       -(-max(len(x[i]) for i in chosen) // step) * step, 1 + max(len(labels[i]) for i in chosen))
