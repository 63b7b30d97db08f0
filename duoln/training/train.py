"""`duoln.tasks.train`: one run of a task from Python, and its result."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

from duoln import runtime
from duoln.backends.protocol import Backend
from duoln.core.arguments import check_flag, described
from duoln.errors import CheckpointWarning, Interrupted, UsageError
from duoln.nn import Module, Params
from duoln.runs.curve import NO_METRICS, Curve
from duoln.runs.curves import read_curves
from duoln.runs.norm_stats import LayerStats
from duoln.runs.precision import FLOAT32, check_precision, resumed_precision
from duoln.runs.settings import resumed_config
from duoln.system.filesystem import temporary_folder
from duoln.system.paths import in_home
from duoln.tasks.boundary import guard_task
from duoln.tasks.events import Listener, RunStart
from duoln.tasks.registry import find_task, load_plugins
from duoln.tasks.settings import make_config
from duoln.tasks.task import Config, Task
from duoln.tasks.values import Dataset
from duoln.training.norm_stats import Watch
from duoln.training.session import Session
from duoln.training.trainer import Trainer


class TrainedRun(NamedTuple):
    """The result of a run of `train`."""

    task: str
    variant: str
    config: Config
    dataset: Dataset
    """The training data; a figure on made data cannot be compared with the paper's."""
    backend: str
    figures: dict[str, Any]
    """The last evaluation's metrics, such as "test_error", with "updates", "epochs", "seconds_per_update" and
    "seconds_per_epoch"."""
    curves: dict[str, np.ndarray]
    """An array for each metric and for "update", "epoch" and "seconds": an entry for each evaluation."""
    losses: dict[str, np.ndarray]
    """The training loss: "update" and "loss", an entry for each update that the log holds."""
    model: Module
    params: Params
    """The trained parameters, tensors on the backend: `run.model(run.params, x)`."""
    folder: Path | None
    """The run folder, if the caller asked for one."""
    layers: dict[int, dict[str, LayerStats]]
    """With `watch`: by update and path, the mean and variance of each layer's output and the norm of its gradient."""

    def __repr__(self) -> str:
        figures = ", ".join(f"{key}={value:.4g}" for key, value in self.figures.items() if isinstance(value, float))
        return f"<run of {self.task} {self.variant} on {self.backend}, {self.dataset.label}: {figures}>"


