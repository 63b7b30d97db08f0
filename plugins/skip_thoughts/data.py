"""Triplets of neighbouring sentences as batches whose middle sentences are equally long."""

from __future__ import annotations

from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np

from duoln.data import Batch, cache_folder, check_range, data_folders
from duoln.errors import DataMissingError, UsageError
from duoln.plugins.skip_thoughts import made
from duoln.plugins.skip_thoughts.corpus import (
    END,
    FIRST,
    UNKNOWN,
    Corpus,
    check_table,
    make_corpus,
    read_books,
    read_vocabulary,
)
from duoln.randomness import Stream
from duoln.tasks import Dataset, Splits

Source = Literal["auto", "books", "made"]
Filter = Literal["batch", "corpus"]

WHOLE_CORPUS = 70_000_000
"""A corpus with at least so many sentences is BookCorpus (about 74 million); a smaller one is a stand-in."""
CORPORA = ("books/bookcorpus.txt.gz", "books/bookcorpus.txt", "books/novels.txt.gz")
FORMS = 15
"""The lengths of the encoder's input in a compiled step; each length is a different shape."""
PADDING = -1


class Triplets(NamedTuple):
    """Sentences of a corpus by number, each in the middle of a triplet: all in one book."""

    corpus: Corpus
    middles: np.ndarray
    """int64 (triplets,)."""
    limit: int
    """A sentence must be shorter than this."""

    @property
    def fits(self) -> np.ndarray:
        """Whether all three sentences of a triplet are short enough: bool (triplets,)."""
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
        lengths[:, :len(chosen)] = self.corpus.lengths[three]
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
        """Of the first epoch; with "batch" others may have a few more or less."""

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


def load_corpus(source: Source, path: str | None, words: int, lower_case: bool, vocabulary: str | None, seed: int,
                root: Path | None = None) -> tuple[Dataset, Corpus]:
    """A corpus with the numbers of a table of so many rows: rarer words are unknown.

    Args:
        source: "auto" falls back to made books only where no corpus is found.
        path: a plain text, instead of those that are looked for; with any source but "made".
        words: rows of the table, with the end and the unknown word.
        lower_case: whether the text is lower-cased.
        vocabulary: a file of words, the most frequent first; by default those of the corpus are counted.
        seed: of made books.
        root: a folder that is searched before DUOLN_DATA.

    Raises:
        DataMissingError: a corpus was requested and is not available. DataError: a file is damaged.
        UsageError: a table without a row for a word.
    """
    if words <= FIRST:
        raise UsageError(f"[skip_thoughts] expected words of at least {FIRST + 1} (the end and the unknown word are "
                         f"two of them), found {words}")
    given = None if vocabulary is None else read_vocabulary(Path(vocabulary), words)
    file = _corpus_file(source, path, root)
    if file is None:
        dataset, books = Dataset("made books", "synthetic"), made.make_books(seed)
        corpus = make_corpus(dataset.name, books, lower_case, given)
    else:
        corpus = make_corpus(str(file), read_books(file), lower_case, given)
        count = len(corpus.lengths)
        dataset = (Dataset("BookCorpus", "original") if count >= WHOLE_CORPUS else
                   Dataset(f"{file.name.split('.')[0]}, {count:,} sentences", "substitute"))
    numbers = np.where(corpus.numbers < words, corpus.numbers, np.int32(UNKNOWN))
    corpus = corpus._replace(words=corpus.words[:words], numbers=check_range("skip_thoughts", numbers, words))
    check_table(corpus.words, words)
    return dataset, corpus


def _corpus_file(source: Source, path: str | None, root: Path | None) -> Path | None:
    if source == "made":
        return None
    if path is not None:
        return Path(path)
    folders = [*([] if root is None else [root]), *data_folders(), cache_folder()]
    for folder in folders:
        for name in CORPORA:
            if (folder / name).is_file():
                return folder / name
    if source == "books":
        raise DataMissingError(f"{folders[0] / CORPORA[0]}: not found; BookCorpus is no longer given out: put it or "
                               f"any plain text there, as {CORPORA[-1]}, or name one with --set corpus=FILE")
    return None


def parts(corpus: Corpus, limit: int, valid_share: float) -> tuple[Triplets, Triplets]:
    """Triplets for training, and those of the last sentences of every book, which share none with them."""
    if not 0 < valid_share < 1 or limit < 2:
        raise UsageError(f"[skip_thoughts] expected a valid_share between 0 and 1 and longest of at least 2, found "
                         f"{valid_share} and {limit}")
    train, valid = [], []
    for first, last in zip(corpus.books[:-1], corpus.books[1:], strict=True):
        cut = last - max(round((last - first) * valid_share), min(3, last - first))
        train.append(np.arange(first + 1, max(cut - 1, first + 1)))
        valid.append(np.arange(cut + 1, max(last - 1, cut + 1)))
    return Triplets(corpus, np.concatenate(train), limit), Triplets(corpus, np.concatenate(valid), limit)


def valid_split(valid: Triplets, train: Triplets, count: int, rows: int) -> Batch:
    """The first triplets for validation as batches, stacked, and how often each word is a target in training.

    Shape:
        words and the others as in `Triplets.batch` with an axis (batches,) before them; counts int32 (words,).
    """
    chosen = np.flatnonzero(valid.fits)[:count]
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
    corpus = train.corpus
    middles = train.middles[train.fits]
    uses = np.bincount(np.concatenate((middles - 1, middles + 1)), minlength=len(corpus.lengths))
    counts = np.bincount(corpus.numbers, np.repeat(uses, corpus.lengths), minlength=len(corpus.words))
    counts[END] += uses.sum()
    return {**{key: np.stack([b[key] for b in batches]) for key in batches[0]}, "counts": counts.astype(np.int32)}


def splits(triplets: tuple[Triplets, Triplets], dataset: Dataset, batch_size: int, seed: int, filtering: Filter,
           valid_triplets: int) -> Splits:
    """Training batches, and the triplets for validation."""
    if batch_size < 1 or valid_triplets < 1:
        raise UsageError(f"[skip_thoughts] expected batch_size and valid_triplets of at least 1, found {batch_size} "
                         f"and {valid_triplets}")
    train, valid = triplets
    batches = HomogeneousBatches(train, batch_size, seed, filtering)
    evaluation = {"valid": valid_split(valid, train, valid_triplets, batch_size)}
    return Splits(dataset, batches, batches.steps_per_epoch, evaluation)
