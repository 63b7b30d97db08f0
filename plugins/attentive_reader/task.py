"""The task: configuration, presets, variants, loss and metrics."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import ClassVar, Literal

import numpy as np

from duoln import Tensor, ops, optim
from duoln.data import Batch
from duoln.nn import Module, Params
from duoln.plugins.attentive_reader import data
from duoln.plugins.attentive_reader.batches import LastBatch, Order, evaluation_batches
from duoln.plugins.attentive_reader.corpus import UNKNOWN, LastToken
from duoln.plugins.attentive_reader.model import LIMIT, DropoutForm, Likelihood, Norm, Reader, Start
from duoln.tasks import Column, Config, ReferenceCurve, Splits, Task
from duoln.tasks.task import Predict

Clip = Literal["paper", "norm"]
FIGURE = Path(__file__).with_name("figure2.csv")
"""The curves of figure 2, read off the vector figure in which the baseline and batch norm were first published."""


@dataclass(frozen=True)
class AttentiveReaderConfig(Config):
    """Settings; the defaults are the protocol's (see RESULTS.md)."""

    batch_size: int = 64
    learning_rate: float = 8e-5
    norm: Norm = "layer-theano"
    """Norm of the LSTMs."""
    everywhere: bool = False
    """True puts batch norm into attention and output too."""
    gain: float | None = None
    """Initial gain of the LSTMs' norms; none is 1, or 0.1 for batch norm."""
    table: int = 65_829
    """Rows of the table of words; the answer is one of all of them, or one class more."""
    min_count: int = 2
    """Least number of times that the training set must have a word that is known."""
    width: int = 240
    """Size of the word vectors."""
    hidden: int = 240
    """Units of each direction of the LSTMs."""
    sentences: int | None = 4
    """Read only so many sentences of a passage, those that share most words with the question; none is all."""
    window: int | None = None
    """The largest distance from an entity at which words of the rest of a passage are read; none is all."""
    within_from: int | None = None
    """Train also on questions made of the training passages: every sentence from this one on, after those before it."""
    last_token: LastToken = "dropped"
    """The last token of every passage and question: read or dropped."""
    order: Order = "sequential"
    """Order of the questions: as they stand, or new in every epoch, in batches of like lengths."""
    last_batch: LastBatch = "dropped"
    """The last batch of an evaluation, where it is not full."""
    pad_multiple: int = 1
    """Lengths are rounded up to a multiple of this; with 1 nearly every batch is compiled again."""
    start: Start = "paper"
    """Initial weights: those of the authors' code, or Glorot's, each drawn on its own."""
    tied: bool = False
    """True makes the scores of words products with their vectors, in the place of a matrix of their own."""
    dropout: DropoutForm = "paper"
    """Paper multiplies by `keep` in use, inverted divides by `keep` in training, none drops nothing."""
    keep: float = 0.5
    """Chance that a value is kept by dropout."""
    clip: Clip = "paper"
    """Bound on the norm of the gradients: that of the authors' code, or the usual one."""
    likelihood: Likelihood = "paper"
    """The loss: -log(p + 1e-8), or -log p."""
    source: data.Source = "auto"
    """The questions: cnn is the original, novels and novels-large are substitutes, made is synthetic, auto is the first
    of cnn, novels and made that is available."""
    corpus: str | None = None
    """A folder or tar of questions of your own; none is what `source` names."""
    evaluate_questions: int | None = 3_924
    """The number of training questions that are evaluated: as many as CNN's validation set has."""


