"""Calls of compiled kernels: their arguments are checked, and their bits do not depend on the threads."""

import numpy as np
import pytest

from duoln import ops
from duoln.errors import DtypeError, KernelError, ShapeError
from duoln.kernels import native
from duoln.testing import check_error

pytestmark = pytest.mark.skipif(native.compiler() is None, reason="there is no C++ compiler")


def test_the_same_bits_for_any_number_of_threads(numpy_backend, monkeypatch, rng):
    x, gout = (rng.standard_normal((1000, 300)).astype(np.float32) for _ in range(2))
    labels = rng.integers(0, 300, 1000).astype(np.int32)
    d_loss = rng.standard_normal(1000).astype(np.float32)
    gain, bias = (rng.standard_normal(300).astype(np.float32) for _ in range(2))

    def bits():
        norm, loss = (op.rules("numpy")[0] for op in (ops.layer_norm, ops.softmax_cross_entropy))
        assert norm.name == loss.name == "compiled"
        y, saved = norm.forward(numpy_backend, x, gain, bias, 1e-5, "inside", "tanh")
        each, kept = loss.forward(numpy_backend, x, labels)
        arrays = (y, each, *norm.vjp(numpy_backend, saved, gout, (True,) * 3), loss.vjp(numpy_backend, kept, d_loss, (True, False))[0])
        return [a.tobytes() for a in arrays]

    runs = []
    for threads in (1, 2, 3, 8, 8):
        monkeypatch.setattr(native, "threads_for", lambda count_bytes, threads=threads: threads)
        runs.append(bits())
    assert all(run == runs[0] for run in runs)


_FUNCTION = native.Function("layer_norm/layer_norm.cpp", "layer_norm_forward",
                            "x: real[2], gain: real[1]?, bias: real[1]?, y: real[2], mean: real[1], rstd: real[1], "
                            "rows: int64, width: int64, eps: float64, activation: int32, threads: int32")


@pytest.mark.parametrize(("place", "value", "kind", "words"), [
    (0, np.ones((2, 3)), DtypeError, "y: expected a contiguous real array of 2 dimensions, found float32"),
    (3, np.ones((2, 3), np.int32), DtypeError, "int32"), (0, None, DtypeError, "x: expected"), (0, [[1.0]], DtypeError, "list"),
    (0, np.ones((2, 6), np.float32)[:, ::2], ShapeError, "x: expected a contiguous real array of 2 dimensions, found a strided"),
    (0, np.ones(6, np.float32), ShapeError, "shape (6,)"), (4, np.ones(2), DtypeError, "mean"), (1, np.ones((3, 1), np.float32), ShapeError, "gain")])
def test_arguments_are_checked(place, value, kind, words):
    arguments = [np.ones((2, 3), np.float32), None, None, np.empty((2, 3), np.float32), np.empty(2, np.float32),
                 np.empty(2, np.float32), 2, 3, 1e-5, 0, 1]
    _FUNCTION(*arguments)
    arguments[place] = value
    check_error(kind, lambda: _FUNCTION(*arguments), "[layer_norm_forward]", words)
    check_error(KernelError, lambda: _FUNCTION(*arguments[1:]), "expected 11 arguments, found 10")


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_what_is_not_a_number_comes_out(value, numpy_backend):
    x = np.arange(20, dtype=np.float32).reshape(4, 5)
    x[1, 2] = value
    y = ops.layer_norm.rules("numpy")[0].forward(numpy_backend, x, None, None, 1e-5, "inside", "relu")[0]
    loss = ops.softmax_cross_entropy.rules("numpy")[0].forward(numpy_backend, x, np.zeros(4, np.int32))[0]
    assert np.isnan(y[1]).all() and np.isfinite(y[[0, 2, 3]]).all()
    assert (np.isfinite(loss[[0, 2, 3]]).all() and not np.isfinite(loss[1])) or value == -np.inf
