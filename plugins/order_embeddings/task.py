"""The task: ranks of retrieval, configuration, presets, variants, loss and metrics."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal, NamedTuple

import numpy as np

from duoln import Tensor, optim
from duoln.data import Batch
from duoln.errors import DivergedError
from duoln.nn import Module, Params
from duoln.plugins.order_embeddings import data
from duoln.plugins.order_embeddings.corpus import Sentences
from duoln.plugins.order_embeddings.model import CLIP_EACH, Norm, OrderEmbedding, Score, clip_each_array
from duoln.tasks import Column, Config, ReferenceTable, Splits, Task
from duoln.tasks.task import Predict

RECALLS = (1, 5, 10)


class Ranks(NamedTuple):
    """0-based positions of what was looked for, when all candidates are sorted by their errors."""

    of_images: np.ndarray
    """(captions,): of each caption's image among all images."""
    of_captions: np.ndarray
    """(images,): of the best of each image's captions among all captions."""


def ranks(errors: np.ndarray) -> Ranks:
    """The ranks by a matrix of errors; candidates of equal error are in the order of their numbers.

    Shape:
        errors (k N, N): captions k j to k j + k - 1 belong to image j.

    Raises:
        DivergedError: an error that is not finite: it has no place in an order.
    """
    if not np.isfinite(errors).all():
        raise DivergedError("an embedding is no longer finite: its errors have no order")
    captions, images = np.arange(len(errors)), np.arange(errors.shape[1])
    each = len(captions) // len(images)
    own = captions // each
    mine = errors[captions, own][:, None]
    of_images = (errors < mine).sum(axis=1) + ((errors == mine) & (images < own[:, None])).sum(axis=1)
    best = np.full(len(images), len(captions))
    for k in range(each):
        row = each * images + k
        theirs = errors[row, images]
        before = (errors < theirs).sum(axis=0) + ((errors == theirs) & (captions[:, None] < row)).sum(axis=0)
        np.minimum(best, before, out=best)
    return Ranks(of_images, best)


def figures(errors: np.ndarray) -> dict[str, float]:
    """R@1, R@5, R@10 in per cent, median and mean rank (from 1), of images and of captions.

    The median is rounded down, as the authors' code has it. `image_sum` is R@1 + R@5 + R@10 of images: what selects
    a checkpoint.

    Shape:
        errors (k N, N), k captions for each image.

    Raises:
        DivergedError: an error that is not finite.
    """
    figures_by_name: dict[str, float] = {}
    for name, each in zip(("image", "caption"), ranks(errors), strict=True):
        recalls = {k: 100.0 * float((each < k).mean()) for k in RECALLS}
        figures_by_name |= {f"{name}_r{k}": value for k, value in recalls.items()}
        figures_by_name[f"{name}_sum"] = sum(recalls.values())
        figures_by_name[f"{name}_median_rank"] = float(np.floor(np.median(each)) + 1)
        figures_by_name[f"{name}_mean_rank"] = float(each.mean() + 1)
    return figures_by_name


_RANKED = 250
"""Captions whose errors are computed at a time in the evaluation."""


@dataclass(frozen=True)
class OrderEmbeddingsConfig(Config):
    """Settings; the defaults are the protocol's."""

    norm: Norm = "none"
    """Norm of the GRU that reads captions."""
    score: Score = "order"
    """Comparison of a caption and an image: by order violations, or by the cosine."""
    margin: float = 0.05
    """The margin by which a right pair must be better than a wrong one."""
    joint_size: int = 1024
    """Size of the space that captions and images share, and of the GRU's state."""
    word_size: int = 300
    """Size of the word vectors."""
    image_size: int = 4096
    """Size of the image features."""
    vocabulary: int = 32_000
    """Rows of the table of words; those that no word has are never changed."""
    bias_correction: Literal["standard", "kiros2015"] = "kiros2015"
    """Adam's: standard, or that of the authors' code, which makes early updates larger."""
    source: data.Source = "auto"
    """The data: coco is the original, flickr8k a substitute with photographs, made is synthetic, auto is the first of
    these that is available. flickr8k-captions is a substitute without pictures: its features are made of captions."""


TABLE_2 = ReferenceTable(
    "table 2", ("", *(f"{what} {of}" for what in ("caption", "image") for of in ("R@1", "R@5", "R@10", "mean rank"))), [
        ("Sym (Vendrov et al.)", "45.4", "-", "88.7", "5.8", "36.3", "-", "85.8", "9.0"),
        ("OE (Vendrov et al.)", "46.7", "-", "88.9", "5.7", "37.9", "-", "85.9", "8.1"),
        ("OE (ours)", "46.6", "79.3", "89.1", "5.2", "37.8", "73.6", "85.7", "7.9"),
        ("OE + LN", "48.5", "80.6", "89.8", "5.1", "38.9", "74.3", "86.3", "7.6")])
