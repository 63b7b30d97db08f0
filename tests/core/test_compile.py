"""compile: the same values as eager, and errors for operations that a traced step must not contain."""

import warnings

import numpy as np
import pytest

import duoln
from duoln import ops
from duoln.core.step_contract import MAX_INPUT_FORMS
from duoln.errors import CompileError, CompileWarning, MixedBackendError, ShapeError
from duoln.testing import check_error


def _step(state, x, rate):
    loss, grads = duoln.value_and_grad(lambda w: ops.mean(ops.square(ops.tanh(x @ w))))(state["w"])
    return {"w": state["w"] - grads * rate}, loss


def _inputs(be, rng):
    return ({"w": duoln.tensor(rng.standard_normal((4, 3)).astype(np.float32), be)},
            duoln.tensor(rng.standard_normal((5, 4)).astype(np.float32), be), duoln.tensor(0.1, be))


def test_equal_to_eager(be, rng):
    state, x, _ = _inputs(be, rng)
    eager, compiled = state, state
    step = duoln.compile(_step)
    for k in range(5):
        rate = duoln.tensor(0.1 / (k + 1), be)  # a rate that changes must not be frozen
        eager, a = _step(eager, x, rate)
        compiled, b = step(compiled, x, rate)
        np.testing.assert_allclose(a.numpy(), b.numpy(), rtol=1e-6)
    np.testing.assert_allclose(eager["w"].numpy(), compiled["w"].numpy(), rtol=1e-5)


@pytest.mark.parametrize("read", [float, bool, lambda t: t.numpy(), lambda t: t.item()])
def test_reading_on_the_host_is_refused(rng, read):
    from conftest import get_backend

    for name in ("numpy", "mlx"):
        be = get_backend(name)
        state, x, _ = _inputs(be, rng)
        check_error(CompileError, lambda s=state, y=x: duoln.compile(
            lambda s, y: (s, read(ops.sum(y))) and s)(s, y), "host")
        assert ops.sum(x).item() is not None  # outside a step it is allowed again


def test_leaves_must_be_tensors(be, rng):
    state, x, _ = _inputs(be, rng)
    check_error(CompileError, lambda: duoln.compile(_step)(state, x, 0.1), "argument 'rate'", "float", "0-d")
    check_error(CompileError, lambda: duoln.compile(lambda s: {"n": 3})(state), "result 'n'", "int")
    check_error(CompileError, lambda: duoln.compile(lambda: None)(), "none")


def test_one_backend(rng, numpy_backend):
    from conftest import get_backend

    a, b = (duoln.tensor([1.0], x) for x in (numpy_backend, get_backend("mlx")))
    check_error(MixedBackendError, lambda: duoln.compile(lambda x, y: x)(a, b), "numpy", "mlx")


def test_numpy_refuses_results_that_change_form(numpy_backend):
    calls = []

    def step(x):
        calls.append(1)
        return x if len(calls) < 2 else x[:1]

    compiled, x = duoln.compile(step), duoln.tensor([1.0, 2.0], numpy_backend)
    compiled(x)
    check_error(CompileError, lambda: compiled(x), "changed form", "(2,)", "(1,)")


def test_a_step_runs_as_it_is_for_ever_new_shapes(be):
    runs = []

    def step(x):
        runs.append(x.shape)
        return 2.0 * x

    compiled = duoln.compile(step)
    for n in range(1, MAX_INPUT_FORMS + 1):
        compiled(duoln.tensor(np.ones(n, np.float32), be))
    runs.clear()
    for _ in range(3):
        with pytest.warns(CompileWarning, match=f"more than {MAX_INPUT_FORMS} different forms"):
            y = compiled(duoln.tensor(np.ones(99, np.float32), be))
        assert y.numpy().tolist() == [2.0] * 99
    assert runs == [(99,)] * 3
    compiled(duoln.tensor(np.ones(2, np.float32), be))  # a known one is repeated, without a warning
    compiled(duoln.tensor(np.ones(2, np.float32), be))
    assert len(runs) <= 4


def test_a_warning_about_ever_new_shapes_is_said_once(numpy_backend):
    compiled = duoln.compile(lambda x: x)
    with warnings.catch_warnings(record=True) as captured:
        warnings.simplefilter("default")
        for n in range(1, MAX_INPUT_FORMS + 9):
            compiled(duoln.tensor(np.ones(n, np.float32), numpy_backend))
    assert [w.category for w in captured] == [CompileWarning]


def test_an_error_in_a_step_comes_through(be, rng):
    state, x, rate = _inputs(be, rng)
    step = duoln.compile(lambda s, y, r: s["w"] + y)
    with pytest.raises(ShapeError, match="add"):
        step(state, x, rate)
