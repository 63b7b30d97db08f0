"""A whole task in one file, as an outside package would have it: two spirals, with and without layer norm.

    python -m duoln.examples.own_task

To offer it to the `duoln` command, name the module in your package's pyproject.toml:

    [project.entry-points.duoln]
    spirals = "my_package.spirals"
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from duoln import Stream, nn, ops
from duoln.data import Batch, Batches
from duoln.tasks import Column, Config, Dataset, Splits, Task, hookimpl
from duoln.tasks.originals import DATA_SEED


@dataclass(frozen=True)
class SpiralsConfig(Config):
    """The settings of the task: `duoln run spirals --set width=64` changes one."""

    epochs: int = 40
    batch_size: int = 64
    width: int = 32
    """Units of each hidden layer."""
    norm: bool = True
    """True for layer norm in the hidden layers."""


class Spirals(Task):
    """Which of two spirals a point lies on."""

    name, title = "spirals", "Two spirals"
    config = SpiralsConfig
    presets: ClassVar = {"small": {}, "smoke": {"epochs": 1}}
    variants: ClassVar = {"ln": {"norm": True}, "none": {"norm": False}}
    columns = (Column("test_error", "test error", ".1%"),)

    def data(self, cfg: SpiralsConfig, root: Path | None = None) -> Splits:
        """Synthetic data. A task that reads files finds them by `duoln.tasks.originals.locate(names, root)`."""
        train, test = _spirals(1024, "train"), _spirals(512, "test")
        batches = Batches(train, cfg.batch_size, cfg.seed)
        return Splits(Dataset("two spirals", "synthetic"), batches, batches.steps_per_epoch, {"test": test})

    def model(self, cfg: SpiralsConfig) -> nn.Module:
        layers: list[Any] = []
        for n_in in (2, cfg.width, cfg.width):
            layers += [nn.Linear(n_in, cfg.width), *([nn.LayerNorm(cfg.width)] if cfg.norm else []), ops.tanh]
        return nn.Sequential(*layers, nn.Linear(cfg.width, 2))

    def loss(self, model: nn.Module, params: nn.Params, batch: dict[str, Any]) -> Any:
        return ops.mean(ops.softmax_cross_entropy(model(params, batch["x"]), batch["label"]))

    def metrics(self, predict: Any, split: Batch) -> dict[str, float]:
        return {"error": float(np.mean(predict(split).argmax(axis=1) != split["label"]))}


def _spirals(points: int, split: str) -> Batch:
    rng = Stream(DATA_SEED, f"spirals {split}")  # cfg.seed decides how a run trains, not what it is judged on
    label = rng.integers(2, (points,)).astype(np.int32)
    turn = 3 * np.pi * np.sqrt(rng.uniform((points,)))
    angle = turn + np.pi * label
    x = np.stack((np.cos(angle), np.sin(angle)), axis=1) * turn[:, None] / 9 + 0.02 * rng.gaussian((points, 2))
    return {"x": x.astype(np.float32), "label": label}


@hookimpl
def duoln_tasks() -> list[Task]:
    """The tasks of this module, for duoln's plug-in system."""
    return [Spirals()]


if __name__ == "__main__":
    import sys

    from duoln.cli import run_task

    sys.exit(run_task(Spirals, sys.argv[1:]))
