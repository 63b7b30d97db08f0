"""The true kernels, clean under many seeds: nothing is found in them, and every seed gives the same bits."""

import sys

import pytest
from conftest import GPU, STAND_IN, get_backend
from device_rules import cases, rules
from zeros import values

from duoln.kernels.recurrent.plan import MOST_KEPT
from duoln.testing import selftest

pytestmark = [pytest.mark.minutes, pytest.mark.skipif(sys.platform != "linux", reason="kernels run on the CPU under Linux only"),
              pytest.mark.skipif(GPU != STAND_IN, reason="the seeds are those of the stand-in")]

SEEDS = 200
"""A launch's seed is its number, so every run of a case has others."""
MOST_VALUES = {"adam_update": 100_000, "global_norm": 30_000, "linear": 70_000}
"""Of other operators 2,500: those of the table take little time for their values."""
ALL = cases("cuda")
CASES = [c for c, size in zip(ALL, values(ALL), strict=True) if size <= MOST_VALUES.get(c.op, 2500)]
WIDE = [c for c in ALL if c.op in ("lstm", "gru") and c.sizes[-1] > MOST_KEPT]
"""Rows that are read again, whose weights have many values."""


def test_every_operator_has_small_cases():
    assert {c.op for c in CASES} == {op for op, _ in rules("cuda")}


@pytest.mark.parametrize("case", [*CASES, *WIDE], ids=str)
def test_cuda(case, gpu):
    assert selftest.prove(case, gpu, repeats=SEEDS).passed


METAL = {op for op, _ in rules("metal")}


@pytest.mark.parametrize("case", [c for c in CASES if c.op in METAL and c.attrs.get("norm", "layer") == "layer"], ids=str)
def test_metal(case, monkeypatch):
    pytest.importorskip("mlx.core", reason="MLX is not for this platform")
    import stand_in_metal

    stand_in_metal.install(monkeypatch)
    assert selftest.prove(case, get_backend("mlx"), repeats=SEEDS).passed
