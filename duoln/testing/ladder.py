"""The simplest things that a device must do, from a launch up to a walk of many blocks: one line each.

Each check gives words if it is right and raises an error if it is not. Those of CUDA say "not there" elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

import duoln
from duoln import ops
from duoln.backends.protocol import Backend
from duoln.errors import KernelError
from duoln.testing.closeness import check_close, tolerance

Check = Callable[[Backend], str]
_CUDA = "cupy"
NOT_THERE = "not there"


def _probe(backend: Backend) -> str:
    values = np.arange(1000, dtype=np.float32)
    check_close(backend.to_numpy(backend.asarray(values) + 1.0), values.astype(np.float64) + 1, 0.0, "1 added to 1,000")
    return backend.device


def _nothing(backend: Backend) -> str:
    if backend.name != _CUDA:
        return NOT_THERE
    from duoln.kernels import launch

    launch.Kernel("device_limits/memory.cu", "device_nothing", "count: int32")((1,), (32,), (1,))
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


def _product(dtype: str) -> Check:
    def check(backend: Backend) -> str:
        if dtype not in backend.dtypes:
            return NOT_THERE
        rng = np.random.default_rng(0)
        x, y = (backend.astype(backend.asarray(rng.standard_normal(shape)), dtype) for shape in ((130, 257), (257, 67)))
        exact = [backend.to_numpy(a).astype(np.float64) for a in (x, y)]
        actual = backend.to_numpy(backend.matmul(x, y))
        check_close(actual, exact[0] @ exact[1], tolerance(dtype, 257), f"130 x 257 x 67 in {dtype}")
        return "130 x 257 x 67"

    return check


def _conversion(dtype: str) -> Check:
    def check(backend: Backend) -> str:
        values = np.random.default_rng(0).standard_normal(1001).astype(np.float32)
        numpy = duoln.backend("numpy")
        wanted = numpy.to_numpy(numpy.astype(values, dtype))
        actual = backend.to_numpy(backend.astype(backend.asarray(values), dtype))
        check_close(actual.astype(np.float64), wanted.astype(np.float64), 0.0, f"1,001 values as {dtype}")
        return "1,001 values to the bit"

    return check


def _graph(backend: Backend) -> str:
    if backend.name != _CUDA:
        return NOT_THERE
    step = duoln.compile(lambda x: ops.tanh(x * 2.0 + 1.0))
    values = np.random.default_rng(0).standard_normal((33, 7)).astype(np.float32)
    for shift in range(4):  # recorded, recorded, captured, launched
        given = values + np.float32(shift)
        plain = ops.tanh(duoln.tensor(given, backend) * 2.0 + 1.0).numpy()
        if not np.array_equal(step(duoln.tensor(given, backend)).numpy(), plain):
            raise KernelError(f"[ladder] call {shift} of a graph: expected the bits of its operators, found others")
    return str(backend.info().get("compiled_steps", ""))


def _clusters(backend: Backend) -> str:
    if backend.name != _CUDA:
        return NOT_THERE
    from duoln.kernels.recurrent import cuda_walk

    return str(cuda_walk.device())


LADDER: dict[str, Check] = {
    "a library's kernel": _probe, "a launch that does nothing": _nothing, "sums of columns": _sum,
    **{f"a product in {dtype}": _product(dtype) for dtype in ("float32", "float16", "bfloat16", "float64")},
    **{f"a conversion to {dtype}": _conversion(dtype) for dtype in ("float16", "bfloat16")},
    "a graph of three launches": _graph, "clusters of blocks that fit": _clusters}
"""By name, in order."""
CASES = ("layer_norm 9 x 64", "layer_norm 4099 x 1000", "rnn layer T9 B3 in2 H33 reverse, gradients within 0.05",
         "lstm layer T9 B3 in2 H33 reverse, gradients within 0.05", "lstm layer T9 B3 in2 H130",
         "lstm layer T9 B8 in3 H400", "lstm layer T9 B64 in3 H240", "gru layer T9 B8 in3 H400",
         "lstm layer T100 B8 in3 H400")
"""Of the table of devices, which come next: norms, then walks of more blocks and of more rows."""
