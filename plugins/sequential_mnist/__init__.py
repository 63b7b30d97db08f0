"""Sequential MNIST, a digit read pixel by pixel: section 5.1 of Cooijmans et al. 2017, with layer norm beside it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal

import numpy as np

from duoln import Stream, Tensor, nn, ops, optim
from duoln.data import Batch, Batches, mnist
from duoln.nn import Module, Params
from duoln.tasks import Column, Config, Splits, Task, hookimpl
from duoln.tasks.digits import Source, nll_and_error, read_digits
from duoln.tasks.originals import DATA_SEED
from duoln.tasks.task import Predict

Norm = Literal["none", "layer", "batch", "layer-plain", "layer-detached", "rms", "tanh"]
_VALID = 10_000
_ROWS = 250
"""Rows a forward pass of the evaluation."""
_START = 0.1
"""Standard deviation of the first hidden state at the start: the variance of a state of 0 is 0, so layer norm's
gradients would overflow in the time steps before a digit's first ink."""


@dataclass(frozen=True)
class SequentialMnistConfig(Config):
    """Settings; the defaults are those of the published code."""

    epochs: int = 200
    batch_size: int = 100
    patience: int = 200
    norm: Norm = "layer"
    """Norm of the LSTM, see `ops.recurrent.variants`; batch has the statistics of each time step."""
    gain: float | None = None
    """Initial gain of the LSTM's norms; none is 1, or 0.1 for batch norm."""
    hidden: int = 100
    """Units of the LSTM."""
    permuted: bool = True
    """True reads the pixels in one random order, the same for all digits and seeds; false reads them row by row."""
    every: int = 1
    """Read only every so many-th pixel of the order."""
    noise: float = 0.0
    """Standard deviation of what each training digit adds to the first hidden state; 0.1 for batch norm row by row,
    where all digits begin alike."""
    source: Source = "auto"
    """The data: mnist is the original, made is synthetic, auto is the original if available, else made."""
    rows: int | None = None
    """Train on the first so many digits only; none is all."""


class Cell(nn.LSTMCell):
    """An LSTM's cell with the start of the published code.

    The recurrent weights of g are the identity, those of i, f and o together are orthogonal, and so are the weights of
    the pixel.
    """

    def weights(self, rng: Stream) -> Params:
        n = self.n_hidden
        i, f, o = np.split(nn.init.orthogonal(rng.child("w_h"), (n, 3 * n)), 3, axis=1)
        return {**super().weights(rng), "w_x": nn.init.orthogonal(rng.child("w_x"), (1, 4 * n)),
                "w_h": np.concatenate((i, f, np.eye(n, dtype=np.float32), o), axis=1),
                "h0": nn.init.gaussian(_START)(rng.child("h0"), (n,))}


class PixelReader(nn.Module):
    """An LSTM with learned first states that reads a pixel at each time step; its last state gives the logits.

    Shape:
        x (B, pixels), noise (B, hidden) or None -> logits (B, 10).
    """

    def __init__(self, norm: Norm, hidden: int, gain: float | None) -> None:
        self.cell = Cell(1, hidden, norm=norm, gain=gain, learned_state=True, forget_bias=1.0)
        self.out = nn.Linear(hidden, 10, weight_init=nn.init.orthogonal)

    def __call__(self, params: Params, x: Tensor, noise: Tensor | None = None) -> Tensor:
        h, c = self.cell.first_states(params["cell"], len(x))
        first = (h if noise is None else h + noise, c)
        _, (last, _) = self.cell.sequence(params["cell"], ops.expand_dims(ops.matrix_transpose(x), axis=2), first)
        return self.out(params["out"], last)


class SequentialMnist(Task):
    """An LSTM of 100 units on MNIST, one pixel a time step."""

    name = "sequential_mnist"
    title = "Sequential MNIST"
    paper = "section 5.1 of Cooijmans et al. 2017"
    config = SequentialMnistConfig
    corpora: ClassVar = {"MNIST": mnist.PLACES}
    presets: ClassVar = {
        "paper": {"source": "mnist"},
        "short": {"source": "mnist", "epochs": 3},
        "smoke": {"source": "made", "epochs": 1, "rows": 400, "batch_size": 50, "hidden": 16, "every": 16},
    }
    variants: ClassVar = {"none": {"norm": "none"}, "bn": {"norm": "batch"}, "ln": {"norm": "layer"},
                          "ln-gain-0.1": {"norm": "layer", "gain": 0.1}}
    references: ClassVar = {
        "none": "test error 9.8 % permuted, 1.1 % row by row",
        "bn": "test error 4.6 % permuted, 1.0 % row by row",
        "ln": "not in that paper",
        "ln-gain-0.1": "not in that paper",
    }
    columns = (Column("valid_error", "valid error", ".2%"), Column("test_error", "test error", ".2%"))

    def data(self, cfg: SequentialMnistConfig, root: Path | None = None) -> Splits:
        dataset, sets, why = read_digits(self.name, cfg.source, cfg.rows, root, _VALID)
        pixels = sets["train"]["x"].shape[1]
        order = Stream(DATA_SEED, self.name).permutation(pixels) if cfg.permuted else np.arange(pixels)
        for split in sets.values():
            split["x"] = split["x"][:, order[::cfg.every]]
        batches = Batches(sets.pop("train"), cfg.batch_size, cfg.seed, within={"label": (0, 10)})

        def train(step: int) -> Batch:
            if not cfg.noise:
                return batches(step)
            drawn = Stream(cfg.seed, self.name, step=step).gaussian((cfg.batch_size, cfg.hidden))
            return {**batches(step), "noise": (cfg.noise * drawn).astype(np.float32)}

        return Splits(dataset, train, batches.steps_per_epoch, sets, remarks=(why,))

    def model(self, cfg: SequentialMnistConfig) -> Module:
        return PixelReader(cfg.norm, cfg.hidden, cfg.gain)

    def loss(self, model: PixelReader, params: Params, batch: dict[str, Tensor]) -> Tensor:
        logits = model(params, batch["x"], batch.get("noise"))
        return ops.mean(ops.softmax_cross_entropy(logits, batch["label"]))

    def metrics(self, predict: Predict, split: Batch) -> dict[str, float]:
        return nll_and_error(predict, split, _ROWS)

    def optimizer(self, cfg: SequentialMnistConfig, updates: int) -> optim.Optimizer:
        return optim.RMSProp(learning_rate=cfg.learning_rate, clip=optim.clip_global_norm(1.0), eps=1e-5)


@hookimpl
def duoln_tasks() -> list[Task]:
    """The task `sequential_mnist`."""
    return [SequentialMnist()]
