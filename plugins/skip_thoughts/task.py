"""The task: configuration, presets, variants, loss, metrics, and what `duoln evaluate` calls."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal

import numpy as np

from duoln import Tensor, ops, optim
from duoln.data import Batch
from duoln.nn import Module, Params
from duoln.plugins.skip_thoughts import data, judging, sets, table
from duoln.plugins.skip_thoughts.corpus import Corpus
from duoln.plugins.skip_thoughts.model import LARGEST_NORM, Norm, SkipThoughts
from duoln.plugins.skip_thoughts.relatedness import ROUNDS, Round
from duoln.tasks import Column, Config, Dataset, Findings, ReferenceTable, Splits, Task
from duoln.tasks.originals import DATA_SEED, blame_missing_data
from duoln.tasks.settings import check_least
from duoln.tasks.task import Predict
from duoln.tasks.values import Trained

_GRIDS = {"fixed": (1.0,), "nested": judging.GRID}


@dataclass(frozen=True)
class SkipThoughtsConfig(Config):
    """Settings; the defaults are those of the code behind the paper."""

    batch_size: int = 64
    learning_rate: float = 2e-4
    bias_correction: Literal["standard", "kiros2015"] = "kiros2015"
    """Adam's: standard, or that of the authors' code, which makes early updates larger."""
    norm: Norm = "layer-theano"
    """Norm of the GRUs."""
    hidden: int = 2400
    """Units of each GRU, and the size of a sentence's code."""
    width: int = 620
    """Size of the word vectors."""
    words: int = 20_000
    """Rows of the table of word vectors, with the end and the unknown word."""
    longest: int = 30
    """Sentences must have fewer words than this."""
    filtering: data.Filter = "batch"
    """When triplets with a long neighbour are left out: from each batch, as in the authors' code, or before."""
    lower_case: bool = False
    """True reads all words in lower case."""
    source: data.Source = "auto"
    """The sentences: bookcorpus is the original, novels100 and novels are substitutes, made is synthetic, auto is the
    first that is available."""
    corpus: str | None = None
    """A plain text of your own; none is that of the data folders."""
    valid_share: float = 0.02
    """Share of each book, at its end, that is left out of training, where no whole books are."""
    valid_triplets: int = 1024
    """Triplets of sentences of the validation."""
    judge: Literal["none", "fixed", "nested"] = "nested"
    """The work of an evaluation during training on SICK, MR, CR, SUBJ and MPQA: none, all with one strength of the
    penalty, or the whole protocol."""
    sick_round: Round = "keras0"
    """Epochs and batch of a round of training on SICK: the defaults of Keras before 1.0, or from 1.0 on."""


