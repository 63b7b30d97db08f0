"""Plans a command of `duoln run`: the runs, their settings and folders, and the command that goes on with them."""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import shlex
import sys
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

from duoln import runtime
from duoln.cli import console
from duoln.cli.report import CURVES, LAYERS
from duoln.data import json_text
from duoln.distributed.ranks import Ranks
from duoln.errors import CheckpointError, UsageError
from duoln.runs import checkpoint
from duoln.runs.folder import rewrite_config
from duoln.runs.places import COMMAND, CONFIG, check_apart
from duoln.runs.precision import FLOAT32, read_precision, resumed_precision
from duoln.runs.settings import (
    Command,
    Job,
    config_of,
    jobs,
    newest_below,
    read_command,
    resumed_config,
    write_command,
)
from duoln.system.filesystem import check_regular, make_folder
from duoln.tasks.settings import make_config
from duoln.tasks.task import Config, Task

RUNS = Path("runs")
"""The folder of the runs of commands without --out."""
BY_LAUNCH = ["--ranks", "duoln"]
"""The words that `duoln run --ranks N` adds to the command lines of its processes."""


class Plan(NamedTuple):
    """The runs of a command."""

    top: Path
    """The folder that holds them."""
    wishes: Mapping[Job, Command]
    """The request of each run."""
    configs: Mapping[Job, Config]
    precisions: Mapping[Job, str]


def plan(task: Task, asked: Command, usual: str | None, out: Path | None, resume: bool, follows: bool) -> Plan:
    """The runs that a command makes or goes on with, with their settings.

    Args:
        task: the task.
        asked: the request of the command line; no variants are all of them, or those of the folder.
        usual: the preset of a run for which none is named.
        out: the folder that the user names.
        resume: go on with runs of that folder, or of the task's newest one.
        follows: this process is one of several but not the first, which alone reads and writes the folder.

    Raises:
        UsageError, CheckpointError: the folder or the request does not fit; the message says which.
    """
    if resume and follows:
        return Plan(Path(), {}, {}, {})
    if resume:
        top = out or newest_below(RUNS, task.name)
        if top is None:
            raise CheckpointError(f"--resume auto: no run of {task.name} below runs/; name one with --out")
        if out is None:
            console.say(f"going on in {top}")
        wishes, configs = _resumed(task, top, asked, usual)
    else:
        asked = asked._replace(variants=asked.variants or list(task.variants), preset=asked.preset or usual)
        wishes = dict.fromkeys(jobs(asked.variants, asked.seeds), asked)
        configs = {job: make_config(task, job.variant, asked.preset, asked.settings_of(job)) for job in wishes}
        if follows:
            return Plan(Path(), wishes, configs, {})
        top = _new_folder(task, configs, out)
    return Plan(top, wishes, configs, _precisions(top, wishes, asked.precision))


def _new_folder(task: Task, runs: Iterable[Job], out: Path | None) -> Path:
    """The folder of a command that begins."""
    if out is None:
        return RUNS / f"{task.name}-{datetime.now():%Y%m%d-%H%M%S}"
    for name in (*CURVES, *LAYERS):
        check_regular(out / name)  # before anything is trained
    for job in runs:
        check_apart(out / job.name)
    taken = [job.name for job in runs if (out / job.name / CONFIG).exists()]
    if taken:
        raise CheckpointError(f"{out}: already holds a run of {', '.join(taken)}; go on with --resume auto, "
                              "or choose another --out")
    return out


def unused_folder(folder: Path) -> Path:
    """The folder, or one with a number after its name if another command that began in the same second has it."""
    make_folder(folder.parent)
    own, number = folder, 1
    while True:
        try:
            own.mkdir()
        except FileExistsError:
            number += 1
            own = folder.with_name(f"{folder.name}-{number}")
        else:
            return own


def write_run_requests(task: Task, made: Plan) -> None:
    """Note in the folders of runs what they are to be, before the first of them trains: the command may be stopped, and
    what it asked for holds for the runs that it had not reached.
    """
    now = datetime.now(UTC).isoformat(timespec="microseconds")
    for job, wish in made.wishes.items():
        folder = made.top / job.name
        if (folder / CONFIG).is_file():
            rewrite_config(folder, made.configs[job])
            continue
        before = read_command(folder)
        asked = wish._replace(task=task.name, time=now if before is None else before.time)
        if asked != before:
            write_command(folder, asked)


def _resumed(task: Task, top: Path, asked: Command,
            usual: str | None) -> tuple[dict[Job, Command], dict[Job, Config]]:
    """The plan of each run, and the settings with which the command goes on: each run's own.

    A run that the earlier command had not begun gets the preset and the settings that it was to have; one that the
    command was not to make gets those of the others.
    """
    for name in (*CURVES, *LAYERS):
        check_regular(top / name)
    notes = sorted(top.glob(f"*/{COMMAND}"))
    earlier = {path.parent.name: noted for path in notes if (noted := read_command(path.parent)) is not None}
    chosen, seeds = _chosen(task, top, earlier.values(), asked)
    wishes, configs = {}, {}
    for job in chosen:
        wish = asked
        if not (top / job.name / CONFIG).is_file():
            noted = earlier.get(job.name) or max(earlier.values(), key=lambda each: each.time, default=None)
            variants = sorted({job.variant for job in chosen}.union(*(each.variants for each in earlier.values())))
            wish = Command(variants, asked.preset or (noted.preset if noted else usual),
                           {**(noted.settings if noted else {}), **asked.settings},
                           seeds or asked.seeds or (noted.seeds if noted else []),
                           asked.precision or (noted.precision if noted else None))
        wishes[job] = wish
        configs[job], changed = resumed_config(task, job.variant, top / job.name, wish.preset, wish.settings_of(job))
        for key, (before, now) in changed.items():
            console.say(f"{job.name}: {key} was {before}, and is {now} from now on")
    return wishes, configs


