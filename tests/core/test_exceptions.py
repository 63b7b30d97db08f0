"""A call that raises leaves no state: every later gradient is right, whichever operator failed."""

import numpy as np
import pytest
from conftest import ON_NUMPY

import duoln
from duoln import nn, ops, optim, tree
from duoln.core import Rule, composed_only, each_rule, op, watched
from duoln.core.custom import derived
from duoln.errors import GradientError
from duoln.testing import check_error


class Broken(Exception):
    """What the tests raise."""


def _t(be, x):
    return duoln.tensor(np.asarray(x, np.float32), be)


def test_tensors_kept_from_a_call_that_raised_are_constants_afterwards(be):
    kept = []

    def fails(x):
        kept.extend([x, x * x])
        raise Broken

    with pytest.raises(Broken):
        duoln.value_and_grad(fails)(_t(be, [3.0]))
    for old in kept:
        value, gradient = duoln.value_and_grad(lambda x, old=old: ops.sum(x * x * old))(_t(be, [2.0]))
        assert value.item() == 4.0 * old.item()
        np.testing.assert_array_equal(gradient.numpy(), [4.0 * old.item()])


def test_tensors_kept_from_a_derived_rule_that_raised_are_constants_afterwards(be):
    kept = []

    @op
    def failing(x):
        """Keeps its arguments, and fails."""
        return failing.apply(x)

    def function(x):
        kept.append(x)
        raise Broken

    failing.add(derived(function))
    with pytest.raises(Broken):
        failing(_t(be, [3.0]))
    _, gradient = duoln.value_and_grad(lambda x: ops.sum(x * kept[0]))(_t(be, [2.0]))
    np.testing.assert_array_equal(gradient.numpy(), [3.0])


def test_tensors_of_two_open_gradients_do_not_mix(be):
    """One of them would get no gradient."""
    derived_twice = duoln.value_and_grad(lambda x: ops.sum(_closing_over(x)(x)))
    check_error(GradientError, lambda: derived_twice(_t(be, [2.0])), "[multiply]", "two gradients")


def _closing_over(closed_over):
    @op
    def closing(x):
        """Uses a tensor that it was not given."""
        return closing.apply(x)

    closing.add(derived(lambda x: x * closed_over))
    return closing


# The n-th call of a step --------------------------------------------------------------------------------

def _model_step(be):
    """A training step of a small network with norms, a recurrent layer, a clipped optimizer."""
    model = nn.Sequential(nn.LSTM(3, 4, norm="layer"), lambda pair: pair[0][-1], nn.LayerNorm(4), nn.Linear(4, 3))
    optimizer, params = optim.Adam(learning_rate=1e-2, clip=optim.clip_global_norm(1.0)), duoln.init(model, 0, be)
    x, labels = _t(be, np.random.default_rng(0).standard_normal((5, 2, 3))), duoln.tensor(np.array([0, 2], np.int32), be)

    def step(p, slots):
        value, gradients = duoln.value_and_grad(lambda p: ops.mean(ops.softmax_cross_entropy(model(p, x), labels)))(p)
        p, slots = optimizer.update(p, gradients, slots, _t(be, 1e-2))
        return value, p, slots

    return step, params, optimizer.init(params)


class _NthCall:
    """Makes the n-th rule that runs, forwards or backwards, raise; counts them."""

    def __init__(self, fail_at):
        self.fail_at, self.count = fail_at, 0

    def __call__(self, op, rule):
        pooled = {i: self._counted(function) for i, function in rule.pooled.items()}
        vjp = rule.vjp and self._counted(rule.vjp)
        return Rule(rule.name, self._counted(rule.forward), vjp and (lambda *args: vjp(*args)), rule.supports, pooled)

    def _counted(self, function):
        def counted(*args, **attrs):
            self.count += 1
            if self.count == self.fail_at:
                raise Broken
            return function(*args, **attrs)

        return counted


def _values(trees):
    return [leaf.numpy() for leaf in tree.leaves(trees)]


@ON_NUMPY
def test_a_step_that_fails_at_its_nth_operator_changes_nothing(be):
    step, params, slots = _model_step(be)
    before, expected = _values((params, slots)), _values(step(params, slots))
    counter = _NthCall(fail_at=0)
    with each_rule(counter):
        step(params, slots)
    assert counter.count >= 15
    for n in range(1, counter.count + 1, 4 if be.name == "cupy" else 1):  # emulated kernels are slow
        with pytest.raises(Broken), each_rule(_NthCall(n)):
            step(params, slots)
        assert all(np.array_equal(a, b) for a, b in zip(_values((params, slots)), before, strict=True)), n
        assert all(np.array_equal(a, b) for a, b in zip(_values(step(params, slots)), expected, strict=True)), n


def test_a_compiled_step_that_fails_leaves_the_backend_usable(be):
    fail = [True]

    def step(x):
        y = x * 2.0
        if fail[0]:
            raise Broken
        return y

    compiled = duoln.compile(step)
    with pytest.raises(Broken):
        compiled(_t(be, [1.0]))
    assert _t(be, [1.0]).numpy() == [1.0]
    fail[0] = False
    assert compiled(_t(be, [1.0])).numpy() == [2.0]


def test_composed_only_ends_with_the_exception(numpy_backend):
    x = _t(numpy_backend, np.ones((2, 3)))
    before = ops.softmax_cross_entropy.explain(x, duoln.tensor(np.array([0, 1], np.int32), numpy_backend))
    with pytest.raises(Broken), composed_only():
        raise Broken
    assert ops.softmax_cross_entropy.explain(x, duoln.tensor(np.array([0, 1], np.int32), numpy_backend)) == before
    assert before[0][0] != "composed"


def test_watched_ends_with_the_exception(numpy_backend):
    with pytest.raises(Broken), watched():
        raise Broken
    assert np.isnan((_t(numpy_backend, [np.nan]) * 2.0).numpy())
