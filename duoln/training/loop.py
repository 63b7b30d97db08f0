"""The training loop: updates, evaluations, checkpoints, and the end of a run."""

from __future__ import annotations

import signal
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any

from duoln import tree
from duoln.errors import CheckpointError, DivergedError, Interrupted
from duoln.runs import checkpoint
from duoln.runs.folder import RunFolder
from duoln.runs.identity import changes_since, check_unchanged, read_changes
from duoln.system.stopping import watch_stop_signals
from duoln.tasks.boundary import Apart
from duoln.tasks.events import Evaluation, Listener, RunStart
from duoln.training.norm_stats import Watch, measure
from duoln.training.trainer import Trainer


def fit(trainer: Trainer, folder: RunFolder, listeners: Sequence[Listener] = (), resume: bool = False,
        same_bits: bool = True, watch: Watch | None = None) -> dict[str, Any]:
    """Train to the end, evaluating and writing a checkpoint once an epoch (or every `evaluate_every` updates).

    With `patience` in the configuration the run may end early, and then the trainer and the result are those of the
    best checkpoint. If a run that has ended is resumed, the result is the same.

    After Ctrl-C, SIGTERM or SIGHUP the current update ends, a checkpoint is written and `Interrupted` is raised.

    Args:
        trainer: what to train.
        folder: the folder for the log, the checkpoints and the result.
        listeners: objects that receive every event of the run.
        resume: go on from the newest checkpoint that can be read, if there is one.
        same_bits: resume only if the result has the same bits as that of a run without a stop, see `check_unchanged`.
        watch: when to measure statistics of the layers for the log, if at all; the training has the same bits with it.

    Raises:
        DivergedError: the loss or a weight is not finite; the last checkpoint is from before that.
        Interrupted: the user stopped the run.
        CheckpointError: the folder cannot be written, or it holds another run or a run that must not be resumed.
    """
    everyone: list[Listener] = [folder, *(each if isinstance(each, Apart) else Apart(each) for each in listeners)]
    task, splits = trainer.task, trainer.splits
    refused = _take_up(trainer, folder, same_bits) if resume else []
    if not resume and checkpoint.list_paths(folder.checkpoints):
        raise CheckpointError(f"{folder.checkpoints}: already holds checkpoints of a run; go on with --resume auto, "
                              "or choose another --out")
    trainer.warn_of_schedule()
    trainer.meet()
    folder.write_config(task.name, trainer.variant, trainer.cfg, trainer.precision)
    start = RunStart(task.name, trainer.variant, trainer.cfg, splits.dataset, trainer.backend.name, trainer.update,
                     trainer.last_update, splits.steps_per_epoch,
                     sum(t.size for t in tree.leaves(trainer.state["params"])), tuple(refused), tuple(folder.mended),
                     trainer.precision, trainer.finished, trainer.identity,
                     tuple(trainer.changes))
    for listener in everyone:
        listener.on_start(start)
    status = "failed"
    with ExitStack() as told:  # every listener gets the event, even if another one raises
        for listener in reversed(everyone):  # a stack calls the last one first
            told.callback(_tell_end, listener, lambda: status, trainer)
        try:
            _run(trainer, folder, everyone, watch)
            status = "done"
        except Interrupted:
            status = "interrupted"
            raise
        except DivergedError as error:
            status = "diverged"
            kept = checkpoint.list_paths(folder.checkpoints)
            raise DivergedError(f"{error}; the last good checkpoint is {kept[-1] if kept else 'none'}") from error
    return trainer.result()


def _tell_end(listener: Listener, status: Callable[[], str], trainer: Trainer) -> None:
    listener.on_end(status(), trainer.result())


def _run(trainer: Trainer, folder: RunFolder, listeners: Sequence[Listener], watch: Watch | None) -> None:
    """All updates, after what precedes the first; with `patience` the state is that of the best checkpoint then."""
    step_bytes = trainer.estimate_memory().total
    for listener in listeners:
        listener.on_memory(step_bytes)
    if trainer.update == 0:
        trainer.save(folder.checkpoints)
        if watch is not None:
            folder.write_layers(0, measure(trainer))
    _loop(trainer, folder, listeners, watch)
    if trainer.cfg.patience and trainer.best_update is not None:
        trainer.resume(checkpoint.load(checkpoint.update_path(folder.checkpoints, trainer.best_update)))


def _take_up(trainer: Trainer, folder: RunFolder, same_bits: bool) -> list[str]:
    """Go on from the newest readable checkpoint, if there is one; returns the reasons why newer ones were refused."""
    saved, refused = checkpoint.newest(folder.checkpoints)
    if saved is None:
        if refused:
            raise CheckpointError(f"{folder.checkpoints}: no checkpoint can be read: {'; '.join(refused)}")
        return []
    trainer.resume(saved)
    changes = changes_since(saved, trainer.identity)
    if same_bits:
        check_unchanged(saved.path, changes)
    trainer.changes = [*read_changes(saved.path, saved.notes.get("changes")), *changes,
                       *trainer.schedule_changes(saved)]
    if trainer.cfg.patience:
        checkpoint.load_best(saved)  # an unreadable best checkpoint must fail now, not at the end of the run
    return refused


def _loop(trainer: Trainer, folder: RunFolder, listeners: Sequence[Listener], watch: Watch | None) -> None:
    every = trainer.cfg.evaluate_every or trainer.splits.steps_per_epoch
    with watch_stop_signals() as stop:
        while not trainer.finished:
            trainer.queue()
            evaluates = trainer.update % every == 0 or trainer.update == trainer.last_update
            watches = watch is not None and watch.is_due(trainer.update, evaluates)
            _tell_updates(trainer, listeners, 0 if evaluates or watches else trainer.behind)
            if watches:
                folder.write_layers(trainer.update, measure(trainer))
            if evaluates:
                values = trainer.evaluate()
                epoch = trainer.update / trainer.splits.steps_per_epoch
                for listener in listeners:
                    listener.on_evaluation(Evaluation(trainer.update, epoch, values, trainer.train_seconds))
                folder.sync()
                trainer.save(folder.checkpoints, best=trainer.note_best())
            number = stop.number
            agreed = trainer.agree_to_stop(number is not None or trainer.finished)  # only process 0 knows the patience
            if number is not None or (agreed and not trainer.finished):
                _tell_updates(trainer, listeners, 0)
                folder.sync()
                path = trainer.save(folder.checkpoints)
                raise Interrupted(f"stopped after update {trainer.update}; checkpoint {path}",
                                  number or signal.SIGINT)  # another rank was asked


def _tell_updates(trainer: Trainer, listeners: Sequence[Listener], behind: int) -> None:
    for update in trainer.settle(behind):
        for listener in listeners:
            listener.on_update(update)


def follow(trainer: Trainer) -> None:
    """Train together with process 0; only process 0 evaluates, logs and writes checkpoints.

    The program that started the ranks may stop any of them, so a signal to one rank stops all after the same update.

    Raises:
        Interrupted: this process was asked to stop; process 0 has written a checkpoint.
        DivergedError: the loss or a weight is not finite; process 0 raises it too.
        RankError: another process has ended.
    """
    trainer.meet()
    trainer.estimate_memory()
    with watch_stop_signals() as stop:
        while not trainer.finished:
            trainer.advance()
            number = stop.number
            if trainer.agree_to_stop(number is not None):
                if number is not None:
                    raise Interrupted(f"stopped after update {trainer.update}, with the other ranks", number)
                return
