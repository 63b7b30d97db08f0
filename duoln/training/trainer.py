"""One run of one variant: its state, its training step, and its checkpoints."""

from __future__ import annotations

import dataclasses
import math
import time
import warnings
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from duoln import tree
from duoln.backends.protocol import Backend
from duoln.core import Tensor, compile, watched
from duoln.data import Batch
from duoln.distributed.ranks import Ranks, check_sharing
from duoln.errors import (
    CheckpointError,
    DivergedError,
    MemoryExhaustedError,
    NotFiniteError,
    NotFiniteWarning,
    ScheduleWarning,
    TaskError,
)
from duoln.nn import with_population
from duoln.runs import checkpoint
from duoln.runs.identity import Identity, identity_of, rules_of, rules_of_packages
from duoln.runs.precision import FLOAT32, check_precision, stored_batch, stored_params
from duoln.runs.settings import MAY_CHANGE, config_of
from duoln.runtime import tensor, to_tensors
from duoln.system import limits
from duoln.tasks.events import Change, Update
from duoln.tasks.settings import through_json
from duoln.tasks.task import Config, Task, selected_by
from duoln.tasks.values import Splits
from duoln.training import memory
from duoln.training.memory import StepMemory
from duoln.training.train_step import TaskDropout, make_ranked_step, make_step, start_state

_POPULATION_ROWS = 10_000
_POPULATION_BATCHES = 1_000
_RATES = 1_000
"""The most rates of a run that are read, to compare or to check them."""
_STILL = 1e-3
"""A rate of this share of the greatest one of a run trains nothing."""
_STILL_SHARE = 0.05
"""The share of a run's updates, the last ones, that may have such a rate without a warning."""
_OWN_KEYS = frozenset({"event", "update", "epoch", "wall_s", "status", "variant", "batch_size", "epochs", "seed",
                       "precision", "updates", "seconds_per_update", "seconds_per_epoch", "changes", "rules", "loss",
                       "gradient_norm", "dataset", "starts"})
"""The names of a run's figures in logs, results and tables of curves that are no metrics."""


class _Queued(NamedTuple):
    """An update whose figures have not been read."""

    update: int
    read: Callable[[], list[np.ndarray]]
    """Waits for the update and gives its loss and the norm of its gradients."""
    again: tuple[Any, dict[str, Tensor], Tensor] | None
    """The step's arguments, the state on the host, if it can be run again."""


