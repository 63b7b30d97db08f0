"""What a run has learnt, read back from its folder."""

from __future__ import annotations

import dataclasses
import typing
from pathlib import Path

from duoln.backends.protocol import Backend
from duoln.errors import CheckpointError, DataFormatError, DuolnError, UsageError
from duoln.randomness import Stream
from duoln.runs import checkpoint
from duoln.runs.folder import read_json, run_folders
from duoln.runtime import to_tensors
from duoln.tasks.settings import convert
from duoln.tasks.task import Task
from duoln.tasks.values import Trained

_PARAMS = "params."


def load_trained(task: Task, run: Path, backend: Backend) -> Trained:
    """The model of a run: as its newest readable checkpoint has it, or as the best, where `patience` ends it with that.

    Args:
        task: the task that the run must be of.
        run: a run folder, or a folder that holds exactly one.
        backend: where to put the parameters; it need not be the one that trained them.

    Raises:
        CheckpointError: there is no such run, no readable checkpoint, or one of another model.
        DataFormatError: `config.json` is damaged.
        UsageError: the run is of another task, or the folder holds several, or a setting is of another kind.
    """
    folders = run_folders(run)
    if not folders:
        raise CheckpointError(f"{run}: expected a run folder, found {'none there' if run.exists() else 'nothing'}")
    if len(folders) > 1:
        raise UsageError(f"{run}: expected one run, found {len(folders)}; name one of "
                         f"{', '.join(str(f) for f in folders)}")
    asked = read_json(folders[0] / "config.json")
    if asked.get("task") != task.name:
        raise UsageError(f"{folders[0]}: expected a run of {task.name}, found one of {asked.get('task')!r}")
    kinds = typing.get_type_hints(task.config)
    names = {f.name for f in dataclasses.fields(task.config)}
    settings = asked.get("config")
    if not isinstance(asked.get("variant"), str):
        raise DataFormatError(folders[0] / "config.json", 0, "a text as variant", f"{asked.get('variant')!r:.60}")
    if not isinstance(settings, dict):
        raise DataFormatError(folders[0] / "config.json", 0, "an object as config", f"{settings!r:.60}")
    strangers = sorted(names ^ settings.keys())
    if strangers:
        raise CheckpointError(f"{folders[0] / 'config.json'}: setting '{strangers[0]}' is "
                              f"{'missing' if strangers[0] in names else 'unknown'}: another version wrote it")
    cfg = task.config(**{key: convert(f"{folders[0] / 'config.json'}: {key}", value, kinds[key])
                         for key, value in settings.items()})
    saved, refused = checkpoint.newest(folders[0] / "checkpoints")
    if saved is None:
        raise CheckpointError(f"{folders[0]}: expected a checkpoint, found "
                              f"{'none that can be read: ' + '; '.join(refused) if refused else 'none'}")
    if cfg.patience:
        saved = checkpoint.load_best(saved)
    try:
        model = task.model(cfg)
        start = {"params": model.init(Stream(cfg.seed, "init"))}
    except (DuolnError, ValueError, TypeError, ArithmeticError, MemoryError) as error:
        raise CheckpointError(f"{folders[0] / 'config.json'}: its settings make no model: {error}") from error
    arrays = {name: a for name, a in saved.arrays.items() if name.startswith(_PARAMS)}
    try:
        params = checkpoint.restore(start, arrays)["params"]
    except CheckpointError as error:
        raise CheckpointError(f"{saved.path}: {error}") from error
    return Trained(cfg, asked["variant"], saved.step, model, to_tensors(params, backend))
