"""Threads of one process: the values that a step keeps belong to its thread or its call."""

import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from conftest import PATIENCE

import duoln
from duoln import nn, ops, optim, tree
from duoln.core import composed_only
from duoln.randomness import Stream

THREADS = 8


def _together(work, count=THREADS):
    """The results of `work(0) ... work(count - 1)`; each has its own thread, and all threads start at the same moment."""
    gate = threading.Barrier(count)

    def start(k):
        gate.wait(timeout=PATIENCE)
        return work(k)

    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(start, range(count)))


def _training(be, kind, steps):
    """Losses and final parameters of a small model: `kind` chooses one of two."""
    start, rng = Stream(kind, "init"), np.random.default_rng(kind)
    optimizer = optim.Adam(learning_rate=1e-2, donate=True)
    if kind == 0:
        model = nn.LSTM(3, 4, norm="layer")
        x = duoln.tensor(rng.standard_normal((4, 2, 3)).astype(np.float32), be)
    else:
        model = nn.Linear(6, 5)
        x = duoln.tensor(rng.standard_normal((7, 6)).astype(np.float32), be)

    def loss(p):
        out = model(p, x)
        return ops.mean(ops.square(ops.tanh(out[0] if kind == 0 else out)))

    @duoln.compile
    def step(p, slots, rate):
        value, gradients = duoln.value_and_grad(loss)(p)
        p, slots = optimizer.update(p, gradients, slots, rate)
        return value, p, slots

    params = duoln.to_tensors(model.init(start), be)
    slots, losses = optimizer.init(params), []
    for k in range(steps):
        value, params, slots = step(params, slots, duoln.tensor(0.01 / (k + 1), be))
        losses.append(value.item())  # one thread reads while another is within its step
    return losses, [leaf.numpy() for leaf in tree.leaves(params)]


@pytest.mark.long
@pytest.mark.parametrize("steps", [125, pytest.param(1000, marks=pytest.mark.minutes)])
def test_two_models_in_eight_threads_train_as_alone(numpy_backend, steps):
    alone = [_training(numpy_backend, kind, steps) for kind in (0, 1)]
    for k, (losses, weights) in enumerate(_together(lambda k: _training(numpy_backend, k % 2, steps))):
        assert losses == alone[k % 2][0]
        assert all(np.array_equal(a, b) for a, b in zip(weights, alone[k % 2][1], strict=True))


def test_large_arrays_in_eight_threads(numpy_backend, rng):
    """Large enough for the rules that share their rows among threads of their own."""
    x = duoln.tensor(rng.standard_normal((600, 1000)).astype(np.float32), numpy_backend)
    gain, bias = (duoln.tensor(v, numpy_backend) for v in (np.ones(1000, np.float32), np.zeros(1000, np.float32)))

    def gradients(k):
        fn = duoln.value_and_grad(lambda t: ops.sum(ops.square(ops.layer_norm(t * (k + 1.0), gain, bias))))
        return [fn(x)[1].numpy() for _ in range(4)]

    alone = [gradients(k)[0] for k in range(2)]
    for k, gradients_of_thread in enumerate(_together(lambda k: gradients(k % 2))):
        assert all(np.array_equal(g, alone[k % 2]) for g in gradients_of_thread)


def test_reading_in_one_thread_while_another_is_within_a_step(numpy_backend):
    inside, read = threading.Event(), threading.Event()

    def step(x):
        inside.set()
        assert read.wait(timeout=PATIENCE)
        return x * 2.0

    x = duoln.tensor([1.0], numpy_backend)
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(duoln.compile(step), x)
        assert inside.wait(timeout=PATIENCE)
        try:
            np.testing.assert_array_equal(x.numpy(), [1.0])
        finally:
            read.set()
        np.testing.assert_array_equal(running.result(timeout=PATIENCE).numpy(), [2.0])
    np.testing.assert_array_equal(x.numpy(), [1.0])


def test_composed_only_holds_for_its_thread(numpy_backend):
    x, labels = duoln.tensor(np.ones((2, 3), np.float32), numpy_backend), duoln.tensor([0, 1], numpy_backend)

    def first_rule(_=None):
        return ops.softmax_cross_entropy.explain(x, labels)[0][0]

    with composed_only(), ThreadPoolExecutor(1) as pool:
        assert first_rule() == "composed"
        assert pool.submit(first_rule).result() != "composed"
