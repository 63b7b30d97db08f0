"""Checks a task: everything that training, resuming and reporting need, and that its readers refuse damaged files."""

from __future__ import annotations

import ast
import dataclasses
import difflib
import inspect
import shutil
import tempfile
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from duoln import runtime, tree
from duoln.backends.protocol import Backend
from duoln.core import Tensor
from duoln.data import Batch
from duoln.data.batches import count_examples
from duoln.errors import DataError, GradientError, ShapeError, UsageError
from duoln.nn import no_dropout
from duoln.pictures.drawing import can_draw
from duoln.randomness import Stream
from duoln.runs.trained import load_trained
from duoln.tasks.boundary import guard_task
from duoln.tasks.settings import has_source, make_config, settings_of
from duoln.tasks.task import Config, Task, selected_by
from duoln.tasks.values import Splits
from duoln.testing.gradients import gradcheck
from duoln.training.session import Session
from duoln.training.trainer import Trainer

_DERIVATIVE = 1e-4
"""The allowed relative error of a derivative along a line, which may cross the kinks of a few rectifiers."""
_STEP = 1e-8
"""The distance along the line: of the 100,000 rectifiers and maxima of a convolutional network some have a kink within
1e-7."""
_AGREEMENT = 1e-4
"""The allowed relative difference between the losses of two backends, in float32."""
_BELOW = ("duoln.backends", "duoln.kernels", "cupy", "cupyx", "mlx")
"""The modules that a task must not import, so that it runs on every backend. From `duoln.core` it must not import the
modules inside."""
_UNSEEDED = ("data: {} of '{}' differs when data(cfg) is called again, at '{}': what is drawn must follow from "
             "cfg.seed, as duoln.Stream(cfg.seed, name) gives it")


def check_task(task: Task, preset: str = "smoke", backend: Backend | str = "numpy", steps: int = 4,
               settings: Mapping[str, Any] | None = None, *, gradients: bool = True, agreement: bool = True,
               layering: bool = True, corpus: Path | None = None,
               corpus_settings: Mapping[str, Any] | None = None, harmless: Collection[str] = ()) -> None:
    """Check a task: names, meanings of settings, every preset and variant, data that follow from the seed, a few
    updates, metrics, exact resume.

    The training step is compiled: on NumPy it must keep the contract of `compile` (no value read on the host, stable
    trees and shapes), on MLX it is traced.

    Args:
        task: the task.
        preset: one that takes seconds.
        backend: where to train.
        steps: how many updates to make; an even number.
        settings: overrides.
        gradients: whether to check the loss's derivative in float64, along one random direction of all parameters;
            not for a loss that bounds or stops gradients on purpose.
        agreement: whether the losses of the first batches must be the same on a second backend, where one is usable.
        corpus: a small corpus for the task's readers, of which damaged copies must be refused, see `check_corpus`.
        corpus_settings: overrides of the preset with which the task reads it.
        harmless: the damages that leave a file of the corpus sound, see `check_corpus`; for a plain text
            `("cut in half", "without its last byte")`.
        layering: whether the task's module may import no array library and nothing of duoln that has one.

    Raises:
        AssertionError: the message says which part of the task is wrong.
        UsageError: `harmless` names a damage that there is not.
        GradientError: the loss's derivative is not that of its values.
        TaskError: the task's own code fails, as in a run; the message names the method and the line.
        CompileError: a step breaks the contract of `compile`.
    """
    where = runtime.backend_of("check_task", backend)
    _check_names(task, preset)
    _check_spelling(task)
    _check_meanings(task)
    task = guard_task(task, task.owner or type(task).__module__)  # errors name task and method, as those of a run
    if layering:
        _check_layering(task)
    second = _second(where) if agreement else None
    if corpus is not None:
        check_corpus(task, make_config(task, next(iter(task.variants)), preset, corpus_settings), corpus, harmless)
    for variant in task.variants:
        for name in task.presets:
            try:
                selected_by(task, make_config(task, variant, name))
            except UsageError as error:
                raise AssertionError(str(error)) from error
        cfg = make_config(task, variant, preset, settings)
        splits = task.data(cfg)
        _check_batches(task, splits, steps)
        if variant == next(iter(task.variants)):
            _check_seeded(task, variant, cfg, splits, steps)
        if gradients:
            _check_gradient(task, variant, cfg, splits)
        if second is not None:
            _check_agreement(task, variant, cfg, splits, (where, second), min(steps, 2))
        _check_training(task, variant, cfg, splits, where, steps)