"""The paper's, of the test set; "ours" are the paper's authors."""


class OrderEmbeddings(Task):
    """Order embeddings of images and captions: recalls of retrieval both ways against updates."""

    name = "order_embeddings"
    title = "Order embeddings"
    paper = "section 6.1, table 2, figure 1"
    config = OrderEmbeddingsConfig
    corpora: ClassVar = {name: [files] for name, files in data.PLACES.items()}
    presets: ClassVar = {
        "paper": {"epochs": 100, "evaluate_every": 300, "source": "coco"},
        "small": {"epochs": 40, "batch_size": 64, "joint_size": 128, "word_size": 100, "image_size": 512,
                  "vocabulary": 4000, "margin": 0.2, "evaluate_every": 22},
        "smoke": {"epochs": 4, "batch_size": 16, "joint_size": 32, "word_size": 16, "image_size": 288,
                  "vocabulary": 40, "evaluate_every": 5, "learning_rate": 3e-3, "source": "made"},
    }
    variants: ClassVar = {
        "none": {"norm": "none"}, "ln": {"norm": "layer-theano"},
        "sym": {"norm": "none", "score": "cosine", "margin": 0.2}}
    references: ClassVar = {
        "none": "test, image R@1 37.8, R@5 73.6, R@10 85.7, mean rank 7.9; caption 46.6, 79.3, 89.1, 5.2 (table 2)",
        "ln": "test, image R@1 38.9, R@5 74.3, R@10 86.3, mean rank 7.6; caption 48.5, 80.6, 89.8, 5.1 (table 2)",
        "sym": "test, image R@1 36.3, R@10 85.8, mean rank 9.0; caption 45.4, 88.7, 5.8 (table 2, of Vendrov et al.)",
    }
    columns = tuple(Column(f"dev_image_r{k}", f"dev R@{k}", ".1f") for k in RECALLS)
    selection = ("dev_image_sum", "highest")
    x_axis = "update"
    batch_axes: ClassVar = {"ids": 1, "mask": 1}
    peers: ClassVar = {"torch": {}, "torch-fused": {"fused": True}}

    def data(self, cfg: OrderEmbeddingsConfig, root: Path | None = None) -> Splits:
        return data.splits(cfg, root)

    def model(self, cfg: OrderEmbeddingsConfig) -> Module:
        return OrderEmbedding(cfg.vocabulary, cfg.word_size, cfg.image_size, cfg.joint_size, cfg.norm, cfg.score,
                              cfg.margin)

    def loss(self, model: OrderEmbedding, params: Params, batch: dict[str, Tensor]) -> Tensor:
        return model.loss(model.captions(params, batch["ids"], batch["mask"]), model.images(params, batch["features"]))

    def predict(self, model: OrderEmbedding, params: Params, batch: dict[str, Tensor]) -> Tensor:
        """The points of sentences (`ids`, `mask`) or images (`features`), or the errors of `captions` and `images`."""
        if "ids" in batch:
            return model.captions(params, batch["ids"], batch["mask"])
        if "features" in batch:
            return model.images(params, batch["features"])
        return model.errors(batch["captions"], batch["images"])

    def metrics(self, predict: Predict, split: Batch) -> dict[str, float]:
        """The mean over folds of 1,000 images (or all, where there are fewer) of `figures`."""
        of_folds = [figures(_errors(predict, sentences, features))
                    for sentences, features in data.folds(split)]
        return {key: float(np.mean([each[key] for each in of_folds])) for key in of_folds[0]}

    def reference_tables(self) -> Sequence[ReferenceTable]:
        return [TABLE_2]

    def optimizer(self, cfg: OrderEmbeddingsConfig, updates: int) -> optim.Optimizer:
        return optim.Adam(learning_rate=cfg.learning_rate, bias_correction=cfg.bias_correction, donate=True,
                          clip=clip_each_array(CLIP_EACH))


def _errors(predict: Predict, sentences: Sentences, features: np.ndarray) -> np.ndarray:
    """The errors of all captions and images of a fold, float32 (captions, images), a block of captions at a time."""
    images = predict({"features": features})
    captions = np.empty((len(sentences), images.shape[1]), np.float32)
    for numbers, batch in data.in_batches(sentences):
        captions[numbers] = predict(batch)
    return np.concatenate([predict({"captions": captions[i:i + _RANKED], "images": images})
                           for i in range(0, len(captions), _RANKED)])
