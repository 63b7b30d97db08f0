"""Triplets of neighbouring sentences as batches whose middle sentences are equally long."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np

from duoln import Stream
from duoln.data import Batch
from duoln.data.batches import check_range
from duoln.data.text import describe_unknown, read_books
from duoln.errors import UsageError
from duoln.plugins.skip_thoughts import made
from duoln.plugins.skip_thoughts.corpus import (
    END,
    FIRST,
    MOST_BYTES,
    UNKNOWN,
    Corpus,
    first_of_validation,
    make_corpus,
)
from duoln.tasks import Dataset
from duoln.tasks.originals import DATA_SEED, first_there, in_home, original_or_made

Source = Literal["auto", "bookcorpus", "novels100", "novels", "made"]
Filter = Literal["batch", "corpus"]

WHOLE_CORPUS = 70_000_000
"""A corpus with at least so many sentences is BookCorpus (about 74 million); a smaller one is a stand-in."""
PLACES: dict[str, tuple[str, ...]] = {
    "bookcorpus": ("books/bookcorpus.txt.gz",),
    "novels100": ("books/novels100.txt.gz", "books/novels100_heldout.txt.gz"), "novels": ("books/novels.txt.gz",)}
"""The files of each corpus below a data folder, the largest first: the order in which "auto" looks. A second one has
books for validation alone."""
FORMS = 15
"""The lengths of the encoder's input in a compiled step; each length is a different shape."""
PADDING = -1
_COUNTED = 1 << 16
"""Sentences whose words are counted at a time."""


class Triplets(NamedTuple):
    """Sentences of a corpus by number, each in the middle of a triplet: all in one book."""

    corpus: Corpus
    middles: np.ndarray
    """int64 (triplets,)."""
    limit: int
    """A sentence must be shorter than this."""

    @property
    def fits(self) -> np.ndarray:
        """True where all three sentences of a triplet are short enough: bool (triplets,)."""
        short = self.corpus.lengths < self.limit
        fitting: np.ndarray = short[self.middles - 1] & short[self.middles] & short[self.middles + 1]
        return fitting

    def batch(self, chosen: np.ndarray, rows: int) -> Batch:
        """Some triplets as a batch of so many rows; those that are missing have neither words nor targets.

        Shape:
            words int32 (L, rows), the middle sentences with their end; mask bool (L, rows); given int32
            (2, T - 1, rows), what the decoders of the sentence before and after see from their second step on;
            targets int32 (2, T, rows), -1 where there is none.
        """
        three = np.stack([self.middles[chosen] + k for k in (0, -1, 1)])
        lengths = np.zeros((3, rows), np.int64)
        lengths[:, :len(chosen)] = self.corpus.starts[three + 1] - self.corpus.starts[three]
        numbers = np.zeros((3, self.limit, rows), np.int32)
        places = np.arange(self.limit)[:, None]
        for k in range(3):
            inside = places < lengths[k]
            at = (self.corpus.starts[three[k]] + places)[inside[:, :len(chosen)]]
            numbers[k][inside] = self.corpus.numbers[at]
        real = np.zeros((3, self.limit, rows), bool)
        real[:, :, :len(chosen)] = places <= lengths[:, None, :len(chosen)]  # the end is a word like others
        long = encoder_length(int(lengths[0].max()) + 1, self.limit)
        return {"words": numbers[0, :long], "mask": real[0, :long], "given": numbers[1:, :-1].copy(),
                "targets": np.where(real[1:], numbers[1:], np.int32(PADDING))}


