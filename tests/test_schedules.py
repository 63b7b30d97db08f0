"""Learning rates from update to update, and the moving average of parameters."""

import math

import numpy as np
import pytest

import duoln
from duoln import optim
from duoln.errors import CompileError, DtypeError, ShapeError, UsageError
from duoln.testing import check_error


def test_cosine():
    rate = optim.cosine(0.4, 10, end=0.1)
    assert [rate(k) for k in (0, 5, 10, 1000)] == pytest.approx([0.4, 0.25, 0.1, 0.1])
    assert rate(3) == pytest.approx(0.1 + 0.3 * (1 + math.cos(0.3 * math.pi)) / 2)


def test_warmup_has_a_rate_above_0_and_no_jump():
    rate = optim.linear_warmup(4, 0.5)
    assert [rate(k) for k in range(6)] == pytest.approx([0.1, 0.2, 0.3, 0.4, 0.5, 0.5])
    composed = optim.linear_warmup(4, optim.cosine(0.5, 10))
    assert [composed(4 + k) for k in range(12)] == [optim.cosine(0.5, 10)(k) for k in range(12)]


def test_pieces():
    rate = optim.piecewise(1.0, {2: 0.5, 4: optim.cosine(0.4, 2)})
    assert [rate(k) for k in range(8)] == pytest.approx([1, 1, 0.5, 0.5, 0.4, 0.2, 0, 0], abs=1e-12)
    assert optim.piecewise(lambda update: float(update), {3: 9.0})(2) == 2.0


def test_exponential_and_steps():
    rate = optim.exponential(0.1, 0.001, 4)
    assert [rate(k) for k in range(6)] == pytest.approx([0.1, 0.1 * 10 ** -0.5, 0.01, 0.01 * 10 ** -0.5, 0.001, 0.001])
    assert rate(4) == rate(10 ** 9) == 0.001
    rate = optim.steps(0.8, 0.5, every=3, times=2)
    assert [rate(k) for k in (0, 2, 3, 5, 6, 8, 9, 1000)] == [0.8, 0.8, 0.4, 0.4, 0.2, 0.2, 0.2, 0.2]


def square(update):
    return 0.1 / (1 + update) ** 2


SCHEDULES = [optim.cosine(1e-3, 9), optim.linear_warmup(3, optim.cosine(1e-3, 9)), optim.piecewise(0.1, {5: 0.01}), optim.exponential(0.1, 0.01, 9),
             optim.steps(0.1, 0.3, 2, 3), optim.schedule(square, 7), optim.piecewise(0.1, {2: optim.linear_warmup(2, optim.steps(0.5, 0.5, 2, 2))})]


@pytest.mark.parametrize("rate", SCHEDULES)
@pytest.mark.parametrize("kind", [optim.SGD, optim.RMSProp, optim.AdamW])
def test_updates_have_the_rate_of_their_number(be, rate, kind):
    """By itself, compiled, and by `rate=`: the same bits, also after the schedule has ended."""
    optimizer, results = kind(rate), []
    gradients = {"w": duoln.tensor([0.3, -2.0], be)}
    for how in ("own", "compiled", "given"):
        params = {"w": duoln.tensor([1.0, 2.0], be)}
        slots, update = optimizer.init(params), duoln.compile(optimizer.update) if how == "compiled" else optimizer.update
        for k in range(14):
            given = (duoln.tensor(np.float32(optimizer.rate_at(k)), be),) if how == "given" else ()
            params, slots = update(params, gradients, slots, *given)
        assert slots["update"].item() == 14
        results.append(params["w"].numpy())
    np.testing.assert_array_equal(results[0], results[1])
    np.testing.assert_array_equal(results[0], results[2])


def test_a_rate_that_is_given_is_taken(be):
    params = gradients = {"w": duoln.tensor([1.0], be)}
    optimizer = optim.SGD(123.0)
    assert optimizer.update(params, gradients, optimizer.init(params))[0]["w"].item() == -122.0
    assert optimizer.update(params, gradients, optimizer.init(params), 0.5)[0]["w"].item() == 0.5
    assert optimizer.update(params, gradients, optimizer.init(params), rate=0.5)[0]["w"].item() == 0.5


