"""Functions of rules that do not take what a rule is called with: the error names the rule, what it gives and what is there."""

import numpy as np
import pytest

import duoln
from duoln import extend
from duoln.errors import CallError
from duoln.testing import check_error, check_op, check_rule


def _forward(be, x):
    return x, x


def _vjp(be, saved, gout, needs):
    return (gout,)


def _op(rule, **attrs):
    @extend.op
    def squash(x: extend.Tensor) -> extend.Tensor:
        """The value itself."""
        return squash.apply(x, **attrs)

    squash.add(rule)
    return squash


def _composed(forward=_forward, vjp=_vjp):
    return extend.Rule("composed", forward, vjp)


FORWARDS = {
    "no backend": (_composed(lambda x: (x, x)), {}, "expected forward(backend, 1 array), found forward(x)"),
    "an argument more": (_composed(lambda be, x, slope: (x, x)), {}, "found forward(be, x, slope)"),
    "no attribute": (_composed(), {"slope": 2.0}, "expected forward(backend, 1 array, slope=), found forward(be, x)"),
    "beside a vjp with attributes": (_composed(lambda x: (x, x), lambda be, s, g, n, *, slope=1.0: (g,)), {}, "found forward(x)"),
    "of tensors": (extend.derived(lambda x, y: x), {}, "expected forward(1 tensor), found forward(x, y)"),
}


@pytest.mark.parametrize("name", FORWARDS)
def test_forward(name, be):
    rule, attrs, words = FORWARDS[name]
    op, x = _op(rule, **attrs), duoln.tensor([1.0], be)
    for call in (lambda: op(x), lambda: duoln.value_and_grad(lambda x: op(x).sum())(x), lambda: duoln.compile(op)(x)):
        check_error(CallError, call, "[squash] rule 'composed'", words)


@pytest.mark.parametrize(("vjp", "words"), [
    (lambda be, gout: (gout,), "found vjp(be, gout)"), (lambda be, s, gout, needs, slope: (gout,), "found vjp(be, s, gout, needs, slope)"),
    (lambda be, gout, *, slope=1.0: (gout,), "found vjp(be, gout, *, slope=1.0)")])
def test_vjp(vjp, words, be):
    op, x = _op(_composed(vjp=vjp)), duoln.tensor([1.0], be)
    check_error(CallError, lambda: duoln.value_and_grad(lambda x: op(x).sum())(x), "rule 'composed'",
                "expected vjp(backend, saved, gout, needs)", words)


def test_supports(be):
    op = _op(_composed())
    op.add(extend.Rule("fast", _forward, _vjp, lambda x: None), be.name)
    for call in (op, op.explain):
        check_error(CallError, lambda call=call: call(duoln.tensor([1.0], be)), "[squash] rule 'fast'",
                    "expected supports(backend, 1 array), found supports(x)")


@pytest.mark.parametrize(("rule", "words"), [
    (extend.Rule("fast", lambda x: (x, x), _vjp), "forward(x)"), (extend.Rule("fast", _forward, lambda be, g: (g,)), "vjp(be, g)"),
    (extend.Rule("fast", _forward, _vjp, lambda x: None), "supports(x)")])
def test_the_checks_of_authors(rule, words, numpy_backend):
    check_error(CallError, lambda: check_rule(_op(_composed()), rule, [np.ones(2, np.float32)], numpy_backend),
                "[squash] rule 'fast'", words)
    check_error(CallError, lambda: check_op(_op(_composed(vjp=lambda be, g: (g,))), [np.ones(2)], lambda x: x, numpy_backend),
                "rule 'composed'", "vjp(be, g)")


def test_an_error_inside_a_rule_stays_as_it_is(be):
    op = _op(_composed(lambda be, x: (len(3), x)))
    with pytest.raises(TypeError, match="has no len") as caught:
        op(duoln.tensor([1.0], be))
    assert not isinstance(caught.value, CallError)
