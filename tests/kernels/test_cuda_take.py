"""The gradient of `take` on CUDA along every axis, run on the CPU from its own text."""

import sys

import numpy as np
import pytest
import stand_in_capture
from conftest import GPU, STAND_IN

import duoln
from duoln import ops, value_and_grad
from duoln.testing import check_rule

pytestmark = pytest.mark.skipif(GPU == STAND_IN and sys.platform != "linux", reason="kernels run on the CPU under Linux only")

SHAPES = [((6,), 0, (9,)), ((3, 7), 1, (4,)), ((3, 7, 5), 1, (2, 3)), ((2, 3, 4), 2, (1,)), ((1, 5, 2), 1, (8,)), ((4, 1, 3), 1, (2, 2)),
          ((2, 2, 3, 5), 2, (40,)), ((7, 300), 0, (12,)), ((300, 7), 1, (12,))]


def _arrays(shape, axis, taken, rng):
    return rng.standard_normal(shape).astype(np.float32), rng.integers(-shape[axis], shape[axis], taken).astype(np.int32)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(("shape", "axis", "taken"), SHAPES, ids=str)
def test_every_axis(shape, axis, taken, dtype, gpu, rng):
    x, indices = _arrays(shape, axis, taken, rng)
    natives = [gpu.asarray(x, dtype), gpu.asarray(indices)]
    rule = ops.take.select(gpu, natives, {"axis": axis})
    assert rule.name == "cuda sorted rows"
    check_rule(ops.take, rule, (x, indices), gpu, {"axis": axis}, int(np.prod(taken)), dtype=dtype)


@pytest.mark.parametrize(("shape", "axis", "taken"), SHAPES, ids=str)
def test_the_sums_of_equal_indices(shape, axis, taken, gpu, rng):
    """Against a loop over the indices, for a gradient that is a view."""
    x, indices = _arrays(shape, axis, taken, rng)
    wanted = np.moveaxis(np.zeros(shape), axis, 0)
    out, saved = ops.take.rules("cupy")[0].forward(gpu, gpu.asarray(x), gpu.asarray(indices), axis=axis)
    np.testing.assert_array_equal(gpu.to_numpy(out), np.take(x, indices, axis))
    g = rng.standard_normal(out.shape[::-1]).astype(np.float32)
    of_index = np.moveaxis(g.T.reshape(*shape[:axis], indices.size, *shape[axis + 1:]), axis, 0)
    for k, index in enumerate(indices.reshape(-1)):
        wanted[index] += of_index[k]
    mine, none = ops.take.rules("cupy")[0].vjp(gpu, saved, gpu.asarray(g).T, (True, False))
    assert none is None
    np.testing.assert_allclose(gpu.to_numpy(mine), np.moveaxis(wanted, 0, axis), atol=1e-5)


@pytest.mark.skipif(GPU != STAND_IN, reason="the stand-in counts the launches of graphs")
def test_one_graph_repeats_it(gpu, rng):
    """No axis needs a count on the host."""
    indices = duoln.tensor(np.array([3, -1, 0, 3], np.int32), gpu)

    def step(x, place):
        return value_and_grad(lambda p: ops.sum(ops.square(ops.take(p, place, axis=1))))(x)

    compiled, before = duoln.compile(step), len(stand_in_capture.graphs)
    for _ in range(5):
        x = duoln.tensor(rng.standard_normal((3, 4, 2)).astype(np.float32), gpu)
        mine, plain = compiled(x, indices), step(x, indices)
        assert mine[0].item() == plain[0].item()
        np.testing.assert_array_equal(mine[1].numpy(), plain[1].numpy())
    assert len(stand_in_capture.graphs) > before
