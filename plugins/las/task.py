"""The task: configuration, presets, variants, loss, metrics, and what `sample` and `report` call."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from duoln import Tensor, ops, optim
from duoln.data import Batch
from duoln.nn import Module, Params
from duoln.plugins.las import data, pictures, search, spoken
from duoln.plugins.las.features import width
from duoln.plugins.las.model import (
    CLIP,
    LasModel,
    Listener,
    ListenerNorm,
    Speller,
    SpellerNorm,
    SpellerState,
    layer_inputs,
)
from duoln.tasks import Column, Config, Splits, Task, Trained
from duoln.tasks.task import Predict

_ROWS = 64
"""Utterances a forward pass of the evaluation."""


@dataclass(frozen=True)
class LasConfig(Config):
    """Settings. The chapter gives none; the defaults are those of nabu's TIMIT recipe, on which its code was built."""

    epochs: int = 300
    evaluate_every: int = 500
    patience: int = 3
    decay_steps: int = 8700
    """Updates over which the learning rate falls to a tenth, exponentially; 0 keeps it."""
    source: data.Source = "timit"
    """The corpus: auto is the spoken digits if available, else synthetic sounds."""
    words: int = 1
    """Recordings of a clip: more than one are joined at random, with a space between their transcripts."""
    mels: int = 40
    """Mel filters of the features."""
    noise: float = 0.6
    """Deviation of the Gaussian noise on the features in training."""
    dropout: float = 0.5
    """Share of every layer's outputs that is dropped in training."""
    sampling: float = 0.1
    """Chance in training that the speller sees a symbol drawn from its own last logits in the place of the label."""
    listener_hidden: int = 128
    """Units of each direction of the listener's LSTMs."""
    pyramids: int = 2
    """Layers of the listener after which two time steps become one."""
    layers: int = 1
    """Layers of the listener above the pyramid."""
    speller_hidden: int = 128
    """Units of each of the speller's LSTMs."""
    speller_layers: int = 2
    """LSTM layers of the speller."""
    attention: int = 128
    """Units of the attention."""
    listener_norm: ListenerNorm = "none"
    """Norm of the listener: upper leaves out its first layer, cell all but the cell; over-time is that of its author's
    code."""
    constant: float = 0.0
    """A feature of this value in every frame, beside which layer norm sees how large the others are; 0 is none."""
    speller_norm: SpellerNorm = "none"
    """Norm of the speller."""
    speller_state: SpellerState = "kept"
    """Swapped gives each cell its cell and hidden state in the other's place, as its author's code does."""
    beam: int = 16
    """Hypotheses that the search of an evaluation keeps."""
    length_penalty: float = 1.0
    """Ranking of hypotheses: 0 is by probability alone, larger favours longer texts."""
    longest: int = 100
    """Symbols of a text at most, when nobody tells the speller what was said."""
    buckets: int = 16
    """Groups of training utterances of like length; each is one shape of batch."""


_SMALL = {"epochs": 56, "batch_size": 32, "evaluate_every": 60, "patience": 4, "decay_steps": 840,
          "learning_rate": 3e-3, "source": "auto", "mels": 23, "noise": 0.5, "dropout": 0.1, "listener_hidden": 48,
          "pyramids": 1, "speller_layers": 1, "attention": 64, "beam": 8, "longest": 10, "buckets": 5}


