"""The recurrent rule on MLX: compiled and eager steps give the same values, and each weight's gradient is one product."""

import pytest
from conftest import get_backend
from ops.test_rnn import Problem

from duoln import ops
from duoln.testing import check_op


@pytest.mark.usefixtures("differences_taken")
@pytest.mark.parametrize("cell", ["lstm", "gru"])
def test_compiled_steps(cell, monkeypatch, rng):
    be = get_backend("mlx")
    monkeypatch.setattr(be, "on_gpu", True)  # compile, as on a GPU
    p = Problem(cell, "layer", rng, masked=True)
    check_op(p.op, p.arrays, p.reference, be, length=400)


@pytest.mark.parametrize("cell", ["rnn", "lstm", "gru"])
def test_one_rule_for_all_variants(cell):
    be, rules = get_backend("mlx"), getattr(ops, cell).rules("mlx")
    x, h = be.zeros((2, 3, 4)), be.zeros((3, 5))
    rule = next(r for r in rules if r.name == "steps without products")
    assert {rule.supports(be, x, h, norm=norm) for norm in ("none", "layer", "batch")} == {None}
    assert "no values" in rule.supports(be, x[:0], h, norm="layer")
    assert cell == "rnn" or "no Metal device" in rules[0].supports(be, x, h, norm="layer")