def _chosen(task: Task, top: Path, earlier: Iterable[Command], asked: Command) -> tuple[list[Job], list[int]]:
    """The runs to go on with, those that were asked for or all that are known; and the seeds, if there are several."""
    known = dict.fromkeys(job for each in earlier for job in jobs(each.variants, each.seeds)
                          if job.variant in task.variants)
    variants = [name for name in task.variants if any(job.variant == name for job in known)] or list(task.variants)
    seeds = sorted({job.seed for job in known if job.seed is not None})
    if len(asked.seeds) > 1 and known and not seeds:
        raise UsageError(f"[run] --seed: expected no more than the one seed of the runs in {top}, found "
                         f"{len(asked.seeds)}; begin runs of several seeds with another --out")
    if not seeds:
        return jobs(asked.variants or variants, asked.seeds), asked.seeds if len(asked.seeds) > 1 else []
    if not asked.variants and not asked.seeds:
        order = {name: k for k, name in enumerate(task.variants)}
        return sorted(known, key=lambda job: (job.seed or 0, order[job.variant])), seeds
    chosen = [Job(name, seed) for seed in asked.seeds or seeds for name in asked.variants or variants]
    return chosen, sorted({*seeds, *asked.seeds})


def _precisions(top: Path, wishes: Mapping[Job, Command], asked: str | None) -> dict[Job, str]:
    """The precision of each run: that of its folder; if it has none yet, the one that it was to have, or that of the
    others of the command.
    """
    before = {job: read_precision(top / job.name) for job in wishes}
    usual = asked or next(filter(None, before.values()), FLOAT32)
    return {job: resumed_precision(top / job.name, asked) if before[job] else wish.precision or usual
            for job, wish in wishes.items()}


def backend_before(made: Plan) -> str | None:
    """The backend that made the newest checkpoint of a run; None if no run has one, this machine cannot use it, or
    DUOLN_BACKEND names one.
    """
    if os.environ.get("DUOLN_BACKEND"):
        return None
    for job in made.configs:
        saved, _ = checkpoint.newest(made.top / job.name / "checkpoints")
        if saved is not None:
            name = saved.notes.get("identity", {}).get("backend")
            return name if name in runtime.CHOICES and runtime.probe(name).backend is not None else None
    return None


def plan_of_first(task: Task, ranks: Ranks, own: Plan, asked: str | None) -> Plan:
    """The plan of this process with the configurations and precisions of process 0, which alone reads the run folder.

    Args:
        task: the task.
        ranks: the processes.
        own: the plan of this process; it has no runs if the run folder has them.
        asked: the precision that the command line of this process names.

    Raises:
        UsageError: the command line of another process has other settings.
    """
    text = json_text.dumps([[*job, dataclasses.asdict(cfg), own.precisions.get(job)]
                             for job, cfg in own.configs.items()])
    shared = json_text.revive(json.loads(ranks.texts(text)[0]))
    first = {Job(variant, seed): config_of(task, settings, "[ranks] rank 0") for variant, seed, settings, _ in shared}
    chosen = {Job(variant, seed): precision for variant, seed, _, precision in shared}
    ranks.check_same({f"{job.name} {key}": json_text.dumps(value) for job, cfg in (own.configs or first).items()
                      for key, value in {**vars(cfg), "precision": asked or chosen.get(job)}.items()})
    return own._replace(configs=first, precisions=chosen)


def resume_command(words: Sequence[str], out: Path | None) -> str:
    """The whole command, quoted for a shell, indented by four columns, by which `console.say` leaves it in one line.

    Args:
        words: the command line of this process.
        out: the run folder; None stands for the newest of the task.
    """
    given = list(words[:-2] if list(words[-2:]) == BY_LAUNCH else words)
    old = argparse.ArgumentParser(add_help=False)
    old.add_argument("--resume")
    old.add_argument("--out")
    _, kept = old.parse_known_args(given)
    return "    " + shlex.join([*_program(), *kept, "--resume", "auto", *([] if out is None else ["--out", str(out)])])


def _program() -> list[str]:
    """The words that started this process: a command, `python -m MODULE`, or `python FILE`."""
    spec = getattr(sys.modules["__main__"], "__spec__", None)
    if spec is not None:
        module = spec.name.removesuffix(".__main__")
        return ["duoln"] if module == "duoln" else ["python", "-m", module]
    return ["python", sys.argv[0]] if sys.argv[0].endswith(".py") else [Path(sys.argv[0]).name]
