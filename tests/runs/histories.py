"""Random histories of runs, made for real and in a plain model of what must be there afterwards.

A history has commands that begin, stop, crash and resume, runs from Python, code that changes, and files that are
damaged. The model keeps numbers in dicts: it has no files, and knows nothing of duoln but the batches and first weights.
"""

import os
import signal
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

import numpy as np

import duoln
from duoln import nn, ops, optim
from duoln.cli.run import run_task
from duoln.data import Batches
from duoln.errors import CheckpointError, DivergedError, Interrupted
from duoln.randomness import Stream
from duoln.runs import checkpoint
from duoln.runs.curves import read_curves
from duoln.runs.series import series_of
from duoln.tasks import Column, Config, Dataset, Splits, Task, make_config
from duoln.tasks.events import Listener

RUNS = Path("runs")


@dataclass(frozen=True)
class DriftConfig(Config):
    epochs: int = 1
    batch_size: int = 4
    rows: int = 12
    """Of the data: 3 or 2 updates an epoch."""
    explodes: int = -1
    """The update whose batch holds a NaN."""


class Drift(Task):
    """Weights that drift by the batches' means: what they are after an update is plain arithmetic."""

    name, title, config, scale = "drift", "Drift", DriftConfig, 1.0
    presets: ClassVar = {"smoke": {}}
    variants: ClassVar = {"a": {"learning_rate": 0.5}, "b": {"learning_rate": 0.25, "rows": 8}, "wild": {"explodes": 4}}
    columns = (Column("test_value", "value"),)

    def data(self, cfg, root=None):
        x = np.arange(1, cfg.rows + 1, dtype=np.float32)[:, None] / cfg.rows
        batches = Batches({"x": x}, cfg.batch_size, cfg.seed)

        def train(step):
            return {"x": batches(step)["x"] * np.float32(np.nan if step == cfg.explodes else 1)}

        return Splits(Dataset(f"{cfg.rows} rows", "synthetic"), train, batches.steps_per_epoch, {"test": {"x": x[-1:]}})

    def model(self, cfg):
        return nn.Linear(1, 1)

    def loss(self, model, params, batch):
        return ops.mean(model(params, batch["x"])) * self.scale

    def metrics(self, predict, split):
        return {"value": float(predict(split)[0, 0])}

    def optimizer(self, cfg, updates):
        return optim.SGD(cfg.learning_rate)


class Faster(Drift):
    """The task after its author has changed the code."""

    scale = 2.0


CODES = {"Drift": Drift, "Faster": Faster}


@dataclass
class Run:
    """What must be known of one run."""

    variant: str
    seed: int
    epochs: int
    """What was asked for last."""
    begun: bool = False
    code: str = ""
    """That of the last start."""
    checkpoints: list = field(default_factory=list)
    """(update, weights, the last evaluation, code, changes so far), and whether the file is sound; oldest first."""
    points: dict = field(default_factory=dict)
    losses: set = field(default_factory=set)
    status: str = ""
    step: int = 0
    """Of the result."""
    changes: tuple = ()
    started: int = 0
    """The number of the last start among all runs'."""


class Ended(Exception):
    """A run of the model ended before its last update; the argument is the exit code of its command."""


