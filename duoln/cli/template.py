"""The files that `duoln new-task` writes: a complete package. NAME and TITLE stand for the new names."""

from __future__ import annotations

PYPROJECT = '''\
[build-system]
requires = ["setuptools>=77"]
build-backend = "setuptools.build_meta"

[project]
name = "duoln-DIST"
version = "0.1.0"
description = "The task NAME for duoln"
readme = "README.md"
requires-python = ">=3.11"
dependencies = ["duoln", "numpy>=2"]

[project.optional-dependencies]
test = ["pytest>=8"]

# This is how the duoln command finds the package.
[project.entry-points.duoln]
NAME = "NAME"

[tool.setuptools]
packages = ["NAME"]
# With this line an editable install is a plain path, which Python finds before a folder of the same name.
package-dir = {"" = "."}

[tool.pytest.ini_options]
testpaths = ["tests"]

[tool.ruff]
line-length = 120

[tool.ruff.lint]
select = ["E", "F", "I", "UP", "B"]
'''

README = '''\
# NAME

A task for duoln: the model recognises which of several patterns a row of numbers shows. Each row
has its own scale and offset, and layer norm removes both. The task generates its data.

```sh
pip install -e ".[test]"
duoln show NAME                    # its settings, presets and variants
duoln run NAME --preset smoke      # seconds
duoln run NAME                     # both variants, then a table
duoln run NAME --variant ln --set width=64
pytest
```

All code is in `NAME/task.py`: change `data` to your data, `model` to your model, `loss` and `metrics` to what you
measure. The test calls `check_task`, which reports what a task still lacks. `duoln help tasks` explains all of it.

`loss` gets no settings: `model` has them, so the model takes along what the loss needs. For a setting `weight`,
one line in `model` and one in `loss`:

```python
model.weight = cfg.weight
return model.weight * loss
```
'''

INIT = '''\
"""The task NAME, offered to the duoln command."""

from __future__ import annotations

from duoln.tasks import Task, hookimpl

from NAME.task import TITLETask


@hookimpl
def duoln_tasks() -> list[Task]:
    """The tasks of this package."""
    return [TITLETask()]
'''

TASK = '''\
"""Recognise the pattern in a row of numbers, with and without layer norm."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
from duoln import nn, ops
from duoln.data import DATA_SEED, Batch, Batches, check_range
from duoln.randomness import Stream
from duoln.tasks import Column, Config, Dataset, Splits, Task

PATTERNS, VALUES = 8, 16
"""The number of patterns, and the number of values in a row."""


@dataclass(frozen=True)
class TITLEConfig(Config):
    """The settings: `duoln run NAME --set width=64` changes one."""

    epochs: int = 20
    batch_size: int = 64
    width: int = 32
    """Units of each hidden layer. `duoln show NAME` prints this text."""
    norm: Literal["layer", "none"] = "layer"
    """The norm of the hidden layers."""
    rows: int = 2048
    """Rows of the training set."""


class TITLETask(Task):
    """Rows of numbers, each a pattern with noise, a scale and an offset of its own."""

    name, title = "NAME", "Patterns of any scale"
    config = TITLEConfig
    presets: ClassVar = {"small": {}, "smoke": {"epochs": 1, "rows": 512}}
    variants: ClassVar = {"none": {"norm": "none"}, "ln": {"norm": "layer"}}
    columns = (Column("train_nll", "train NLL"), Column("test_error", "test error", ".1%"))

    def data(self, cfg: TITLEConfig, root: Path | None = None) -> Splits:
        """Synthetic data. A task that reads files finds them by `duoln.data.locate(names, root)`."""
        train, test = make_rows(cfg.rows, "train"), make_rows(1024, "test")
        batches = Batches(train, cfg.batch_size, cfg.seed)
        return Splits(Dataset("patterns", "synthetic"), batches, batches.steps_per_epoch,
                      {"train": train, "test": test})

    def model(self, cfg: TITLEConfig) -> nn.Module:
        """Two hidden layers, normalised or not."""
        layers: list[Any] = []
        for n_in in (VALUES, cfg.width):
            layers += [nn.Linear(n_in, cfg.width), *([nn.LayerNorm(cfg.width)] if cfg.norm == "layer" else []),
                       ops.tanh]
        return nn.Sequential(*layers, nn.Linear(cfg.width, PATTERNS))

    def loss(self, model: nn.Module, params: nn.Params, batch: dict[str, Any]) -> Any:
        """The scalar that training minimises."""
        return ops.mean(ops.softmax_cross_entropy(model(params, batch["x"]), batch["label"]))

    def metrics(self, predict: Any, split: Batch) -> dict[str, float]:
        """Figures of a split; `predict` returns the model's outputs for `x`."""
        logits = predict(split).astype(np.float64)
        logits -= logits.max(axis=1, keepdims=True)
        log_probability = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
        label = split["label"]
        return {"nll": float(-log_probability[np.arange(len(label)), label].mean()),
                "error": float(np.mean(logits.argmax(axis=1) != label))}


def make_rows(count: int, split: str) -> Batch:
    """Rows and their patterns. They do not depend on cfg.seed, which is for training."""
    patterns = Stream(DATA_SEED, "NAME patterns").gaussian((PATTERNS, VALUES))
    rng = Stream(DATA_SEED, f"NAME {split}")
    label = rng.integers(PATTERNS, (count,))
    x = patterns[label] + 0.5 * rng.gaussian((count, VALUES))
    x = x * rng.uniform((count, 1), 0.2, 5.0) + 3 * rng.gaussian((count, 1))
    return {"x": x.astype(np.float32), "label": check_range("NAME", label, PATTERNS)}
'''

TEST = '''\
"""The task is complete: data, every preset and variant, training, metrics, exact resume."""

from duoln.testing import check_task

from NAME.task import TITLETask


def test_NAME():
    check_task(TITLETask())
'''

FILES = {"pyproject.toml": PYPROJECT, "README.md": README, "NAME/__init__.py": INIT, "NAME/task.py": TASK,
         "tests/test_NAME.py": TEST}
"""The files by their paths in the new folder."""


def fill(name: str) -> dict[str, str]:
    """The files of a task of that name."""
    # NAME and TITLE are not parts of other words in the texts. TITLE is replaced first: it does not contain NAME.
    title = "".join(part.capitalize() for part in name.split("_"))
    title = title.removesuffix("Task") or title
    words = (("TITLE", title), ("DIST", name.replace("_", "-")), ("NAME", name))

    def filled(text: str) -> str:
        for word, new in words:
            text = text.replace(word, new)
        return text

    return {filled(path): filled(text) for path, text in FILES.items()}