class AttentiveReader(Task):
    """The attentive reader on CNN questions: validation error against updates."""

    name = "attentive_reader"
    title = "Attentive reader of CNN questions"
    paper = "section 6.2, figure 2"
    config = AttentiveReaderConfig
    corpora: ClassVar = {name: [(place,) for place in places] for name, places in data.PLACES.items()}
    presets: ClassVar = {
        # Figure 2 goes to 800,000 updates: 135 passes over CNN's 380,298 questions.
        "paper": {"epochs": 135, "evaluate_every": 1000, "source": "cnn"},
        "small": {"epochs": 8, "batch_size": 32, "evaluate_every": 69, "learning_rate": 5e-3, "table": 5_000,
                  "min_count": 10, "width": 64, "hidden": 64, "sentences": None, "window": 1, "within_from": 10,
                  "last_token": "kept", "order": "by-length", "last_batch": "kept", "pad_multiple": 16,
                  "start": "glorot", "tied": True, "dropout": "inverted", "keep": 0.9, "clip": "norm",
                  "likelihood": "exact", "evaluate_questions": 128},
        "smoke": {"epochs": 4, "batch_size": 16, "table": 600, "width": 32, "hidden": 32, "sentences": 1, "window": 1,
                  "last_token": "kept", "pad_multiple": 16, "start": "glorot", "tied": True, "dropout": "none",
                  "clip": "norm", "likelihood": "exact", "learning_rate": 1e-2, "source": "made",
                  "evaluate_questions": 64},
    }
    variants: ClassVar = {
        "none": {"norm": "none"}, "bn": {"norm": "batch"}, "bn-everywhere": {"norm": "batch", "everywhere": True},
        "ln": {"norm": "layer-theano"}, "ln-gain-0.1": {"norm": "layer-theano", "gain": 0.1}}
    references: ClassVar = {
        "none": "least valid error 50.3 % (at 759,000 updates, read off figure 2)",
        "bn": "least valid error 49.5 % (at 228,000)",
        "bn-everywhere": "least valid error 50.0 % (at 126,000)",
        "ln": "trains faster and ends better than all of them; no number (43 % is the floor)",
        "ln-gain-0.1": "clearly worse than a gain of 1; no number",
    }
    columns = (Column("valid_error", "valid error", ".3f", level="valid_most_frequent_error"),
               Column("test_error", "test error", ".3f", level="test_most_frequent_error"),
               Column("valid_most_frequent_error", "most frequent entity (valid)", ".3f"),
               Column("test_most_frequent_error", "most frequent entity (test)", ".3f"))
    x_axis = "update"
    batch_axes: ClassVar = dict.fromkeys(("passage", "passage_mask", "question", "question_mask", "keep_passage",
                                          "keep_question"), 1)
    peers: ClassVar = {"torch": {}, "torch-fused": {"fused": True}}

    def data(self, cfg: AttentiveReaderConfig, root: Path | None = None) -> Splits:
        return data.splits(cfg, root)

    def model(self, cfg: AttentiveReaderConfig) -> Module:
        return Reader(cfg.table, cfg.width, cfg.hidden, cfg.norm, cfg.everywhere, cfg.gain, cfg.start, cfg.dropout,
                      cfg.keep, cfg.likelihood, cfg.tied)

    def loss(self, model: Reader, params: Params, batch: dict[str, Tensor]) -> Tensor:
        return ops.mean(model.loss(params, batch))

    def predict(self, model: Reader, params: Params, batch: dict[str, Tensor]) -> Tensor:
        """The score of every word as the answer: (B, table + 1)."""
        return model(params, batch)

    def metrics(self, predict: Predict, split: Batch) -> dict[str, float]:
        """Shares of questions whose answer is not the highest of all words, and the mean negative log-likelihood.

        `most_frequent_error` is the error of the answer that is the entity named most often in the whole passage.
        """
        errors, nats, count = 0.0, 0.0, len(split["answer"])
        for batch in evaluation_batches(split):
            logits, answer = predict(batch).astype(np.float64), batch["answer"]
            known = answer != UNKNOWN  # an answer that the table does not have is never found
            errors += float(np.count_nonzero((logits.argmax(axis=1) != answer) | ~known))
            logits -= logits.max(axis=1, keepdims=True)
            nats += float((np.log(np.exp(logits).sum(axis=1)) - logits[np.arange(len(answer)), answer]).sum())
        frequent = np.count_nonzero((split["most_frequent"] != split["answer"]) | (split["answer"] == UNKNOWN))
        return {"error": errors / count, "nll": nats / count, "most_frequent_error": frequent / count}

    def optimizer(self, cfg: AttentiveReaderConfig, updates: int) -> optim.Optimizer:
        clip = clip_as_published if cfg.clip == "paper" else optim.clip_global_norm
        return optim.Adam(learning_rate=cfg.learning_rate, clip=clip(LIMIT), donate=True)

    def reference_curves(self) -> Sequence[ReferenceCurve]:
        """Validation error against updates of none, bn and bn-everywhere; layer norm's curve has no numbers."""
        points: dict[str, list[tuple[float, float]]] = {}
        with FIGURE.open(encoding="utf-8", newline="") as file:
            for row in csv.DictReader(file):
                points.setdefault(row["variant"], []).append((float(row["updates"]), float(row["valid_error"])))
        return [ReferenceCurve("valid_error", variant, line) for variant, line in points.items()]


def clip_as_published(limit: float) -> optim.Clip:
    """The bound that the paper's code uses instead of `clip_global_norm`.

    It compares the norm n of all gradients with limit^2. If n is larger, it multiplies them by limit / sqrt(n), so that
    the norm becomes limit * sqrt(n). Otherwise nothing changes.
    """
    return optim.scale_by_norm(partial(_scale_as_published, limit))


def _scale_as_published(limit: float, norm: Tensor) -> Tensor:
    return ops.where(norm > limit * limit, limit / ops.sqrt(ops.maximum(norm, limit * limit)), 1.0)
