"""The training of a task's variants that `shift` and `smoothness` measure, and how its curves are drawn."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from duoln.backends.protocol import Backend
from duoln.errors import UsageError
from duoln.pictures.style import Look
from duoln.tasks import Task, make_config
from duoln.training.trainer import Trainer


class Training(NamedTuple):
    """Variants of a task, each of which is trained from each seed."""

    task: Task
    variants: Sequence[str]
    preset: str | None
    settings: Mapping[str, Any]
    """Overrides of the preset."""
    backend: Backend
    seeds: Sequence[int] = (0,)
    """The seeds of weights, batches and noise."""
    updates: int = 200
    """The number of updates of each variant."""
    every: int = 5
    """The updates of an interval."""

    def trainers(self, measure: str) -> Iterator[Trainer]:
        """A trainer at its start for each variant and seed.

        Args:
            measure: the name in errors.

        Raises:
            UsageError: fewer updates than one interval, or an unknown variant or setting.
            DataError: the task's data are missing or damaged.
        """
        if not 1 <= self.every <= self.updates:
            raise UsageError(f"[{measure}] expected an interval of 1 to {self.updates} updates, all of them; "
                             f"found {self.every}")
        for variant, seed in itertools.product(self.variants, self.seeds):
            cfg = make_config(self.task, variant, self.preset, {**self.settings, "seed": seed})
            yield Trainer(self.task, variant, cfg, self.task.data(cfg), self.backend)


def draw_seeds(panel: Any, updates: Sequence[int], values: Sequence[Sequence[float]], label: str, look: Look) -> None:
    """The median of the seeds as a line and their range as a band; values are (seeds, updates)."""
    low, middle, high = np.quantile(values, (0.0, 0.5, 1.0), axis=0)
    panel.plot(updates, middle, label=label, linewidth=1.2, **look.line())
    panel.fill_between(updates, low, high, color=look.colour, alpha=0.15, linewidth=0)
    panel.set_yscale("log")
    panel.grid(alpha=0.3)


def draw_legend(whole: Any, panel: Any, columns: int) -> None:
    """The legend of all panels, from the lines of one."""
    lines, labels = panel.get_legend_handles_labels()
    whole.legend(lines, labels, loc="upper center", ncol=columns, fontsize=8)
