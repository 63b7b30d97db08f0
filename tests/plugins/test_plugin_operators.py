"""The operators that one experiment alone uses: values, gradients, wrong calls, layouts, and rules."""

import importlib

import numpy as np
import pytest
from conftest import get_backend
from layout_table import Tally
from misuse.calls import drawn
from misuse.misuses import read, run, unnamed_misuses
from operator_cases import CASES, LEAST, layout_cases

from duoln import doctor, extend
from duoln.plugins.draw import ops as draw_ops
from duoln.plugins.handwriting import ops as handwriting_ops
from duoln.plugins.order_embeddings import ops as order_ops
from duoln.tasks.registry import Registry
from duoln.testing import check_op

PLUGINS = ("draw", "handwriting", "order_embeddings")
CALLS = [
    drawn(order_ops.order_violation, order_ops),
    drawn(draw_ops.gaussian_latent, draw_ops),
    drawn(handwriting_ops.mixture_density, handwriting_ops, {"width": 7}),
    drawn(handwriting_ops.soft_window, handwriting_ops),
    drawn(draw_ops.filterbank, draw_ops),
    drawn(draw_ops.write_then_read, draw_ops, {"where": 14}),
]
"""One right call of every operator: from these the wrong calls are generated."""


def _operators():
    """Every operator of the plug-ins, by name."""
    modules = [importlib.import_module(f"duoln.plugins.{name}.ops") for name in PLUGINS]
    return {name: op for module in modules for name, op in vars(module).items() if isinstance(op, extend.Op)}


def test_every_operator_has_cases_and_a_call():
    names = set(_operators())
    assert len(names) == 6 and {call.name for call in CALLS} == names
    assert [name for name in names if not any(case.name.startswith(name) for case in CASES)] == []


@pytest.mark.usefixtures("differences_taken")
@pytest.mark.parametrize("case", CASES, ids=str)
def test_float32_values_and_gradients(case, be):
    check_op(case.fn, case.inputs(np.random.default_rng(3)), case.reference, be, case.length)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_float64_against_central_differences(case, numpy_backend):
    check_op(case.fn, case.inputs(np.random.default_rng(3)), case.reference, numpy_backend, case.length, dtype="float64")


@pytest.mark.parametrize("call", CALLS, ids=str)
def test_wrong_tensors_and_attributes_are_named(call, be):
    read(run(call, be))
    assert unnamed_misuses(call, be, get_backend("mlx" if be.name == "numpy" else "numpy")) == {}


def test_an_import_adds_each_fused_rule_once():
    Registry(PLUGINS)
    rules = {name: [rule.name for rule in op.rules("numpy")] for name, op in _operators().items()}
    assert all(rules.pop(name) == ["compiled", "composed"] for name in ("write_then_read", "gaussian_latent", "order_violation"))
    assert all(names == ["composed"] for names in rules.values())


@pytest.mark.long
def test_doctor_shows_the_rules_of_plugins():
    rules = doctor.examine(with_ops=True)["ops"]
    assert rules["write_then_read"]["numpy"] == "compiled > composed" and rules["layer_norm"]["numpy"].endswith("composed")


def test_the_table_of_layouts_holds_every_operator_with_a_fused_rule():
    assert {name for name, op in _operators().items() if len(op.rules("numpy")) > 1} == set(LEAST)


@pytest.mark.parametrize("op", LEAST)
def test_no_layout_changes_a_fused_rule(op, numpy_backend):
    tally = Tally()
    for rule_case, module in layout_cases():
        if rule_case.op == op:
            tally.run([rule_case], numpy_backend, module)
    assert tally.cases[op] >= LEAST[op]
    assert tally.fused[op] >= 0.98 * tally.cases[op]
