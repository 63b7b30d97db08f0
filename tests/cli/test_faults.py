"""What may happen to a run: killed at any moment, writes that fail, a full or read-only disk, two at once, odd clocks.

`--long` kills a thousand times instead of a few.
"""

import errno
import os
import random
import signal
import subprocess
import sys
import time
import warnings

import numpy as np
import pytest
from conftest import TOOLS
from small_runs import Line, fit_into, line_trainer, state_bits

from duoln import doctor, runtime
from duoln.cli.guard import run_to_exit_code
from duoln.errors import CheckpointError, CompileWarning, GradientWarning
from duoln.runs import checkpoint
from duoln.runs.folder import RunFolder
from duoln.runs.log import read_log
from duoln.testing import check_error

KILLS = 6
_RUN = """
import sys
from pathlib import Path
from duoln import runtime
from duoln.training.session import Session
from small_runs import line_trainer
be = runtime.backend(sys.argv[2])
print("ready", flush=True)
Session(line_trainer(be, evaluate_every=1)).run(Path(sys.argv[1]), resume=True)
print("done", flush=True)
"""


def _start(folder, backend="numpy"):
    """A run in a process of its own: 15 steps, a checkpoint after each."""
    run = subprocess.Popen([sys.executable, "-c", _RUN, str(folder), backend], stdout=subprocess.PIPE, text=True,
                           cwd=TOOLS, env={**os.environ, "DUOLN_OFFLINE": "1"})
    assert run.stdout.readline() == "ready\n"
    return run


def _kill_again_and_again(folder, kills, seed, backend="numpy"):
    """Kill a run at random moments until it has been killed so often; how often it was, in how many runs."""
    rng, killed, started, longest = random.Random(seed), 0, 0, 0.15
    while killed < kills:
        run, started = _start(folder, backend), started + 1
        time.sleep(rng.uniform(0, longest))
        run.send_signal(signal.SIGKILL)
        done = "done" in run.communicate()[0]
        saved, refused = checkpoint.newest(folder / "checkpoints")
        assert refused == [] and (saved is not None or not (folder / "checkpoints").exists()
                                  or not checkpoint.list_paths(folder / "checkpoints"))
        if done:  # the run ended before the signal came: try again
            for file in sorted(folder.rglob("*"), reverse=True):
                file.unlink() if file.is_file() else file.rmdir()
            longest *= 0.8
        else:
            killed += 1
    return killed, started


def _finish_and_compare(folder, be):
    resumed, whole = line_trainer(be, evaluate_every=1), line_trainer(be, evaluate_every=1)
    fit_into(resumed, folder, be, resume=True)
    while whole.update < whole.last_update:
        whole.advance()
    assert state_bits(resumed) == state_bits(whole)
    assert not list(folder.rglob("*.part"))


@pytest.mark.long
@pytest.mark.parametrize("backend", ["numpy", "mlx"])
def test_a_kill_at_any_moment_loses_no_checkpoint(backend, tmp_path):
    from conftest import get_backend

    killed, _ = _kill_again_and_again(tmp_path / "run", KILLS if backend == "numpy" else 2, seed=1, backend=backend)
    assert killed >= 2
    _finish_and_compare(tmp_path / "run", get_backend(backend))


CALLS = ("fsync", "replace", "open", "write", "unlink", "mkdir", "fstat", "ftruncate")


class Failing:
    """Makes the n-th call of some functions of `os` fail."""

    def __init__(self, patch, n):
        self.left, self.failed = n, None
        for name in CALLS:
            patch.setattr(os, name, self._wrapped(getattr(os, name), name))

    def _wrapped(self, function, name):
        def call(*args, **kwargs):
            self.left -= 1
            if self.left == 0:
                self.failed = name
                raise OSError(errno.EIO, "Input/output error")
            return function(*args, **kwargs)
        return call


@pytest.mark.long
def test_every_single_write_may_fail(tmp_path, numpy_backend, monkeypatch):
    """The n-th call fails, for n = 1, 2, 3 ... until none fails: the command reports the error, and the run can be resumed."""
    whole = line_trainer(numpy_backend, evaluate_every=5)
    fit_into(whole, tmp_path / "whole", numpy_backend)
    n, failed = 0, []
    while True:
        n += 1
        with monkeypatch.context() as patch:
            fault = Failing(patch, n)
            try:
                fit_into(line_trainer(numpy_backend, evaluate_every=5), tmp_path / str(n), numpy_backend)
            except CheckpointError as error:
                assert "Input/output error" in str(error)
        if fault.failed is None:
            break
        failed.append(fault.failed)
        assert checkpoint.newest(tmp_path / str(n) / "checkpoints")[1] == []
        resumed = line_trainer(numpy_backend, evaluate_every=5)
        fit_into(resumed, tmp_path / str(n), numpy_backend, resume=True)
        assert state_bits(resumed) == state_bits(whole)
    print(f"{len(failed)} calls failed, one in each run")
    assert len(failed) > 30 and set(failed) == set(CALLS)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_that_may_not_be_written(tmp_path, numpy_backend):
    tmp_path.chmod(0o500)
    check_error(CheckpointError, lambda: RunFolder(tmp_path / "run", numpy_backend), "cannot be written", "Permission")


