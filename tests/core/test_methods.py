"""Gradients and compiled steps as methods: `self` is bound as in a function."""

import pickle
from functools import partial

import pytest

import duoln
from duoln import ops
from duoln.errors import CompileError
from duoln.testing import check_error


class Model:
    power = 2.0

    @duoln.value_and_grad
    def loss(self, params, x):
        return ops.sum(params ** self.power * x)

    @duoln.value_and_grad
    def shifted(self, params, offset=None):
        moved = params if offset is None else params - offset
        return ops.sum(moved * moved)

    @partial(duoln.value_and_grad, has_aux=True)
    def with_aux(self, params):
        return ops.sum(params * self.power), self.power

    @duoln.value_and_grad
    @staticmethod
    def alone(params):
        return ops.sum(params)

    @duoln.compile
    def compiled(self, params):
        return params * self.power

    of_operator = duoln.value_and_grad(ops.sum)


class Cubic(Model):
    power = 3.0

    @duoln.value_and_grad
    def loss(self, params, x):
        return ops.sum(params * x)


def of(result):
    value, gradient = result
    return value.item(), gradient.tolist()


def test_the_gradient_of_a_method(be):
    w, x = duoln.tensor([1.0, 2.0], be), duoln.tensor([10.0, 20.0], be)
    model, cubic = Model(), Cubic()
    assert of(model.loss(w, x)) == of(model.loss(params=w, x=x)) == (90.0, [20.0, 80.0])
    assert of(cubic.loss(w, x)) == (50.0, [10.0, 20.0])
    assert of(super(Cubic, cubic).loss(w, x)) == (170.0, [30.0, 240.0])
    assert of(model.shifted(w)) == (5.0, [2.0, 4.0]) and of(model.shifted(w, x)) == (405.0, [-18.0, -36.0])
    (value, aux), gradient = cubic.with_aux(w)
    assert (value.item(), aux, gradient.tolist()) == (9.0, 3.0, [3.0, 3.0])
    assert of(model.alone(w)) == of(Model.alone(w)) == of(model.of_operator(w)) == (3.0, [1.0, 1.0])


def test_what_is_not_bound_stays_the_object():
    assert Model.of_operator is Model.__dict__["of_operator"] is Model().of_operator
    assert Model.loss is Model.__dict__["loss"] and Model.loss.__name__ == "value_and_grad(loss)"


def test_a_bound_gradient_pickles_with_its_object(be):
    again = pickle.loads(pickle.dumps(Cubic().shifted))
    assert of(again(duoln.tensor([1.0, 2.0], be))) == (5.0, [2.0, 4.0])


def test_a_compiled_step_takes_the_bound_method(be):
    w, model = duoln.tensor([1.0, 2.0], be), Cubic()
    check_error(CompileError, lambda: model.compiled(w), "'self'", "Cubic", "duoln.compile(self.step)")
    step = duoln.compile(duoln.compile(model.shifted))
    for _ in range(4):
        assert of(step(w)) == (5.0, [2.0, 4.0])


def test_the_unbound_gradient_says_what_it_takes(be):
    with pytest.raises(duoln.errors.DuolnError):
        Model.loss(Model(), duoln.tensor([1.0], be), duoln.tensor([1.0], be))
