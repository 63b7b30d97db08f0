"""The events of a run, and their listeners: loggers, progress displays, plug-ins."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from duoln.core.arguments import did_you_mean
from duoln.errors import UsageError
from duoln.tasks.task import Config
from duoln.tasks.values import Dataset


class Change(NamedTuple):
    """A part of a run's identity that was another one before an update."""

    update: int
    """The last update before the change."""
    key: str
    was: str
    now: str

    def __str__(self) -> str:
        return f"{self.key} was {self.was} up to update {self.update}, and is {self.now} since"


class RunStart(NamedTuple):
    """A run is about to make its first update, or its first one after a resume."""

    task: str
    variant: str
    config: Config
    dataset: Dataset
    backend: str
    first_update: int
    last_update: int
    steps_per_epoch: int
    parameters: int
    refused: tuple[str, ...] = ()
    """Newer checkpoints that a resumed run could not use, and why."""
    mended: tuple[str, ...] = ()
    """Repairs of what an earlier run left unfinished, made when the folder was opened; and that it is not locked."""
    precision: str = "float32"
    """In what the step stores activations and weights: "float32" or "bf16"."""
    is_finished: bool = False
    """True if a resumed run has made its last update already."""
    identity: Mapping[str, str] = {}
    """The facts beside its settings that decide the run's bits, as texts by name: rules, libraries, code, data."""
    changes: tuple[Change, ...] = ()
    """The parts of the identity that were others in earlier updates."""


class Update(NamedTuple):
    """One update was made. `update` counts from 1: the number of updates so far."""

    update: int
    loss: float
    seconds: float
    gradient_norm: float
    """The norm of all gradients together, before any clipping."""


class Evaluation(NamedTuple):
    """The metrics after `update` updates; `values` has keys like "train_nll" and "test_error"."""

    update: int
    epoch: float
    values: Mapping[str, float]
    seconds: float


class Listener:
    """Its methods are called at the events of a run; override the ones you need.

    Events are copies: what a listener writes into one reaches neither the run nor other listeners. If it changes the
    working folder, the folder is changed back.
    """

    def __init_subclass__(cls) -> None:
        """Refuse a method that no event would call."""
        super().__init_subclass__()
        events = [name for name in vars(Listener) if name.startswith("on_")]
        for name in vars(cls):
            if name.startswith("on_") and name not in events:
                raise UsageError(f"[Listener] {cls.__name__}: expected one of {', '.join(events)}; found {name!r}"
                                 f"{did_you_mean(name, events)}")

    def on_start(self, event: RunStart) -> None:
        """A run starts or resumes."""

    def on_memory(self, step_bytes: int) -> None:
        """The memory of an update has been estimated; the first update follows."""

    def on_update(self, event: Update) -> None:
        """An update was made."""

    def on_evaluation(self, event: Evaluation) -> None:
        """The model was evaluated."""

    def on_end(self, status: str, result: Mapping[str, Any]) -> None:
        """The run is over: "done", "interrupted", "diverged" or "failed"."""
