"""A trained run beside table 3: the whole protocol, with baselines of the same sentences."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from duoln import Stream, tensor, to_tensors
from duoln.data import Batch
from duoln.errors import UsageError
from duoln.nn import Params
from duoln.plugins.skip_thoughts import data, judging, sets, vectors
from duoln.plugins.skip_thoughts.model import SkipThoughts
from duoln.plugins.skip_thoughts.relatedness import ROUNDS
from duoln.tasks import Findings, ReferenceTable, Trained, option
from duoln.tasks.originals import DATA_SEED, in_home

COLUMNS = (("sick_r", "r", ".3f"), ("sick_rho", "rho", ".3f"), ("sick_mse", "MSE", ".3f"), ("mr_accuracy", "MR", ".1f"),
           ("cr_accuracy", "CR", ".1f"), ("subj_accuracy", "SUBJ", ".1f"), ("mpqa_accuracy", "MPQA", ".1f"))
"""Table 3's columns: key, heading, format."""
PAPER = (("Original", (.848, .778, .287, 75.5, 79.3, 92.1, 86.9)), ("Ours", (.842, .767, .298, 77.3, 81.8, 92.6, 87.9)),
         ("Ours + LN", (.854, .785, .277, 79.5, 82.6, 93.4, 89.0)),
         ("Ours + LN †", (.858, .788, .270, 79.4, 83.1, 93.7, 89.3)))
"""Table 3, 2400 units on BookCorpus; † is after a month."""

Say = Callable[[str], None]


def reference() -> ReferenceTable:
    """Table 3, whose first row is the authors' of skip-thoughts."""
    return ReferenceTable("table 3", ("", *(heading for _, heading, _ in COLUMNS)),
                          [(name, *_formatted(values)) for name, values in PAPER])


def _formatted(values: Sequence[float]) -> list[str]:
    return [format(value, form) for value, (_, _, form) in zip(values, COLUMNS, strict=True)]


@dataclass(frozen=True)
class Options:
    """Options of `duoln evaluate skip_thoughts`."""

    vectors: str | None = option(None, "word vectors of word2vec, text or .bin, for words the run does not know")
    sets: str = option(",".join(sets.NAMES), "which sets, parted by commas")


def judge_run(trained: Trained, options: Options, say: Say) -> Findings:
    """The figures of a run's codes on every set, beside table 3.

    Raises:
        UsageError: an unknown set, or scikit-learn is missing.
        DataError: a set, the corpus or the word vectors are missing or damaged.
    """
    names = options.sets.split(",")
    unknown = [name for name in names if name not in sets.NAMES]
    if unknown:
        raise UsageError(f"[skip_thoughts] expected sets of {', '.join(sets.NAMES)}; found {unknown[0]!r}")
    if set(names) - {"sick"}:
        judging.check_library()
    cfg, model = trained.config, trained.model
    assert isinstance(model, SkipThoughts)
    dataset, corpus, _, _ = data.load(cfg.source, cfg.corpus, cfg.words, cfg.lower_case, cfg.valid_share)
    tests = sets.load(names, dataset.provenance == "synthetic", cfg.lower_case)
    table = trained.params["embedding"]["table"]
    words, rows = list(corpus.words), [table.numpy()]
    remarks = [f"the run: {trained.variant} after {trained.update:,} updates, {model.hidden} units, trained on "
               f"{dataset.label}"]
    if options.vectors is not None:
        say(f"reading {options.vectors}")
        others = vectors.read_vectors(in_home(options.vectors), sets.vocabulary_of(tests).union(corpus.words))
        expansion = vectors.expand(corpus.words, rows[0][:len(words)], others)
        rows = [rows[0][:len(words)], expansion.vectors]
        words += expansion.words
        remarks.append(f"vocabulary expansion: fitted on {expansion.fitted:,} words, {len(expansion.words):,} added")
    number = {word: k for k, word in enumerate(words)}
    known = ", ".join(f"{test.name} {sets.coverage(test, number):.1%}" for test in tests)
    remarks.append(f"words with a vector: {known}")

    def judge(label: str, of: Callable[[sets.TestSet], Any]) -> dict[str, float]:
        figures_by_name: dict[str, float] = {}
        for test in tests:
            say(f"{label}: {test.name}, {len(test.sentences):,} sentences")
            figures = judging.figures_of(of(test), test.answers, test.parts, test.name, DATA_SEED,
                                         ROUNDS["keras0"], judging.GRID)
            figures_by_name |= {f"{test.name}_{key}": value for key, value in figures.items()}
        return figures_by_name

    params = {**trained.params, "embedding": {"table": tensor(np.concatenate(rows), table.backend)}}
    ours = {f"{trained.variant}, {trained.update:,} updates":
            judge("the run", lambda test: _codes(model, params, test, number))}
    start = to_tensors(model.init(Stream(cfg.seed, "init")), table.backend)
    plain = {word: k for k, word in enumerate(corpus.words)}
    ours["no update"] = judge("no update", lambda test: _codes(model, start, test, plain))
    ours["bag of words"] = judge("bag of words", lambda test: bag_of_words(test, plain))
    return _findings(ours, dataset.label, remarks)


def bag_of_words(test: sets.TestSet, number: Mapping[str, int]) -> Any:
    """The counts of the vocabulary's words in each sentence, as rows of length 1.

    Dense for pairs, whose features are products of two rows; else sparse.
    """
    batch = sets.as_batch(test, number)
    inside = np.arange(batch["words"].shape[1]) < batch["lengths"][:, None]
    at = np.repeat(np.arange(len(inside)), batch["lengths"])
    if len(test.parts):
        # Words that no sentence of the set has would only be columns of zeros.
        _, columns = np.unique(batch["words"][inside], return_inverse=True)
        counts = np.zeros((len(inside), int(columns.max()) + 1), np.float32)
        np.add.at(counts, (at, columns), 1.0)
        dense: np.ndarray = counts / np.linalg.norm(counts, axis=1, keepdims=True)
        return dense
    from scipy.sparse import csr_array
    from sklearn.preprocessing import normalize

    ones = np.ones(len(at))
    return normalize(csr_array((ones, (at, batch["words"][inside])), shape=(len(inside), len(number))))


def _codes(model: SkipThoughts, params: Params, test: sets.TestSet, number: Mapping[str, int]) -> np.ndarray:
    be = params["embedding"]["table"].backend

    def encode(batch: Batch) -> np.ndarray:
        return model.code(params, tensor(batch["words"], be), tensor(batch["mask"], be)).numpy()

    batch = sets.as_batch(test, number)
    return judging.codes(encode, batch["words"], batch["lengths"])


def _findings(ours: Mapping[str, Mapping[str, float]], data_label: str, remarks: Sequence[str]) -> Findings:
    rows = [(name, "BookCorpus", *_formatted(values)) for name, values in PAPER]
    rows += [(name, data_label, *(format(results[key], form) if key in results else "-" for key, _, form in COLUMNS))
             for name, results in ours.items()]
    headings = ("", "data", *(heading for _, heading, _ in COLUMNS))
    return Findings("Skip-thoughts (section 6.3, table 3)", headings, rows,
                    (*remarks, "SICK: r, rho and MSE on the test pairs; MR, CR, SUBJ, MPQA: accuracy in percent, ten "
                     "nested folds; the first four rows are the paper's, † after a month"),
                    {"data": data_label, "results": {name: dict(results) for name, results in ours.items()},
                     "paper": {name: {key: v for v, (key, _, _) in zip(values, COLUMNS, strict=True)}
                               for name, values in PAPER}})