def _check_spelling(task: Task) -> None:
    """Raises AssertionError for a member of the class that has nearly the name of one of the contract."""
    contract = [name for name in dir(Task) if not name.startswith("_")]
    own = [name for kind in type(task).__mro__ if kind is not Task and issubclass(kind, Task) for name in vars(kind)]
    for name in own:
        near = difflib.get_close_matches(name, contract, 1, 0.8)
        if name not in contract and not name.startswith("_") and near and near[0] not in own:
            raise AssertionError(f"{type(task).__name__}: expected a member of Task or a name unlike all of them, "
                                 f"found {name!r}, which nothing calls; did you mean {near[0]!r}?")


def _check_meanings(task: Task) -> None:
    """Check that a string stands under every field of the task's settings, from which `duoln show` has their meanings.

    A class without source, such as one that was typed into an interpreter, cannot be checked.

    Raises:
        AssertionError: a setting has none; the message names it.
    """
    if not has_source(task.config):
        return
    silent = [setting.name for setting in settings_of(task) if not setting.meaning]
    if silent:
        raise AssertionError(f"config: expected a string under every field of {task.config.__name__} that says what "
                             f"the setting means, found none under {', '.join(silent)}")


def _check_layering(task: Task) -> None:
    try:
        file, source = inspect.getfile(type(task)), inspect.getsource(inspect.getmodule(type(task)) or type(task))
    except (OSError, TypeError):  # the task was made in an interpreter and has no file
        return
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            imported = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and not node.level and node.module:
            imported = [node.module, *(f"{node.module}.{alias.name}" for alias in node.names if node.module == "duoln")]
        else:
            continue
        low = [name for name in imported if f"{name}.".startswith(("duoln.core.", *(f"{low}." for low in _BELOW)))
               and name != "duoln.core"]
        if low:
            raise AssertionError(f"layering: {file}:{node.lineno}: expected imports of duoln.nn, duoln.ops and what "
                                 f"stands beside them, found {low[0]}")


def _second(first: Backend) -> Backend | None:
    """Another backend of this machine, NumPy before the others."""
    probes = (runtime.probe(name) for name in runtime.CHOICES if name not in ("auto", first.name))
    return next((p.backend for p in probes if p.backend is not None), None)


def _check_gradient(task: Task, variant: str, cfg: Config, splits: Splits) -> None:
    numpy = runtime.backend("numpy")
    model = task.model(cfg)
    params = tree.map(lambda a: a.astype(np.float64), model.init(Stream(cfg.seed, "init")))
    rng = np.random.default_rng(3)
    direction = tree.map(lambda a: runtime.tensor(rng.standard_normal(a.shape), numpy), params)
    batch = {key: runtime.tensor(a.astype(np.float64) if a.dtype.kind == "f" else a, numpy)
             for key, a in splits.train(0).items()}
    start = runtime.to_tensors(params, numpy)

    def loss_along(way: Tensor) -> Tensor:
        return task.loss(model, tree.map(lambda p, d: p + way * d, start, direction), batch)

    try:
        with no_dropout():
            gradcheck(loss_along, runtime.tensor(np.float64(0.0), numpy), step=_STEP, rtol=_DERIVATIVE)
    except GradientError as error:
        raise GradientError(f"loss of '{variant}', in float64, along a direction of all parameters: {error}") from error


def _check_agreement(task: Task, variant: str, cfg: Config, splits: Splits, pair: tuple[Backend, Backend],
                     count: int) -> None:
    model = task.model(cfg)
    params = model.init(Stream(cfg.seed, "init"))
    for step in range(count):
        batch = splits.train(step)
        first, second = (float(task.loss(model, *runtime.to_tensors((params, batch), b))) for b in pair)
        if not abs(first - second) <= _AGREEMENT * max(abs(first), abs(second), 1.0):
            raise AssertionError(f"agreement: '{variant}', batch {step}: expected one loss on every backend, found "
                                 f"{first:.9g} on {pair[0].name} and {second:.9g} on {pair[1].name}")


