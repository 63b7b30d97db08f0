"""Every reader there is, against damaged files: an error of its own kind or a result, and no more.

Some hundred cases a reader by default, 200 times as many with --long (`pytest -rP` shows the counts). Of the formats
there are IDX, gzip, npz (which is zip), text, XML, safetensors, JSON and JSONL; duoln reads no tar, and no zip but npz.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import fuzzing
import hostile_readers
import pytest

from duoln import checkpoint, report, runfolder
from duoln.errors import CheckpointError, DataFormatError
from duoln.testing import check_error

CASES = 300
LONG = 200


@pytest.fixture(scope="module")
def outcomes(request, tmp_path_factory):
    """What each reader made of its cases, from one process whose memory is capped."""
    cases = CASES * (LONG if request.config.getoption("--long") else 1)
    here = Path(__file__).parent
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(here.parents[1]), str(here)]), "OMP_NUM_THREADS": "1",
           "OPENBLAS_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, here / "hostile_readers.py", str(cases), tmp_path_factory.mktemp("hostile")],
                          capture_output=True, text=True, check=False, env=env)
    assert done.returncode == 0, done.stderr[-2000:]
    return {row.pop("reader"): row for row in map(json.loads, done.stdout.splitlines())}


@pytest.mark.parametrize("name", hostile_readers.READERS)
def test_a_damaged_file_is_refused_or_read(outcomes, name):
    found = outcomes[name]
    print(f"{name}: {found['cases']} cases, {found['refused']} refused, {found['read']} read, "
          f"slowest {found['slowest_s']} s")
    assert found["wrongs"] == 0, "\n".join(f"case {n}: {what}\n{seen}" for n, what, seen in found["wrong"])
    assert found["strays"] == [] and found["slowest_s"] < 5
    if hostile_readers.READERS[name].allowed:
        assert found["refused"] > found["cases"] // 20 and found["read"] > 0  # neither always seen nor always harmless


def test_cases_come_back():
    for name in hostile_readers.READERS:
        assert hostile_readers.case(name, 5) == hostile_readers.case(name, 5)


def test_every_blow_does_something():
    import random

    text = b'{"a": 1, "b": [2, 3], "c": "x"}' * 20
    for blow in fuzzing._BLOWS:
        assert any(blow(random.Random(k), text, text[::-1]) != text for k in range(20)), blow.__name__
