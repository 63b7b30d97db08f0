"""Compares each figure, table and claim with our runs: the newest runs on the best data, read from run folders."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, get_args

from duoln.errors import CheckpointError, DataFormatError, DuolnError
from duoln.paper.contents import CONTENTS, Entry
from duoln.runs.curve import Curve
from duoln.runs.curves import read_curves
from duoln.runs.folder import read_json, run_folders
from duoln.tasks.registry import Registry
from duoln.tasks.settings import make_config
from duoln.tasks.task import Task
from duoln.tasks.values import Dataset, Provenance

PROVENANCES: tuple[Provenance, ...] = get_args(Provenance)
"""Best data first."""
_NO_PROTOCOL = frozenset({"seed", "evaluate_every", "source"})
"""Settings that may differ from the paper's without another experiment; the provenance tells which data it was."""


class Run(NamedTuple):
    """One run: its final figures, or those of its last evaluation, and the differences of its settings from the preset
    `paper`.
    """

    path: Path
    dataset: Dataset
    time: str
    """When it was last started, ISO 8601; empty if the log does not say."""
    ended: bool
    step: int
    epoch: float
    figures: dict[str, float]
    """By the keys of the task's columns."""
    differs: dict[str, tuple[Any, Any]]
    """Setting -> ours, the paper's."""


class Variant(NamedTuple):
    """A variant of a task: the paper's claim, and our run, if there is one."""

    name: str
    reference: str
    run: Run | None


class Finding(NamedTuple):
    """The result of a kind of `duoln analyze`."""

    path: Path
    time: str
    summary: str


class Standing(NamedTuple):
    """How far one entry of the paper is reproduced."""

    entry: Entry
    task: Task | None
    missing: str
    """Why there is no task where one is needed."""
    variants: list[Variant]
    finding: Finding | None

    @property
    def command(self) -> str:
        """The command that reproduces the entry; empty if there is no task."""
        if self.entry.task:
            if self.task is None:
                return ""
            return f"duoln run {self.task.name}" + (" --preset paper" if "paper" in self.task.presets else "")
        return f"duoln analyze {self.entry.analysis}" if self.entry.analysis else self.entry.check

    @property
    def runs(self) -> dict[str, Run]:
        """Our runs by variant."""
        return {v.name: v.run for v in self.variants if v.run is not None}

    @property
    def provenance(self) -> Provenance | None:
        """The provenance of the data among our runs that is furthest from the original."""
        return max((run.dataset.provenance for run in self.runs.values()), key=PROVENANCES.index, default=None)

    @property
    def open(self) -> list[str]:
        """What is still open: on our side, then on the paper's."""
        ours = [self.missing] if self.missing else []
        without = [v.name for v in self.variants if v.run is None]
        if without:
            ours.append("no run" if not self.runs else f"no run of {', '.join(without)}")
        for provenance in PROVENANCES[1:]:
            names = [name for name, run in self.runs.items() if run.dataset.provenance == provenance]
            if names:
                ours.append(f"{', '.join(names)} on {provenance} data only")
        going = [name for name, run in self.runs.items() if not run.ended]
        if going:
            ours.append(f"{', '.join(going)} not ended")
        changed = list(dict.fromkeys(key for run in self.runs.values() for key in run.differs))
        if changed:
            ours.append(f"not the paper's: {', '.join(changed)}")
        apart = [key for key in changed if len({repr(run.differs.get(key)) for run in self.runs.values()}) > 1]
        if apart:
            ours.append(f"not the same for all variants: {', '.join(apart)}")
        if self.entry.analysis and self.finding is None:
            ours.append(f"not kept in a folder of runs: {self.command} --out runs/theory")
        return [*ours, *([self.entry.open] if self.entry.open else [])]