def _check_names(task: Task, preset: str) -> None:
    for attribute in ("name", "title", "variants", "presets", "columns"):
        if not getattr(task, attribute):
            raise AssertionError(f"the task has no {attribute}")
    if preset not in task.presets:
        raise AssertionError(f"presets: expected '{preset}' among them, found {', '.join(task.presets)}")
    strangers = sorted(task.references.keys() - task.variants.keys())
    if strangers:
        raise AssertionError(f"references: there is no variant {strangers[0]!r}")


def _check_batches(task: Task, splits: Splits, steps: int) -> None:
    try:
        count_examples(splits.train(0), task.batch_axes)
    except ShapeError as error:
        raise AssertionError(f"data: {error}; name the axis of each array whose first one is not that of examples "
                             "in the task's `batch_axes`") from error
    for step in range(steps):
        first, second = splits.train(step), splits.train(step)
        for (path, _), (a, b) in zip(tree.items(first), tree.zipped(first, second), strict=True):
            if not isinstance(a, np.ndarray) or a.dtype.name not in ("float32", "int32", "bool"):
                raise AssertionError(f"data: batch entry '{path}': expected a NumPy array of float32, int32 or bool, "
                                     f"found {getattr(a, 'dtype', type(a).__name__)}")
            if not np.array_equal(a, b):
                raise AssertionError(f"data: batch {step} differs when it is asked for again, at '{path}': "
                                     "train(step) must depend on the step alone")


def _check_seeded(task: Task, variant: str, cfg: Config, splits: Splits, steps: int) -> None:
    """A second call of `data` gives the same: what it draws is drawn by the seed. What is held out does not depend on
    the seed, because runs of several seeds are compared.
    """
    again, moved = task.data(cfg), task.data(dataclasses.replace(cfg, seed=cfg.seed + 1))
    for step in range(steps):
        if (path := _differing(splits.train(step), again.train(step))) is not None:
            raise AssertionError(_UNSEEDED.format(f"batch {step} of training", variant, path))
    for name, split in splits.evaluation.items():
        if (path := _differing(split, again.evaluation[name])) is not None:
            raise AssertionError(_UNSEEDED.format(f"split {name!r}", variant, path))
        if name != "train" and (path := _differing(split, moved.evaluation[name])) is not None:
            raise AssertionError(f"data: split {name!r} of '{variant}' differs for another seed, at '{path}': what is "
                                 "held out must not depend on cfg.seed; draw it by duoln.tasks.originals.DATA_SEED")


def _differing(first: Batch, second: Batch) -> str | None:
    """The path of an array that differs between two batches or splits; None if none does."""
    others = dict(tree.items(second))
    return next((path for path, a in tree.items(first) if path not in others or not np.array_equal(
        a, others[path], equal_nan=np.asarray(a).dtype.kind == "f")), None)


