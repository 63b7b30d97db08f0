"""Reads the trained model of a run from its folder."""

from __future__ import annotations

from pathlib import Path

from duoln.backends.protocol import Backend
from duoln.errors import CheckpointError, DuolnError, UsageError
from duoln.randomness import Stream
from duoln.runs import checkpoint
from duoln.runs.curve import read_header
from duoln.runs.places import CHECKPOINTS, CONFIG, run_folders
from duoln.runs.settings import read_config
from duoln.runtime import to_tensors
from duoln.tasks.task import Task
from duoln.tasks.values import Trained

_PARAMS = "params."


def task_of(run: Path) -> str:
    """The name of a run's task.

    Args:
        run: a run folder, or a folder that holds exactly one.

    Raises:
        CheckpointError: there is no such run. UsageError: the folder holds several.
        DataFormatError: `config.json` is damaged.
    """
    name: str = read_header(_only_run(run) / CONFIG)["task"]
    return name


def _only_run(run: Path) -> Path:
    if (run / CONFIG).is_file():
        return run
    folders = run_folders(run)
    if not folders:
        raise CheckpointError(f"{run}: expected a run folder, found {'none there' if run.exists() else 'nothing'}")
    if len(folders) > 1:
        raise UsageError(f"{run}: expected one run, found {len(folders)}; name one of "
                         f"{', '.join(str(f) for f in folders)}")
    return folders[0]


def load_trained(task: Task, run: Path, backend: Backend) -> Trained:
    """The model of a run, from its newest readable checkpoint. If the run's `patience` selects the best model, it comes
    from the best checkpoint. A newer one that cannot be read is passed over with a `CheckpointWarning`.

    Args:
        task: the task that the run must be of.
        run: a run folder, or a folder that holds exactly one.
        backend: where to put the parameters; it need not be the one that trained them.

    Raises:
        CheckpointError: there is no such run, no readable checkpoint, or one of another model.
        DataFormatError: `config.json` is damaged.
        UsageError: the run is of another task, or the folder holds several, or a setting is of another kind.
    """
    folder = _only_run(run)
    variant, cfg = read_config(task, folder)
    saved, refused = checkpoint.newest(folder / CHECKPOINTS)
    if saved is None:
        raise CheckpointError(f"{folder}: expected a checkpoint, found "
                              f"{'none that can be read: ' + '; '.join(refused) if refused else 'none'}")
    checkpoint.warn_of(saved, refused)
    if cfg.patience:
        saved = checkpoint.load_best(saved)
    try:
        model = task.model(cfg)
        start = {"params": model.init(Stream(cfg.seed, "init"))}
    except (DuolnError, ValueError, TypeError, ArithmeticError, MemoryError) as error:
        raise CheckpointError(f"{folder / CONFIG}: its settings make no model: {error}") from error
    arrays = {name: a for name, a in saved.arrays.items() if name.startswith(_PARAMS)}
    try:
        params = checkpoint.restore(start, arrays)["params"]
    except CheckpointError as error:
        raise CheckpointError(f"{saved.path}: {error}") from error
    return Trained(cfg, variant, saved.update, model, to_tensors(params, backend))
