"""The peers of a survey's operators: PyTorch, `torch.compile` and Liger, each where it is."""

import sys
import types

import numpy as np
import pytest

from duoln import runtime
from duoln.bench import operators, operators_torch, timed_process
from duoln.bench.operators import Plan
from duoln.bench.subjects import every_subject
from duoln.bench.survey_parts import is_compiled, peers_of, plans_of
from duoln.errors import UsageError
from duoln.randomness import Stream
from duoln.testing import check_error

pytestmark = pytest.mark.peers
SHAPE = (6, 8)


def _plan(name="layer_norm", shape=SHAPE, backward=True):
    return Plan(every_subject()[name], shape, "warm", backward)


def _liger(monkeypatch, apply):
    module = types.ModuleType("liger_kernel.ops.layer_norm")
    module.LigerLayerNormFunction = type("LigerLayerNormFunction", (), {"apply": staticmethod(apply)})
    for name in ("liger_kernel", "liger_kernel.ops"):
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    monkeypatch.setitem(sys.modules, module.__name__, module)


def test_liger_is_called_as_its_users_call_it(monkeypatch):
    import torch

    _liger(monkeypatch, lambda x, gain, bias, eps: torch.nn.functional.layer_norm(x, gain.shape, gain, bias, eps))
    inputs = every_subject()["layer_norm"].inputs(SHAPE)
    liger, eager = (operators_torch.compute(every_subject()["layer_norm"], inputs, True, "cpu", peer) for peer in ("liger", "torch"))
    assert set(liger) == set(eager) == {"value", "x", "gain", "bias"}
    for name in eager:
        np.testing.assert_allclose(liger[name], eager[name], rtol=1e-6)
    check_error(UsageError, lambda: operators_torch.caller("liger", every_subject()["softmax_cross_entropy"]), "layer_norm")


def test_a_peer_that_fails_is_noted_and_ours_is_timed(monkeypatch):
    _liger(monkeypatch, lambda x, gain, bias, eps: (x - 1) * gain + bias)
    backend, missing = runtime.backend("numpy"), {}
    cases = operators.measure(_plan(), backend, ["liger", "torch"], 1, 10.0, missing)
    assert [case["side"] for case in cases] == ["duoln", "torch"] and "DuolnError" in missing["liger"]
    with pytest.raises(Exception, match="liger"):
        operators.measure(_plan(), backend, ["liger"], 1, 10.0)


def test_peers_where_they_are_installed(monkeypatch):
    assert peers_of(_plan(), []) == []
    assert peers_of(_plan(), ["torch"]) == ["torch"]
    compiled = [plan for plan in plans_of("cupy", False) if is_compiled(plan.subject, plan.shape)]
    assert len(compiled) == 4 and plans_of("cupy", False)[-4:] == compiled
    assert [peers_of(plan, ["torch"]) for plan in compiled] == [["torch", "torch-compile"]] * 4
    monkeypatch.setattr("duoln.bench.survey_parts.find_spec", lambda name: name)
    assert peers_of(_plan(), ["torch"]) == ["torch", "liger"]
    assert peers_of(_plan("softmax_cross_entropy"), ["torch"]) == ["torch"]


def test_compiled_peers_go_through_the_compiler(monkeypatch):
    import torch

    compiled = []

    def compile_(function):
        compiled.append(function)
        return function

    monkeypatch.setattr(torch, "compile", compile_)
    inputs = every_subject()["softmax_cross_entropy"].inputs(SHAPE)
    both = [operators_torch.compute(every_subject()["softmax_cross_entropy"], inputs, True, "cpu", peer)
            for peer in ("torch", "torch-compile")]
    assert len(compiled) == 1 and all(np.array_equal(both[0][name], both[1][name]) for name in both[0])
    asked = {"kind": "step", "task": "mnist", "variant": "ln", "preset": "smoke", "settings": {"batch_size": 20},
             "backend": "numpy", "peer": "torch", "plugins": ["mnist"], "form": "compiled"}
    work = timed_process.prepare_step(asked)
    assert len(compiled) == 2 and work.facts["device"] == "cpu"
    ours = [timed_process.prepare_step({**asked, "peer": None, "form": form}).checks for form in ("eager", "compiled")]
    assert ours[0] == pytest.approx(ours[1], rel=1e-4) and ours[0] == pytest.approx(work.checks, rel=1e-2)


@pytest.mark.minutes
def test_the_compiler_of_pytorch_itself():
    """It takes half a minute for its first function."""
    missing = {}
    cases = operators.measure(_plan(), runtime.backend("numpy"), ["torch-compile"], 1, 10.0, missing)
    assert [case["side"] for case in cases] == ["duoln", "torch-compile"] and not missing


@pytest.mark.parametrize(("name", "variant"), [("draw", "ln"), *(
    pytest.param(name, variant, marks=pytest.mark.minutes) for name, variant in (
        ("mnist", "ln"), ("attentive_reader", "ln"), ("handwriting", "ln"), ("las", "both"), ("skip_thoughts", "ln")))])
def test_a_peers_step_stays_on_the_device_on_which_it_was_built(name, variant):
    """PyTorch's "meta" device has shapes without values: a tensor that a step makes elsewhere meets one there and raises."""
    import torch

    asked = {"task": name, "variant": variant, "preset": "smoke", "settings": {}, "plugins": [name]}
    task, cfg, splits = timed_process.of_task(asked)
    with torch.device("meta"):
        step, facts = task.peer("torch")(cfg, task.model(cfg).init(Stream(0, "init")))
    assert facts["device"] == "meta"
    with pytest.raises(RuntimeError, match=r"item.*meta"):  # the loss has no value there; all before it went well
        step(splits.train(0))