class Las(Task):
    """Listen-Attend-and-Spell with layer norm in the encoder, the decoder, both or neither."""

    name = "las"
    title = "Listen, attend and spell"
    paper = "Ben Othman 2018"
    config = LasConfig
    corpora: ClassVar = {name: [files] for name, (files, _) in data.READERS.items()}
    presets: ClassVar = {
        "paper": {},
        "small": _SMALL,
        "words": {**_SMALL, "epochs": 60, "patience": 0, "decay_steps": 900, "words": 4, "longest": 24},
        "librispeech": {"epochs": 50, "batch_size": 4, "decay_steps": 0, "source": "librispeech", "noise": 0.0,
                        "longest": 600},
        "smoke": {"epochs": 6, "batch_size": 16, "evaluate_every": 0, "patience": 0, "decay_steps": 0,
                  "learning_rate": 1e-2, "source": "made", "mels": 8, "noise": 0.1, "dropout": 0.1,
                  "listener_hidden": 8, "pyramids": 1, "speller_hidden": 12, "speller_layers": 1, "attention": 8,
                  "beam": 3, "longest": 4, "buckets": 2},
    }
    variants: ClassVar = {
        "none": {},
        "encoder": {"listener_norm": "layer"},
        "decoder": {"speller_norm": "layer"},
        "both": {"listener_norm": "layer", "speller_norm": "layer"},
        "decoder-swapped-state": {"speller_norm": "layer", "speller_state": "swapped"},
        "encoder-over-time": {"listener_norm": "over-time"},
    }
    references: ClassVar = {
        "none": "TIMIT: PER .268 after 15,947 steps; LibriSpeech: WER .426 after 96,785",
        "encoder": "TIMIT: PER .245 after 9,976 steps; LibriSpeech: WER .401 after 64,354",
        "decoder": "TIMIT: PER .666 after 15,600 steps",
        "both": "TIMIT: PER .253 after 15,552 steps",
        "decoder-swapped-state": "perhaps the .666 of `decoder`: its author's code swaps cell and hidden state",
        "encoder-over-time": "perhaps the .245 of `encoder`: its author's code normalises over time",
    }
    columns = (Column("dev_per", "dev PER", ".3f"), Column("test_per", "test PER", ".3f"),
               Column("test_wer", "test WER", ".3f"),
               Column("train_nll", "train NLL", ".3f"), Column("dev_nll", "dev NLL", ".3f"))
    selection = ("dev_per", "lowest")
    x_axis = "update"
    batch_axes: ClassVar = data.BATCH_AXES
    sampling = pictures.Options
    peers: ClassVar = {"torch": {}, "torch-fused": {"fused": True}}

    def data(self, cfg: LasConfig, root: Path | None = None) -> Splits:
        return data.splits(cfg, root)

    def model(self, cfg: LasConfig) -> Module:
        listener = Listener(width(cfg.mels), cfg.listener_hidden, cfg.pyramids, cfg.layers, cfg.listener_norm,
                            cfg.constant)
        n_values = (2 if cfg.layers else 4) * cfg.listener_hidden
        speller = Speller(data.alphabet_of(cfg.source).classes, n_values, cfg.speller_hidden, cfg.speller_layers,
                          cfg.attention, cfg.speller_norm, cfg.speller_state)
        return LasModel(listener, speller, cfg.beam, cfg.longest, cfg.length_penalty)

    def loss(self, model: LasModel, params: Params, batch: dict[str, Tensor]) -> Tensor:
        return ops.mean(model.label_losses(params, batch))

    def predict(self, model: LasModel, params: Params, batch: dict[str, Tensor]) -> Tensor:
        """With labels, the cross-entropy of each utterance: (B,).

        Without labels, the hypotheses of greedy search and of beam search, before `backtrack` makes texts of them:
        symbols and parents (2, longest, B, 1 + beam), those of greedy search first.
        """
        if "labels" in batch:
            return model.label_losses(params, batch)
        heard = model.hear(params, batch)
        searches = [search.spell(model.speller, params["speller"], heard, beam, model.longest, model.length_penalty)
                    for beam in (1, model.beam)]
        return ops.concat(*(ops.stack(one.symbols, one.parents) for one in searches), axis=3)

    def metrics(self, predict: Predict, split: Batch) -> dict[str, float]:
        """The mean cross-entropy, and the error rates of symbols and of words (if any), by beam search and greedily.

        A set whose texts are not searched for has no error rates.
        """
        labels: list[np.ndarray] = []
        heard: dict[str, list[np.ndarray]] = {"": [], "_greedy": []}
        missed = 0.0
        for batch in data.parts(split, _ROWS):
            missed += float(predict(batch).astype(np.float64).sum())
            labels += list(batch["labels"].T)
            if not split["searched"]:
                continue
            symbols, parents = predict({"x": batch["x"], "mask": batch["mask"]}).astype(np.int64)
            for name, places in (("_greedy", slice(0, 1)), ("", slice(1, None))):
                heard[name] += search.backtrack(symbols[:, :, places], parents[:, :, places])
        error_rates = search.rates(labels, heard, bool(split["phones"])) if split["searched"] else {}
        return {"nll": missed / len(labels), **error_rates}

    def layer_inputs(self, model: LasModel, params: Params, batch: dict[str, Tensor]) -> dict[str, np.ndarray]:
        return layer_inputs(model, params, batch)

    def optimizer(self, cfg: LasConfig, updates: int) -> optim.Optimizer:
        rate = cfg.learning_rate
        falling = partial(_falling, rate, cfg.decay_steps) if cfg.decay_steps else rate
        return optim.Adam(learning_rate=falling, clip=optim.clip_value(CLIP), donate=True)

    def sample(self, trained: Trained, options: Any, out: Path) -> list[Path]:
        return pictures.sample(trained, options, out)

    def pictures(self, runs: Mapping[str, Trained], folder: Path) -> list[Path]:
        return [pictures.draw_weights(runs, self.variants, folder / "weights.png"),
                pictures.draw_side_by_side(runs, self.variants, folder / "attentions.png")]

    def prepare(self, source: Path, target: Path) -> list[Path]:
        return spoken.prepare(source, target)


def _falling(rate: float, steps: int, step: int) -> float:
    """A learning rate that falls to a tenth every so many updates."""
    return rate * 10 ** (-step / steps)
