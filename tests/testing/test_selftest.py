"""The self-test: it passes where rules are right, and says which case of which rule is wrong."""

import functools
import json
import re
import sys

import numpy as np
import pytest
from conftest import ON_NUMPY

from duoln import cli, ops
from duoln.core import Rule
from duoln.kernels import registry
from duoln.kernels.registry import every_case, every_rule
from duoln.testing import selftest
from duoln.testing.closeness import tolerance

_one_of_each = functools.cache(lambda backend: selftest.largest_of_each(every_case(), backend))


@pytest.mark.long
@ON_NUMPY
def test_every_rule_of_every_backend(be):
    reports = selftest.by_rule(selftest.run(be, _one_of_each(be)))
    assert {r.op for r in reports} == {case.op for case in every_case()} >= {op.name for op, _ in every_rule(be)}
    assert [line for r in reports for line in r.failures] == []
    assert all(r.repeats and r.error <= 1 for r in reports)


@pytest.fixture
def broken(numpy_backend, monkeypatch):
    """Replaces the rule of NumPy's layer norm."""
    good = ops.layer_norm.rules("numpy")[-1]

    def put(forward=good.forward, vjp=good.vjp):
        monkeypatch.setitem(ops.layer_norm._rules, "numpy", [Rule("bad", forward, vjp)])

    return put, good


def _layer_norm(backend):
    cases = [c for c in every_case() if c.op == "layer_norm"][:8]
    [report] = selftest.by_rule(selftest.run(backend, cases))
    return report


def test_a_wrong_value(broken, numpy_backend):
    put, good = broken
    put(forward=lambda be, *a, **k: (good.forward(be, *a, **k)[0] * np.float32(1.01), good.forward(be, *a, **k)[1]))
    report = _layer_norm(numpy_backend)
    assert report.rule == "bad" and report.error > 1 and "output 0" in report.failures[-1]


def test_a_wrong_gradient(broken, numpy_backend):
    put, good = broken
    put(vjp=lambda be, saved, g, needs: [None if d is None else d + np.float32(0.1) for d in good.vjp(be, saved, g, needs)])
    assert any("gradient" in line for line in _layer_norm(numpy_backend).failures)


def test_errors_are_shares_of_what_is_allowed(broken, numpy_backend):
    """Half of the tolerance in a value, and half of four times the tolerance in a gradient."""
    put, good = broken
    proof = next(c for c in every_case() if c.op == "layer_norm" and c.length >= 500)
    limit = tolerance("float32", proof.length)
    put(forward=lambda be, *a, **k: (good.forward(be, *a, **k)[0] * np.float32(1 + limit / 2), good.forward(be, *a, **k)[1]))
    value = selftest.prove(proof, numpy_backend)
    put(vjp=lambda be, *a: [None if d is None else d * np.float32(1 + 2 * limit) for d in good.vjp(be, *a)])
    gradient = selftest.prove(proof, numpy_backend)
    assert value.worst == "output 0" and 0.4 < value.error < 0.6
    assert gradient.worst.startswith("gradient") and 0.4 < gradient.error < 0.6


def test_a_rule_that_does_not_repeat(broken, numpy_backend):
    put, good = broken
    noise = iter(range(1000))
    put(forward=lambda be, x, *a, **k: good.forward(be, x * np.float32(1 + 1e-5 * next(noise)), *a, **k))
    report = _layer_norm(numpy_backend)
    assert not report.repeats and "two runs differ" in report.failures[-1]


def test_a_rule_that_raises_does_not_end_the_test(broken, numpy_backend):
    def fail(*a, **k):
        raise RuntimeError("no such kernel\nlayer_norm.cu(12): error: expected a ;")

    broken[0](forward=fail)
    [report] = selftest.by_rule(selftest.run(numpy_backend, [c for c in every_case() if c.op == "layer_norm"][:2]))
    assert report.rule == "bad" and report.cases == 2 and "RuntimeError: no such kernel\nlayer_norm.cu(12): error" in report.failures[0]


def test_an_error_by_little_is_near(broken, numpy_backend):
    """It is shown, and does not fail; twice what is allowed does."""
    put, good = broken
    proof = next(c for c in every_case() if c.op == "layer_norm" and c.length >= 500)
    for share, near in ((1.25, True), (2, False)):
        by = np.float32(1 + share * tolerance("float32", proof.length))
        put(forward=lambda be, *a, by=by, **k: (good.forward(be, *a, **k)[0] * by, good.forward(be, *a, **k)[1]))
        outcome = selftest.prove(proof, numpy_backend)
        [report] = selftest.by_rule([outcome])
        assert outcome.near == near and not outcome.passed
        assert (len(report.near), len(report.failures)) == (near, not near) and str(proof) in (report.near + report.failures)[0]


# Values of 16 bits ------------------------------------------------------------------------------------------------

STORED = next(c for c in every_case() if str(c) == "layer_norm 3 x 33")._replace(stored="bfloat16")


def test_a_case_in_16_bits_has_its_own_name():
    assert str(STORED) == "layer_norm bfloat16 3 x 33"


def test_no_rule_of_numpy_takes_16_bits_as_they_are(numpy_backend):
    assert selftest.rules(STORED, numpy_backend) == []
    with pytest.raises(LookupError, match="layer_norm bfloat16 3 x 33: expected a rule that takes bfloat16"):
        selftest.prove(STORED, numpy_backend)