class World:
    """A history: the real runs in `runs` of the working folder, and the model.

    Args:
        seed: of the history.
    """

    def __init__(self, seed):
        self.rng = np.random.default_rng(seed)
        self.runs: dict[Path, Run] = {}
        self.tops: dict[Path, list[Path]] = {}
        """The runs of each command that began, in the order in which they are trained; the newest is last."""
        self.told: list[str] = []
        self.starts = 0

    def step(self):
        """One more event, and a comparison of what is there with the model."""
        kinds = {"begin": 2, "resume": 5, "python": 1, "damage": 2}
        kind = str(self.rng.choice(list(kinds), p=np.array(list(kinds.values())) / sum(kinds.values())))
        getattr(self, f"_{kind}" if self.tops else "_begin")()
        self.compare()

    def _choose(self, *options):
        return options[self.rng.integers(len(options))]

    # Events ---------------------------------------------------------------------------------------------

    def _begin(self):
        out = RUNS / self._choose("x", "y", "z/deep", "z/w/deeper") if self._choose(0, 1, 1) else RUNS / str(len(self.tops))
        variants = self._choose(["a", "b"], ["a"], ["b", "a"], ["wild", "a"], ["a", "wild", "b"])
        seeds, epochs = self._choose([], [], [3], [0, 1], [2, 0, 1]), self._choose(1, 2, 3)
        paths = {out / (f"{v}-seed{s}" if len(seeds) > 1 else v): (v, s) for s in seeds or [0] for v in variants}
        words = ["--out", str(out), "--epochs", str(epochs), *(["--seed", ",".join(map(str, seeds))] if seeds else [])]
        taken = any(self.runs.get(path) and self.runs[path].begun for path in paths)
        if not taken and out in self.tops:  # another command has noted something there; its runs would be mixed with these
            return
        if not taken:
            self.tops[out] = list(paths)
            self.runs |= {path: Run(variant, seed, epochs) for path, (variant, seed) in paths.items()}
        self._command(words, [] if taken else list(paths), "Drift", False, variants, 1 if taken else None)

    def _resume(self):
        newest = self._choose(True, False)
        top = list(self.tops)[-1] if newest else self._choose(*self.tops)
        order = {name: k for k, name in enumerate(Drift.variants)}
        known = self.tops[top]
        several = any("-seed" in path.name for path in known)
        chosen = sorted(known, key=lambda path: (self.runs[path].seed if several else 0, order[self.runs[path].variant]))
        variants = []
        if self._choose(0, 0, 1):
            variants = [self.runs[self._choose(*known)].variant]
            chosen = [path for path in chosen if self.runs[path].variant in variants]
        epochs, anyway = self._choose(None, None, 2, 3, 4), self._choose(False, False, True)
        if epochs:
            for path in chosen:
                self.runs[path].epochs = epochs
        words = ["--resume", "anyway" if anyway else "auto", *([] if newest else ["--out", str(top)]),
                 *(["--epochs", str(epochs)] if epochs else [])]
        self._command(words, chosen, self._choose("Drift", "Drift", "Faster"), True, variants, anyway=anyway)

    def _command(self, words, paths, code, resume, variants, expected=None, anyway=False):
        """A command, and the same in the model: runs one after another, until all are done or one ends it."""
        ending = Ending(self._choose(None, None, "stop", "crash"), self.rng.integers(1, 12))
        diverged = False
        try:
            for path in paths:
                diverged |= self._fit(self.runs[path], code, resume, anyway, ending)
        except Ended as end:
            expected = end.args[0]
        expected = expected or 5 * diverged
        listener = Ending(ending.how, ending.after)
        with duoln_listeners(listener):
            actual = run_task(CODES[code], ["--backend", "numpy", *words], preset="smoke", variants=variants)
        self.told.append(f"{' '.join(words)} of {variants or 'all'} with {code}, {ending.how} after {ending.after}: {actual}")
        assert actual == expected, f"exit code {actual}, not {expected}"

    def _python(self):
        """One run from Python, in a folder of its own or gone on with."""
        path = RUNS / "python" / self._choose("one", "two/a")
        code, epochs, anyway = self._choose("Drift", "Drift", "Faster"), self._choose(1, 2, 3), self._choose(True, False)
        resume = path in self.runs
        run = self.runs.setdefault(path, Run(self._choose("a", "b", "wild"), int(self.rng.integers(3)), epochs))
        run.epochs = run.epochs if resume and not run.begun else epochs
        ending = Ending(self._choose(None, "stop", "crash"), self.rng.integers(1, 12))
        expected: object = 0
        before = run.epochs, run.begun
        try:
            expected = 5 * self._fit(run, code, resume, anyway, ending)
        except Ended as end:
            expected = end.args[0]
        try:
            duoln.tasks.train(CODES[code](), run.variant, backend="numpy", out=path, seed=run.seed, epochs=before[0],
                        resume=("anyway" if anyway else True) if resume else False, listeners=[Ending(ending.how, ending.after)])
            actual = 0
        except Interrupted as stop:
            actual = stop.exit_code
        except KeyboardInterrupt:
            actual = 130
        except DivergedError:
            actual = 5
        except CheckpointError:
            actual = 1
        if actual == 1:
            run.epochs = self._config_epochs(path, run.epochs)
        self.told.append(f"{path} from Python to epoch {epochs} with {code}, {ending.how} after {ending.after}: {actual}")
        assert actual == expected, f"exit code {actual}, not {expected}"

    def _config_epochs(self, path, epochs):
        """A refused run keeps its settings."""
        return read_curves([path])[0].config["epochs"] if (path / "config.json").is_file() else epochs

    def _damage(self):
        begun = [path for path, run in self.runs.items() if run.begun]
        if not begun:
            return
        path, how = self._choose(*begun), self._choose("checkpoint", "log", "result", "removed")
        self.told.append(f"damage of {path}: {how}")
        run, files = self.runs[path], checkpoint.list_paths(path / "checkpoints")
        if how == "log":
            with (path / "log.jsonl").open("ab") as log:
                log.write(b'{"event": "update", "up')
        elif how == "result":
            (path / "result.json").unlink(missing_ok=True)
        elif how == "checkpoint":
            files[-1].write_bytes(files[-1].read_bytes()[:-40])
            run.checkpoints[-1] = (run.checkpoints[-1][0], False)
        elif len(files) > 1:
            files[-1].unlink()
            run.checkpoints.pop()

    # The model ------------------------------------------------------------------------------------------

    def _fit(self, run, code, resume, anyway, ending):
        """Train a run of the model; returns whether it diverged.

        Raises:
            Ended: with the exit code of the command.
        """
        task = CODES[code]()
        cfg = make_config(task, run.variant, None, {"seed": run.seed, "epochs": run.epochs})
        splits = task.data(cfg)
        _prune(run)
        step, weights, value, changes = 0, None, None, ()
        good = [saved for saved, sound in run.checkpoints if sound] if resume else []
        if resume and run.checkpoints and not good:
            raise Ended(1)
        if good:
            step, weights, value, before, changes = good[-1]
            if step and before != code:
                if not anyway:
                    raise Ended(1)
                changes = (*changes, (step, before, code))
        if weights is None:
            start = task.model(cfg).init(Stream(run.seed, "init"))
            weights = np.concatenate([np.ravel(start[name]) for name in ("weight", "bias")]).astype(np.float64)
        self.starts += 1
        run.begun, run.code, run.changes, run.status, run.started = True, code, changes, "", self.starts
        run.points = {k: v for k, v in run.points.items() if k <= step}
        run.losses = {k for k in run.losses if k <= step}
        per_epoch, last = splits.steps_per_epoch, run.epochs * splits.steps_per_epoch

        def save():
            run.checkpoints = [(saved, sound) for saved, sound in run.checkpoints if _step(saved) != step]
            run.checkpoints.append(((step, weights, value, code, changes), True))
            run.checkpoints.sort(key=lambda entry: _step(entry[0]))
            _prune(run)

        def end(status):
            run.status, run.step = status, step

        if step == 0:
            save()
        while step < last:
            mean = float(splits.train(step)["x"].astype(np.float64).mean())
            step += 1
            if np.isnan(mean):
                end("diverged")
                return True
            weights = weights - cfg.learning_rate * task.scale * np.array([mean, 1.0])
            run.losses.add(step)
            how = ending.counted()
            if how == "crash":
                end("failed")
                raise Ended(130)
            if step % per_epoch == 0 or step == last:
                value = weights @ (float(splits.evaluation["test"]["x"][0, 0]), 1.0)
                run.points[step] = value
                save()
            if how == "stop":
                save()
                end("interrupted")
                raise Ended(128 + signal.SIGTERM)
        end("done")
        return False

    # The comparison -------------------------------------------------------------------------------------

    def compare(self):
        """Everything that a report or a resumed run reads is as in the model."""
        expected = {path: run for path, run in self.runs.items() if run.begun}
        curves = {curve.path: curve for curve in (read_curves([RUNS]) if expected else [])}
        assert list(curves) == sorted(expected), f"runs {list(map(str, curves))}, not {list(map(str, sorted(expected)))}"
        for path, run in expected.items():
            curve = curves[path]
            assert (curve.variant, curve.config["seed"], curve.config["epochs"]) == (run.variant, run.seed, run.epochs), \
                f"{path}: {curve.config}, not {run}"
            assert curve.dataset.name == f"{curve.config['rows']} rows" and curve.config["rows"] == (8 if run.variant == "b" else 12)
            assert [point["update"] for point in curve.points] == sorted(run.points), f"{path}: points {curve.points}, not {run.points}"
            np.testing.assert_allclose([point["test_value"] for point in curve.points], [run.points[k] for k in sorted(run.points)],
                                       rtol=1e-4, atol=1e-5, err_msg=str(path))
            assert [step for step, _ in curve.losses] == sorted(run.losses), f"{path}: losses of {curve.losses}, not {sorted(run.losses)}"
            assert (curve.result["status"], curve.result["updates"]) == (run.status, run.step), f"{path}: {curve.result}, not {run}"
            assert len(curve.changes) == len(run.changes) and curve.identity["task"].startswith(run.code), f"{path}: {curve.changes}"
            self._compare_checkpoints(path, run)
        for by in ("run", "seed"):
            self._compare_series(expected, list(curves.values()), by)

    def _compare_checkpoints(self, path, run):
        files = checkpoint.list_paths(path / "checkpoints")
        assert [checkpoint.update_of(file) for file in files] == [_step(saved) for saved, _ in run.checkpoints], \
            f"{path}: {[file.name for file in files]}, not {run.checkpoints}"
        good = [saved for saved, sound in run.checkpoints if sound]
        saved, refused = checkpoint.newest(path / "checkpoints")
        if good:
            assert saved is not None and saved.update == good[-1][0] and bool(refused) == (not run.checkpoints[-1][1])
            actual = np.concatenate([np.ravel(saved.arrays[f"params.{name}"]) for name in ("weight", "bias")])
            np.testing.assert_allclose(actual, good[-1][1], rtol=1e-4, atol=1e-5, err_msg=str(path))
        else:
            assert saved is None and refused

    def _compare_series(self, expected, curves, by):
        groups: dict[object, dict[int, Path]] = {}
        for path, run in sorted(expected.items(), key=lambda item: item[1].started):
            key = path if by == "run" else (run.variant, run.epochs, run.code)
            groups.setdefault(key, {})[run.seed] = path
        made = series_of(Drift(), curves, by)
        assert sorted(sorted(str(run.path) for run in s.runs) for s in made) == sorted(
            sorted(map(str, group.values())) for group in groups.values()), [s.label() for s in made]
        for s in made:
            ended = [expected[run.path].status for run in s.runs]
            assert ("diverged" in s.ended()) == ("diverged" in ended) and ("failed" in s.ended()) == ("failed" in ended)