def _check_training(task: Task, variant: str, cfg: Config, splits: Splits, backend: Backend, steps: int) -> None:
    """A run that stops half way and goes on ends with the same bits, and its folder serves `sample` and the rest."""
    cfg = dataclasses.replace(cfg, patience=0)  # which would end with the state of the best evaluation
    whole = Trainer(task, variant, cfg, splits, backend)
    for _ in range(steps):
        whole.advance()
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary) / "run"
        for last in (steps // 2, steps):
            trainer = Trainer(task, variant, cfg, splits, backend)
            trainer.last_update = last
            Session(trainer).run(folder, resume=last == steps)
        for (path, _), (a, b) in zip(tree.items(whole.state), tree.zipped(whole.state, trainer.state), strict=True):
            if not np.array_equal(a.numpy(), b.numpy()):
                raise AssertionError(f"resume: '{path}' differs from a run that did not stop")
        _check_metrics(task, trainer.evaluated)
        if can_draw():
            _check_use(task, folder, backend, Path(temporary))


def _check_metrics(task: Task, metrics: Mapping[str, float]) -> None:
    missing = [c.key for c in task.columns if c.key not in metrics]
    if missing:
        raise AssertionError(f"columns: '{missing[0]}' is not among the metrics {', '.join(sorted(metrics))}")
    if task.selection is not None and task.selection[0] not in metrics:
        raise AssertionError(f"selection: expected one of the metrics {', '.join(sorted(metrics))}; found "
                             f"{task.selection[0]!r}")
    bad = [key for key, value in metrics.items() if not np.isfinite(value)]
    if bad:
        raise AssertionError(f"metrics: {bad[0]} is {metrics[bad[0]]}")


def _check_use(task: Task, run: Path, backend: Backend, temporary: Path) -> None:
    """The model from a run's folder gives samples with the default options, and the same ones again; an evaluation; and
    pictures.
    """
    trained, pictures = load_trained(task, run, backend), temporary / "pictures"
    if task.evaluating is not None:
        task.evaluate(trained, task.evaluating(), lambda line: None)
    pictures.mkdir()
    for file in task.pictures({"one": trained}, pictures):
        if not file.is_file():
            raise AssertionError(f"pictures: expected the files that it names, found no {file}")
    if task.sampling is None:
        return
    contents = []
    for out in (temporary / "first.png", temporary / "second.png"):
        files = task.sample(load_trained(task, run, backend), task.sampling(), out)
        if out not in files or not all(file.is_file() for file in files):
            raise AssertionError(f"sample: expected the file {out.name} among those it names, all written; found "
                                 f"{', '.join(map(str, files)) or 'none'}")
        contents.append([file.read_bytes() for file in files])
    if contents[0] != contents[1]:
        raise AssertionError("sample: two samples with the same seed differ")


# Damaged files --------------------------------------------------------------------------------------------

DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda content: b"",
    "cut in half": lambda content: content[:len(content) // 2],
    "without its last byte": lambda content: content[:-1],
    "of other bytes": lambda content: bytes(255 - byte for byte in content),
}


def check_corpus(task: Task, cfg: Any, corpus: Path, harmless: Collection[str] = ()) -> None:
    """Check that a task reads a small corpus, and refuses it as soon as one of its files is damaged.

    Each file is damaged in turn, in a copy: emptied, cut in half, shortened by a byte, overwritten. `task.data` then
    raises a `DataError` that names the file; it neither falls back on other data nor fails in another way.

    Args:
        task: the task.
        cfg: a configuration that reads the corpus.
        corpus: a folder laid out like DUOLN_DATA, with sound files of a few kB.
        harmless: damages, of `DAMAGES`, that leave a file of this corpus sound: half of a plain text is a text, and so
            is one without its last byte, `harmless=("cut in half", "without its last byte")`.

    Raises:
        AssertionError: the corpus is not read, or a damaged copy is read, or its refusal is not a `DataError` with the
            file's name.
        UsageError: `harmless` names a damage that is none of `DAMAGES`, or leaves none of them.
        UsageError, DataError: errors of the task about the undamaged corpus.
    """
    _check_harmless(harmless)
    if task.data(cfg, corpus).dataset.provenance == "synthetic":
        raise AssertionError(f"data: expected what {corpus} holds, found made data; is it laid out as the task reads "
                             "it?")
    for file in sorted(p.relative_to(corpus) for p in corpus.rglob("*") if p.is_file()):
        for how, damage in DAMAGES.items():
            if how in harmless:
                continue
            with tempfile.TemporaryDirectory() as folder:
                copy = Path(folder) / "corpus"
                shutil.copytree(corpus, copy)
                (copy / file).write_bytes(damage((corpus / file).read_bytes()))
                _check_refused(task, cfg, copy, file, how)


def _check_harmless(harmless: Collection[str]) -> None:
    known = f"some of {', '.join(map(repr, DAMAGES))}"
    if isinstance(harmless, str):
        raise UsageError(f"[check_corpus] harmless: expected {known} in a tuple, found the text {harmless!r}")
    strangers = [how for how in harmless if how not in DAMAGES]
    if strangers:
        raise UsageError(f"[check_corpus] harmless: expected {known}; found {strangers[0]!r}")
    if set(harmless) == set(DAMAGES):
        raise UsageError("[check_corpus] harmless: expected a damage that is left to check, found all of them")


def _check_refused(task: Task, cfg: Any, corpus: Path, file: Path, how: str) -> None:
    try:
        task.data(cfg, corpus)
    except DataError as error:
        if file.name not in str(error):
            raise AssertionError(f"data: {file} {how}: expected an error that names the file, found: {error}"
                                 ) from error
        return
    except Exception as error:
        raise AssertionError(f"data: {file} {how}: expected a DataError, found {type(error).__name__}: {error}"
                             ) from error
    raise AssertionError(f"data: {file} {how}: expected a DataError, found no error")
