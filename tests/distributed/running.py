"""`duoln run` as a process, with and without ranks, and without ranks in this process."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from conftest import PATIENCE

from duoln.cli import main
from duoln.runs import checkpoint
from duoln.runs.log import read_log


def command(*words, backend="mlx"):
    return [sys.executable, "-P", "-m", "duoln", "run", *words, "--preset", "smoke", "--backend", backend]


def without_pictures():
    """The variables of a run that draws no curves, as where Matplotlib is not installed: its import takes a second."""
    paths = (str(Path(__file__).with_name("without_pictures")), os.environ.get("PYTHONPATH", ""))
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}


def run(*words, check=0, backend="mlx", **how):
    done = subprocess.run(command(*words, backend=backend), capture_output=True, text=True, timeout=PATIENCE, check=False, **how)
    assert done.returncode == check, done.stderr
    return done


def run_here(*words, backend="mlx"):
    """One process is enough to train alone, and this one has its libraries already."""
    assert main(["run", *words, "--preset", "smoke", "--backend", backend]) == 0


def losses(folder):
    return [e["loss"] for e in read_log(folder) if e["event"] == "update"]


def states(folder):
    saved, refused = checkpoint.newest(folder / "checkpoints")
    assert not refused
    return saved


STEPS = 15
FEW = ("mnist", "--variant", "ln", "--set", f"rows={10 * STEPS}", "--batch-size", "10")
"""A run of so many steps an epoch, with few digits to draw."""


class Started:
    """A run of two ranks that is under way."""

    def __init__(self, out, *words):
        self.log = out / "ln" / "log.jsonl"
        self.process = subprocess.Popen(command(*FEW, "--ranks", "2", "--out", str(out), *words),
                                        stderr=subprocess.PIPE, text=True, start_new_session=True, env=without_pictures())

    def wait_for_step(self, step):
        until = time.monotonic() + PATIENCE
        while time.monotonic() < until and self.process.poll() is None:
            if self.log.exists() and f'"update": {step},' in self.log.read_text():
                return
            time.sleep(0.02)
        pytest.fail(f"no step {step}: {self.process.communicate()[1]}")

    def ranks(self):
        """The processes of the ranks, rank 0 first."""
        listed = subprocess.run(["ps", "-o", "pid=", "--ppid", str(self.process.pid)], capture_output=True, text=True,
                               check=True)
        return sorted(int(pid) for pid in listed.stdout.split())
