"""What every built-in task promises, whatever it is: one start, one order of batches, no network."""

import hashlib
import socket

import numpy as np
import pytest

from duoln import runtime, tree
from duoln.cli import main
from duoln.randomness import Stream
from duoln.tasks import make_config
from duoln.tasks.registry import Registry

TASKS = {name: entry.task for name, entry in Registry().tasks.items() if entry.distribution == "duoln"}
BATCHES = 100


def _digest(arrays):
    """One number for a tree of arrays: names, shapes, dtypes and bits."""
    digest = hashlib.sha256()
    for path, array in tree.items(arrays):
        digest.update(f"{path} {array.shape} {array.dtype}".encode())
        digest.update(np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()


@pytest.mark.parametrize("name", TASKS)
def test_every_backend_sees_one_start_and_the_same_hundred_batches(name):
    """The weights of every variant and a hundred batches, as they come back from each library, to the bit."""
    task = TASKS[name]
    cfg = make_config(task, next(iter(task.variants)), "smoke")
    splits = task.data(cfg)
    host = [_digest(splits.train(k)) for k in range(BATCHES)]
    again = task.data(cfg)
    assert [_digest(again.train(k)) for k in range(0, BATCHES, 7)] == host[::7]
    starts = {variant: task.model(make_config(task, variant, "smoke")).init(Stream(cfg.seed, "init"))
              for variant in task.variants}
    for library in ("numpy", "mlx"):
        backend = runtime.backend(library)

        def there_and_back(arrays, backend=backend):
            return tree.map(lambda t: t.numpy(), runtime.to_tensors(arrays, backend))

        assert [_digest(there_and_back(splits.train(k))) for k in range(BATCHES)] == host
        for variant, start in starts.items():
            assert _digest(there_and_back(start)) == _digest(start), variant


@pytest.mark.long
@pytest.mark.parametrize("name", [name if name in ("mnist", "transformer") else pytest.param(name, marks=pytest.mark.long) for name in TASKS])
def test_no_task_opens_a_socket(name, tmp_path, monkeypatch):
    def refuse(*args, **kwargs):
        raise AssertionError("a socket was opened")

    for opener in ("socket", "create_connection", "getaddrinfo"):
        monkeypatch.setattr(socket, opener, refuse)
    variant = next(iter(TASKS[name].variants))
    assert main(["run", name, "--preset", "smoke", "--variant", variant, "--backend", "numpy", "--out", str(tmp_path / "run")]) == 0
