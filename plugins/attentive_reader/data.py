"""The questions that a run reads: CNN's, a stand-in, the user's, or synthetic ones."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np

from duoln import Stream
from duoln.data.text import describe_unknown
from duoln.errors import UsageError
from duoln.plugins.attentive_reader import corpus
from duoln.plugins.attentive_reader.batches import Dropout, Training, evaluation_split
from duoln.plugins.attentive_reader.corpus import Collector, Corpus, Cut, Split
from duoln.plugins.attentive_reader.questions import PLACEHOLDER, Question
from duoln.tasks import Dataset, Splits
from duoln.tasks.originals import DATA_SEED, blame_missing_data, first_there, in_home, original_or_made
from duoln.tasks.settings import check_least

Source = Literal["auto", "cnn", "novels", "novels-large", "made"]

PLACES: dict[str, tuple[str, ...]] = {
    "cnn": ("cloze/cnn.tgz", "cloze/cnn.tar.gz", "cloze/cnn.tar", "cloze/cnn"),
    "novels": ("cloze/novel_cloze_questions.tar.gz",),
    "novels-large": ("cloze/novel_cloze_large.tar.gz",),
}
"""The places of each corpus below a data folder."""
AUTO = ("cnn", "novels")
"""The order in which "auto" looks. The large cloze set needs a larger table, and so has to be asked for."""
DATASETS = {"cnn": Dataset("CNN questions", "original"), "novels": Dataset("novel cloze", "substitute"),
            "novels-large": Dataset("novel cloze, large", "substitute"),
            "made": Dataset("made questions", "synthetic")}


def splits(cfg: Any, root: Path | None) -> Splits:
    """Training batches, and the splits for evaluation; for the training set these are its first questions.

    Raises:
        as `original_or_made`. DataError: there are more words than the table has rows. UsageError: settings out of
            range.
    """
    check_least("attentive_reader", cfg, sentences=1, window=0, within_from=1, pad_multiple=1, min_count=1,
                table=corpus.SPECIAL + 1, evaluate_questions=1)
    (dataset, read_sets, where), why = _load(cfg, root)
    words = corpus.count_words(read_sets, where, cfg.table, cfg.min_count)
    parts = corpus.encode(read_sets, words)
    unknown = describe_unknown(where, {name: float(np.mean(part.passages.values == corpus.UNKNOWN))
                                       for name, part in parts.items()})
    with blame_missing_data(cfg.source, why):
        return _splits(cfg, dataset, parts, words, (why, unknown))


def _splits(cfg: Any, dataset: Dataset, parts: dict[str, Split], words: corpus.Vocabulary,
            remarks: Sequence[str]) -> Splits:
    dropout = None if cfg.dropout == "none" else Dropout(cfg.keep, cfg.width, cfg.hidden)
    train = Training(parts["train"], words.entities, words.rows, cfg.batch_size, cfg.seed, cfg.order, cfg.pad_multiple,
                     dropout)
    evaluation = {}
    for name, part in parts.items():
        shortened = name == "train" and cfg.evaluate_questions is not None
        count = max(cfg.evaluate_questions, cfg.batch_size) if shortened else None
        evaluation[name] = evaluation_split(part, count, cfg.batch_size, cfg.pad_multiple, cfg.last_batch)
        if not len(evaluation[name]["answer"]):
            raise UsageError(f"[attentive_reader] the {name} set is smaller than a batch, and so is left out: expected "
                             f"a batch_size of at most {len(part.answers)} or last_batch=kept, found {cfg.batch_size}")
    return Splits(dataset, train, train.steps_per_epoch, evaluation, remarks)


def _load(cfg: Any, root: Path | None) -> tuple[tuple[Dataset, Corpus, object], str]:
    cut = Cut(cfg.sentences, cfg.window, cfg.last_token)
    if cfg.corpus is not None:
        path = in_home(cfg.corpus)
        return (Dataset(path.name, "substitute"), corpus.read(path, cut, cfg.within_from), path), ""
    return original_or_made(cfg.source, partial(_find, cfg, cut, root),
                            lambda: (DATASETS["made"], make(cut), "made questions"))


def _find(cfg: Any, cut: Cut, root: Path | None) -> Callable[[], tuple[Dataset, Corpus, object]]:
    """The function that reads the corpus of a source; "auto" is the first that is there."""
    names = AUTO if cfg.source == "auto" else (cfg.source,)
    name_of = {place: name for name in names for place in PLACES[name]}
    first = first_there({place: (place,) for place in name_of}, tuple(name_of), root,
                        "put the questions there (CNN's: https://cs.nyu.edu/~kcho/DMQA), or name a folder or tar of "
                        "them with --set corpus=PATH; --preset small does without CNN's")
    path, dataset = first.files[0], DATASETS[name_of[first.name]]
    return lambda: (dataset, corpus.read(path, cut, cfg.within_from), path)


SIZES = {"train": 320, "valid": 64, "test": 64}
_ENTITIES, _IN_A_PASSAGE = 20, 5
_VERBS, _OTHERS = 12, 400
_FACTS = 6
_FILLING = (12, 28)
"""Words of a sentence without information: four sentences are then about as long as those of the paper's cut."""


def make(cut: Cut) -> Corpus:
    """Train, valid and test, always the same.

    A sentence says that one entity does something to another; the question repeats one of them without the first.
    """
    collector = Collector(cut)
    for split, count in SIZES.items():
        for k in range(count):
            collector.add(split, f"{k:06d}", make_question(Stream(DATA_SEED, f"attentive_reader.made.{split}", step=k)))
    return collector.corpus()


def make_question(rng: Stream) -> Question:
    here = [f"@entity{k}" for k in rng.permutation(_ENTITIES)[:_IN_A_PASSAGE]]
    facts, passage = [], list[str]()
    for verb in rng.permutation(_VERBS)[:_FACTS]:
        first, second = (here[k] for k in rng.permutation(_IN_A_PASSAGE)[:2])
        # Words without information: the common ones are drawn far more often, as in any language.
        length = _FILLING[0] + int(rng.integers(_FILLING[1] - _FILLING[0] + 1, ()))
        filling = [f"word{int(u * u * u * _OTHERS)}" for u in rng.uniform((length,))]
        cut = int(rng.integers(length, ()))
        facts.append((first, f"verb{verb}", second))
        passage += [*filling[:cut], *facts[-1], *filling[cut:], "."]
    answer, verb_word, object_word = facts[int(rng.integers(_FACTS, ()))]
    return Question(passage, [PLACEHOLDER, verb_word, object_word, "."], answer)
