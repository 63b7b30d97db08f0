"""The task: configuration, presets, variants, loss, metrics, and what `sample` and `data prepare` call."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np

from duoln import Tensor, ops, optim
from duoln.data import Batch
from duoln.data.batches import examples
from duoln.nn import Module, Params
from duoln.plugins.handwriting import corpus, data, iam
from duoln.plugins.handwriting.model import (
    ADAM_EPS,
    CLIP_OUTPUT,
    CLIP_STEPS,
    CLIP_WEIGHTS,
    Norm,
    Synthesis,
)
from duoln.plugins.handwriting.ops import mixture_density
from duoln.plugins.handwriting.sampling import Options, sample
from duoln.tasks import Column, Config, Splits, Task
from duoln.tasks.task import Predict
from duoln.tasks.values import Trained

_LINES = 32
"""Lines a forward pass of the evaluation."""


@dataclass(frozen=True)
class HandwritingConfig(Config):
    """Settings; the defaults are the protocol's."""

    batch_size: int = 8
    learning_rate: float = 1e-4
    norm: Norm = "layer"
    """Norm of the three LSTM layers."""
    hidden: int = 400
    """Units of each of the three LSTM layers."""
    gaussians: int = 10
    """Gaussians of the window on the text."""
    mixtures: int = 20
    """Gaussians of the mixture that predicts the next point."""
    length: int = 500
    """Points of a line at most."""
    text_length: int = 96
    """Characters of a line at most; a shorter longest text makes the batches narrower."""
    order: data.Order = "sequential"
    """Order of the lines: as they stand, or new in every epoch."""
    window_advance: float = 1.0
    """Factor of the window's steps: exp(0) is a character a point at the start, where handwriting takes about 22."""
    source: data.Source = "auto"
    """The data: iam is the original, made is synthetic, auto is the original if available, else made."""
    lines: int | None = None
    """Train on the first so many lines only; none is all."""
    evaluate_lines: int | None = None
    """Evaluate the first so many lines of each set only; none is all."""


class Handwriting(Task):
    """Handwriting synthesis on IAM-OnDB, batch 8, sequences of up to 500 points, nats a sequence."""

    name = "handwriting"
    title = "Handwriting synthesis"
    paper = "section 6.5, figure 5"
    config = HandwritingConfig
    corpora: ClassVar = {"IAM-OnDB": [corpus.FILES]}
    presets: ClassVar = {
        # Figure 5 ends at 200,000 updates: 299 passes over the 5,364 lines of the official training list.
        "paper": {"epochs": 299, "evaluate_every": 2000, "source": "iam"},
        "small": {"epochs": 1, "hidden": 128, "gaussians": 6, "mixtures": 8, "length": 150, "lines": 3200,
                  "learning_rate": 5e-4, "window_advance": 0.05, "evaluate_lines": 64,
                  "evaluate_every": 50},
        "smoke": {"epochs": 1, "hidden": 16, "gaussians": 3, "mixtures": 3, "length": 24, "text_length": 12,
                  "lines": 64, "learning_rate": 3e-3, "source": "made", "evaluate_lines": 8},
    }
    variants: ClassVar = {"none": {"norm": "none"}, "ln": {"norm": "layer"}}
    references: ClassVar = {
        "none": "comparable log-likelihood, slower (text of section 6.5; figure 5 has no values)",
        "ln": "comparable log-likelihood, much faster (text of section 6.5; figure 5 has no values)",
    }
    columns = (Column("train_nll", "train nats", ".1f"), Column("valid_nll", "valid nats", ".1f"),
               Column("test_nll", "test nats", ".1f"))
    selection = ("valid_nll", "lowest")
    x_axis = "update"
    batch_axes: ClassVar = data.BATCH_AXES
    sampling = Options
    peers: ClassVar = {"torch": {}, "torch-fused": {"fused": True}}

    def data(self, cfg: HandwritingConfig, root: Path | None = None) -> Splits:
        return data.splits(cfg, root)

    def model(self, cfg: HandwritingConfig) -> Module:
        return Synthesis(cfg.norm, cfg.hidden, cfg.gaussians, cfg.mixtures, CLIP_STEPS, CLIP_OUTPUT,
                         cfg.window_advance)

    def loss(self, model: Synthesis, params: Params, batch: dict[str, Tensor]) -> Tensor:
        return ops.sum(self.predict(model, params, batch)) / batch["text"].shape[0]

    def predict(self, model: Synthesis, params: Params, batch: dict[str, Tensor]) -> Tensor:
        """The negative log-likelihood of each line, in nats: (B,)."""
        each = mixture_density(model.outputs(params, batch["x"], batch["text"]), batch["target"])
        return ops.sum(ops.where(batch["mask"], each, 0.0), axis=0)

    def metrics(self, predict: Predict, split: Batch) -> dict[str, float]:
        count = len(split["text"])
        total = sum(float(predict(examples(split, data.BATCH_AXES, slice(i, i + _LINES))).astype(np.float64).sum())
                    for i in range(0, count, _LINES))
        return {"nll": total / count}

    def optimizer(self, cfg: HandwritingConfig, updates: int) -> optim.Optimizer:
        return optim.Adam(learning_rate=cfg.learning_rate, eps=ADAM_EPS, donate=True,
                          clip=optim.clip_value(CLIP_WEIGHTS))

    def sample(self, trained: Trained, options: Options, out: Path) -> list[Path]:
        return sample(trained, options, out)

    def prepare(self, source: Path, target: Path) -> list[Path]:
        return iam.prepare(source, target)
