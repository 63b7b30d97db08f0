"""The training of a task's variants that `shift` and `smoothness` measure."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from duoln.backends.protocol import Backend
from duoln.errors import UsageError
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
