"""Every operator with every bad kind of every argument: an error of duoln that names the operator and what it found."""

import numpy as np
import pytest
from conftest import get_backend
from misuse.calls import CALLS, run
from misuse.misuses import read, unnamed, unnamed_misuses

import duoln
from duoln import ops
from duoln.errors import AxisIndexError, DtypeError, MixedBackendError, ShapeError, UsageError
from duoln.testing import check_error


def test_every_operator_is_called():
    assert {call.name for call in CALLS} == {*ops.__all__, *ops.WITHIN} - {"arange", "einsum", "eye", "full", "linspace", "ones", "zeros"}  # those have tests of their own


@pytest.mark.parametrize("call", CALLS, ids=str)
def test_the_right_call_is_right(call, be):
    read(run(call, be))


@pytest.mark.parametrize("call", CALLS, ids=str)
def test_wrong_tensors_and_attributes_are_named(call, be):
    assert unnamed_misuses(call, be, get_backend("mlx" if be.name == "numpy" else "numpy")) == {}


@pytest.mark.parametrize("axis", [np.int64(1), np.int32(1), np.uint8(1), np.array(1)])
def test_integers_of_any_library_are_integers(axis, be):
    x = next(call for call in CALLS if call.name == "softmax")
    np.testing.assert_array_equal(run(x, be, axis=axis).numpy(), run(x, be, axis=1).numpy())
    split = next(call for call in CALLS if call.name == "split")
    assert len(run(split, be, parts=axis + 1)) == 2


# Tensors of given values ------------------------------------------------------------------------------

def test_wrong_shapes_values_and_backends(be):
    rows = [(name, DtypeError, lambda n=name, s=shape: getattr(ops, n)(s, be)) for name in ("zeros", "ones") for shape in
            (None, "a", 2.5, (2.5,), (None,), True)]
    rows += [(name, ShapeError, lambda n=name, s=shape: getattr(ops, n)(s, be)) for name in ("zeros", "ones") for shape in (-1, (2, -1), 1 << 70)]
    rows += [("zeros", DtypeError, lambda b=wrong: ops.zeros((2,), b)) for wrong in (3, duoln.tensor(1.0, be))]
    rows += [("zeros", DtypeError, lambda d=wrong: ops.zeros((2,), be, d)) for wrong in (None, "half", np.longdouble, 4)]
    rows += [("full", DtypeError, lambda v=wrong: ops.full((2,), v, be)) for wrong in (None, "a", True, [1.0])]
    rows += [("arange", DtypeError, lambda v=wrong: ops.arange(v, backend=be)) for wrong in (None, 2.5, "a", (3,))]
    rows += [("arange", ShapeError, lambda: ops.arange(1, 2, 0, backend=be)), ("zeros_like", DtypeError, lambda: ops.zeros_like(1.0)),
             ("ones_like", DtypeError, lambda: ops.ones_like(np.ones(2)))]
    rows += [("eye", DtypeError, lambda v=wrong: ops.eye(v, backend=be)) for wrong in (None, 2.5, "a", (3,), True)]
    rows += [("eye", ShapeError, lambda: ops.eye(-1, backend=be)), ("eye", ShapeError, lambda: ops.eye(2, -1, backend=be)),
             ("eye", DtypeError, lambda: ops.eye(2, k=0.5, backend=be)), ("eye", DtypeError, lambda: ops.eye(2, backend=2)),
             ("eye", DtypeError, lambda: ops.eye(2, backend=be, dtype="half"))]
    rows += [("linspace", DtypeError, lambda v=wrong: ops.linspace(v, 1, 3, backend=be)) for wrong in (None, "a", (3,), True)]
    rows += [("linspace", DtypeError, lambda: ops.linspace(0, 1, 2.5, backend=be)), ("linspace", ShapeError, lambda: ops.linspace(0, 1, -1, backend=be)),
             ("linspace", UsageError, lambda: ops.linspace(0, np.inf, 3, backend=be)), ("linspace", DtypeError, lambda: ops.linspace(0, 1, 3, backend=1.0)),
             ("linspace", DtypeError, lambda: ops.linspace(0, 1, 3, endpoint=1, backend=be)),
             ("linspace", DtypeError, lambda: ops.linspace(0, 1, 3, backend=be, dtype="int32"))]
    assert unnamed(rows) == {}


