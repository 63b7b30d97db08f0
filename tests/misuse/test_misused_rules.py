"""Rules and declarations that their authors wrote wrongly: named where they are used."""

import numpy as np
import pytest

import duoln
from duoln import extend, ops
from duoln.errors import DtypeError, GradientError, UsageError
from duoln.testing import check_error, check_op


def _op(forward, vjp=None):
    @extend.op
    def squash(x: extend.Tensor) -> extend.Tensor:
        """X / (1 + |x|)."""
        return squash.apply(x)

    squash.add(extend.Rule("composed", forward, vjp))
    return squash


def _forward(be, x):
    scale = 1 / (1 + be.abs(x))
    return x * scale, scale


def _reference(x):
    return x / (1 + np.abs(x))


@pytest.mark.parametrize(("vjp", "words"), [
    (lambda be, s, gout, needs: (gout * s,), ["[gradcheck]", "expected a derivative"]),
    (lambda be, s, gout, needs: (gout * 0,), ["[gradcheck]"]), (lambda be, s, gout, needs: (None,), ["expected as gradient 0 one like its array", "found None"]),
    (lambda be, s, gout, needs: gout * s * s, ["'composed'", "a tuple of 1 gradients", "ndarray"]),
    (lambda be, s, gout, needs: (gout, gout), ["'composed'", "a tuple of 1 gradients", "a tuple of 2"])])
def test_a_wrong_gradient_is_found_at_the_usual_dtype(vjp, words, be):
    op = _op(_forward, vjp)
    check_error(GradientError, lambda: check_op(op, [np.linspace(-3, 3, 7)], _reference, be), *words)


def test_a_right_gradient_is_let_through(be):
    check_op(_op(_forward, lambda be, s, gout, needs: (gout * s * s,)), [np.linspace(-3, 3, 7)], _reference, be)


def test_rules_that_are_none(be):
    x = duoln.tensor([1.0], be)
    check_error(UsageError, lambda: _op(lambda be, x: x)(x), "[squash] rule 'composed'", "the pair")
    check_error(DtypeError, lambda: extend.Rule("a", 1), "[Rule] forward", "1 (int)")
    check_error(DtypeError, lambda: extend.Rule("a", _forward, 2), "[Rule] vjp", "2 (int)")
    check_error(DtypeError, lambda: ops.relu.add(print), "[relu] add: expected a Rule")
    check_error(UsageError, lambda: ops.relu.add(ops.relu.rules("numpy")[0], "numpi"), "[relu] add", "numpy, cupy, mlx", "'numpi'")


@pytest.mark.parametrize("name", ["relu", "add", "logical_not"])
def test_errors_about_missing_arguments_name_the_operator(name):
    check_error(TypeError, getattr(ops, name))


@pytest.mark.parametrize(("declaration", "words"), [
    ("y: real[*shape] -> like y", ["arguments of the function, x, gain", "'y'"]),
    ("", ["expected arguments"]), ("x: real[n], x: real[n] -> like x", ["a name of its own"]),
    ("x: real[2.5] -> like x", ["expected axes", "2.5"]), ("x: real[n-1] -> like x", ["expected axes", "n-1"]),
    ("x: real[*a, *b] -> like x", ["at most one *rows"]), ("x: float32[n] -> like x", ["real, int32, bool, any", "'float32'"]),
    ("x: sum[n] -> like x", ["real, int32, bool, any", "'sum'"]), ("x: real[n] or one -> like x", ["'real or one'"]),
    ("x: real[n]?, gain: real[n] -> like gain", ["a first array that is never None"]),
    ("x: reel[n] -> like x", ["expected a kind", "'reel'"]), ("x: real[n] -> real[m]", ["axes of the arguments", "'m'"]),
    ("x real", ["expected 'name: kind'"])])
def test_wrong_declarations_are_named_where_they_stand(declaration, words):
    def squash(x, gain=None):
        """X / (1 + |x|)."""

    check_error(UsageError, lambda: extend.op(declaration)(squash), "[squash] declaration", *words)


def test_what_is_no_function_with_a_name_or_no_declaration():
    check_error(UsageError, lambda: extend.op("x: real -> like x")(lambda x: None), "[op] expected a function with a name", "<lambda>")
    check_error(DtypeError, lambda: extend.op("x: real -> like x")(5), "[op] function", "5 (int)")
    check_error(DtypeError, lambda: extend.op(5), "[op] expected a declaration", "5 (int)")


def test_the_error_of_a_forward_has_no_hint_for_an_argument_of_the_operator(be):
    @extend.op("x: real[*shape] -> like x")
    def scaled(x: extend.Tensor, *, scale: extend.Finite = 1.0) -> extend.Tensor:
        """X times the scale."""

    scaled.add(extend.Rule("composed", lambda be, x: (x, None)))
    with pytest.raises(TypeError, match=r"unexpected keyword argument 'scale'$"):
        scaled(duoln.tensor([1.0], be))