def encoder_length(length: int, limit: int) -> int:
    """The length to which the encoder's input is padded: one of at most `FORMS`."""
    step = -(-limit // FORMS)
    return min(-(-length // step) * step, limit)


class HomogeneousBatches:
    """The batch of a step, as the code behind the paper makes them: all middle sentences of a batch are equally long.

    Each epoch the lengths stand in a new random order, and so do the sentences of each length; batches take turns over
    the lengths until none has sentences left.

    Args:
        triplets: what to train on.
        batch_size: rows per batch.
        seed: of the order.
        filtering: "batch" draws batches by the length of the middle sentence alone and then leaves out triplets with
            a longer neighbour, as that code does; "corpus" leaves them out before, so that batches are full.

    Raises:
        UsageError: no triplet is short enough.
    """

    def __init__(self, triplets: Triplets, batch_size: int, seed: int, filtering: Filter) -> None:
        self._triplets, self._size, self._seed = triplets, batch_size, seed
        self._fits = triplets.fits
        lengths = triplets.corpus.lengths[triplets.middles]
        drawn = self._fits if filtering == "corpus" else lengths < triplets.limit
        self._by_length = [np.flatnonzero(drawn & (lengths == n)) for n in range(1, triplets.limit)]
        self._by_length = [group for group in self._by_length if self._fits[group].any()]
        if not self._by_length:
            raise UsageError(f"[skip_thoughts] expected three neighbouring sentences below {triplets.limit} words in "
                             f"{triplets.corpus.name}, found none")
        self._plans: dict[int, list[np.ndarray]] = {}
        self._ends = [len(self._plan(0))]
        self.steps_per_epoch = self._ends[0]
        """The steps of the first epoch; with "batch" others may have a few more or less."""

    def __call__(self, step: int) -> Batch:
        """The batch of one step, counted from 0 over all epochs."""
        while step >= self._ends[-1]:
            self._ends.append(self._ends[-1] + len(self._plan(len(self._ends))))
        epoch = int(np.searchsorted(self._ends, step, side="right"))
        place = step - (self._ends[epoch - 1] if epoch else 0)
        return self._triplets.batch(self._plan(epoch)[place], self._size)

    def _plan(self, epoch: int) -> list[np.ndarray]:
        """The triplets of each batch of an epoch. The last plan is kept."""
        if epoch not in self._plans:
            order = Stream(self._seed, "batches", epoch)
            turns = order.permutation(len(self._by_length))
            queues = []
            for k in turns:
                group = self._by_length[k][order.child(str(k)).permutation(len(self._by_length[k]))]
                queues.append([group[i:i + self._size] for i in range(0, len(group), self._size)])
            plan = [queue[turn] for turn in range(max(map(len, queues))) for queue in queues if turn < len(queue)]
            kept = [batch[self._fits[batch]] for batch in plan]
            self._plans = {epoch: [batch for batch in kept if len(batch)]}
        return self._plans[epoch]


class Loaded(NamedTuple):
    """A corpus with the numbers of a table of so many rows: rarer words are unknown."""

    dataset: Dataset
    corpus: Corpus
    held_out: Corpus | None
    """The books for validation alone, if it has some."""
    why: str
    """The reason why its books are synthetic; "" where they are not."""


def load(source: Source, path: str | None, words: int, lower_case: bool, valid_share: float,
         root: Path | None = None) -> Loaded:
    """The corpus of a source, or of a file.

    Each argument is the setting of this name, and `path` the setting `corpus`; `root` is searched before DUOLN_DATA.
    The words of training are counted, so that a word that only validation has is unknown there.

    Raises:
        DataMissingError: a corpus was requested and is not available. DataError: a file is damaged.
        UsageError: a table without a row for a word, or a share that is none.
    """
    _check_share(valid_share)
    if words <= FIRST:
        raise UsageError(f"[skip_thoughts] expected words of at least {FIRST + 1} (the end and the unknown word are "
                         f"two of them), found {words}")
    if path is not None and source != "made":
        files, why = [in_home(path)], ""
    else:
        files, why = original_or_made(source, partial(_find, source, root), list[Path])
    if not files:
        dataset, books = Dataset("made books", "synthetic"), made.make_books(DATA_SEED)
        corpus = make_corpus(dataset.name, books, lower_case, valid_share=valid_share)
    else:
        corpus = make_corpus(str(files[0]), read_books(files[0], MOST_BYTES), lower_case,
                             valid_share=valid_share if len(files) == 1 else 0.0)
        count = len(corpus.lengths)
        dataset = (Dataset("BookCorpus", "original") if count >= WHOLE_CORPUS else
                   Dataset(f"{files[0].name.split('.')[0]}, {count:,} sentences", "substitute"))
    numbers = np.where(corpus.numbers < words, corpus.numbers, np.int32(UNKNOWN))
    corpus = corpus._replace(words=corpus.words[:words], numbers=check_range("skip_thoughts", numbers, words))
    held_out = [make_corpus(str(file), read_books(file, MOST_BYTES), lower_case, corpus.words[FIRST:])
                for file in files[1:]]
    return Loaded(dataset, corpus, held_out[0] if held_out else None, why)


def _find(source: Source, root: Path | None) -> Callable[[], list[Path]]:
    first = first_there(PLACES, tuple(PLACES) if source == "auto" else (source,), root,
                        "put the text there (BookCorpus is no longer distributed), or name any plain text with --set "
                        "corpus=FILE; --preset small does without BookCorpus")
    return lambda: first.files


def unknown_words(corpus: Corpus, held_out: Corpus | None, judged: Mapping[str, Batch], where: object) -> str:
    """A sentence about the share of unknown words in each text; see `describe_unknown`."""
    shares = {"training": float(np.mean(corpus.numbers == UNKNOWN))}
    if held_out is not None:
        shares["the books held out"] = float(np.mean(held_out.numbers == UNKNOWN))
    for name, split in judged.items():
        real = np.arange(split["words"].shape[1]) < split["lengths"][:, None]
        shares[name] = float(np.mean(split["words"][real] == UNKNOWN))
    return describe_unknown(where, shares)


def parts(corpus: Corpus, held_out: Corpus | None, limit: int, valid_share: float) -> tuple[Triplets, Triplets]:
    """Triplets for training, and those for validation, which share no sentence with them.

    Those for validation are of the books that are held out; without any, of the last sentences of every book.
    """
    _check_share(valid_share)
    if limit < 2:
        raise UsageError(f"[skip_thoughts] expected longest of at least 2, found {limit}")
    if held_out is not None:
        return _triplets(corpus, _spans(corpus), limit), _triplets(held_out, _spans(held_out), limit)
    train, valid = [], []
    for first, last in _spans(corpus):
        cut = first_of_validation(first, last, valid_share)
        train.append((first, cut))
        valid.append((cut, last))
    return _triplets(corpus, train, limit), _triplets(corpus, valid, limit)


def _check_share(valid_share: float) -> None:
    if not 0 < valid_share < 1:
        raise UsageError(f"[skip_thoughts] expected a valid_share between 0 and 1, found {valid_share}")


def _spans(corpus: Corpus) -> list[tuple[int, int]]:
    """The first sentence of each book, and the one after its last."""
    return list(pairwise(corpus.books.tolist()))


def _triplets(corpus: Corpus, spans: list[tuple[int, int]], limit: int) -> Triplets:
    middles = [np.arange(first + 1, max(last - 1, first + 1)) for first, last in spans]
    return Triplets(corpus, np.concatenate(middles), limit)


def valid_split(valid: Triplets, train: Triplets, count: int, rows: int) -> Batch:
    """Triplets for validation as batches, stacked, and how often each word is a target in training.

    They stand evenly apart, so that all books have some.

    Shape:
        words and the others as in `Triplets.batch` with an axis (batches,) before them; counts int32 (words,).
    """
    chosen = np.flatnonzero(valid.fits)
    chosen = chosen[np.arange(min(count, len(chosen))) * len(chosen) // min(count, max(len(chosen), 1))]
    if not len(chosen):
        raise UsageError(f"[skip_thoughts] expected triplets below {valid.limit} words for validation, found none; "
                         "raise valid_share or longest")
    lengths = valid.corpus.lengths[valid.middles[chosen]]
    chosen = chosen[np.argsort(lengths, kind="stable")]
    batches = [valid.batch(chosen[i:i + rows], rows) for i in range(0, len(chosen), rows)]
    long = max(len(b["words"]) for b in batches)
    for b in batches:
        extra = ((0, long - len(b["words"])), (0, 0))
        b["words"], b["mask"] = np.pad(b["words"], extra), np.pad(b["mask"], extra)
    return {**{key: np.stack([b[key] for b in batches]) for key in batches[0]}, "counts": _target_counts(train)}


def _target_counts(train: Triplets) -> np.ndarray:
    """The number of times that each word is a target in training: int32 (words,)."""
    corpus = train.corpus
    middles = train.middles[train.fits]
    uses = np.bincount(np.concatenate((middles - 1, middles + 1)), minlength=len(corpus.lengths))
    counts = np.zeros(len(corpus.words))
    for first in range(0, len(uses), _COUNTED):  # a number a word of the whole corpus would take more than the corpus
        some = slice(first, first + _COUNTED)
        repeated = np.repeat(uses[some], corpus.lengths[some])
        begin = corpus.starts[first]
        counts += np.bincount(corpus.numbers[begin:begin + len(repeated)], repeated, minlength=len(corpus.words))
    counts[END] += uses.sum()
    return counts.astype(np.int32)
