"""The task: configuration, presets, variants, loss and metrics."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from duoln import Tensor, ops, optim
from duoln.data import Batch, mnist
from duoln.nn import Module, Params
from duoln.plugins.convnet import corpus, data
from duoln.plugins.convnet.model import ConvNet, Gains, Norm, Start
from duoln.tasks import Column, Config, Splits, Task
from duoln.tasks.digits import nll_and_error
from duoln.tasks.task import Predict

_CHUNK = 100
"""Images a forward pass of the evaluation."""


@dataclass(frozen=True)
class ConvNetConfig(Config):
    """Settings. The paper gives none of them; these are the protocol of weight norm's paper (see RESULTS.md)."""

    batch_size: int = 100
    dataset: data.Corpus = "cifar10"
    """The images to recognise."""
    norm: Norm = "layer"
    """The norm of the convolutions and of the layers within."""
    gains: Gains = "unit"
    """Layer norm's gain and bias: one for each unit, or for each channel."""
    channels: int = 96
    """Channels of the first three convolutions; the others have twice as many."""
    start: Start = "gaussian"
    """Initial weights: gaussian has deviation 0.05, which suits 96 channels; he has one that suits any width."""
    noise: float = 0.15
    """Deviation of the Gaussian noise that is added to training images."""
    dropout: float = 0.5
    """Share of the values that is dropped after each of the two poolings in training."""
    whitening: data.Whitening = "zca"
    """The preparation of images: zca whitens them, mean subtracts the mean image only."""
    decay: float = 0.5
    """Share of the updates, the last ones, in which the learning rate falls in a straight line to 0; 0 keeps it."""
    source: data.Source = "auto"
    """The data: real is the original, made is synthetic, auto is the original if available, else made."""
    rows: int | None = None
    """Train on the first so many images at most; none is all."""
    evaluate_images: int | None = None
    """Evaluate on the first so many images of each split at most; none is all."""


class ConvNetTask(Task):
    """A ConvNet on CIFAR-10 or MNIST: layer norm is to be ahead of no norm, and batch norm ahead of both."""

    name = "convnet"
    title = "A small ConvNet on CIFAR-10 and MNIST"
    paper = "section 6.7"
    config = ConvNetConfig
    corpora: ClassVar = {"CIFAR-10": corpus.PLACES, "MNIST": mnist.PLACES}
    presets: ClassVar = {
        "paper": {"epochs": 200, "source": "real"},
        "small": {"epochs": 6, "channels": 16, "start": "he", "batch_size": 50, "whitening": "mean", "decay": 0.0,
                  "evaluate_images": 1_000},
        "small-mnist": {"dataset": "mnist", "epochs": 3, "channels": 16, "start": "he", "batch_size": 50,
                        "whitening": "mean", "decay": 0.0, "rows": 5_000, "evaluate_every": 50,
                        "evaluate_images": 1_000},
        "smoke": {"epochs": 1, "channels": 4, "start": "he", "batch_size": 20, "whitening": "mean", "decay": 0.0,
                  "source": "made", "rows": 200, "evaluate_images": 100},
    }
    variants: ClassVar = {
        "none": {"norm": "none"}, "bn": {"norm": "batch"}, "ln": {"norm": "layer"}, "wn": {"norm": "weight"}}
    references: ClassVar = {
        "none": "slower than LN",
        "bn": "ahead of the others",
        "ln": "faster than no norm, behind BN",
        "wn": "not in the paper",
    }
    columns = (Column("train_nll", "train NLL"), Column("test_nll", "test NLL"),
               Column("test_error", "test error", ".2%"))
    x_axis = "update"
    peers: ClassVar = {"torch": {}, "torch-fused": {"fused": True}}

    def data(self, cfg: ConvNetConfig, root: Path | None = None) -> Splits:
        return data.splits(cfg, root)

    def model(self, cfg: ConvNetConfig) -> Module:
        return ConvNet(data.SHAPES[cfg.dataset], cfg.channels, cfg.norm, cfg.gains, cfg.start)

    def loss(self, model: ConvNet, params: Params, batch: dict[str, Tensor]) -> Tensor:
        return ops.mean(ops.softmax_cross_entropy(model(params, batch), batch["label"]))

    def predict(self, model: ConvNet, params: Params, batch: dict[str, Tensor]) -> Tensor:
        return model(params, batch)

    def population(self, model: ConvNet, params: Params, batch: dict[str, Tensor]) -> Tensor:
        return self.predict(model, params, {"x": batch["x"]})

    def metrics(self, predict: Predict, split: Batch) -> dict[str, float]:
        return nll_and_error(predict, split, _CHUNK)

    def optimizer(self, cfg: ConvNetConfig, updates: int) -> optim.Optimizer:
        return optim.Adam(learning_rate=data.schedule(cfg), donate=True)
