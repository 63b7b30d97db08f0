"""No fused NumPy rule touches memory outside its arrays: the table of layouts, every array between pages that fault."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the allocator is written for Linux's mmap")
PROGRAM = Path(__file__).with_name("guarded_rules.py")


def _run(side: str, which: str) -> subprocess.CompletedProcess:
    one_thread = {"OPENBLAS_NUM_THREADS": "1", "DUOLN_THREADS": "1"}
    return subprocess.run([sys.executable, PROGRAM, side, which], env={**os.environ, **one_thread}, text=True,
                          capture_output=True, check=False)


def _cases(side: str, which: str) -> int:
    """How many cases ran between guard pages.

    Raises:
        AssertionError: one was wrong, or its access outside an array ended the process; with its name.
    """
    done = _run(side, which)
    last = (done.stdout.splitlines() or ["nothing ran"])[-1]
    assert done.returncode == 0, f"{last}, guarded at the {side}, ended with {done.returncode}:\n{done.stderr[-3000:]}"
    return int(last.split()[1])


@pytest.mark.parametrize("side", [pytest.param("start", marks=pytest.mark.long), "end"])
def test_no_rule_touches_what_is_outside(side):
    assert _cases(side, "short") >= 190


@pytest.mark.minutes
@pytest.mark.parametrize("side", ["start", "end"])
@pytest.mark.parametrize("which", ["every", "long"])
def test_no_rule_touches_what_is_outside_in_any_layout(side, which):
    assert _cases(side, which) >= 6000


@pytest.mark.parametrize("side", ["start", "end"])
def test_a_rule_that_reads_one_value_too_far_ends_the_process(side):
    """The message names the case."""
    with pytest.raises(AssertionError, match=rf"^square .*: all tight, guarded at the {side}, ended with -11"):
        _cases(side, "broken")
