"""The evidence for claims: runs of one setting, on the best data there is, and findings of `duoln analyze --out`."""

from __future__ import annotations

import dataclasses
import itertools
import json
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, get_args

from duoln.errors import DataFormatError, DuolnError
from duoln.plugins import theory
from duoln.plugins.paper.contents import Length
from duoln.plugins.paper.rules import Answer, Content, Role, RunRule
from duoln.runs.curve import Curve
from duoln.runs.curves import read_curves
from duoln.runs.folder import read_json
from duoln.runs.places import run_folders
from duoln.tasks.registry import Registry
from duoln.tasks.settings import make_config
from duoln.tasks.task import Task
from duoln.tasks.values import Dataset, Provenance

PROVENANCES: tuple[Provenance, ...] = get_args(Provenance)
"""Best data first."""
_NO_PROTOCOL = frozenset({"seed", "evaluate_every", "source"})
"""Settings that may differ from the paper's without another experiment; the provenance tells which data it was."""

KEPT = Path(theory.__file__).resolve().parent / "results"
"""The folder of the findings that are kept."""
_ANALYSES = ("equations", "stability", "invariance", "geometry", "magnitude", "shift", "smoothness", "borders")
COMMANDS = {**{kind: f"duoln analyze {kind}" for kind in _ANALYSES},
            **{kind: f"python -m duoln.examples.{kind} --seeds 5" for kind in ("adding_lengths", "length_and_batch")}}
"""The command of each kind of finding."""


class Setting(NamedTuple):
    """Runs of a variant that differ in nothing but the seed."""

    variant: str
    config: Mapping[str, Any]
    """The settings without the seed."""
    dataset: Dataset
    runs: Mapping[int, Curve]
    """The runs by seed."""

    def fits(self, role: Role) -> bool:
        """True if the runs can have a role."""
        return self.variant == role.variant and all(
            self.config.get(key) == value for key, value in role.settings.items())


class Evidence(NamedTuple):
    """The runs that decide a claim, and the rule's answer."""

    settings: Sequence[Setting]
    """One for each role of the claim's rule."""
    seeds: Sequence[int]
    """The seeds that all of them have."""
    answer: Answer
    length: Length

    @property
    def dataset(self) -> Dataset:
        return self.settings[0].dataset

    @property
    def runs(self) -> list[Curve]:
        return [setting.runs[seed] for setting in self.settings for seed in self.seeds]

    @property
    def shortest(self) -> Curve:
        """The run with the smallest share of the paper's updates."""
        return min(self.runs, key=self._share)

    @property
    def share(self) -> float:
        """The updates of the shortest run by the paper's."""
        return self._share(self.shortest)

    def _share(self, run: Curve) -> float:
        share: float = run.points[-1]["update"] / self.length.at(run.config["batch_size"])
        return share


class Finding(NamedTuple):
    """The result of a kind of `duoln analyze`."""

    path: Path
    content: Content


def read_finding(path: Path) -> Finding:
    """A finding.

    Raises:
        CheckpointError: the file is not there. DataFormatError: it is no finding.
    """
    content = read_json(path)
    for key in ("analysis", "time", "summary"):
        if not isinstance(content.get(key), str):
            raise DataFormatError(path, 0, f"a text as {key}", f"{content.get(key)!r:.60}")
    return Finding(path, content)


def newest_findings(folders: Sequence[Path], refused: list[str]) -> dict[str, Finding]:
    """The newest finding of each kind in some folders; what cannot be read is added to `refused`."""
    newest: dict[str, Finding] = {}
    for kind, folder in itertools.product(COMMANDS, folders):
        if (path := folder / f"{kind}.json").is_file():
            try:
                finding = read_finding(path)
            except DuolnError as error:
                refused.append(str(error))
                continue
            if kind not in newest or finding.content["time"] > newest[kind].content["time"]:
                newest[kind] = finding
    return newest


def read_runs(registry: Registry, folders: Iterable[Path], refused: list[str]) -> dict[str, list[Setting]]:
    """The runs of each task in some folders, with at least one evaluation; what cannot be read goes to `refused`."""
    runs: dict[str, list[Curve]] = {}
    for path in dict.fromkeys(run for folder in folders for run in run_folders(folder)):
        try:
            [run] = read_curves([path])
            if run.task in registry.tasks and run.points:
                _check(run)
                runs.setdefault(run.task, []).append(run)
        except DuolnError as error:
            refused.append(str(error))
    return {task: by_setting(registry.tasks[task].task, of_task) for task, of_task in runs.items()}


