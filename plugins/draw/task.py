"""The task: configuration, presets, variants, loss, metrics, the bound on whole sets, and what `sample` calls."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import sqrt
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from duoln import Tensor, ops, optim, to_tensors
from duoln.data import Batch
from duoln.nn import Module, Params
from duoln.plugins.draw import corpus, data, sampling
from duoln.plugins.draw.model import LARGEST_NORM, Draw, Norm, Start
from duoln.tasks import Column, Config, Findings, Splits, Task, Trained
from duoln.tasks.task import Predict

PARTS = ("bound", "reconstruction", "divergence")


@dataclass(frozen=True)
class Evaluating:
    """`duoln evaluate draw` has no options."""


def findings(trained: Trained, say: Callable[[str], None]) -> Findings:
    """The bound, what the pixels cost and the divergence, in nats: means over all images of valid and of test, with the
    standard error over images. The latent variables have the noise of the evaluations during training.

    Raises:
        DataError: the images are not available or damaged.
    """
    splits = data.splits(replace(trained.config, evaluate_images=None), None)
    rows, figures = [], dict[str, float]()
    for name in ("valid", "test"):
        say(f"evaluating: {name}, {len(splits.evaluation[name]['x']):,} images")
        nats = of_images(trained, splits.evaluation[name])
        by_part = dict(zip(PARTS, (nats.sum(axis=1), *nats.T), strict=True))
        figures |= {f"{name}_{part}": float(values.mean()) for part, values in by_part.items()}
        figures[f"{name}_error"] = float(by_part["bound"].std(ddof=1) / sqrt(len(nats)))
        rows.append((name, *(f"{figures[f'{name}_{part}']:.2f}" for part in PARTS), f"{figures[f'{name}_error']:.2f}"))
    return Findings("Bound of the negative log-likelihood, nats", ("set", *PARTS, "standard error"), rows,
                    [f"{splits.dataset.label}; variant {trained.variant} after {trained.update:,} updates; latent "
                     "variables drawn once for each image"], figures)


def of_images(trained: Trained, split: Batch) -> np.ndarray:
    """The cross-entropy of each image's pixels and the divergence of its latent variables: float64 (images, 2)."""
    backend = trained.params["look"]["bias"].backend
    return np.concatenate([trained.model(trained.params, to_tensors(batch, backend)).numpy()
                           for batch in data.evaluation_batches(split)]).astype(np.float64)


@dataclass(frozen=True)
class DrawConfig(Config):
    """Settings. The paper gives glimpses, units, batch, optimizer and length; the rest is open (see RESULTS.md)."""

    glimpses: int = 64
    """Steps in which an image is read and drawn."""
    hidden: int = 256
    """Units of the encoder's and of the decoder's LSTM."""
    latent: int = 100
    """Size of the latent variable of each step."""
    read: int = 2
    """The patch that a glimpse reads has so many points a side."""
    write: int = 5
    """The patch that a glimpse writes has so many points a side."""
    norm: Norm = "layer-cell"
    """Norm of the LSTMs; weight is weight norm of every linear map."""
    start: Start = "fan-in"
    """Initial weights: fan-in is uniform in +-1 / sqrt(fan in)."""
    source: data.Source = "auto"
    """The data: binarized_mnist is the original, made is synthetic, auto is the original if available, else made."""
    rows: int | None = None
    """Train on the first so many images only; none is all."""
    evaluate_images: int | None = None
    """Evaluate on so many images of each split, evenly spread; none is all (of training, 10,000)."""


class DrawTask(Task):
    """DRAW on binarised MNIST: the bound of the log-likelihood against updates."""

    name = "draw"
    title = "DRAW on binarised MNIST"
    paper = "section 6.4, figure 4"
    config = DrawConfig
    corpora: ClassVar = {"binarised MNIST": corpus.PLACES}
    presets: ClassVar = {
        "paper": {"epochs": 200, "source": "binarized_mnist"},
        "small": {"epochs": 5, "glimpses": 8, "hidden": 128, "latent": 32, "read": 5, "learning_rate": 2e-3,
                  "evaluate_every": 130, "evaluate_images": 1000},
        "smoke": {"epochs": 1, "glimpses": 3, "hidden": 16, "latent": 4, "batch_size": 20, "source": "made",
                  "rows": 200, "evaluate_images": 100},
    }
    variants: ClassVar = {
        "none": {"norm": "none"}, "wn": {"norm": "weight"}, "ln": {"norm": "layer-cell"}}
    references: ClassVar = {
        "none": "82.36 nats on test after 200 epochs",
        "wn": "a curve in figure 4, no number",
        "ln": "82.09 nats on test after 200 epochs; almost twice as fast",
    }
    columns = (Column("test_bound", "test bound, nats", ".2f"),)
    selection = ("valid_bound", "lowest")
    x_axis = "update"
    batch_axes: ClassVar = {"noise": 1}
    sampling = sampling.Options
    evaluating = Evaluating
    peers: ClassVar = {"torch": {}, "torch-fused": {"fused": True}}

    def data(self, cfg: DrawConfig, root: Path | None = None) -> Splits:
        return data.splits(cfg, root)

    def model(self, cfg: DrawConfig) -> Module:
        return Draw(cfg.glimpses, cfg.hidden, cfg.latent, cfg.read, cfg.write, cfg.norm, cfg.start)

    def loss(self, model: Draw, params: Params, batch: dict[str, Tensor]) -> Tensor:
        nats = model(params, batch)
        y: Tensor = ops.sum(nats) / nats.shape[0]
        return y

    def predict(self, model: Draw, params: Params, batch: dict[str, Tensor]) -> Tensor:
        return model(params, batch)

    def metrics(self, predict: Predict, split: Batch) -> dict[str, float]:
        nats = np.concatenate([predict(batch) for batch in data.evaluation_batches(split)]).astype(np.float64)
        missed, divergence = nats.mean(axis=0)
        return {"bound": missed + divergence, "reconstruction": missed, "divergence": divergence}

    def optimizer(self, cfg: DrawConfig, updates: int) -> optim.Optimizer:
        return optim.Adam(learning_rate=cfg.learning_rate, donate=True, clip=optim.clip_global_norm(LARGEST_NORM))

    def sample(self, trained: Trained, options: Any, out: Path) -> list[Path]:
        return sampling.draw_pictures(trained, options, out)

    def evaluate(self, trained: Trained, options: Evaluating, say: Callable[[str], None]) -> Findings:
        return findings(trained, say)
