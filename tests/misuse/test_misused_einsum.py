"""Wrong subscripts and tensors of `einsum`, and indices that are tensors: each error names the operator and what it found."""

import numpy as np
import pytest
from conftest import get_backend
from misuse.named import unnamed

import duoln
from duoln import ops
from duoln.errors import AxisIndexError, DtypeError, MixedBackendError, ShapeError, UsageError
from duoln.testing import check_error


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
    assert unnamed(rows) == []


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
    assert unnamed(rows) == []
    check_error(DtypeError, lambda: x[x > 1], "a mask of bools", "where(mask, x, y)")


@pytest.mark.parametrize("count", [3, 4, 6])
def test_long_chains_are_multiplied_in_pairs(count, numpy_backend):
    """A naive sum over all letters at once would take 8^(count + 1) products."""
    rng = np.random.default_rng(count)
    arrays = [rng.standard_normal((8, 8)) for _ in range(count)]
    text = ",".join("abcdefgh"[k:k + 2] for k in range(count))
    result = ops.einsum(text, *(duoln.tensor(a, numpy_backend, dtype="float64") for a in arrays))
    np.testing.assert_allclose(result.numpy(), np.linalg.multi_dot(arrays), rtol=1e-10)