def standings(registry: Registry, folders: Sequence[Path]) -> tuple[list[Standing], list[str]]:
    """Every entry of the paper with the runs, in some folders, that reproduce it.

    Args:
        registry: the tasks.
        folders: each is a run, a folder of runs, or a folder of such folders, as `runs` is.

    Returns:
        The standings, and a line for each run or finding that could not be read.

    Raises:
        CheckpointError: a folder that is not there, or cannot be read.
    """
    for folder in folders:
        if not folder.is_dir():
            raise CheckpointError(f"{folder}: expected a folder of runs, found "
                                  f"{'a file' if folder.exists() else 'nothing there'}")
    refused: list[str] = []
    runs = _best(registry, folders, refused)
    findings = _findings(folders, refused)
    broken = {b.name: b.reason for b in registry.broken}
    rows = []
    for entry in CONTENTS:
        task = registry.tasks[entry.task].task if entry.task in registry.tasks else None
        missing = ""
        if entry.task and task is None:
            missing = f"plug-in {entry.task} is broken: {broken[entry.task]}" if entry.task in broken else \
                f"no plug-in {entry.task} is loaded"
        variants = [Variant(name, task.references.get(name, ""), runs.get((task.name, name)))
                    for name in task.variants] if task else []
        rows.append(Standing(entry, task, missing, variants, findings.get(entry.analysis)))
    return rows, refused


def _below(folder: Path) -> list[Path]:
    """The folder and the folders in it: runs and findings are in one of these, or right below."""
    try:
        return [folder, *sorted(p for p in folder.iterdir() if p.is_dir())]
    except OSError as error:
        raise CheckpointError(f"{folder}: cannot be read: {error.strerror or error}") from error


def _best(registry: Registry, folders: Sequence[Path], refused: list[str]) -> dict[tuple[str, str], Run]:
    """For each task and variant the newest run with figures, on the best data there is."""
    best: dict[tuple[str, str], Run] = {}
    paths = dict.fromkeys(run for folder in folders for place in _below(folder) for run in run_folders(place))
    for path in paths:
        try:
            [curve] = read_curves([path])
            if curve.task not in registry.tasks or not curve.points:
                continue
            run = _run(registry.tasks[curve.task].task, curve)
        except DuolnError as error:
            refused.append(str(error))
            continue
        before = best.get((curve.task, curve.variant))
        if before is None or _worth(run) > _worth(before):
            best[curve.task, curve.variant] = run
    return best


def _worth(run: Run) -> tuple[int, str]:
    return -PROVENANCES.index(run.dataset.provenance), run.time


def _run(task: Task, curve: Curve) -> Run:
    if curve.dataset.provenance not in PROVENANCES:
        raise DataFormatError(curve.path, 0, f"a provenance of {', '.join(PROVENANCES)}",
                              repr(curve.dataset.provenance))
    time = curve.starts[-1].get("time") if curve.starts else None
    ended = curve.result.get("status") == "done"
    last = curve.points[-1]
    # The final figures need not be those of the last evaluation, because a run may go back to its best model.
    values = {**last, **curve.result, "step": curve.result.get("steps"), "epoch": curve.result.get("epochs")} \
        if ended else last
    figures = {key: values[key] for key in ("step", "epoch", *(c.key for c in task.columns)) if key in values}
    for key, value in figures.items():
        if not isinstance(value, int | float) or isinstance(value, bool):
            raise DataFormatError(curve.path, 0, f"a number as {key} of the run's end", f"{value!r:.60}")
    return Run(curve.path, curve.dataset, time if isinstance(time, str) else "", ended, figures.pop("step"),
               figures.pop("epoch"), figures, _differences(task, curve))


def _differences(task: Task, curve: Curve) -> dict[str, tuple[Any, Any]]:
    """The settings of a run that differ from the paper's, if the task has a preset `paper`."""
    if "paper" not in task.presets or curve.variant not in task.variants:
        return {}
    protocol = json.loads(json.dumps(dataclasses.asdict(make_config(task, curve.variant, "paper"))))
    return {key: (curve.config[key], value) for key, value in protocol.items()
            if key not in _NO_PROTOCOL and key in curve.config and curve.config[key] != value}


def _findings(folders: Sequence[Path], refused: list[str]) -> Mapping[str, Finding]:
    """The newest finding of each kind of `duoln analyze`."""
    newest: dict[str, Finding] = {}
    for kind in dict.fromkeys(entry.analysis for entry in CONTENTS if entry.analysis):
        for place in (place for folder in folders for place in _below(folder)):
            path = place / f"{kind}.json"
            if not path.is_file():
                continue
            try:
                content = read_json(path)
                for key in ("analysis", "time", "summary"):
                    if not isinstance(content.get(key), str):
                        raise DataFormatError(path, 0, f"a text as {key}", f"{content.get(key)!r:.60}")
            except DuolnError as error:
                refused.append(str(error))
                continue
            if kind not in newest or content["time"] > newest[kind].time:
                newest[kind] = Finding(path, content["time"], content["summary"])
    return newest