def _step(saved):
    return saved if isinstance(saved, int | np.integer) else saved[0]


def _prune(run):
    """The two newest checkpoints that are sound stay, and what is damaged beside them."""
    kept = []
    for saved, sound in reversed(run.checkpoints):
        if sum(good for _, good in kept) == 2:
            break
        kept.append((saved, sound))
    run.checkpoints = kept[::-1]


class Ending(Listener):
    """Stops or crashes a command after some updates, of whichever run; the model counts with it too."""

    def __init__(self, how, after):
        self.how, self.after, self._count = how, after, 0

    def counted(self):
        """One more update; returns how the command ends at it, if it does."""
        self._count += 1
        return self.how if self._count == self.after else None

    def on_update(self, event):
        how = self.counted()
        if how == "crash":
            raise KeyboardInterrupt
        if how == "stop":
            os.kill(os.getpid(), signal.SIGTERM)


class duoln_listeners:
    """Gives a listener to every command, as a plug-in would."""

    def __init__(self, listener):
        self._listener = listener

    def __enter__(self):
        from duoln.tasks.boundary import Apart
        from duoln.tasks.registry import Registry

        self._before = Registry.listeners
        Registry.listeners = lambda registry, say: [Apart(self._listener)]

    def __exit__(self, *error):
        from duoln.tasks.registry import Registry

        Registry.listeners = self._before