def test_a_function_of_the_users_is_followed_where_it_can_be(be):
    params = gradients = {"w": duoln.tensor([1.0], be)}
    optimizer = optim.SGD(square)
    slots = optimizer.init(params)
    for k in range(3):
        before = params["w"].item()
        params, slots = optimizer.update(params, gradients, slots)
        assert params["w"].item() == pytest.approx(before - square(k), rel=1e-6)
    for rate in (square, optim.linear_warmup(2, square)):
        compiled = duoln.compile(optim.SGD(rate).update)
        check_error(CompileError, lambda c=compiled: c(params, gradients, slots), "[SGD] learning_rate", "optim.schedule(function, updates)")


def test_rates_below_0_are_told(numpy_backend):
    params = {"w": duoln.tensor([1.0], numpy_backend)}
    for rate in (optim.schedule(lambda update: 1.0 - update, 5), lambda update: -1.0):
        optimizer = optim.SGD(rate)
        check_error(UsageError, lambda o=optimizer: o.update(params, params, o.init(params)), "learning rate at update", "-1")


@pytest.mark.parametrize(("call", "kind", "words"), [
    (lambda: optim.cosine("fast", 3), DtypeError, ["[cosine] peak"]), (lambda: optim.cosine(-1.0, 3), UsageError, ["[cosine] peak", "at least 0"]),
    (lambda: optim.cosine(1.0, 0), ShapeError, ["[cosine] updates"]), (lambda: optim.cosine(1.0, 2.5), DtypeError, ["[cosine] updates"]),
    (lambda: optim.linear_warmup(0, 0.1), ShapeError, ["[linear_warmup] updates"]), (lambda: optim.linear_warmup(3, None), DtypeError, ["[linear_warmup] then"]),
    (lambda: optim.linear_warmup(3, -0.1), UsageError, ["[linear_warmup] then"]), (lambda: optim.piecewise(0.1, [0.2]), DtypeError, ["[piecewise] changes"]),
    (lambda: optim.piecewise(0.1, {0: 0.2}), ShapeError, ["[piecewise] changes"]), (lambda: optim.piecewise(0.1, {5: 0.2, 3: 0.1}), UsageError, ["rise", "[5, 3]"]),
    (lambda: optim.exponential(0.1, 0.0, 3), UsageError, ["[exponential] end", "above 0"]), (lambda: optim.steps(0.1, 0.5, 0, 3), ShapeError, ["[steps] every"]),
    (lambda: optim.steps(0.1, -0.5, 2, 3), UsageError, ["[steps] scale"]), (lambda: optim.schedule(0.1, 3), DtypeError, ["[schedule] function"]),
    (lambda: optim.schedule(square, 0), ShapeError, ["[schedule] updates"]),
    (lambda: optim.piecewise(0.1, {5: "slow"}), DtypeError, ["[piecewise] changes"]), (lambda: optim.cosine(1.0, updates=3, eta_min=0.0), TypeError, ["cosine() got", "eta_min"]),
])
def test_wrong_settings(call, kind, words):
    check_error(kind, call, *words)


def test_the_first_average_is_a_copy(be):
    """An optimizer that was given the parameters may overwrite them."""
    params, gradients = (duoln.to_tensors({"w": np.ones(5000, np.float32)}, be) for _ in range(2))
    average, optimizer = optim.MovingAverage().init(params), optim.Adam(0.1, donate=True)
    optimizer.update(params, gradients, optimizer.init(params), 0.1)
    assert (average["w"].numpy() == 1).all()


def test_what_cannot_be_averaged(numpy_backend):
    check_error(UsageError, lambda: optim.MovingAverage(1.0), "[MovingAverage] beta")
    check_error(DtypeError, lambda: optim.MovingAverage().init({"w": np.ones(3)}), "MovingAverage")
    check_error(DtypeError, lambda: optim.MovingAverage().init({"w": duoln.tensor([1.0], numpy_backend, "bfloat16")}), "float32", "bfloat16")
    average = optim.MovingAverage().init({"w": duoln.tensor([1.0], numpy_backend)})
    check_error(ShapeError, lambda: optim.MovingAverage().update(average, {"v": average["w"]}), "v")


def test_a_rate_is_not_asked_for_within_a_compiled_step(numpy_backend):
    """Where the first calls agree, as with a schedule of pieces, it would be a constant of all calls."""
    optimizer = optim.SGD(lambda update: 0.5 if update < 10 else 0.2)
    made = []

    @duoln.compile
    def step(x):
        made.append(None)
        return x * optimizer.rate_at(len(made))

    x = duoln.tensor(np.ones(2, np.float32), numpy_backend)
    check_error(CompileError, lambda: step(x), "[rate_at]", "outside of the compiled step", "update(params, gradients, slots)")
    assert optimizer.rate_at(0) == 0.5
