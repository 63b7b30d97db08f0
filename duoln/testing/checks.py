"""Checks of a whole device, where a case checks one rule: the simplest things first, then the step of every task.

Each check gives words if the device is right and raises an error if it is not. Those of CUDA say "not there" elsewhere.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

import duoln
from duoln import ops, runtime, tree
from duoln.backends.protocol import Backend
from duoln.core import compile
from duoln.errors import CompileWarning, KernelError
from duoln.tasks.registry import find_task
from duoln.tasks.settings import make_config
from duoln.testing.closeness import check_close, tolerance
from duoln.training.train_step import TaskDropout, make_step, start_state

Check = Callable[[Backend], str]
_CUDA = "cupy"
NOT_THERE = "not there"
TASKS = ("mnist", "draw", "handwriting", "order_embeddings", "attentive_reader", "skip_thoughts", "convnet", "las",
         "transformer")
_NORMALISED = ("ln", "both", "pre")
"""Names of the variant of a task that has layer norm."""
_RATE = 1e-2


def _probe(backend: Backend) -> str:
    values = np.arange(1000, dtype=np.float32)
    check_close(backend.to_numpy(backend.asarray(values) + 1.0), values.astype(np.float64) + 1, 0.0, "1 added to 1,000")
    return backend.device


def _nothing(backend: Backend) -> str:
    if backend.name != _CUDA:
        return NOT_THERE
    from duoln.kernels.device_limits import NOTHING

    NOTHING[_CUDA](1)
    backend.clock()
    return "a kernel of ours that does nothing"


def _sum(backend: Backend) -> str:
    """The gradient of a bias, which is a kernel of ours."""
    x = np.random.default_rng(0).standard_normal((4099, 33)).astype(np.float32)
    one, rows = (duoln.tensor(a, backend) for a in (np.eye(33, dtype=np.float32), x))
    gradient = duoln.value_and_grad(lambda bias: ops.sum(ops.linear(rows, one, bias) * rows))
    _, actual = gradient(duoln.tensor(np.zeros(33, np.float32), backend))
    check_close(actual.numpy(), x.astype(np.float64).sum(0), tolerance("float32", 4099), "sums of 33 columns")
    return "33 columns of 4,099 rows"


def _product(dtype: str, backend: Backend) -> str:
    if dtype not in backend.dtypes:
        return NOT_THERE
    rng = np.random.default_rng(0)
    x, y = (backend.astype(backend.asarray(rng.standard_normal(shape)), dtype) for shape in ((130, 257), (257, 67)))
    exact = [backend.to_numpy(a).astype(np.float64) for a in (x, y)]
    actual = backend.to_numpy(backend.matmul(x, y))
    check_close(actual, exact[0] @ exact[1], tolerance(dtype, 257), f"130 x 257 x 67 in {dtype}")
    return "130 x 257 x 67"


def _conversion(dtype: str, backend: Backend) -> str:
    values = np.random.default_rng(0).standard_normal(1001).astype(np.float32)
    numpy = duoln.backend("numpy")
    wanted = numpy.to_numpy(numpy.astype(values, dtype))
    actual = backend.to_numpy(backend.astype(backend.asarray(values), dtype))
    check_close(actual.astype(np.float64), wanted.astype(np.float64), 0.0, f"1,001 values as {dtype}")
    return "1,001 values to the bit"


def _graph(backend: Backend) -> str:
    if backend.name != _CUDA:
        return NOT_THERE
    step = duoln.compile(lambda x: ops.tanh(x * 2.0 + 1.0))
    values = np.random.default_rng(0).standard_normal((33, 7)).astype(np.float32)
    for shift in range(4):  # recorded, recorded, captured, launched
        given = values + np.float32(shift)
        plain = ops.tanh(duoln.tensor(given, backend) * 2.0 + 1.0).numpy()
        if not np.array_equal(step(duoln.tensor(given, backend)).numpy(), plain):
            raise KernelError(f"[checks] call {shift} of a graph: expected the bits of its operators, found others")
    return str(backend.info().get("compiled_steps", ""))


def _clusters(backend: Backend) -> str:
    if backend.name != _CUDA:
        return NOT_THERE
    from duoln.kernels.recurrent import cuda_walk

    return str(cuda_walk.device())


def compare_compiled(task_name: str, backend: Backend, updates: int = 6) -> str:
    """Check that a task's compiled step computes the bits of the step itself, on synthetic data of its preset `smoke`.

    On CUDA the compiled step is one graph, if it can be captured; the first two updates are recorded, the third one is
    captured, and later ones launch the graph. Every update has the same batch, because other batches may have other
    shapes and so other graphs, and its own learning rate.

    Args:
        task_name: one of the tasks.
        backend: where to train.
        updates: at least 4, so that a graph is launched.

    Returns:
        The variant, the number of updates, and the reason why the step was not repeated as one graph if it was not.

    Raises:
        KernelError: figures or parameters have other bits; it names each with the first such update.
        UsageError: there is no such task.
    """
    task = find_task(task_name, [task_name])
    variant = next(name for name in _NORMALISED if name in task.variants)
    cfg = make_config(task, variant, "smoke")
    model, splits = task.model(cfg), task.data(cfg)
    optimizer = task.optimizer(cfg, splits.updates(cfg.epochs))
    step, dropout = make_step(task, model, optimizer), TaskDropout(task, model, cfg.seed)
    eager, graph = (start_state(model, optimizer, 0, backend) for _ in range(2))
    compiled = compile(step)
    differing: dict[str, int] = {}
    with warnings.catch_warnings(record=True) as raised:
        warnings.simplefilter("always")
        for update in range(1, updates + 1):
            batch = runtime.to_tensors(dropout(0, splits.train(0)), backend)
            rate = runtime.tensor(np.float32(_RATE / update), backend)
            eager, figures = step(eager, batch, rate)
            graph, of_graph = compiled(graph, batch, rate)
            for path in _differ({**figures, **eager}, {**of_graph, **graph}):
                differing.setdefault(path, update)
    refusals = [str(w.message) for w in raised if issubclass(w.category, CompileWarning)]
    if backend.name == _CUDA and os.environ.get("DUOLN_GRAPH") == "0":
        refusals.append("DUOLN_GRAPH is 0")
    for unrelated in (w for w in raised if not issubclass(w.category, CompileWarning)):
        warnings.warn_explicit(unrelated.message, unrelated.category, unrelated.filename, unrelated.lineno)
    words = f"{variant}, {updates} updates, {'; '.join(refusals) or 'repeated as one'}"
    if differing:
        lines = [f"{path}, from update {update} on" for path, update in differing.items()]
        raise KernelError(f"[checks] {words}: expected the bits of the step, found others: {'; '.join(lines)}")
    return words


def _differ(a: dict[str, Any], b: dict[str, Any]) -> list[str]:
    pairs = zip(tree.items(a), tree.leaves(b), strict=True)
    return [path for (path, x), y in pairs if x.numpy().tobytes() != y.numpy().tobytes()]


LADDER: dict[str, Check] = {
    "a library's kernel": _probe, "a launch that does nothing": _nothing, "sums of columns": _sum,
    **{f"a product in {dtype}": partial(_product, dtype) for dtype in ("float32", "float16", "bfloat16", "float64")},
    **{f"a conversion to {dtype}": partial(_conversion, dtype) for dtype in ("float16", "bfloat16")},
    "a graph of three launches": _graph, "clusters of blocks that fit": _clusters}
"""The simplest things, from a launch up to clusters of blocks, in order."""
STEPS: dict[str, Check] = {f"the step of {task}": partial(compare_compiled, task) for task in TASKS}
"""The step of every task, compiled beside eager."""
CHECKS = {**LADDER, **STEPS}