# einsum and indices -----------------------------------------------------------------------------------

def test_einsum(be):
    x, y = duoln.tensor(np.ones((3, 4), np.float32), be), duoln.tensor(np.ones((4, 2), np.float32), be)
    elsewhere = duoln.tensor(np.ones((4, 2), np.float32), get_backend("mlx" if be.name == "numpy" else "numpy"))
    rows = [("einsum", DtypeError, lambda v=wrong: ops.einsum(v, x, y)) for wrong in (None, 3, x, ["ij,jk"])]
    rows += [("einsum", UsageError, lambda v=wrong: ops.einsum(v, x, y))
             for wrong in ("i1,jk", "ij;jk", "ij,jk->ik->i", "ij,jk->ikk", "ij,jk->l", "i..j,jk", "...i...,jk", "ij,jk-ik")]
    rows += [("einsum", ShapeError, lambda v=wrong: ops.einsum(v, x, y))
             for wrong in ("ij", "ij,jk,kl", "i,jk", "ijk,jk", "ij,ij", "ii,ij", "ijk...,ij", "")]
    rows += [("einsum", DtypeError, lambda v=wrong: ops.einsum("ij,jk", x, v))
             for wrong in (None, 1.0, np.ones((4, 2), np.float32), [1.0], y.astype("int32"))]
    rows += [("einsum", MixedBackendError, lambda: ops.einsum("ij,jk", x, elsewhere)), ("einsum", ShapeError, lambda: ops.einsum(""))]
    assert unnamed(rows) == {}


def test_indices_that_are_tensors(be):
    x = duoln.tensor(np.arange(12, dtype=np.float32).reshape(3, 4), be)
    i, three = duoln.tensor([0, 2], be), duoln.tensor([0, 1, 2], be)
    rows = [("getitem", ShapeError, lambda k=key: x[k]) for key in ((i, slice(None)), (i, None), (..., i), (i, i, i), (i, three))]
    rows += [("getitem", DtypeError, lambda k=key: x[k]) for key in (x, x > 1, (i, x[0]), (i, 1.0), (i, np.array([0, 1])), (i, "a"), (i, True))]
    rows += [("getitem", AxisIndexError, lambda k=key: x[k]) for key in ((i, 4), (i, -5), (3, i))]
    if be.name == "numpy":
        rows += [("getitem", ShapeError, lambda k=key: x[k]) for key in (duoln.tensor([3], be), (i, duoln.tensor([4, 0], be)))]
    elsewhere = duoln.tensor([0, 1], get_backend("mlx" if be.name == "numpy" else "numpy"))
    rows += [("getitem", MixedBackendError, lambda: x[elsewhere]), ("getitem", ShapeError, lambda: x[0, 0][i])]
    assert unnamed(rows) == {}
    check_error(DtypeError, lambda: x[x > 1], "a mask of bools", "where(mask, x, y)")


@pytest.mark.parametrize("count", [3, 4, 6])
def test_long_chains_are_multiplied_in_pairs(count, numpy_backend):
    """A naive sum over all letters at once would take 8^(count + 1) products."""
    rng = np.random.default_rng(count)
    arrays = [rng.standard_normal((8, 8)) for _ in range(count)]
    text = ",".join("abcdefgh"[k:k + 2] for k in range(count))
    result = ops.einsum(text, *(duoln.tensor(a, numpy_backend, dtype="float64") for a in arrays))
    np.testing.assert_allclose(result.numpy(), np.linalg.multi_dot(arrays), rtol=1e-10)
