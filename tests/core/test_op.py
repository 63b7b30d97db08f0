"""Attributes of an operator: how they reach the gradient, and the defaults that checks and `explain` fill in."""


import inspect
import pydoc

import numpy as np
import pytest

import duoln
from duoln import extend, ops
from duoln.core import watched
from duoln.core.spec import check_float
from duoln.errors import CallError, DtypeError, GradientError, UsageError
from duoln.testing import check_error, check_op, check_rule


def _leaky(vjp, pooled=None):
    """An operator with an attribute, and with a rule whose forward saves nothing of it."""
    @extend.op
    def leaky(x: extend.Tensor, *, slope: float = 0.25) -> extend.Tensor:
        """x, and slope * x below 0."""
        check_float("leaky", x)
        return leaky.apply(x, slope=slope)

    leaky.add(extend.Rule("composed", lambda be, x, slope: (be.where(x > 0, x, x * slope), x > 0), vjp, pooled=pooled or {}))
    return leaky


def _vjp(be, positive, gout, needs, *, slope):
    return (be.where(positive, gout, gout * slope),)


def _reference(slope):
    return lambda x: np.where(x > 0, x, x * slope)


POINTS = np.linspace(-2, 2, 8).reshape(2, 4)


@pytest.mark.parametrize("slope", [0.25, 0.5])
def test_a_vjp_that_names_an_attribute_gets_it(be, slope):
    leaky = _leaky(_vjp)
    check_op(lambda x: leaky(x, slope=slope), [POINTS], _reference(slope), be)
    with watched():
        check_op(lambda x: leaky(x, slope=slope), [POINTS], _reference(slope), be)


def test_a_default_of_the_vjp_and_an_attribute_that_is_not_there(be):
    x = duoln.tensor(np.array([-1.0, 1.0], np.float32), be)
    _, gradient = duoln.value_and_grad(lambda x: ops.sum(_leaky(
        lambda be, saved, gout, needs, *, slope, scale=2.0: (gout * scale * slope,))(x)))(x)
    assert gradient.tolist() == [0.5, 0.5]
    wrong = _leaky(lambda be, saved, gout, needs, *, solpe: (gout,))
    check_error(GradientError, lambda: wrong(x), "[vjp] rule 'composed'", "slope", "'solpe'")


def test_pooled_gradients_get_what_forward_saved(be):
    seen = []

    def pooled(be, uses):
        seen.append(len(uses))
        return sum(be.where(positive, gout, gout * 0.25) for positive, gout in uses)

    leaky = _leaky(_vjp, {0: pooled})
    _, gradient = duoln.value_and_grad(lambda x: ops.sum(leaky(x) + leaky(x)))(duoln.tensor(np.array([-1.0, 1.0], np.float32), be))
    assert gradient.tolist() == [0.5, 2.0] and seen == [2]


def test_check_rule_fills_in_the_defaults(numpy_backend):
    leaky = _leaky(_vjp)
    points = POINTS.astype(np.float32)

    def fast(be, x, slope):
        return np.where(x > 0, x, x * np.float32(slope)), x > 0

    rule = extend.Rule("fast", fast, _vjp)
    for attrs in ({}, None, {"slope": 0.5}):
        check_rule(leaky, rule, [points], numpy_backend, attrs)
    wrong = extend.Rule("fast", lambda be, x, slope: fast(be, x, 0.3), _vjp)
    with pytest.raises(AssertionError, match="output 0"):
        check_rule(leaky, wrong, [points], numpy_backend)


def test_check_rule_names_an_attribute_without_default(numpy_backend):
    @extend.op
    def scaled(x, *, by):
        return scaled.apply(x, by=by)

    scaled.add(extend.derived(lambda x, *, by: x * by))
    rule = extend.Rule("fast", lambda be, x, by: (x * by, by), lambda be, by, gout, needs: (gout * by,))
    check_error(CallError, lambda: check_rule(scaled, rule, [np.ones(3, np.float32)], numpy_backend), "[scaled] rule 'fast'",
                "expected 'by', which has no default", "{'by': ...} as attrs")
    check_rule(scaled, rule, [np.ones(3, np.float32)], numpy_backend, {"by": 2.0})
    check_rule(scaled, rule, [np.ones(3, np.float32)], attrs={"by": 2.0}, backend="numpy")


def test_explain_fills_in_the_defaults_and_checks(be):
    leaky = _leaky(_vjp)
    leaky.add(extend.Rule("fast", lambda be, x, slope: (x, None), None, lambda be, x, slope: f"slope is {slope}"), backend=be.name)
    x = duoln.tensor(np.array([-1.0, 1.0], np.float32), be)
    assert leaky.explain(x) == [("fast", "slope is 0.25"), ("composed", "runs")]
    assert leaky.explain(x, slope=0.5)[0] == ("fast", "slope is 0.5")
    check_error(TypeError, lambda: leaky.explain(x, solpe=1.0), "did you mean 'slope'")
    check_error(DtypeError, lambda: leaky.explain(np.ones(3)), "[leaky] expected a duoln.Tensor")
    assert ops.layer_norm.explain(x) == ops.layer_norm.explain(x, None, None, eps=1e-5, activation=None)


def test_explain_where_no_rule_is_needed(be):
    @extend.op
    def same(x):
        return x

    check_error(UsageError, lambda: same.explain(duoln.tensor(1.0, be)), "[same] explain", "none is needed")


def test_help_has_the_signature():
    for name in ("softmax", "layer_norm", "lstm"):
        operator = getattr(ops, name)
        text = pydoc.plain(pydoc.render_doc(operator))
        assert f"\n{name}{str(inspect.signature(operator)).partition(' ')[0]}" in text
        assert operator.__doc__.strip().splitlines()[0].strip() in text
