"""The task: configuration, presets, variants, loss and metrics."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from duoln import Tensor, ops, optim
from duoln.data import Batch, mnist
from duoln.nn import Module, Params
from duoln.plugins.mnist import data
from duoln.plugins.mnist.model import Norm, network
from duoln.tasks import Column, Config, Splits, Task
from duoln.tasks.digits import Source, nll_and_error
from duoln.tasks.task import Predict

_ROWS = 1000
"""Rows a forward pass of the evaluation: a divisor of 55,000 and 10,000, so that it has one shape."""


@dataclass(frozen=True)
class MnistConfig(Config):
    """Settings; if the paper leaves a setting open, the default is the simplest choice."""

    epochs: int = 2
    norm: Norm = "layer"
    """Before the ReLU: layer and batch-hidden norm the hidden layers, layer-logits and batch the logits too."""
    hidden: int = 1000
    """Units of each of the two hidden layers."""
    dropout: float = 0.0
    """The share of each hidden layer's activations that an update leaves out; 0 is the paper's."""
    source: Source = "auto"
    """The data: mnist is the original, made is synthetic, auto is the original if available, else made."""
    rows: int | None = None
    """Train on the first so many digits only; none is all."""


class Mnist(Task):
    """784-1000-1000-10 on MNIST with the pixels in any fixed order, batch 128 and 4."""

    name = "mnist"
    title = "Permutation-invariant MNIST"
    paper = "section 6.6, figure 6"
    config = MnistConfig
    corpora: ClassVar = {"MNIST": mnist.PLACES}
    presets: ClassVar = {
        "paper": {"epochs": 60, "source": "mnist"},
        "small": {"epochs": 2},
        "smoke": {"epochs": 1, "hidden": 64, "source": "made", "rows": 2000},
    }
    variants: ClassVar = {
        "none": {"norm": "none"},
        "bn": {"norm": "batch"},
        "ln": {"norm": "layer"},
        "bn-hidden": {"norm": "batch-hidden"},
        "ln-logits": {"norm": "layer-logits"},
    }
    references: ClassVar = {
        "none": "the baseline",
        "bn": "slower than LN",
        "ln": "fastest, at either batch size",
        "bn-hidden": "not in the paper",
        "ln-logits": "not in the paper",
    }
    columns = (Column("train_nll", "train NLL"), Column("test_error", "test error", ".2%"))
    peers: ClassVar = {"torch": {}, "torch-fused": {"fused": True}}

    def data(self, cfg: MnistConfig, root: Path | None = None) -> Splits:
        return data.splits(cfg.source, cfg.batch_size, cfg.seed, cfg.rows, root)

    def model(self, cfg: MnistConfig) -> Module:
        # At batch 4 the paper estimates batch norm's variance without bias.
        return network(cfg.norm, cfg.hidden, unbiased=cfg.batch_size <= 4, dropout=cfg.dropout)

    def loss(self, model: Module, params: Params, batch: dict[str, Tensor]) -> Tensor:
        return ops.mean(ops.softmax_cross_entropy(model(params, batch["x"]), batch["label"]))

    def metrics(self, predict: Predict, split: Batch) -> dict[str, float]:
        return nll_and_error(predict, split, _ROWS)

    def optimizer(self, cfg: MnistConfig, updates: int) -> optim.Optimizer:
        return optim.Adam(learning_rate=cfg.learning_rate, donate=True)
