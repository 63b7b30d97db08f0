"""The README's first line on a machine without a C++ compiler: it trains, says so, and which line to type."""

import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from compiled import without_package
from conftest import PATIENCE

ROOT = Path(__file__).resolve().parents[1]
PROGRAMS = ("sh", "env", "uname", "git", "ldconfig", "gcc", "ld")
"""What a machine without a C++ compiler may have; a C compiler alone does not serve."""


@pytest.fixture
def bare(tmp_path):
    """The variables of a machine that has a few programs, an empty home, and nothing else."""
    (tmp_path / "bin").mkdir()
    for name in PROGRAMS:
        path = shutil.which(name, path=f"{os.environ['PATH']}:/sbin")
        if path:
            (tmp_path / "bin" / name).symlink_to(path)
    (tmp_path / "home").mkdir()
    kept = {name: os.environ[name] for name in ("LANG",) if name in os.environ}
    return {"PYTHONPATH": without_package(tmp_path), "PATH": str(tmp_path / "bin"), "HOME": str(tmp_path / "home"), "DUOLN_OFFLINE": "1", **kept}


def _run(words, tmp_path, bare, **variables):
    done = subprocess.run([sys.executable, *words], cwd=tmp_path, capture_output=True, text=True, check=False,
                          timeout=PATIENCE, env={**bare, **variables})
    assert done.returncode == 0, done.stderr
    return done


def _first_line():
    """What the README's first line runs after the installation, as arguments of Python."""
    return re.search(r"^pip install \. && python (-m \S+)$", (ROOT / "README.md").read_text(), re.M)[1].split()


def _beginning_of_the_first_line(tmp_path, bare, **variables):
    """What it says until it trains; then it is interrupted."""
    stderr = []
    with subprocess.Popen([sys.executable, *_first_line()], cwd=tmp_path, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                          env={**bare, **variables}) as process:
        for line in process.stderr:
            stderr.append(line)
            if "batch 128, none" in line:
                break
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=PATIENCE)
    assert "batch 128, none" in stderr[-1], stderr
    return stderr


def test_the_first_line_trains_and_says_that_its_rules_are_interpreted(bare, tmp_path):
    first = _beginning_of_the_first_line(tmp_path, bare)[0]
    assert first.startswith("backend: numpy, ") and "rules interpreted, because no C++ compiler of" in first
    assert re.search(r"; for faster ones: (.* )?(install|-S) ", first), first
