"""The questions that a run reads: CNN's, a stand-in, the user's, or synthetic ones."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal

from duoln.errors import UsageError
from duoln.plugins.attentive_reader import corpus, made, vocabulary
from duoln.plugins.attentive_reader.batches import Dropout, Training, evaluated
from duoln.plugins.attentive_reader.corpus import Corpus, Cut, Split
from duoln.tasks import Dataset, Splits
from duoln.tasks.originals import first_there, in_home, original_or_made, suited_to
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

    Source "auto" falls back to synthetic questions only where nothing of a corpus is found; a damaged one is an error.

    Raises:
        DataMissingError: a corpus was requested and is not available.
        DataError: a file is damaged, or there are more words than the table has rows.
        UsageError: settings out of range.
    """
    check_least("attentive_reader", cfg, sentences=1, window=0, within_from=1, pad_multiple=1, min_count=1,
                table=vocabulary.SPECIAL + 1, evaluate_questions=1)
    (dataset, read_sets, where), why = _load(cfg, root)
    words = vocabulary.count_words(read_sets, where, cfg.table, cfg.min_count)
    parts = vocabulary.encode(read_sets, words)
    unknown = vocabulary.remark(parts, where)
    with suited_to(cfg.source, why):
        return _splits(cfg, dataset, parts, words, (why, unknown))


def _splits(cfg: Any, dataset: Dataset, parts: dict[str, Split], words: vocabulary.Vocabulary,
            remarks: Sequence[str]) -> Splits:
    dropout = None if cfg.dropout == "none" else Dropout(cfg.keep, cfg.width, cfg.hidden)
    train = Training(parts["train"], words.entities, words.rows, cfg.batch_size, cfg.seed, cfg.order, cfg.pad_multiple,
                     dropout)
    evaluation = {}
    for name, part in parts.items():
        shortened = name == "train" and cfg.evaluate_questions is not None
        count = max(cfg.evaluate_questions, cfg.batch_size) if shortened else None
        evaluation[name] = evaluated(part, count, cfg.batch_size, cfg.pad_multiple, cfg.last_batch)
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
                            lambda: (DATASETS["made"], made.make(cut), "made questions"))


def _find(cfg: Any, cut: Cut, root: Path | None) -> Callable[[], tuple[Dataset, Corpus, object]]:
    """The function that reads the corpus of a source; "auto" is the first that is there."""
    names = AUTO if cfg.source == "auto" else (cfg.source,)
    name_of = {place: name for name in names for place in PLACES[name]}
    first = first_there({place: (place,) for place in name_of}, tuple(name_of), root,
                        "put the questions there (CNN's: https://cs.nyu.edu/~kcho/DMQA), or name a folder or tar of "
                        "them with --set corpus=PATH; --preset small does without CNN's")
    path, dataset = first.files[0], DATASETS[name_of[first.name]]
    return lambda: (dataset, corpus.read(path, cut, cfg.within_from), path)
