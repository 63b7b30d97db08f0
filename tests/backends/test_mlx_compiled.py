"""Whole training steps through `mx.compile`: equal to eager to the bit, and no growth of memory."""

import copy

import numpy as np
import pytest
from conftest import get_backend

import duoln
from duoln import nn, ops, optim, tree
from duoln.randomness import Stream
from duoln.tasks import make_config
from duoln.tasks.registry import find_task
from duoln.training.train_step import make_step, start_state

mx = pytest.importorskip("mlx.core", reason="MLX is not for this platform")


def _mnist():
    task = find_task("mnist")
    cfg = make_config(task, "ln", "smoke", {"hidden": 16, "rows": 256})
    splits, model, optimizer = task.data(cfg), task.model(cfg), task.optimizer(cfg, 1000)
    be = get_backend("mlx")
    return (make_step(task, model, optimizer), start_state(model, optimizer, 0, be),
            [duoln.to_tensors(splits.train(k), be) for k in range(2)])


def _recurrent(cell):
    model, adam, be = getattr(nn, cell)(3, 5, norm="layer"), optim.Adam(0.01), get_backend("mlx")

    def step(state, batch, rate):
        loss, gradient = duoln.value_and_grad(lambda p: ops.mean(ops.square(model(p, batch["x"])[0])))(state["params"])
        params, slots = adam.update(state["params"], gradient, state["slots"], rate)
        return {"params": params, "slots": slots}, {"loss": loss}

    params = duoln.to_tensors(model.init(Stream(0, "init")), be)
    rng = np.random.default_rng(0)
    batches = [{"x": duoln.tensor(rng.standard_normal((4, 2, 3)).astype(np.float32), be)} for _ in range(2)]
    return step, {"params": params, "slots": adam.init(params)}, batches


CASES = {"mnist": _mnist, "LSTM": lambda: _recurrent("LSTM"), "GRU": lambda: _recurrent("GRU")}


@pytest.mark.parametrize("name", [name if name == "mnist" else pytest.param(name, marks=pytest.mark.long) for name in CASES])
def test_python_runs_twice_and_equal_to_eager(name):
    step, state, batches = CASES[name]()
    be, traces = get_backend("mlx"), []

    def counted(*args):
        traces.append(1)
        return step(*args)

    compiled = duoln.compile(counted)
    mine, theirs = state, copy.deepcopy(state)  # an optimizer may overwrite what it was given
    for k in range(6):
        rate = duoln.tensor(0.01 / (k + 1), be)  # changes, and must not be frozen into the trace
        mine, figures = compiled(mine, batches[k % 2], rate)
        theirs, expected = step(theirs, batches[k % 2], rate)
        assert [t.numpy() for t in figures.values()] == [t.numpy() for t in expected.values()]
    assert len(traces) == 2
    for (path, a), (_, b) in zip(tree.items(mine), tree.items(theirs), strict=True):
        np.testing.assert_array_equal(a.numpy(), b.numpy(), err_msg=path)


@pytest.fixture
def exact_memory():
    """MLX reuses a freed buffer for the next smaller array, so the active memory depends on the free buffers.

    Without a cache it is the sum of the arrays that exist.
    """
    before = mx.set_cache_limit(0)
    yield
    mx.set_cache_limit(before)


@pytest.mark.long
def test_memory_does_not_grow(exact_memory):
    step, state, batches = CASES["mnist"]()
    be, compiled = get_backend("mlx"), duoln.compile(step)
    rate, active_bytes = duoln.tensor(0.01, be), {}
    for k in range(500):
        state, figures = compiled(state, batches[k % 2], rate)
        be.wait([leaf.data for leaf in tree.leaves((state, figures))])
        mx.synchronize()  # MLX's own thread frees the temporary arrays of the step
        if k in (99, 499):
            active_bytes[k] = mx.get_active_memory()
    assert active_bytes[499] <= active_bytes[99]


def test_wait_evaluates_everything(monkeypatch):
    """MLX computes only on request; without this a run's graph would grow with every update."""
    from duoln.backends import mlx

    be, evaluated = get_backend("mlx"), []
    real_eval = mlx.mx.eval
    monkeypatch.setattr(mlx.mx, "eval", lambda *trees: evaluated.extend(trees) or real_eval(*trees))
    arrays = (be.zeros((2,)), be.zeros((3,)) + 1.0)
    be.wait(arrays)
    [waited] = evaluated
    assert len(waited) == 2 and all(a is b for a, b in zip(waited, arrays, strict=True))
