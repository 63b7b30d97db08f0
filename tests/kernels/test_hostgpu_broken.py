"""Kernels broken on purpose, which the machine finds at several seeds; the true ones, clean under many, with the same bits."""

import re
import sys

import pytest
from conftest import GPU, STAND_IN, get_backend
from device_rules import cases, rules
from hostgpu_broken import BROKEN as SMALL
from hostgpu_broken_walks import WALKS
from zeros import values

from duoln.kernels.recurrent.plan import MOST_KEPT
from duoln.testing import selftest

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


ON_STAND_IN = pytest.mark.skipif(GPU != STAND_IN, reason="the seeds are those of the stand-in")
PROOF_SEEDS = 200
"""A launch's seed is its number, so every run of a case has others."""
MOST_VALUES = {"adam_update": 100_000, "global_norm": 30_000, "linear": 70_000}
"""Of other operators 2,500: those of the table take little time for their values."""
ALL = cases("cuda")
CASES = [c for c, size in zip(ALL, values(ALL), strict=True) if size <= MOST_VALUES.get(c.op, 2500)]
WIDE = [c for c in ALL if c.op in ("lstm", "gru") and c.sizes[-1] > MOST_KEPT]
"""Rows that are read again, whose weights have many values."""


@pytest.mark.minutes
@ON_STAND_IN
def test_every_operator_has_small_cases():
    assert {c.op for c in CASES} == {op for op, _ in rules("cuda")}


@pytest.mark.minutes
@ON_STAND_IN
@pytest.mark.parametrize("case", [*CASES, *WIDE], ids=str)
def test_cuda(case, gpu):
    assert selftest.prove(case, gpu, repeats=PROOF_SEEDS).passed


METAL = {op for op, _ in rules("metal")}


@pytest.mark.minutes
@ON_STAND_IN
@pytest.mark.parametrize("case", [c for c in CASES if c.op in METAL and c.attrs.get("norm", "layer") == "layer"], ids=str)
def test_metal(case, monkeypatch):
    pytest.importorskip("mlx.core", reason="MLX is not for this platform")
    import stand_in_metal

    stand_in_metal.install(monkeypatch)
    assert selftest.prove(case, get_backend("mlx"), repeats=PROOF_SEEDS).passed