class SkipThoughtsTask(Task):
    """Skip-thoughts with a GRU encoder and two GRU decoders: nats per word, and the quality of the codes."""

    name = "skip_thoughts"
    title = "Skip-thoughts"
    paper = "section 6.3, table 3, figure 3"
    config = SkipThoughtsConfig
    corpora: ClassVar = {name: [files] for name, files in data.PLACES.items()}
    presets: ClassVar = {
        # One pass over BookCorpus is about a million updates, as the paper has.
        "paper": {"epochs": 1, "evaluate_every": 50_000, "source": "bookcorpus"},
        "small": {"epochs": 3, "hidden": 200, "width": 120, "words": 4000, "longest": 21, "learning_rate": 1e-3,
                  "filtering": "corpus", "lower_case": True, "valid_triplets": 512, "judge": "fixed",
                  "sick_round": "keras1", "evaluate_every": 336},
        "smoke": {"epochs": 1, "hidden": 12, "width": 8, "words": 60, "longest": 12, "learning_rate": 1e-2,
                  "batch_size": 16, "filtering": "corpus", "lower_case": True, "source": "made", "valid_share": 0.1,
                  "valid_triplets": 32, "judge": "fixed", "sick_round": "keras1"},
    }
    variants: ClassVar = {"none": {"norm": "none"}, "ln": {"norm": "layer-theano"}}
    references: ClassVar = {
        "none": "r .842, rho .767, MSE .298, MR 77.3, CR 81.8, SUBJ 92.6, MPQA 87.9 (table 3, 2400 units)",
        "ln": "r .854, rho .785, MSE .277, MR 79.5, CR 82.6, SUBJ 93.4, MPQA 89.0 (table 3, 2400 units)",
    }
    columns = (Column("valid_nats", "nats/word", ".3f", level="valid_unigram"),
               Column("valid_unigram", "unigram", ".3f"),
               *(Column(key, heading, form) for key, heading, form in table.COLUMNS if key != "sick_rho"))
    # Figure 3 has no rho; it is in the log and in curves.csv.
    x_axis = "update"
    batch_axes: ClassVar = {"words": 1, "mask": 1, "given": 2, "targets": 2}
    evaluating = table.Options
    peers: ClassVar = {"torch": {}, "torch-fused": {"fused": True}}

    def data(self, cfg: SkipThoughtsConfig, root: Path | None = None) -> Splits:
        check_least(self.name, cfg, batch_size=1, valid_triplets=1)
        if cfg.judge != "none":
            judging.check_library()
        dataset, corpus, held_out, why = data.load(cfg.source, cfg.corpus, cfg.words, cfg.lower_case, cfg.valid_share,
                                                   root)
        with blame_missing_data(cfg.source, why):
            train, valid = data.parts(corpus, held_out, cfg.longest, cfg.valid_share)
            batches = data.HomogeneousBatches(train, cfg.batch_size, cfg.seed, cfg.filtering)
            evaluation = {"valid": data.valid_split(valid, train, cfg.valid_triplets, cfg.batch_size)}
        judged = {} if cfg.judge == "none" else self._load_test_sets(cfg, dataset, corpus, root)
        unknown = data.unknown_words(corpus, held_out, judged, corpus.name)
        return Splits(dataset, batches, batches.steps_per_epoch, {**evaluation, **judged}, (why, unknown))

    def _load_test_sets(self, cfg: SkipThoughtsConfig, dataset: Dataset, corpus: Corpus,
                        root: Path | None) -> dict[str, Batch]:
        """The sets on which codes are judged; the seed is that of the judge's own weights, the same for every run."""
        number = {word: k for k, word in enumerate(corpus.words)}
        how = {"grid": np.array(_GRIDS[cfg.judge]), "round": np.array(ROUNDS[cfg.sick_round]),
               "seed": np.array(DATA_SEED)}
        tests = sets.load(sets.NAMES, dataset.provenance == "synthetic", cfg.lower_case, root)
        return {test.name: {**sets.as_batch(test, number), **how} for test in tests}

    def model(self, cfg: SkipThoughtsConfig) -> Module:
        return SkipThoughts(cfg.words, cfg.width, cfg.hidden, cfg.norm)

    def loss(self, model: SkipThoughts, params: Params, batch: dict[str, Tensor]) -> Tensor:
        """The sum over words, both sentences and the batch, as in the code behind the paper."""
        return ops.sum(self.predict(model, params, batch))

    def predict(self, model: SkipThoughts, params: Params, batch: dict[str, Tensor]) -> Tensor:
        """The nats of the neighbours' words, (2, T, B), if the batch has targets; else the codes, (B, hidden)."""
        if "targets" in batch:
            return model.nats(params, batch["words"], batch["mask"], batch["given"], batch["targets"])
        return model.code(params, batch["words"], batch["mask"])

    def metrics(self, predict: Predict, split: Batch) -> dict[str, float]:
        if "targets" in split:
            return judging.nats_of(predict, split)
        x = judging.codes(predict, split["words"], split["lengths"])
        epochs, batch = split["round"].tolist()
        return judging.figures_of(x, split["answers"], split["parts"], f"{len(x):,} sentences", int(split["seed"]),
                                  (epochs, batch), split["grid"].tolist())

    def optimizer(self, cfg: SkipThoughtsConfig, updates: int) -> optim.Optimizer:
        return optim.Adam(learning_rate=cfg.learning_rate, bias_correction=cfg.bias_correction, donate=True,
                          clip=optim.clip_global_norm(LARGEST_NORM))

    def reference_tables(self) -> Sequence[ReferenceTable]:
        return [table.reference()]

    def evaluate(self, trained: Trained, options: table.Options, say: Callable[[str], None]) -> Findings:
        return table.judge_run(trained, options, say)
