"""A task that trains in less than a second, and functions for tests of training."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from duoln import nn, ops, optim, tree
from duoln.data import Batches
from duoln.tasks import Column, Config, Dataset, Splits, Task, make_config
from duoln.tasks.events import Listener
from duoln.training.session import Session
from duoln.training.trainer import Trainer


@dataclass(frozen=True)
class LineConfig(Config):
    epochs: int = 3
    batch_size: int = 8
    poison: int = -1
    """The step whose batch holds a NaN."""


class Line(Task):
    """A small regression with dropout noise that travels with the batch."""

    name, title, paper, config = "line", "A line", "nowhere", LineConfig
    presets: ClassVar = {"smoke": {}}
    variants: ClassVar = {"plain": {}, "fast": {"learning_rate": 0.1}}
    columns = (Column("valid_mse", "valid MSE"),)

    def data(self, cfg, root=None):
        x = np.linspace(-1, 1, 40, dtype=np.float32)[:, None]
        batches = Batches({"x": x, "y": 3 * x + 1}, cfg.batch_size, cfg.seed)

        def train(step):
            batch = batches(step)
            return {**batch, "x": batch["x"] * np.float32(np.nan)} if step == cfg.poison else batch

        return Splits(Dataset("a line", "synthetic"), train, batches.steps_per_epoch, {"valid": {"x": x, "y": 3 * x + 1}})

    def model(self, cfg):
        return nn.Sequential(nn.Linear(1, 8), nn.LayerNorm(8), ops.tanh, nn.Linear(8, 1))

    def loss(self, model, params, batch):
        return ops.mean(ops.square(model(params, batch["x"]) - batch["y"]))

    def metrics(self, predict, split):
        return {"mse": float(np.mean((predict(split) - split["y"]) ** 2))}

    def optimizer(self, cfg, updates):
        return optim.Adam(cfg.learning_rate, donate=True)


def line_trainer(be, variant="plain", **settings):
    task = Line()
    cfg = make_config(task, variant, None, settings)
    return Trainer(task, variant, cfg, task.data(cfg), be)


def state_bits(trainer):
    return [t.numpy().tobytes() for t in tree.leaves(trainer.state)]


def fit_into(trainer, path, be, listeners=(), resume=False, watch=None):
    return Session(trainer, listeners, watch).run(path, resume)


class At(Listener):
    """Does something once, after a step."""

    def __init__(self, step, action):
        self.step, self.action = step, action

    def on_update(self, event):
        if event.update == self.step:
            self.action()


VALUES = {5: 3.0, 10: 1.0, 15: 2.0, 20: 1.0, 25: 1.5, 30: 0.5}
"""What the metric is after each epoch's last update: the best comes at update 10, until update 30."""


class Told(Line):
    """A task whose metric is given and not measured."""

    name = "told"
