"""Ends a run at a chosen call that changes the disk, resumes it, and compares its folder with that of a run never stopped.

A program of its own, so that it may fork: with OPENBLAS_NUM_THREADS=1 it has one thread. `python crash_points.py PLAN FOLDER` reads a list of
`Plan`s as JSON and prints one line of JSON a plan: how many points there are, how many were tried, which were wrong.
"""

import contextlib
import functools
import hashlib
import importlib
import json
import os
import random
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
from small_runs import Line, LineConfig

from duoln import runtime, tree
from duoln.cli.run import run_task
from duoln.kernels import native
from duoln.kernels.native import storage
from duoln.pictures import drawing
from duoln.runs import checkpoint
from duoln.runs.log import read_log
from duoln.runs.trained import load_trained
from duoln.tasks import registry

CALLS = ("open", "write", "fsync", "replace", "unlink", "ftruncate", "mkdir")
"""The calls with which duoln changes a disk. The state before a call is the state after the previous call."""
ENDED = 77


class Plan(NamedTuple):
    """What to run, and at how many of its points to end it.

    `points` of 0 takes all; otherwise so many are drawn with `seed`. With `twice` the resumed run is ended too.
    """

    patience: int
    evaluate_every: int
    points: int
    seed: int = 0
    twice: bool = False


@dataclass(frozen=True)
class WavyConfig(LineConfig):
    patience: int = 0


class Wavy(Line):
    """A line whose metric goes up and down, so that the best comes at any evaluation."""

    name, config = "wavy", WavyConfig

    def __init__(self, plan):
        self.presets = {"smoke": {"patience": plan.patience, "evaluate_every": plan.evaluate_every, "epochs": 2}}

    def metrics(self, predict, split):
        return {"mse": float(1 + np.sin(1e3 * np.mean((predict(split) - split["y"]) ** 2, dtype=np.float64)))}


