"""How an array lies in memory changes no result of a fused rule: values and gradients, each array in each layout."""

from __future__ import annotations

import pytest
from conftest import GPU, STAND_IN, get_backend
from device_rules import rules
from layout_table import Tally, layout_cases, long_layout_cases

from duoln.kernels import native
from duoln.kernels.registry import Case, every_rule

FUSED = sorted({op.name for op, _ in every_rule(get_backend("numpy"))} - {"adam_rates"})  # its arrays have no axes


def _of(op: str, on_gpu: bool = False) -> list[Case]:
    return [case for case in layout_cases() if case.op == op and not (on_gpu and case.cpu)]


def test_most_operators_have_a_fused_rule():
    assert len(FUSED) >= (25 if native.machine_refusal() is None else 8)


@pytest.mark.skipif(native.machine_refusal() is not None, reason="there is no C++ compiler")
@pytest.mark.parametrize("op", [pytest.param(op, marks=pytest.mark.long) if op in ("lstm", "gru", "rnn") else op for op in FUSED])
def test_no_layout_changes_a_fused_rule(op, numpy_backend):
    tally = Tally()
    tally.run(_of(op), numpy_backend)
    assert tally.cases[op] >= 9 and tally.fused[op] >= 3
    assert [why for why in tally.refusals if "contiguous" not in why] == []


@pytest.mark.minutes
def test_no_layout_changes_a_fused_rule_of_any_variant_or_size(numpy_backend):
    tally = Tally()
    tally.run(long_layout_cases(), numpy_backend)
    assert sum(tally.cases.values()) >= 8000


@pytest.mark.long
@pytest.mark.parametrize("op", ["conv2d", "layer_norm", "lstm", "gru", "rnn"])
def test_no_layout_changes_a_rule_of_mlx(op):
    pytest.importorskip("mlx.core", reason="MLX is not for this platform")
    tally = Tally()
    tally.run(_of(op)[:2], get_backend("mlx"))
    assert tally.cases[op] >= 40


CUDA = sorted({op for op, _ in rules("cuda")} & {case.op for case in layout_cases()})


@pytest.mark.long
@pytest.mark.skipif(GPU != STAND_IN, reason="the layouts are made for the stand-in")
@pytest.mark.parametrize("op", CUDA)
def test_no_layout_changes_a_rule_of_cuda(op, gpu):
    tally = Tally()
    tally.run(_of(op, on_gpu=True)[::3], gpu)
    assert tally.cases[op] >= 20 and tally.fused[op] >= 2
    assert [why for why in tally.refusals if "contiguous" not in why] == []
