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


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory):
    """The outcome of each bomb, by its place in the list."""
    here, folder = Path(__file__).parent, tmp_path_factory.mktemp("bombs")
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(here.parents[1]), str(here)]), "OMP_NUM_THREADS": "1",
           "OPENBLAS_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, here / "bombs.py", folder, "0", "1"], env=env, capture_output=True, text=True,
                          check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.mark.parametrize("number", range(len(bombs.BOMBS)), ids=lambda k: f"{k} {bombs.BOMBS[k].name}")
def test_a_bomb_is_refused_or_read_within_the_bound(outcomes, number):
    row = outcomes[number]
    assert row["outcome"] in ("refused", "read"), row["what"]
    assert row["peak_mib"] <= MOST_MIB, row


def test_every_reader_has_a_bomb():
    in_memory = {"images (CIFAR-10 binary)", "question"}  # their readers are given bytes
    for make in (True, False):
        named = {b.name for b in bombs.BOMBS if (b.make is os.mkfifo) == make}
        assert set(hostile_readers.READERS) - named <= (in_memory if make else set())