class Ending:
    """Ends this process before the n-th of `CALLS`; with `half`, after the first half of a write."""

    def __init__(self, n, half=False):
        self.n, self.half, self.seen = n, half, []
        for name in CALLS:
            setattr(os, name, self._counted(name, getattr(os, name)))

    def _counted(self, name, function):
        def call(*args, **kwargs):
            self.seen.append(name)
            if len(self.seen) == self.n:
                if self.half:
                    function(args[0], bytes(args[1])[:len(args[1]) // 2])
                os._exit(ENDED)
            return function(*args, **kwargs)
        return call


def in_child(action):
    """The exit code of a process that is a copy of this one and does something."""
    pid = os.fork()
    if pid == 0:
        try:
            code = action()
        except BaseException as error:
            print(f"{type(error).__name__}: {error}", file=sys.stderr)
            code = 99
        os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def train(plan, folder):
    with contextlib.redirect_stdout(sys.stderr):  # the table; stdout has the lines of this program
        return run_task(lambda: Wavy(plan), ["--out", str(folder), "--resume", "auto", "--backend", "numpy"], preset="smoke")


def calls_of(plan, folder):
    """The names of the calls of a whole run."""
    def run():
        ending = Ending(0)
        code = train(plan, folder / "run")
        (folder / "calls.json").write_text(json.dumps([ending.seen, list(sys.modules)]))
        return code

    assert in_child(run) == 0
    calls, modules = json.loads((folder / "calls.json").read_text())
    for name in modules:  # once for all children; training here would start threads, which no child has
        if name.startswith("duoln.") and name not in sys.modules:
            importlib.import_module(name)
    return calls


def outcome(plan, folder):
    """Everything that a run leaves, without times."""
    backend, results = runtime.backend("numpy"), {}
    for run in sorted(p for p in folder.iterdir() if p.is_dir()):
        steps = checkpoint.list_paths(run / "checkpoints")
        newest, refused = checkpoint.newest(run / "checkpoints")
        model = load_trained(Wavy(plan), run, backend)
        entries = {}
        for entry in read_log(run):
            if entry["event"] in ("update", "evaluation"):
                entries[f"{entry['event']} {entry['update']}"] = {k: v for k, v in entry.items() if k != "wall_s"}
        ends = [e for e in read_log(run) if e["event"] == "end"]
        results[run.name] = {
            "files": sorted(p.relative_to(run).as_posix() for p in run.rglob("*")), "refused": refused,
            "updates": [p.name for p in steps], "weights": _digest(newest.arrays), "last": newest.update,
            "best": model.update, "best weights": _digest(dict(tree.items(tree.map(lambda t: t.numpy(), model.params)))),
            "result": _no_times(json.loads((run / "result.json").read_text())), "end": _no_times(ends[-1]),
            "config": json.loads((run / "config.json").read_text()), "entries": dict(sorted(entries.items()))}
    results["curves"] = (folder / "curves.csv").read_text().splitlines()[0].count(",")
    results["beside"] = sorted(p.name for p in folder.iterdir())
    return results


def _no_times(entry):
    return {k: v for k, v in entry.items() if not k.startswith("seconds_per_")}


def _digest(arrays):
    return hashlib.sha256(b"".join(arrays[name].tobytes() for name in sorted(arrays))).hexdigest()


def drive(plan, folder):
    """The outcome of each point of a plan."""
    folder.mkdir(parents=True)
    for file in storage.sources():  # compiled and loaded before any call is counted, so that all children make the same calls
        native.refusal(file, np.dtype(np.float32))
    native.facts()
    calls = calls_of(plan, folder)
    expected = outcome(plan, folder / "run")
    points = [(n, False) for n in range(1, len(calls) + 1)]
    points += [(n, True) for n, name in enumerate(calls, start=1) if name == "write"]
    rng, wrong = random.Random(plan.seed), []
    tried = rng.sample(points, plan.points) if plan.points else points
    for n, half in tried:
        run = folder / "alone" / "cut"  # a command reads what those beside it say, which makes calls too
        shutil.rmtree(run, ignore_errors=True)
        again = rng.randrange(1, len(calls)) if plan.twice else None
        problem = _cut_and_go_on(plan, run, n, half, again, expected)
        if problem:
            wrong.append([n, calls[n - 1], half, again, problem])
    return {**plan._asdict(), "calls": len(calls), "all_points": len(points), "tried": len(tried), "wrong": len(wrong),
            "first_wrong": wrong[:3]}


def _cut_and_go_on(plan, run, n, half, again, expected):
    """The difference between the resumed run and the uninterrupted one; None if they are equal."""
    def cut(n, half):
        Ending(n, half)
        return train(plan, run)

    code = in_child(lambda: cut(n, half))
    if code != ENDED:
        return f"expected the run to be ended, found exit code {code}"
    if again is not None and in_child(lambda: cut(again, False)) not in (ENDED, 0):
        return "the second run failed"
    code = in_child(lambda: train(plan, run))
    if code:
        return f"expected the resumed run to end well, found exit code {code}"
    try:
        results = outcome(plan, run)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    for name, whole in expected.items():
        if isinstance(whole, dict):
            odd = [key for key in whole if results.get(name, {}).get(key) != whole[key]]
            if odd:
                return f"{name} {odd[0]}: expected {str(whole[odd[0]])[:300]}, found {str(results[name][odd[0]])[:300]}"
        elif results[name] != whole:
            return f"{name}: expected {whole}, found {results[name]}"
    return None


def main():
    drawing.refusal = lambda: "pip install matplotlib"  # drawing takes half a second each
    os.fsync = lambda descriptor: None  # the system outlives its processes; so the calls are counted and not waited for
    registry._outside = functools.cache(registry._outside)
    registry.Registry()
    plans, folder = [Plan(**p) for p in json.loads(sys.argv[1])], Path(sys.argv[2])
    for k, plan in enumerate(plans):
        print(json.dumps(drive(plan, folder / str(k))), flush=True)


if __name__ == "__main__":
    main()
