"""The examples run, and the one that shows how to write a task passes the kit for tasks."""

import json
import subprocess
import sys

from duoln.examples.own_task import Spirals
from duoln.testing import check_task


def test_own_task_is_a_task(be):
    check_task(Spirals(), backend=be)


def test_own_task_learns_from_the_command_line(tmp_path):
    out = subprocess.run([sys.executable, "-m", "duoln.examples.own_task", "--json", "--out", "r"], cwd=tmp_path,
                         capture_output=True, text=True, check=True)
    errors = {r["variant"]: r["test_error"] for r in json.loads(out.stdout)["results"]}
    assert errors["ln"] < 0.15
