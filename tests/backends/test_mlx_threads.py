"""MLX's lazy arrays in several threads, and how many operations wait to be computed."""

import io
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from textwrap import dedent

import numpy as np
import pytest
from conftest import PATIENCE, get_backend

import duoln
from duoln import nn, ops, optim, tree
from duoln.errors import CompileWarning


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


def test_a_thread_computes_with_arrays_that_exist(be):
    x = duoln.tensor([1.0, 2.0], be)
    with ThreadPoolExecutor(1) as pool:
        y = pool.submit(lambda: ops.exp(x)).result()  # the thread makes nothing but the result
    np.testing.assert_allclose((y * 1.0).numpy(), np.exp([1.0, 2.0]), rtol=1e-6)


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


def test_threads_train_two_models_as_one_alone(be):
    def train(seed):
        model, optimizer = nn.LayerNorm(5), optim.Adam(learning_rate=0.1)
        params = duoln.to_tensors(model.init(seed), be)
        slots = optimizer.init(params)
        gradient = duoln.value_and_grad(lambda params, x: ops.mean(ops.square(model(params, x) - 1.0)))
        for k in range(10):
            x = duoln.tensor(np.random.default_rng([seed, k]).standard_normal((4, 5)).astype(np.float32), be)
            _, gradients = gradient(params, x)
            params, slots = optimizer.update(params, gradients, slots, 0.1)
        return [t.numpy().tolist() for t in tree.leaves(params)]

    results = {}
    threads = [threading.Thread(target=lambda s=s: results.update({s: train(s)})) for s in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == {s: train(s) for s in range(4)}


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
