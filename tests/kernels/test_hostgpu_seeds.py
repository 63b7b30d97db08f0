"""The true kernels, clean under many seeds: nothing is found in them, and every seed gives the same bits."""

import re
import sys

import pytest
from conftest import GPU, STAND_IN, get_backend
from every_case import values

from duoln.kernels.case_table import rule_cases
from duoln.kernels.recurrent.plan import MOST_KEPT
from duoln.testing import selftest

pytestmark = [pytest.mark.minutes, pytest.mark.skipif(sys.platform != "linux", reason="kernels run on the CPU under Linux only"),
              pytest.mark.skipif(GPU != STAND_IN, reason="the seeds are those of the stand-in")]

SEEDS = 200
"""A launch's seed is its number, so every run of a case has others."""
MOST_VALUES = {"adam_update": 100_000, "global_norm": 30_000, "linear": 70_000}
"""Of other operators 2,500: those of the table take little time for their values."""
NORMS = ("layer_norm", "rms_norm", "add_layer_norm", "add_rms_norm")
CUDA = (*NORMS, "lstm", "gru", "rnn", "lstm_cell", "softmax_cross_entropy", "take", "adam_update", "adam_rates", "global_norm",
        "linear")
ALL = rule_cases()
CASES = [c for c, size in zip(ALL, values(rule_cases()), strict=True) if c.op in CUDA and size <= MOST_VALUES.get(c.op, 2500)]
WIDE = [c for c in ALL if c.op in ("lstm", "gru") and int(re.search(r"H(\d+)", c.label)[1]) > MOST_KEPT]
"""Rows that are read again, whose weights have many values."""


def test_every_operator_has_small_cases():
    assert {c.op for c in CASES} == set(CUDA)


@pytest.mark.parametrize("case", [*CASES, *WIDE], ids=str)
def test_cuda(case, gpu):
    assert selftest.prove(case, gpu, repeats=SEEDS).passed


METAL = [c for c in CASES if c.op in NORMS or (c.op in ("lstm", "gru") and c.attrs["norm"] == "layer")]


@pytest.mark.parametrize("case", METAL, ids=str)
def test_metal(case, monkeypatch):
    pytest.importorskip("mlx.core", reason="MLX is not for this platform")
    import stand_in_metal

    stand_in_metal.install(monkeypatch)
    assert selftest.prove(case, get_backend("mlx"), repeats=SEEDS).passed
