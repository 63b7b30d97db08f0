"""A session: how a task becomes a run. It makes the updates, evaluations and checkpoints, and tells the listeners."""

from __future__ import annotations

import signal
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Literal

from duoln import tree
from duoln.errors import CheckpointError, DivergedError, Interrupted
from duoln.runs import checkpoint
from duoln.runs.folder import RunFolder
from duoln.runs.identity import changes_since, check_unchanged, read_changes
from duoln.system.stopping import watch_stop_signals
from duoln.tasks.boundary import IsolatedListener
from duoln.tasks.events import Evaluation, Listener, RunStart
from duoln.training.norm_stats import Watch, measure
from duoln.training.trainer import Trainer


class Session:
    """One run of a task. `duoln.tasks.train`, `duoln run`, its ranks and `check_task` train by it.

    Args:
        trainer: what to train.
        listeners: objects that receive every event of the run.
        watch: when to measure statistics of the layers for the log, if at all; the training has the same bits with it.
    """

    def __init__(self, trainer: Trainer, listeners: Sequence[Listener] = (), watch: Watch | None = None) -> None:
        self.trainer, self._watch = trainer, watch
        self._listeners = [each if isinstance(each, IsolatedListener) else IsolatedListener(each) for each in listeners]

    def run(self, path: Path, resume: bool | Literal["auto", "anyway"] | None = False) -> dict[str, Any]:
        """Train to the end, evaluating and writing a checkpoint once an epoch (or every `evaluate_every` updates).

        With `patience` in the configuration the run may end early, and then the trainer and the result are those of the
        best checkpoint. If a run that has ended is resumed, the result is the same.

        After Ctrl-C, SIGTERM or SIGHUP the current update ends, a checkpoint is written and `Interrupted` is raised.

        Args:
            path: the run folder, for the log, the checkpoints and the result.
            resume: go on from the newest checkpoint that can be read, if there is one. The result must have the same
                bits as that of a run without a stop, see `check_unchanged`; "anyway" goes on with others.

        Raises:
            DivergedError: the loss or a weight is not finite; the last checkpoint is from before that.
            Interrupted: the user stopped the run.
            CheckpointError: the folder cannot be written, or it holds another run or one that must not be resumed.
        """
        trainer, folder = self.trainer, RunFolder(path, self.trainer.backend)
        everyone: list[Listener] = [folder, *self._listeners]
        with ExitStack() as ends:
            ends.callback(folder.close)
            refused = self._take_up(folder, resume)
            trainer.warn_of_schedule()
            trainer.sync_with_first()
            folder.write_config(trainer.task.name, trainer.variant, trainer.cfg, trainer.precision)
            self._start(everyone, folder, refused)
            status = "failed"

            def end(listener: Listener) -> None:
                listener.on_end(status, trainer.result())

            for listener in reversed(everyone):  # a stack calls the last one first, and all of them even if one raises
                ends.callback(end, listener)
            try:
                self._train(everyone, folder)
                status = "done"
            except Interrupted:
                status = "interrupted"
                raise
            except DivergedError as error:
                status = "diverged"
                kept = checkpoint.list_paths(folder.checkpoints)
                raise DivergedError(f"{error}; the last good checkpoint is {kept[-1] if kept else 'none'}") from error
        return trainer.result()

    def follow(self) -> None:
        """Train together with process 0; only process 0 evaluates, logs and writes checkpoints.

        The program that started the ranks may stop any of them, so a signal to one rank stops all after the same
        update.

        Raises:
            Interrupted: this process was asked to stop; process 0 has written a checkpoint.
            DivergedError: the loss or a weight is not finite; process 0 raises it too.
            RankError: another process has ended.
        """
        trainer = self.trainer
        trainer.sync_with_first()
        trainer.estimate_memory()
        with watch_stop_signals() as stop:
            while not trainer.finished:
                trainer.advance()
                number = stop.number
                if trainer.agree_to_stop(number is not None):
                    if number is not None:
                        raise Interrupted(f"stopped after update {trainer.update}, with the other ranks", number)
                    return

    def _take_up(self, folder: RunFolder, resume: bool | str | None) -> list[str]:
        """Go on from the newest readable checkpoint, if there is one; returns the reasons why newer ones were refused.

        Raises:
            CheckpointError: there are checkpoints, but the run is not resumed, or none of them can be read.
        """
        trainer = self.trainer
        if not resume:
            if checkpoint.list_paths(folder.checkpoints):
                raise CheckpointError(f"{folder.checkpoints}: already holds checkpoints of a run; go on with --resume "
                                      "auto, or choose another --out")
            return []
        saved, refused = checkpoint.newest(folder.checkpoints)
        if saved is None:
            if refused:
                raise CheckpointError(f"{folder.checkpoints}: no checkpoint can be read: {'; '.join(refused)}")
            return []
        trainer.resume(saved)
        changes = changes_since(saved, trainer.identity)
        if resume != "anyway":
            check_unchanged(saved.path, changes)
        trainer.changes = [*read_changes(saved.path, saved.notes.get("changes")), *changes,
                           *trainer.schedule_changes(saved)]
        if trainer.cfg.patience:
            checkpoint.load_best(saved)  # an unreadable best checkpoint must fail now, not at the end of the run
        return refused

    def _start(self, everyone: Sequence[Listener], folder: RunFolder, refused: Sequence[str]) -> None:
        trainer, splits = self.trainer, self.trainer.splits
        start = RunStart(trainer.task.name, trainer.variant, trainer.cfg, splits.dataset, trainer.backend.name,
                         trainer.update, trainer.last_update, splits.steps_per_epoch,
                         sum(t.size for t in tree.leaves(trainer.state["params"])), tuple(refused),
                         tuple(folder.mended), trainer.precision, trainer.finished, trainer.identity,
                         tuple(trainer.changes))
        for listener in everyone:
            listener.on_start(start)

    def _train(self, everyone: Sequence[Listener], folder: RunFolder) -> None:
        """All updates, after what precedes the first; with `patience` the state is that of the best checkpoint then."""
        trainer = self.trainer
        step_bytes = trainer.estimate_memory().total
        for listener in everyone:
            listener.on_memory(step_bytes)
        if trainer.update == 0:
            trainer.save(folder.checkpoints)
            if self._watch is not None:
                folder.write_layers(0, measure(trainer))
        with watch_stop_signals() as stop:
            while not trainer.finished:
                self._update(everyone, folder)
                number = stop.number
                agreed = trainer.agree_to_stop(number is not None or trainer.finished)  # only rank 0 knows the patience
                if number is not None or (agreed and not trainer.finished):
                    self._tell_updates(everyone, 0)
                    folder.sync()
                    path = trainer.save(folder.checkpoints)
                    raise Interrupted(f"stopped after update {trainer.update}; checkpoint {path}",
                                      number or signal.SIGINT)  # another rank was asked
        if trainer.cfg.patience and trainer.best_update is not None:
            trainer.resume(checkpoint.load(checkpoint.update_path(folder.checkpoints, trainer.best_update)))

    def _update(self, everyone: Sequence[Listener], folder: RunFolder) -> None:
        """One update, and what is due after it: the statistics of the layers, an evaluation, a checkpoint."""
        trainer = self.trainer
        every = trainer.cfg.evaluate_every or trainer.splits.steps_per_epoch
        trainer.queue()
        evaluates = trainer.update % every == 0 or trainer.update == trainer.last_update
        watches = self._watch is not None and self._watch.is_due(trainer.update, evaluates)
        self._tell_updates(everyone, 0 if evaluates or watches else trainer.read_delay)
        if watches:
            folder.write_layers(trainer.update, measure(trainer))
        if evaluates:
            values = trainer.evaluate()
            epoch = trainer.update / trainer.splits.steps_per_epoch
            for listener in everyone:
                listener.on_evaluation(Evaluation(trainer.update, epoch, values, trainer.train_seconds))
            folder.sync()
            trainer.save(folder.checkpoints, best=trainer.note_best())

    def _tell_updates(self, everyone: Sequence[Listener], behind: int) -> None:
        for update in self.trainer.settle(behind):
            for listener in everyone:
                listener.on_update(update)
