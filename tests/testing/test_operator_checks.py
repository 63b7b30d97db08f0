"""The checks for authors of operators and rules, over operators and rules that are wrong in one way each."""

import numpy as np
import pytest

from duoln import ops
from duoln.core import Op, Rule
from duoln.errors import DtypeError, GradientError
from duoln.testing import check_error, check_op, check_rule

X = np.array([[0.5, -1.25], [2.0, 3.5]])


def _double(be, x):
    return 2 * x, x


def _slope(be, saved, gout, needs):
    return [2 * gout]


def _op(vjp=_slope):
    def double(x):
        return made.apply(x)

    made = Op(double)
    made.add(Rule("composed", _double, vjp))
    return made


@pytest.mark.parametrize("dtype", ["float32", "float64"])
class TestOperators:
    def _check(self, backend, dtype, fn=None, reference=lambda x: 2 * x, vjp=_slope):
        check_op(fn or _op(vjp), [X], reference, backend, dtype=dtype)

    def test_one_that_is_right(self, dtype, numpy_backend):
        self._check(numpy_backend, dtype)

    @pytest.mark.parametrize(("reference", "words"), [
        (lambda x: 2 * x + np.array([0, 0.01]), "output 0 on numpy"), (lambda x: (2 * x)[None], "output 0 on numpy: expected shape"),
        (lambda x: np.where(x > 3, np.nan, 2 * x), "not finite")])
    def test_a_wrong_value(self, dtype, reference, words, numpy_backend):
        with pytest.raises(AssertionError, match=words):
            self._check(numpy_backend, dtype, reference=reference)

    def test_a_wrong_second_output(self, dtype, numpy_backend):
        with pytest.raises(AssertionError, match="output 1"):
            self._check(numpy_backend, dtype, lambda x: (2 * x, 3 * x), lambda x: (2 * x, 4 * x))
        with pytest.raises(ValueError, match="shorter"):
            self._check(numpy_backend, dtype, lambda x: (2 * x, 3 * x), lambda x: (2 * x,))

    def test_a_wrong_dtype(self, dtype, numpy_backend):
        wrong = {"float32": "float64", "float64": "float32"}[dtype]
        with pytest.raises(AssertionError, match=f"output 0: expected dtype {dtype}, found {wrong}"):
            self._check(numpy_backend, dtype, lambda x: ops.astype(2 * x, dtype=wrong))

    def test_a_gradient_that_is_wrong_in_this_dtype(self, dtype, numpy_backend):
        def vjp(be, saved, gout, needs):
            return [2.01 * gout if be.dtype(gout) == dtype else 2 * gout]

        with pytest.raises((AssertionError, GradientError)):
            self._check(numpy_backend, dtype, vjp=vjp)
        check_op(_op(vjp), [X], lambda x: 2 * x, numpy_backend, differentiable=False, dtype=dtype)


class TestAttributes:
    """An operator with an attribute, which goes to the operator and to the reference."""

    def _leaky(self, wrong=0.0):
        def leaky(x, *, slope=0.1):
            return made.apply(x, slope=slope)

        made = Op(leaky)
        made.add(Rule("composed", lambda be, x, slope: (be.where(x > 0, x, x * slope), x > 0),
                      lambda be, positive, gout, needs, *, slope: (be.where(positive, gout, gout * (slope + wrong)),)))
        return made

    @staticmethod
    def _reference(x, slope=0.1):
        return np.where(x > 0, x, slope * x)

    @pytest.mark.parametrize("attrs", [None, {"slope": 0.3}])
    def test_one_that_is_right(self, attrs, be):
        check_op(self._leaky(), [X], self._reference, be, attrs=attrs)

    def test_a_wrong_value_and_a_wrong_gradient(self, numpy_backend):
        check_error(AssertionError, lambda: check_op(self._leaky(), [X], lambda x, slope: self._reference(x, 0.1), numpy_backend,
                                                     attrs={"slope": 0.3}), "output 0")
        check_error(GradientError, lambda: check_op(self._leaky(0.2), [X], self._reference, numpy_backend, attrs={"slope": 0.3}),
                    "expected a derivative")

    def test_one_that_the_operator_has_not(self, numpy_backend):
        check_error(TypeError, lambda: check_op(self._leaky(), [X], self._reference, numpy_backend, attrs={"solpe": 0.3}),
                    "leaky() got", "'solpe'", "did you mean 'slope'")


class TestRules:
    def _check(self, backend, forward=_double, vjp=_slope, supports=None):
        check_rule(_op(), Rule("fast", forward, vjp, supports), [X.copy()], backend)

    def test_one_that_is_right(self, numpy_backend):
        self._check(numpy_backend)
        self._check(numpy_backend, vjp=None)

    def test_one_that_refuses_is_not_checked(self, numpy_backend):
        with pytest.raises(AssertionError, match=r"\[double\] rule 'fast' refuses these inputs: too small"):
            self._check(numpy_backend, supports=lambda be, x: "too small")
        self._check(numpy_backend, supports=lambda be, x: None)

    def test_a_wrong_value(self, numpy_backend):
        with pytest.raises(AssertionError, match=r"\[double\] output 0: "):
            self._check(numpy_backend, lambda be, x: (2.001 * x, x))

    def test_a_wrong_gradient(self, numpy_backend):
        with pytest.raises(AssertionError, match=r"\[double\] gradient 0, needs \(True,\)"):
            self._check(numpy_backend, vjp=lambda be, saved, gout, needs: [2.001 * gout])

    def test_one_that_does_not_repeat_to_the_bit(self, numpy_backend):
        calls = []

        def trembling(value):
            calls.append(value)
            return value * (1 + 2.0 ** -52 * (len(calls) % 2))

        with pytest.raises(AssertionError, match=r"output 0 of a second run differs"):
            self._check(numpy_backend, lambda be, x: (trembling(2 * x), x))
        calls.clear()
        with pytest.raises(AssertionError, match=r"gradient 0 of a second run differs"):
            self._check(numpy_backend, vjp=lambda be, saved, gout, needs: [trembling(2 * gout)])

    def test_one_that_writes_into_its_input_at_once(self, numpy_backend):
        def in_place(be, x):
            x *= 2
            return x, x

        with pytest.raises(AssertionError, match="rule 'fast' wrote into its input 0"):
            self._check(numpy_backend, forward=in_place)

    def test_one_that_writes_into_its_input(self, numpy_backend):
        def after(be, saved, gout, needs):
            saved[0, 0] = 9.0  # which is the input
            return [2 * gout]

        with pytest.raises(AssertionError, match="rule 'fast' wrote into its input"):
            self._check(numpy_backend, vjp=after)

    def test_one_that_writes_into_its_gradient(self, numpy_backend):
        calls = []

        def at_last(be, saved, gout, needs):
            calls.append(needs)
            out = 2 * gout
            if len(calls) == 4:  # twice for all needs, twice for the one input; after that nothing differs
                gout[0, 0] = 0
            return [out]

        with pytest.raises(AssertionError, match="rule 'fast' wrote into its gout"):
            self._check(numpy_backend, vjp=at_last)
        assert calls == [(True,)] * 4


@pytest.mark.parametrize("backend", [{}, 3])
def test_a_place_to_check_that_is_no_backend(backend):
    rule = Rule("fast", _double, _slope)
    for name, call in (("check_rule", lambda: check_rule(_op(), rule, [X.copy()], backend)),
                       ("check_op", lambda: check_op(_op(), [X.copy()], np.tanh, backend))):
        check_error(DtypeError, call, f"[{name}] backend: expected a backend or its name")
