"""A run that ends anywhere, resumed to its end, leaves what a run leaves that never stopped.

Anywhere: before each call that changes the disk, which is after the one before it, and in the middle of each write.
`--long` takes every point of runs with several settings, and ends many resumed runs a second time.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import TOOLS


def _drive(plans, folder):
    done = subprocess.run([sys.executable, str(Path(__file__).with_name("crash_points.py")), json.dumps(plans), str(folder)], cwd=TOOLS,
                          env={**os.environ, "PYTHONPATH": str(TOOLS), "OPENBLAS_NUM_THREADS": "1", "NO_COLOR": "1"}, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    for line in lines:
        print(line)
        assert line["wrong"] == 0, line["first_wrong"]
    return lines


@pytest.mark.long
def test_some_points(tmp_path):
    [with_patience, without] = _drive([{"patience": 3, "evaluate_every": 2, "points": 16, "seed": 1},
                                       {"patience": 0, "evaluate_every": 2, "points": 8, "seed": 2}], tmp_path / "runs")
    assert with_patience["tried"] + without["tried"] == 24 and with_patience["all_points"] > 200


@pytest.mark.minutes
def test_every_point(tmp_path):
    plans = [{"patience": patience, "evaluate_every": every, "points": 0} for patience in (0, 3) for every in (2, 3, 0)]
    plans += [{"patience": 3, "evaluate_every": 2, "points": 200, "seed": seed, "twice": True} for seed in (1, 2, 3)]
    lines = _drive(plans, tmp_path / "runs")
    print(sum(line["tried"] for line in lines), "points")
    assert sum(line["tried"] for line in lines) > 2000