class Trainer:
    """One run of one variant: its state, its training step, and its evaluations and checkpoints.

    Args:
        task: the task to train.
        variant: the variant's name, for the log.
        cfg: its configuration.
        splits: its data.
        backend: the backend that computes.
        debug_nans: keep a copy of the state before each step. A step that diverges then runs again, operator by
            operator, to show which operator made the first value that is not finite.
        ranks: the processes that train this model together; None if this process trains alone.
        precision: "float32", or "bf16" to store activations and a copy of the weights in 16 bits; see `precision`.
    """

    def __init__(self, task: Task, variant: str, cfg: Config, splits: Splits, backend: Backend,
                 debug_nans: bool = False, ranks: Ranks | None = None, precision: str = FLOAT32) -> None:
        self.task, self.variant, self.cfg, self.splits, self.backend = task, variant, cfg, splits, backend
        self.precision = check_precision("Trainer", precision)
        self.model = task.model(cfg)
        self.last_update = splits.updates(cfg.epochs)
        self.optimizer = task.optimizer(cfg, self.last_update)
        self.dropout = TaskDropout(task, self.model, cfg.seed, ranks)
        self._free_before = self._free()
        self.state = start_state(self.model, self.optimizer, cfg.seed, backend)
        self.update = 0
        self.train_seconds = 0.0
        self.evaluated: dict[str, float] = {}
        self.best: float | None = None
        """The best value so far of the metric that selects a checkpoint."""
        self.best_update: int | None = None
        """The update of the checkpoint with that value."""
        self._selected = selected_by(task, cfg)
        self.worse = 0
        """The number of evaluations since the best one."""
        self.gradient_norm = math.nan
        """The common norm of all gradients of the last update, before they are clipped."""
        self._queued: deque[_Queued] = deque()
        self._memory: StepMemory | None = None
        self._debug_nans = debug_nans
        self.ranks = ranks
        self._identity: Identity = {}
        self.changes: list[Change] = []
        """The parts of the identity in which earlier updates of this run differ from later ones."""
        self._step = (compile(make_step(task, self.model, self.optimizer, precision)) if ranks is None else
                      make_ranked_step(task, self.model, self.optimizer, ranks, precision))

    @property
    def identity(self) -> Identity:
        """The facts beside its settings that decide the bits of this run."""
        if not self._identity:
            ranks = 1 if self.ranks is None else self.ranks.size
            self._identity = {**identity_of(self.backend, self.task, self.splits, ranks),
                              **rules_of_packages(self._first_loss)}
        elif self.backend.proofs is not None:  # a rule may have been set aside when it was first used
            self._identity["rules"] = rules_of(self.backend)
        return self._identity

    def _first_loss(self) -> Tensor:
        params = stored_params(self.state["params"], self.precision)
        return self.task.loss(self.model, params, self._stored(self._share(self.splits.train(0))))

    def advance(self) -> float:
        """Make one update and wait for it; returns the loss before it. Raises as `queue` and `settle`."""
        self.queue()
        return [update.loss for update in self.settle()][-1]

    def queue(self) -> None:
        """Make one update. Where the device works on its own, it may still compute when this returns.

        Raises:
            MemoryExhaustedError: the device is out of memory.
        """
        started = time.perf_counter()
        whole = self.dropout(self.update, self.splits.train(self.update))
        batch: Any = whole if self.ranks else to_tensors(whole, self.backend)
        rate = to_tensors(tree.map(np.float32, self.optimizer.rate_at(self.update)), self.backend)
        again = (to_tensors(self.state, "numpy"), batch, rate) if self._debug_nans else None
        try:
            state, figures = self._step(self.state, batch, rate)
            read = self.backend.end_step([t.data for t in tree.leaves(state)],
                                         [figures["loss"].data, figures["gradient_norm"].data])
        except MemoryError as error:
            raise self._out_of_memory(error) from error
        self.update += 1
        self.state = state
        self._queued.append(_Queued(self.update, read, again))
        self.train_seconds += time.perf_counter() - started

    def settle(self, behind: int = 0) -> Iterator[Update]:
        """Wait for the updates that were queued, but for the last `behind` of them; gives their figures in order.

        Raises:
            DivergedError: the loss or the norm of the gradients is not finite.
            MemoryExhaustedError: the device is out of memory.
        """
        while len(self._queued) > behind:
            started = time.perf_counter()
            queued = self._queued.popleft()
            try:
                loss, norm = (float(value) for value in queued.read())
            except MemoryError as error:
                raise self._out_of_memory(error) from error
            if not (math.isfinite(loss) and math.isfinite(norm)):
                self._tell_divergence(queued, loss, norm)
            self.gradient_norm = norm
            self.train_seconds += time.perf_counter() - started
            yield Update(queued.update, loss, self.train_seconds, norm)

    @property
    def read_delay(self) -> int:
        """The updates whose figures are best read later: while the device works on them, the host prepares the next."""
        return int(self.backend.queues and not self._debug_nans)

    def _out_of_memory(self, error: MemoryError) -> MemoryExhaustedError:
        about = f" It takes about {self._memory}." if self._memory else ""
        return MemoryExhaustedError(f"no memory left at update {self.update + 1}: {error}.{about} "
                                    f"Try a batch_size below {self.cfg.batch_size}")

    def _share(self, batch: Batch) -> Batch:
        return batch if self.ranks is None else self.ranks.share(batch, self.task.batch_axes)

    def sync_with_first(self) -> None:
        """Take over the number of updates and the state of process 0, if there are several processes.

        Raises:
            UsageError: the processes differ in data, code or libraries, or the variant's batches cannot be shared out.
        """
        if self.ranks is None:
            return
        self.ranks.check_same(self.identity)
        counts = tensor(np.array([self.update, self.worse], np.int32), self.backend)
        start = self.ranks.broadcast({"state": self.state, "counts": counts})
        self.state = start["state"]
        self.update, self.worse = (int(count) for count in start["counts"].numpy())
        if not self.finished:
            epoch = self.splits.steps_per_epoch
            ahead = range(self.update, self.update // epoch * epoch + epoch)
            batches = [self.splits.train(k) for k in sorted({ahead[0], ahead[len(ahead) // 2], ahead[-1]})]
            check_sharing(self.ranks, self.task, self.model, self.state["params"], batches, self.backend)

    def estimate_memory(self) -> StepMemory:
        """The memory that a step needs.

        Raises:
            MemoryExhaustedError: it is more than is free, or a save needs more; some libraries, and some systems, would
                end the process in such a step or save.
        """
        batch = self._share(self.splits.train(self.update))
        # The state has its memory already, or some of it: a system gives memory when it is written.
        of_state = memory.state_bytes(self.state)
        free, host = (max(now, min(before, now + of_state))
                      for now, before in zip(self._free(), self._free_before, strict=True))
        if (save := memory.save_bytes(self.state)) > host:  # first, because the estimate computes with the state
            raise MemoryExhaustedError(
                f"{self.task.name} {self.variant} takes about {memory.format_bytes(save)} while a checkpoint is saved, "
                f"and {memory.format_bytes(host)} are free on this machine; try a smaller model")
        needed = memory.estimate(self.task, self.model, self.state, batch, self.optimizer.donate, self.precision)
        if needed.total > free:
            whole = needed.largest_batch(free) * (self.ranks.size if self.ranks else 1)
            advice = f"try a batch_size of {whole} at most" if whole else "try a smaller model"
            raise MemoryExhaustedError(
                f"{self.task.name} {self.variant} takes about {needed}, and {memory.format_bytes(free)} are free on "
                f"{self.backend.device}; {advice}")
        self._memory = needed
        return needed

    def _free(self) -> tuple[int, int]:
        """The bytes that are free on the device and on the host."""
        return self.backend.free_memory(), limits.free_memory()

    def agree_to_stop(self, wanted: bool) -> bool:
        """True if any of the processes wants to stop after this update; then all processes stop."""
        return wanted if self.ranks is None else self.ranks.any(wanted)

    def _tell_divergence(self, queued: _Queued, loss: float, norm: float) -> None:
        """Raise the error of a step that diverged. If the state was kept, the step first runs again."""
        text = f"the loss is {loss} and the norm of its gradients {norm} at update {queued.update}"
        if queued.again is None:
            raise DivergedError(f"{text}; --debug-nans tells which operator made the first such value")
        before, batch, rate = queued.again
        try:
            with watched():
                make_step(self.task, self.model, self.optimizer, self.precision)(
                    to_tensors(before, self.backend), batch, rate)
        except NotFiniteError as error:
            raise DivergedError(f"{text}. Run again operator by operator: {error}") from error
        raise DivergedError(f"{text}. Run again operator by operator, every value was finite: the rules that compute "
                            "several operators at once, or the compiled step, differ")

    def evaluate(self) -> dict[str, float]:
        """The metrics of every split, with keys like "test_error"."""
        count = min(max(_POPULATION_ROWS // self.cfg.batch_size, 1), _POPULATION_BATCHES, self.splits.steps_per_epoch)

        def forward(params: Any, batch: Batch) -> Any:
            return self.task.population(self.model, stored_params(params, self.precision), self._stored(batch))

        batches = map(self.splits.train, range(count))
        params = stored_params(with_population(self.model, self.state["params"], batches, forward), self.precision)

        def predict(batch: Batch) -> np.ndarray:
            values = self.task.predict(self.model, params, self._stored(batch)).numpy()
            if values.dtype.kind == "f" and np.isnan(values).any():
                raise DivergedError(f"[{self.task.name}] expected numbers as predictions after update {self.update}, "
                                    f"found {np.isnan(values).sum():,} NaN of {values.size:,} values")
            return values

        evaluated: dict[str, float] = {}
        for name, split in self.splits.evaluation.items():
            for key, value in self.task.metrics(predict, split).items():
                full = f"{name}_{key}"
                holder = "duoln" if full in _OWN_KEYS else "another metric" if full in evaluated else ""
                if holder:
                    raise TaskError(f"[{self.task.name}] metrics: expected a name of its own for the metric {key!r} of "
                                    f"the split {name!r}, found {full!r}, which {holder} has; give the metric or the "
                                    "split another name")
                evaluated[full] = float(value)
        keys = [column.key for column in self.task.columns]  # data that are not there may leave out some of them
        if keys and not evaluated.keys() & set(keys):
            raise TaskError(f"[{self.task.name}] columns: expected some of the metrics {', '.join(sorted(evaluated))}, "
                            f"found {', '.join(keys)}")
        self.evaluated = evaluated
        return self.evaluated

    def note_best(self) -> bool:
        """True if the last evaluation is the best so far by the task's selection; a best one is stored.

        Raises:
            TaskError: `patience` goes by a metric that the evaluation does not have.
        """
        key, which = self._selected or ("", "lowest")
        if self.cfg.patience and key not in self.evaluated:
            raise TaskError(f"[{self.task.name}] selection: expected a metric of {', '.join(sorted(self.evaluated))}, "
                            f"found {key!r}")
        value = self.evaluated.get(key, math.nan)
        if key in self.evaluated and math.isnan(value):
            warnings.warn(f"[{self.task.name}] metrics: expected a number as {key}, by which the best model is chosen, "
                          f"found {value} at update {self.update}", NotFiniteWarning, stacklevel=2)
            return False  # it says nothing about the model, so patience does not count it
        better = math.isfinite(value) and (self.best is None
                                           or (value < self.best if which == "lowest" else value > self.best))
        self.worse = 0 if better else self.worse + 1
        if better:
            self.best = value
        return better

    @property
    def finished(self) -> bool:
        """True after the last update, or if too many evaluations have passed since the best one (`patience`)."""
        return self.update >= self.last_update or 0 < self.cfg.patience <= self.worse

    def _stored(self, batch: Batch) -> dict[str, Tensor]:
        return stored_batch(to_tensors(batch, self.backend), self.precision)

    def result(self) -> dict[str, Any]:
        """The figures of the run so far."""
        seconds = self.train_seconds / max(self.update, 1)
        epochs = self.update / self.splits.steps_per_epoch
        return {"variant": self.variant, "batch_size": self.cfg.batch_size,
                "epochs": int(epochs) if epochs == int(epochs) else round(epochs, 3), "seed": self.cfg.seed,
                "precision": self.precision, "updates": self.update, **self.evaluated,
                **({"changes": [str(change) for change in self.changes]} if self.changes else {}),
                "seconds_per_update": seconds, "seconds_per_epoch": seconds * self.splits.steps_per_epoch}

    # Checkpoints
    def save(self, folder: Path, best: bool = False) -> Path:
        """Write a checkpoint of the current state; with `best` it is kept as the best so far.

        Raises:
            DivergedError: a parameter is not finite, so this state is of no use.
            CheckpointError: the checkpoint cannot be written.
        """
        for name, leaf in tree.items(self.state):
            if not np.isfinite(leaf.numpy()).all():
                raise DivergedError(f"'{name}' is no longer finite after update {self.update}")
        if best:
            self.best_update = self.update
        return checkpoint.save(folder, self.update, self.state, {
            "task": self.task.name, "variant": self.variant, "config": dataclasses.asdict(self.cfg),
            "train_seconds": self.train_seconds, "evaluated": self.evaluated, "best": self.best,
            "best_update": self.best_update, "worse": self.worse, "precision": self.precision,
            "identity": self.identity, "changes": [change._asdict() for change in self.changes]})

    def warn_of_schedule(self) -> None:
        """Warn of a learning rate that is next to 0 for the rest of the run: its schedule is that of fewer updates."""
        steps = range(0, self.last_update, max(-(-self.last_update // _RATES), 1))
        rates = [max(tree.leaves(self.optimizer.rate_at(k))) for k in steps]
        least = _STILL * max(rates, default=0.0)
        moving = [k for k, rate in zip(steps, rates, strict=True) if rate > least]
        still = self.last_update - (moving[-1] + steps.step) if moving else 0
        if still > _STILL_SHARE * self.last_update:
            warnings.warn(f"[{self.task.name}] learning rate: expected one above {_STILL} of its greatest value, found "
                          f"less in the last {still:,} of {self.last_update:,} updates, which train nothing; the "
                          "schedule counts the updates of another data set, batch size or number of epochs",
                          ScheduleWarning, stacklevel=3)

    def schedule_changes(self, saved: checkpoint.Checkpoint) -> list[Change]:
        """The change if the updates before a checkpoint had other rates than this configuration plans for them.

        A schedule that ends with the training is another one if the training becomes longer.
        """
        settings = saved.notes.get("config")
        if settings is None or not saved.update:
            return []
        before = config_of(self.task, settings, saved.path)
        planned = self.task.optimizer(before, self.splits.updates(before.epochs))
        steps = range(0, saved.update, -(-saved.update // _RATES))
        if all(planned.rate_at(k) == self.optimizer.rate_at(k) for k in (*steps, saved.update - 1)):
            return []
        return [Change(saved.update, "learning rate", f"scheduled for {before.epochs} epochs",
                       f"for {self.cfg.epochs} epochs")]

    def resume(self, saved: checkpoint.Checkpoint) -> None:
        """Go on from a checkpoint of this task and variant, of any backend.

        Raises:
            CheckpointError: the task, the variant, the precision, the model or a setting differs; only settings for
                the length of the training and the times of evaluations may differ.
        """
        settings = saved.notes.get("config")
        noted = {**saved.notes, **(through_json(config_of(self.task, settings, saved.path)) if settings else {})}
        wanted = {"task": self.task.name, "variant": self.variant, "precision": self.precision,
                  **through_json(self.cfg)}
        for key, mine in wanted.items():
            if key not in MAY_CHANGE and noted.get(key) != mine:
                raise CheckpointError(f"{saved.path}: expected {key} {mine!r}, found {noted.get(key)!r}")
        self.state = to_tensors(checkpoint.restore(self.state, saved.arrays), self.backend)
        self.update = saved.update
        self.train_seconds = float(saved.notes.get("train_seconds", 0.0))
        self.evaluated = dict(saved.notes.get("evaluated", {}))
        self.best = saved.notes.get("best")
        self.best_update = saved.best_update
        self.worse = int(saved.notes.get("worse", 0))