def _check(run: Curve) -> None:
    """Raises DataFormatError for a provenance, a seed or a figure that is none."""
    if run.dataset.provenance not in PROVENANCES:
        raise DataFormatError(run.path, 0, f"a provenance of {', '.join(PROVENANCES)}",
                              repr(run.dataset.provenance))
    figures = {key: run.result.get(key, known) for key, known in run.last.items() if isinstance(known, int | float)}
    for key, value in {**figures, "seed": run.config.get("seed")}.items():
        if not isinstance(value, int if key == "seed" else int | float) or isinstance(value, bool):
            raise DataFormatError(run.path, 0, "a whole number as seed" if key == "seed" else
                                  f"a number as {key} of the run's end", f"{value!r:.60}")


def by_setting(task: Task, runs: Sequence[Curve]) -> list[Setting]:
    """The runs by setting. The longest of runs that are equal in seed and settings counts, and the newest of these.

    A run counts as one of its variant only if its settings are those of the variant.
    """
    groups: dict[str, Setting] = {}
    for run in sorted(runs, key=lambda run: (run.points[-1]["update"], _time(run))):
        if run.variant not in task.variants or any(
                run.config.get(key) != value for key, value in task.variants[run.variant].items()):
            continue
        config = {key: value for key, value in run.config.items() if key != "seed"}
        key = repr((run.variant, run.dataset, sorted(config.items())))
        setting = groups.setdefault(key, Setting(run.variant, config, run.dataset, {}))
        groups[key] = setting._replace(runs={**setting.runs, run.config["seed"]: run})
    return list(groups.values())


def _time(run: Curve) -> str:
    time = run.starts[-1].get("time") if run.starts else None
    return time if isinstance(time, str) else ""


def choose(task: Task, rule: RunRule, length: Length, settings: Sequence[Setting]) -> Evidence | None:
    """The runs for a rule: the best data, then the largest share of the paper's length, then the most seeds.

    The settings of all roles are equal, but for what the variants and the rule say, and the seed. Where a rule leaves
    the learning rate free, each role has its best one, by the task's selection. None if no settings are equal.
    """
    candidates = [_evidence(rule, length, chosen) for chosen in _comparable(task, rule, settings)]
    return max((c for c in candidates if c is not None), default=None, key=lambda c: (
        -PROVENANCES.index(c.dataset.provenance), c.share, len(c.seeds),
        _levels(task, c) if "learning_rate" in rule.free else [], max(map(_time, c.runs))))


def _levels(task: Task, evidence: Evidence) -> list[float]:
    """The medians over the seeds of the figure by which a task selects, greater is better, the worst role first."""
    if task.selection is None:
        return []
    key, which = task.selection
    sign = 1.0 if which == "highest" else -1.0
    ends = [[sign * setting.runs[seed].last.get(key, math.nan) for seed in evidence.seeds]
            for setting in evidence.settings]
    return sorted(statistics.median([-math.inf if math.isnan(value) else value for value in values]) for values in ends)


def _comparable(task: Task, rule: RunRule, settings: Sequence[Setting]) -> Iterable[tuple[Setting, ...]]:
    """For each role a setting, equal in what the variants and the rule do not name.

    A setting that one variant overrides is equal among the others, too.
    """
    overridden = {key for role in rule.roles for key in task.variants.get(role.variant, ())}
    apart = {"seed", *rule.free, *overridden, *(key for role in rule.roles for key in role.settings)}
    by_common: dict[str, list[list[Setting]]] = {}
    for place, role in enumerate(rule.roles):
        for setting in settings:
            if setting.fits(role):
                common = sorted((key, value) for key, value in setting.config.items() if key not in apart)
                by_common.setdefault(repr((setting.dataset, common)), [[] for _ in rule.roles])[place].append(setting)
    return (chosen for group in by_common.values() for chosen in itertools.product(*group) if all(
        len({repr(s.config.get(key)) for s in chosen if key not in task.variants[s.variant]}) <= 1
        for key in overridden.difference(rule.free)))


def _evidence(rule: RunRule, length: Length, chosen: Sequence[Setting]) -> Evidence | None:
    """The answer of the seeds that all settings have; None if there are none, or they lack the rule's figures."""
    seeds = [seed for seed in sorted(set.intersection(*(set(s.runs) for s in chosen)))
             if rule.judge([[s.runs[seed]] for s in chosen]) is not None]
    answer = rule.judge([[s.runs[seed] for seed in seeds] for s in chosen]) if seeds else None
    return None if answer is None else Evidence(chosen, seeds, answer, length)


def differences(task: Task, setting: Setting) -> dict[str, tuple[Any, Any]]:
    """The settings that differ from those of the preset `paper`, as (ours, the paper's)."""
    protocol = json.loads(json.dumps(dataclasses.asdict(make_config(task, setting.variant, "paper"))))
    return {key: (setting.config[key], value) for key, value in protocol.items()
            if key not in _NO_PROTOCOL and key in setting.config and setting.config[key] != value}
