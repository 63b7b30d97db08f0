"""The task: configuration, presets, variants, loss, metrics, and what `sample` and `evaluate` call."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from math import log
from pathlib import Path
from typing import ClassVar

import numpy as np

from duoln import Tensor, ops, optim
from duoln.data import Batch
from duoln.nn import Module, Params
from duoln.plugins.transformer import corpus, data, gradients
from duoln.plugins.transformer.corpus import ALPHABET, Source
from duoln.plugins.transformer.model import BETA2, CharacterTransformer, Kind, Place, inverse_root, rate_remark
from duoln.plugins.transformer.sampling import Options, sample
from duoln.tasks import Column, Config, Findings, Splits, Task, Trained
from duoln.tasks.task import Predict

_WINDOWS = 32
"""Windows a forward pass of the evaluation."""


@dataclass(frozen=True)
class TransformerConfig(Config):
    """Settings; the defaults are the sizes of Xiong et al. 2020 for IWSLT14 (see RESULTS.md)."""

    batch_size: int = 16
    learning_rate: float = 1e-3
    """The highest; see `warm` and `warmup`."""
    warm: bool = False
    """True lets the rate rise to its highest value along a line; else it has that value from the first update on."""
    warmup: int = 4000
    """The last update that has the highest rate at most; from there on it falls with the inverse root of the number of
    updates. 0 keeps the rate as it is."""
    norm: Place = "pre"
    """Place of the norms of a block: pre is before attention and layers, post is after each sum."""
    kind: Kind = "layer"
    """Kind of the norms: layer norm or RMS norm."""
    blocks: int = 6
    """Blocks of attention and two layers."""
    width: int = 512
    """Size of a character's vector."""
    heads: int = 4
    """Heads of the attention."""
    hidden: int = 1024
    """Units between the two layers of a block."""
    length: int = 256
    """Characters of a window."""
    updates: int = 1000
    """Updates of an epoch: each draws its windows at random places of the text."""
    windows: int = 256
    """Windows of validation and of test that an evaluation reads."""
    source: Source = "auto"
    """The text: novels (eleven) or novels100 (95), made are synthetic books, auto is the first that is available."""
    corpus: str | None = None
    """A plain text of your own; none is that of the data folders."""


class TransformerTask(Task):
    """A character language model: nats of the next character, by where the norms stand and how the rate begins."""

    name = "transformer"
    title = "Characters by a Transformer"
    config = TransformerConfig
    corpora: ClassVar = {name: [files] for name, files in corpus.PLACES.items()}
    presets: ClassVar = {
        "xiong2020": {"source": "novels100", "epochs": 100},
        "small": {"width": 128, "hidden": 256, "length": 64, "batch_size": 32, "learning_rate": 4e-3,
                  "warmup": 100, "updates": 400, "evaluate_every": 25},
        "smoke": {"blocks": 2, "width": 16, "heads": 2, "hidden": 32, "length": 24, "batch_size": 8, "warmup": 10,
                  "learning_rate": 1e-2, "updates": 40, "windows": 16, "source": "made"},
    }
    variants: ClassVar = {
        "pre": {"norm": "pre"}, "pre-warm": {"norm": "pre", "warm": True},
        "post": {"norm": "post"}, "post-warm": {"norm": "post", "warm": True},
        "rms": {"norm": "pre", "kind": "rms"}, "rms-warm": {"norm": "pre", "kind": "rms", "warm": True},
        "none": {"norm": "none"}, "none-warm": {"norm": "none", "warm": True},
    }
    references: ClassVar = {
        "pre": "trains without warm-up (Xiong et al. 2020)",
        "pre-warm": "no better than without (Xiong et al. 2020)",
        "post": "needs warm-up (Xiong et al. 2020)",
        "post-warm": "as good as pre, or later (Xiong et al. 2020)",
        "rms": "as layer norm, in less time (Zhang and Sennrich 2019)",
        "rms-warm": "as layer norm, in less time (Zhang and Sennrich 2019)",
        "none": "in neither",
        "none-warm": "in neither",
    }
    columns = (Column("valid_bits", "valid bits/char", ".3f", level="valid_unigram"),
               Column("valid_unigram", "unigram", ".3f"),
               Column("test_bits", "test bits/char", ".3f"))
    x_axis = "update"
    sampling, sample_name = Options, "sample.txt"
    evaluating = gradients.Options
    peers: ClassVar = {"torch": {}, "torch-fused": {"fused": True}}

    def data(self, cfg: TransformerConfig, root: Path | None = None) -> Splits:
        splits = data.splits(cfg, root)
        rate = rate_remark(cfg.epochs * splits.steps_per_epoch, cfg.warmup, cfg.warm)
        return replace(splits, remarks=(*splits.remarks, rate))

    def model(self, cfg: TransformerConfig) -> Module:
        return CharacterTransformer(ALPHABET.classes, cfg.length, cfg.blocks, cfg.width, cfg.heads, cfg.hidden,
                                    cfg.norm, cfg.kind)

    def loss(self, model: CharacterTransformer, params: Params, batch: dict[str, Tensor]) -> Tensor:
        return ops.mean(self.predict(model, params, batch))

    def predict(self, model: CharacterTransformer, params: Params, batch: dict[str, Tensor]) -> Tensor:
        """The nats of each character, (B, T)."""
        return model.nats(params, batch["x"], batch["y"])

    def metrics(self, predict: Predict, split: Batch) -> dict[str, float]:
        """Bits a character, and what the characters cost by their shares of the training text alone."""
        x, y = split["x"], split["y"]
        nats = sum(float(predict({"x": x[i:i + _WINDOWS], "y": y[i:i + _WINDOWS]}).sum(dtype=np.float64))
                   for i in range(0, len(x), _WINDOWS)) / y.size
        shares = (split["counts"] + 1) / (split["counts"] + 1).sum()  # a class that training has not seen costs more
        return {"bits": nats / log(2), "nats": nats, "unigram": float(-np.log2(shares[y]).mean())}

    def optimizer(self, cfg: TransformerConfig, updates: int) -> optim.Optimizer:
        return optim.Adam(learning_rate=inverse_root(cfg.learning_rate, cfg.warmup, cfg.warm), beta2=BETA2,
                          donate=True)

    def sample(self, trained: Trained, options: Options, out: Path) -> list[Path]:
        return sample(trained, options, out)

    def evaluate(self, trained: Trained, options: gradients.Options, say: Callable[[str], None]) -> Findings:
        return gradients.findings(trained, self.data(trained.config).train, options)

    def pictures(self, runs: Mapping[str, Trained], folder: Path) -> list[Path]:
        return gradients.pictures({label: (trained, self.data(trained.config).train)
                                   for label, trained in runs.items()}, folder)
