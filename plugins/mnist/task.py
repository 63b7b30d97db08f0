"""Permutation-invariant MNIST: the network of section 6.6, and the task."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, ClassVar, Literal

from duoln import Tensor, nn, ops, optim
from duoln.data import Batch, Batches, mnist
from duoln.nn import Module, Params
from duoln.tasks import Column, Config, Splits, Task
from duoln.tasks.digits import Source, nll_and_error, read_digits
from duoln.tasks.task import Predict

Norm = Literal["none", "layer", "layer-logits", "batch", "batch-hidden"]


def network(norm: Norm, hidden: int, unbiased: bool, dropout: float = 0.0) -> nn.Sequential:
    """The classifier, with ReLUs and Glorot's uniform start, of which the paper says nothing.

    Layer norm is applied to the hidden layers but not to the logits. Batch norm is applied to all layers, also to the
    logits (section 6.6). Not in the paper: "batch-hidden" is batch norm where layer norm is, "layer-logits" layer norm
    where batch norm is. Batch norm's variance is the unbiased one if requested. The norm's bias replaces that of the
    linear layer. Dropout, which the paper does not have, acts on the activations of the hidden layers.

    Shape:
        images (B, 784) -> logits (B, 10).
    """
    layers: dict[str, Any] = {}
    sizes = (784, hidden, hidden, 10)
    for i, (n_in, n_out) in enumerate(pairwise(sizes), start=1):
        is_logits = i == len(sizes) - 1
        normalised = norm in ("batch", "layer-logits") or (norm != "none" and not is_logits)
        layers[f"linear{i}"] = nn.Linear(n_in, n_out, bias=not normalised, weight_init=nn.init.glorot)
        if norm.startswith("layer") and normalised:
            # Norm and activation in one pass over memory.
            layers[f"norm{i}"] = nn.LayerNorm(n_out, activation=None if is_logits else "relu")
        else:
            if normalised:
                layers[f"norm{i}"] = nn.BatchNorm(n_out, unbiased=unbiased)
            if not is_logits:
                layers[f"activation{i}"] = ops.relu
        if dropout and not is_logits:
            layers[f"dropout{i}"] = nn.Dropout(dropout)
    return nn.Sequential(**layers)


_VALID = 5_000
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
        dataset, sets, why = read_digits(self.name, cfg.source, cfg.rows, root, _VALID)
        batches = Batches(sets["train"], cfg.batch_size, cfg.seed, within={"label": (0, 10)})
        return Splits(dataset, batches, batches.steps_per_epoch, {name: sets[name] for name in ("train", "test")},
                      remarks=(why,))

    def model(self, cfg: MnistConfig) -> Module:
        # At batch 4 the paper estimates batch norm's variance without bias.
        return network(cfg.norm, cfg.hidden, unbiased=cfg.batch_size <= 4, dropout=cfg.dropout)

    def loss(self, model: Module, params: Params, batch: dict[str, Tensor]) -> Tensor:
        return ops.mean(ops.softmax_cross_entropy(model(params, batch["x"]), batch["label"]))

    def metrics(self, predict: Predict, split: Batch) -> dict[str, float]:
        return nll_and_error(predict, split, _ROWS)

    def optimizer(self, cfg: MnistConfig, updates: int) -> optim.Optimizer:
        return optim.Adam(learning_rate=cfg.learning_rate, donate=True)
