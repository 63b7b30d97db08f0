"""Small files with huge content: every reader reads or refuses them within 1 GiB of memory for the whole process."""

import json
import os
import subprocess
import sys
from pathlib import Path

import bombs
import hostile_readers
import pytest

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells of the peak of a process's memory")

MOST_MIB = 700
"""The interpreter, NumPy and the plug-ins take 240 of them."""


PARTS = 8
"""Processes, each of which reads every eighth bomb."""


@pytest.mark.parametrize("part", [0, *(pytest.param(k, marks=pytest.mark.long) for k in range(1, PARTS))])
def test_bombs_are_refused_or_read_within_the_bound(part, tmp_path):
    here = Path(__file__).parent
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(here.parents[1]), str(here)]), "OMP_NUM_THREADS": "1",
           "OPENBLAS_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, here / "bombs.py", tmp_path, str(part), str(PARTS)], env=env, capture_output=True,
                          text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(rows) == len(bombs.BOMBS[part::PARTS])
    assert [row for row in rows if row["outcome"] not in ("refused", "read") or row["peak_mib"] > MOST_MIB] == []


def test_every_reader_has_a_bomb():
    in_memory = {"images (CIFAR-10 binary)", "question"}  # their readers are given bytes
    for make in (True, False):
        named = {b.name for b in bombs.BOMBS if (b.make is os.mkfifo) == make}
        assert set(hostile_readers.READERS) - named <= (in_memory if make else set())
