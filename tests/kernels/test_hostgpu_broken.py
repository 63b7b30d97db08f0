"""Kernels broken on purpose, at several seeds: the machine finds each of them, and nothing in the sound text."""

import re
import sys

import pytest
from hostgpu_broken import BROKEN as SMALL
from hostgpu_broken_walks import WALKS

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="kernels run on the CPU under Linux only")

SEEDS = range(2)
MANY_SEEDS = range(20)
BROKEN = [*SMALL, *WALKS]
ENOUGH = 19
_FIRST = {b.kind: b for b in reversed(BROKEN)}
KINDS = [b if b is _FIRST[b.kind] else pytest.param(b, marks=pytest.mark.long) for b in BROKEN]
"""One of each class is for every day."""


def _found(outcome, broken):
    return re.search(broken.message, outcome) is not None if broken.message else outcome == "wrong result"


def test_every_class_has_one_that_is_ours():
    assert {b.kind for b in BROKEN if b.ours} == {b.kind for b in BROKEN}


@pytest.mark.few
@pytest.mark.parametrize("broken", KINDS, ids=str)
def test_the_sound_text_passes(broken):
    for seed in SEEDS:
        assert broken.outcome(seed, broken=False) == ""


@pytest.mark.few
@pytest.mark.parametrize("broken", KINDS, ids=str)
def test_the_broken_text_is_found(broken):
    for seed in SEEDS:
        assert _found(broken.outcome(seed), broken), broken.outcome(seed)


@pytest.mark.minutes
@pytest.mark.parametrize("broken", BROKEN, ids=str)
def test_almost_every_seed_finds_it(broken):
    assert sum(_found(broken.outcome(seed), broken) for seed in MANY_SEEDS) >= ENOUGH
    assert all(broken.outcome(seed, broken=False) == "" for seed in MANY_SEEDS)