def train(task: str | Task, variant: str | None = None, *, preset: str | None = None,
          backend: str | Backend | None = None, out: str | Path | None = None, data: str | Path | None = None,
          resume: bool | Literal["anyway"] = False, listeners: Sequence[Listener] = (), precision: str | None = None,
          watch: str | None = None, watch_every: int | None = None, **settings: Any) -> TrainedRun:
    """Train one variant of a task; nothing is printed.

        run = duoln.tasks.train("mnist", variant="ln", epochs=2)
        run.figures["test_error"], run.curves["epoch"], run.params

    Args:
        task: a task's name, or a task.
        variant: the variant to train; it may be omitted if the task has only one.
        preset: "paper", "small" or "smoke", if the task has them; by default the task's own defaults.
        backend: a backend or its name; by default the one that `duoln.backend()` chooses.
        out: a run folder to keep, for `duoln report`, `duoln sample` and `resume`; by default nothing is kept.
        data: a folder that is searched before DUOLN_DATA.
        resume: go on from the newest checkpoint in `out`, if there is one, with the settings that `out` holds. Rules,
            libraries, code or data that differ from the checkpoint's are refused; "anyway" goes on, and every table of
            the run says so. A newest checkpoint that cannot be read is passed over with a `CheckpointWarning`.
        listeners: objects that receive every update and evaluation.
        precision: "bf16" stores activations and a copy of the weights in 16 bits; all arithmetic, the parameters and
            the optimizer are float32. By default "float32", or what `out` holds if the run is resumed.
        watch: "norm-stats" measures every layer before the first update and at every evaluation, in a pass beside the
            training, which has the same bits with it; see `layers` of the result.
        watch_every: measure every so many updates instead.
        **settings: settings of the task, such as `epochs=2` or `learning_rate=1e-3`; `duoln show TASK` lists them.

    Raises:
        UsageError: a task, variant, preset, setting or backend is unknown, `resume` is given without `out`, or a
            setting contradicts that of the run which is resumed, or what to watch is unknown.
        DataError, DivergedError, CheckpointError, MemoryExhaustedError: for the same reasons as in `duoln run`.
        Interrupted: the user pressed Ctrl-C; if there is `out`, a checkpoint was written.
    """
    if resume != "anyway":
        check_flag("train", "resume", resume)
    for role, place in (("out", out), ("data", data)):
        if place is not None and not (isinstance(place, str | Path) and str(place)):
            raise UsageError(f"[train] {role}: expected a path, found {described(place)}")
    out, data = (None if place is None else in_home(place) for place in (out, data))
    if data is not None and not data.is_dir():
        raise UsageError(f"[train] data: expected a folder, found {data} where none is")
    wrong = listeners if not isinstance(listeners, list | tuple) else \
        next((each for each in listeners if not isinstance(each, Listener)), None)
    if wrong is not None:
        raise UsageError(f"[train] listeners: expected a list of Listener objects, found {described(wrong)}")
    if resume and out is None:
        raise UsageError("[train] expected the run folder `out` to resume from, found none")
    if precision is not None:
        check_precision("train", precision)
    if watch_every is not None and watch is None:
        raise UsageError("[train] watch_every: expected `watch` too, found none")
    watching = None if watch is None else Watch(watch, watch_every)
    load_plugins(own=False)  # as every command does: a run has the same rules in Python
    if not isinstance(task, str | Task):
        raise UsageError(f"[train] task: expected a task or its name, found {type(task).__name__}")
    chosen = find_task(task) if isinstance(task, str) else guard_task(task, task.owner or type(task).__module__)
    name: Any = next(iter(chosen.variants)) if variant is None and len(chosen.variants) == 1 else variant
    if resume and out is not None:
        cfg, _ = resumed_config(chosen, name, out, preset, settings)
        precision = resumed_precision(out, precision)
    else:
        cfg = make_config(chosen, name, preset, settings)
    where = runtime.backend_of("train", backend)
    splits = chosen.data(cfg, data)
    trainer = Trainer(chosen, name, cfg, splits, where, precision=precision or FLOAT32)
    with ExitStack() as stack:
        path = stack.enter_context(temporary_folder()) if out is None else out
        try:
            figures = Session(trainer, [_Warning(), *listeners], watching).run(path, resume)
            [curve] = read_curves([path])
        except Interrupted as stop:
            hint = "go on with resume=True and this `out`" if out else "nothing is kept without a run folder `out`"
            raise Interrupted(f"stopped after update {trainer.update}; {hint}", stop.number) from None
    losses = {"update": np.array([update for update, _ in curve.losses], np.int64),
              "loss": np.array([loss for _, loss in curve.losses], np.float64)}
    return TrainedRun(chosen.name, name, cfg, splits.dataset, where.name, figures, _evaluations(curve),
                      losses, trainer.model, trainer.state["params"], None if out is None else path,
                      {update: dict(layers) for update, layers in sorted(curve.layers.items())})


class _Warning(Listener):
    """Warns of checkpoints that cannot be read; the command line says it in its own way."""

    def on_start(self, event: RunStart) -> None:
        if event.refused:
            warnings.warn(f"going on after update {event.first_update}, because a newer checkpoint cannot be read: "
                          f"{'; '.join(event.refused)}", CheckpointWarning, stacklevel=2)


def _evaluations(curve: Curve) -> dict[str, np.ndarray]:
    """The evaluations of a run as columns; a metric that an evaluation lacks is NaN."""
    metrics = dict.fromkeys(key for point in curve.points for key in point if key not in NO_METRICS)
    return {"update": np.array([point["update"] for point in curve.points], np.int64),
            "epoch": np.array([point["epoch"] for point in curve.points], np.float64),
            "seconds": np.array([point["wall_s"] for point in curve.points], np.float64),
            **{key: np.array([point.get(key, np.nan) for point in curve.points], np.float64) for key in metrics}}