@pytest.mark.long
def test_two_processes_in_one_folder(tmp_path, numpy_backend):
    run = _start(tmp_path / "run")
    while run.poll() is None and not (tmp_path / "run" / "config.json").exists():
        time.sleep(1e-3)
    run.send_signal(signal.SIGSTOP)
    try:
        check_error(CheckpointError, lambda: RunFolder(tmp_path / "run", numpy_backend), "another process", str(run.pid))
    finally:
        run.send_signal(signal.SIGCONT)
        run.communicate()
    _finish_and_compare(tmp_path / "run", numpy_backend)  # who had it has let go


def test_a_clock_that_goes_backwards(tmp_path, numpy_backend, monkeypatch):
    """Which checkpoint is the newest is a matter of steps, not of times."""
    now = iter(np.linspace(1e9, 0, 100_000))
    with monkeypatch.context() as patch:
        patch.setattr(time, "time", lambda: float(next(now)))
        fit_into(line_trainer(numpy_backend, evaluate_every=5), tmp_path, numpy_backend)
    for k, path in enumerate(checkpoint.list_paths(tmp_path / "checkpoints")):
        os.utime(path, (1e9 - k, 1e9 - k))
    assert checkpoint.newest(tmp_path / "checkpoints")[0].update == 15
    assert [e["update"] for e in read_log(tmp_path) if e["event"] == "update"] == list(range(1, 16))


def test_what_was_refused_is_told(tmp_path, numpy_backend, capsys):
    from duoln.cli.console import ProgressDisplay

    fit_into(line_trainer(numpy_backend, evaluate_every=5), tmp_path, numpy_backend)
    newest = checkpoint.list_paths(tmp_path / "checkpoints")[-1]
    newest.write_bytes(newest.read_bytes()[:50])
    (tmp_path / "checkpoints" / "update-000000003.safetensors.01234567.part").write_text("{")
    fit_into(line_trainer(numpy_backend, evaluate_every=5), tmp_path, numpy_backend, [ProgressDisplay(Line.columns)], resume=True)
    told = capsys.readouterr().err.replace("\n", "")
    assert "refused" in told and newest.name in told and "not a duoln checkpoint" in told
    starts = [e for e in read_log(tmp_path) if e["event"] == "start"]
    assert starts[0]["refused"] == [] and newest.name in starts[1]["refused"][0] and starts[1]["first_update"] == 10
    assert not list(tmp_path.rglob("*.part"))


def test_the_best_of_a_run_is_kept(tmp_path, numpy_backend):
    fit_into(line_trainer(numpy_backend, evaluate_every=1, learning_rate=0.3), tmp_path, numpy_backend)
    errors = {e["update"]: e["valid_mse"] for e in read_log(tmp_path) if e["event"] == "evaluation"}
    best = min(errors, key=lambda step: (errors[step], step))
    saved = checkpoint.load_best(checkpoint.newest(tmp_path / "checkpoints")[0])
    assert saved.update == best and saved.notes["best"] == errors[best]


# Warnings ---------------------------------------------------------------------------------------------

@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("category", [CompileWarning, GradientWarning])
def test_a_warning_of_duoln_is_one_line(category, capsys):
    assert run_to_exit_code(lambda: (warnings.warn("a reason", category, stacklevel=1), 0)[1]) == 0
    assert capsys.readouterr().err == "warning: a reason\n"


@pytest.mark.filterwarnings("default")
def test_a_warning_of_another_library_is_left_to_python(monkeypatch):
    seen = []
    monkeypatch.setattr(warnings, "showwarning", lambda message, *place, **named: seen.append(str(message)))
    before = warnings.showwarning
    assert run_to_exit_code(lambda: (warnings.warn("old", DeprecationWarning, stacklevel=1), 0)[1]) == 0
    assert seen == ["old"] and warnings.showwarning is before


@pytest.mark.long
def test_doctor_names_what_no_graph_repeats(gpu, monkeypatch):
    probe = runtime.probe
    monkeypatch.setattr(runtime, "probe", lambda name: probe(name)._replace(backend=gpu, reason="") if name == "cupy" else probe(name))
    facts = doctor.examine(with_ops=True, asked=[])
    assert [r.partition(":")[0] for r in facts["remarks"] if "graph" in r] == [
        "take on cupy, rule 'composed'", "take_along_axis on cupy, rule 'composed'"]
    [cupy] = [b for b in facts["backends"] if b["name"] == "cupy"]
    assert cupy["info"]["compiled_steps"] == "one CUDA graph"