@pytest.mark.skipif(sys.platform != "linux", reason="kernels run on the CPU under Linux only")
@pytest.mark.parametrize("stored", ["float16", "bfloat16"])
def test_the_rule_and_its_reference_get_the_same_values(stored, gpu, monkeypatch):
    """Rounded ones: with those that were not rounded the reference would be further away than is allowed of float32."""
    [rule] = selftest.rules(STORED, gpu)
    seen = {}

    def forward(be, x, *a, **k):
        seen[be.dtype(x)] = be.to_numpy(x).astype(np.float64)
        return rule.forward(be, x, *a, **k)

    composed = ops.layer_norm.rules("numpy")[-1]
    monkeypatch.setattr(ops.layer_norm, "_composed", Rule("composed", lambda be, x, *a, **k: (seen.update(exact=x), composed.forward(be, x, *a, **k))[1], composed.vjp))
    assert selftest.prove(STORED._replace(stored=stored), gpu, rule=Rule("bad", forward, rule.vjp, stored=rule.stored)).passed
    np.testing.assert_array_equal(seen[stored], seen["exact"])
    assert not np.array_equal(seen[stored], STORED.inputs[0].astype(np.float64))


@pytest.mark.skipif(sys.platform != "linux", reason="kernels run on the CPU under Linux only")
@pytest.mark.parametrize("name", ["layer_norm 70 x 33", "lstm layer T3 B5 in3 H9 masked, reverse", "adam_rates standard, beta1 0.9, after 0"])
def test_a_large_case_has_its_reference_on_the_device(name, gpu, monkeypatch):
    """The same errors, and a rule that is wrong is seen."""
    proof = next(c for c in every_case() if str(c) == name)
    of_host = selftest.prove(proof, gpu)
    where = []
    values = selftest._results
    monkeypatch.setattr(selftest, "_results", lambda be, *a: (where.append(be.name), values(be, *a))[1])
    monkeypatch.setattr(selftest, "_MANY", 0)
    of_device = selftest.prove(proof, gpu)
    assert set(where) == {"cupy"} and of_device.passed
    assert abs(of_device.error - of_host.error) <= 1e-3 * of_host.error
    rule = selftest.rules(proof, gpu)[0]

    def wrong(be, *a, **k):
        out, saved = rule.forward(be, *a, **k)
        return (tuple(o * 2 for o in out) if isinstance(out, tuple) else out * 2), saved

    assert not selftest.prove(proof, gpu, rule=Rule("bad", wrong, rule.vjp)).passed


def test_the_operator_of_a_case():
    draw = next(c for c in selftest.every_device_case() if c.op == "write_then_read")
    assert registry.operator(STORED.op) is ops.layer_norm and registry.operator(draw.op).name == "write_then_read"
    with pytest.raises(LookupError, match="found 'no_such'"):
        registry.operator("no_such")


@pytest.fixture
def few(monkeypatch, numpy_backend):
    """The command runs a few of one case of each; `test_every_rule_of_every_backend` runs them all."""
    chosen = [case for case in _one_of_each(numpy_backend) if case.op in ("layer_norm", "take", "gru")]
    monkeypatch.setattr(selftest, "cases", lambda one_of_each: chosen if one_of_each else [])


@pytest.mark.long
def test_the_command(capsys, few):
    assert cli.main(["selftest", "--backend", "numpy", "--one-of-each", "--repeats", "3"]) == 0
    out = capsys.readouterr().out
    assert "layer_norm" in out and "library: numpy" in out and "flags:" in out
    assert cli.main(["selftest", "--backend", "numpy", "--one-of-each", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["backend"]["name"] == "numpy" and all(r["failures"] == [] for r in document["rules"])


@pytest.mark.long
def test_the_command_fails_where_a_rule_does(broken, capsys, few):
    put, good = broken
    put(forward=lambda be, *a, **k: (good.forward(be, *a, **k)[0] + np.float32(1), good.forward(be, *a, **k)[1]))
    assert cli.main(["selftest", "--backend", "numpy", "--one-of-each"]) == 1
    assert "failed: layer_norm" in capsys.readouterr().out


@pytest.mark.parametrize("wrong", ["0", "-1", "x"])
def test_a_wrong_number_of_repeats(wrong, capsys):
    assert cli.main(["selftest", "--repeats", wrong]) == 2
    assert "at least 1" in capsys.readouterr().err


def test_the_command_ends_with_a_verdict(monkeypatch, capsys):
    monkeypatch.setattr(selftest, "chosen", lambda backend, one_of_each: every_case()[:2])
    assert cli.main(["selftest", "--backend", "numpy"]) == 0
    assert re.fullmatch(r"all \d+ rules agree", capsys.readouterr().out.splitlines()[-1])
    gathered = selftest.by_rule
    monkeypatch.setattr(selftest, "by_rule", lambda outcomes: [r._replace(failures=["wrong"]) for r in gathered(outcomes)])
    assert cli.main(["selftest", "--backend", "numpy"]) == 1
    assert re.fullmatch(r"(\d+) of \1 rules fail", capsys.readouterr().out.splitlines()[-1])
