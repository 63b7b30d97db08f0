"""MLX: lazy arrays in several threads, how many operations wait to be computed, and whole steps through `mx.compile`."""

import copy
import io
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from textwrap import dedent

import numpy as np
import pytest
from conftest import PATIENCE, get_backend

import duoln
from duoln import nn, ops, optim, tree
from duoln.errors import CompileWarning
from duoln.randomness import Stream
from duoln.tasks import make_config
from duoln.tasks.registry import find_task
from duoln.training.train_step import make_step, start_state


@pytest.fixture
def be():
    return get_backend("mlx")


def test_a_thread_saves_what_another_computes(be, tmp_path):
    params = {"w": duoln.tensor(np.arange(4, dtype=np.float32), be)}
    with ThreadPoolExecutor(1) as pool:
        for k in range(5):
            params = tree.map(lambda p: p * 2.0 + 1.0, params)
            pool.submit(duoln.save, tmp_path / f"{k}.safetensors", params).result()
    saved = duoln.load_arrays(tmp_path / "4.safetensors")
    np.testing.assert_array_equal(saved["w"], np.arange(4) * 32.0 + 31.0)


@pytest.mark.parametrize("prepare", [
    lambda be: duoln.tensor(np.full((3,), 255.0, np.float32), be) / 255.0,
    lambda be: ops.astype(duoln.tensor([1, 1, 1], be), dtype="float32"),
    lambda be: ops.zeros((3,), be) + ops.ones((3,), be),
    lambda be: ops.full((3,), 2.0, be) - ops.arange(3, backend=be, dtype="float32") * 0.0 - 1.0,
])
def test_a_thread_prepares_batches(be, prepare):
    with ThreadPoolExecutor(2) as pool:
        batches = [pool.submit(prepare, be).result() for _ in range(4)]
    assert [(batch * 3.0).numpy().tolist() for batch in batches] == [[3.0] * 3] * 4


def test_a_compiled_step_runs_in_any_thread(be):
    step = duoln.compile(duoln.value_and_grad(lambda p, x: ops.sum(ops.square(p * x))))
    p, x = duoln.tensor([1.0, 2.0], be), duoln.tensor([3.0, 4.0], be)
    with ThreadPoolExecutor(3) as pool:
        for value, gradient in [step(p, x), *(pool.submit(step, p, x).result() for _ in range(4)), step(p, x)]:
            assert (value.item(), gradient.numpy().tolist()) == (73.0, [18.0, 64.0])


def test_many_threads_read_one_lazy_graph(be):
    def work(seed):
        x = shared
        for k in range(60):
            x = ops.tanh(x @ weight + float(seed))
            if k % 7 == 0:
                x.numpy()
        return x.numpy()

    rng = np.random.default_rng(0)
    weight = duoln.tensor(rng.standard_normal((20, 20)).astype(np.float32) * 0.1, be)
    shared = ops.sin(duoln.tensor(rng.standard_normal((20, 20)).astype(np.float32), be) * 2.0)  # not computed yet
    with ThreadPoolExecutor(6) as pool:
        together = list(pool.map(work, range(12)))
    for seed, values in enumerate(together):
        np.testing.assert_array_equal(values, work(seed))


def test_a_thread_that_reads_within_a_step_lets_it_run_as_it_is(be):
    def step(x):
        with ThreadPoolExecutor(1) as pool:
            return x * float(pool.submit(lambda: x.numpy()[0]).result())

    compiled = duoln.compile(step)
    with pytest.warns(CompileWarning, match="another thread"):
        for k in (1.0, 2.0, 3.0):
            assert compiled(duoln.tensor([k, 2.0], be)).tolist() == [k * k, 2.0 * k]


@pytest.mark.parametrize("compiled", [False, True])
def test_a_loop_that_reads_nothing_leaves_little_to_compute(be, compiled):
    import mlx.core as mx

    model, optimizer = nn.Linear(6, 3), optim.Adam(learning_rate=0.01)
    params = duoln.to_tensors(model.init(0), be)
    slots = optimizer.init(params)
    gradient = duoln.value_and_grad(lambda params, x: ops.mean(ops.square(model(params, x))))

    def step(params, slots, x, rate):
        _, gradients = gradient(params, x)
        return optimizer.update(params, gradients, slots, rate)

    step, pending = duoln.compile(step) if compiled else step, []
    for k in range(40):
        x = duoln.tensor(np.full((4, 6), k, np.float32), be)
        params, slots = step(params, slots, x, duoln.tensor(np.float32(0.01), be))
        graph = io.StringIO()
        mx.export_to_dot(graph, *[t.data for t in tree.leaves((params, slots))])
        pending.append(graph.getvalue().count("shape=rectangle"))  # operations that are not computed yet
    assert pending[-1] <= pending[1]


_COMPILED_IN_THREADS = """
    import threading
    import numpy as np
    import duoln
    from duoln import ops

    be = duoln.backend("mlx")
    step = duoln.compile(duoln.value_and_grad(lambda p, x: ops.sum(ops.tanh(p @ x))))
    ended, computed, another_dropped_it = [], threading.Event(), threading.Event()

    def work(k):
        p, x = (duoln.tensor(np.full((16, 16), v, np.float32), be) for v in (0.01, k))
        for _ in range(3):
            step(p, x)[0].item()
        ended.append(k)
        if k == 0:
            computed.set()
            another_dropped_it.wait()

    threads = [threading.Thread(target=work, args=(k,)) for k in range(8)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads[1:]]
    computed.wait()
    del step
    another_dropped_it.set()
    threads[0].join()
    print(len(ended))
"""


def test_threads_that_compile_do_not_end_the_process():
    """MLX ends it while the last thread ends, in most processes: two are enough to see it."""
    for _ in range(2):
        done = subprocess.run([sys.executable, "-c", dedent(_COMPILED_IN_THREADS)], capture_output=True, text=True,
                              check=False, timeout=PATIENCE)
        assert (done.returncode, done.stdout, done.stderr) == (0, "8\n", "")


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
