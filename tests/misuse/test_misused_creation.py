"""Tensors of given values, rightly and wrongly asked for."""

import numpy as np
from misuse.named import unnamed

import duoln
from duoln import ops
from duoln.errors import DtypeError, ShapeError, UsageError


def test_values_and_dtypes(be):
    for made, expected in [(ops.zeros((2, 3), be), np.zeros((2, 3), np.float32)), (ops.zeros(4, be, "int32"), np.zeros(4, np.int32)),
                           (ops.ones((), be), np.ones((), np.float32)), (ops.full((2,), 2.5, be), np.full(2, 2.5, np.float32)),
                           (ops.full([1, 2], np.int64(3), be, "int32"), np.full((1, 2), 3, np.int32)),
                           (ops.arange(4, backend=be), np.arange(4, dtype=np.int32)), (ops.arange(0, backend=be, dtype="float32"), np.zeros(0, np.float32)),
                           (ops.arange(2, 9, 3, backend=be), np.arange(2, 9, 3, dtype=np.int32)), (ops.arange(5, 0, -2, backend=be), np.array([5, 3, 1], np.int32)),
                           (ops.arange(-1, backend=be), np.zeros(0, np.int32)), (ops.arange(1, 3, backend=be, dtype="float32"), np.array([1, 2], np.float32)),
                           (ops.eye(3, backend=be), np.eye(3, dtype=np.float32)), (ops.eye(2, 4, k=1, backend=be, dtype="int32"), np.eye(2, 4, 1, dtype=np.int32)),
                           (ops.eye(0, backend=be, dtype="bool"), np.zeros((0, 0), bool)), (ops.linspace(0, 1, 5, backend=be), np.linspace(0, 1, 5, dtype=np.float32)),
                           (ops.linspace(2.0, -1, 3, endpoint=False, backend=be), np.array([2, 1, 0], np.float32)),
                           (ops.linspace(0, 1, 0, backend=be), np.zeros(0, np.float32)), (ops.full_like(duoln.tensor([1, 2], be), 7), np.full(2, 7, np.int32)),
                           (ops.zeros_like(duoln.tensor([[True]], be)), np.zeros((1, 1), bool)),
                           (ops.ones_like(duoln.tensor([1, 2], be)), np.ones(2, np.int32))]:
        assert made.backend is be and made.dtype == expected.dtype.name and made.shape == expected.shape
        np.testing.assert_array_equal(made.numpy(), expected)


def test_wrong_shapes_values_and_backends(be):
    rows = [(name, DtypeError, lambda n=name, s=shape: getattr(ops, n)(s, be)) for name in ("zeros", "ones") for shape in
            (None, "a", 2.5, (2.5,), (None,), True)]
    rows += [(name, ShapeError, lambda n=name, s=shape: getattr(ops, n)(s, be)) for name in ("zeros", "ones") for shape in (-1, (2, -1), 1 << 70)]
    rows += [("zeros", DtypeError, lambda b=wrong: ops.zeros((2,), b)) for wrong in (None, "numpy", 3, duoln.tensor(1.0, be))]
    rows += [("zeros", DtypeError, lambda d=wrong: ops.zeros((2,), be, d)) for wrong in (None, "half", np.longdouble, 4)]
    rows += [("full", DtypeError, lambda v=wrong: ops.full((2,), v, be)) for wrong in (None, "a", True, [1.0])]
    rows += [("arange", DtypeError, lambda v=wrong: ops.arange(v, backend=be)) for wrong in (None, 2.5, "a", (3,))]
    rows += [("arange", ShapeError, lambda: ops.arange(1, 2, 0, backend=be)), ("zeros_like", DtypeError, lambda: ops.zeros_like(1.0)),
             ("ones_like", DtypeError, lambda: ops.ones_like(np.ones(2)))]
    rows += [("eye", DtypeError, lambda v=wrong: ops.eye(v, backend=be)) for wrong in (None, 2.5, "a", (3,), True)]
    rows += [("eye", ShapeError, lambda: ops.eye(-1, backend=be)), ("eye", ShapeError, lambda: ops.eye(2, -1, backend=be)),
             ("eye", DtypeError, lambda: ops.eye(2, k=0.5, backend=be)), ("eye", DtypeError, lambda: ops.eye(2, backend=None)),
             ("eye", DtypeError, lambda: ops.eye(2, backend=be, dtype="half"))]
    rows += [("linspace", DtypeError, lambda v=wrong: ops.linspace(v, 1, 3, backend=be)) for wrong in (None, "a", (3,), True)]
    rows += [("linspace", DtypeError, lambda: ops.linspace(0, 1, 2.5, backend=be)), ("linspace", ShapeError, lambda: ops.linspace(0, 1, -1, backend=be)),
             ("linspace", UsageError, lambda: ops.linspace(0, np.inf, 3, backend=be)), ("linspace", DtypeError, lambda: ops.linspace(0, 1, 3, backend="numpy")),
             ("linspace", DtypeError, lambda: ops.linspace(0, 1, 3, endpoint=1, backend=be)),
             ("linspace", DtypeError, lambda: ops.linspace(0, 1, 3, backend=be, dtype="int32"))]
    assert unnamed(rows) == []
