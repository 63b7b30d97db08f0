"""Gradients of parts that lie side by side are not copied, and no others are taken for such."""

import numpy as np
import pytest

import duoln
from duoln import ops
from duoln.core.footprint import owner
from duoln.core.op import composed_only
from duoln.kernels import host, native
from duoln.testing import check_close


def _whole():
    return np.arange(120, dtype=np.float32).reshape(4, 5, 6)


@pytest.mark.parametrize("axis, ends", [(0, (1, 3)), (1, (2, 4)), (2, (1, 4)), (2, (6,)), (1, (5,))])
@pytest.mark.parametrize("view", [lambda x: x, lambda x: x[1:, :, ::2], lambda x: x[:, ::-1], lambda x: x[:1, :1]], ids=["whole", "part", "turned", "ones"])
def test_parts_in_order_are_the_array(view, axis, ends, rng):
    x = view(_whole())
    parts = [part for part in np.split(x, [end for end in ends if end < x.shape[axis]], axis=axis)]
    joined = host.side_by_side(parts, axis)
    assert joined is not None and np.shares_memory(joined, x) and joined.strides == x.strides
    np.testing.assert_array_equal(joined, x)


@pytest.mark.parametrize("memory", [lambda x: memoryview(x.tobytes()), bytearray], ids=["read-only", "writable"])
def test_memory_that_no_array_owns(memory):
    x = np.frombuffer(memory(_whole()), np.float32).reshape(4, 5, 6)
    joined = host.side_by_side(np.split(x, [2], axis=1), 1)
    assert joined is None or np.array_equal(joined, x)


@pytest.mark.parametrize("parts", [
    lambda x: [x[:, 2:], x[:, :2]], lambda x: [x[:, :2], x[:, 3:]], lambda x: [x[:, :2], x[:, :2]],
    lambda x: [x[:, :2], x[:, 2:].copy()], lambda x: [x[:, :2].copy(), x[:, 2:]], lambda x: [x[:, :2], x[:, 2:].view(np.int32)],
    lambda x: [x[:, :2], x[::2, 2:]], lambda x: [x[:, :2], x[:3, 2:]], lambda x: [x[:, :2], None], lambda x: [None, x[:, 2:]],
    lambda x: [x[:, :0], x]],
    ids=["exchanged", "gap", "twice", "second copied", "first copied", "other dtype", "other strides", "fewer rows", "second unused",
         "first unused", "nothing"])
def test_other_parts_are_not(parts):
    assert host.side_by_side(parts(_whole()), 1) is None


def _attend(p):
    rows = ops.split(ops.tanh(ops.linear(p["x"], p["w"])), 3, axis=-1)
    q, k, v = (ops.permute_dims(ops.reshape(y, shape=(2, 9, 2, 4)), axes=(0, 2, 1, 3)) for y in rows)
    return ops.sum(ops.square(ops.scaled_dot_product_attention(q, k, v)))


def test_gradients_through_attention_and_its_projection(be, rng):
    params = {"x": duoln.tensor(rng.standard_normal((2, 9, 8), np.float32), be), "w": duoln.tensor(rng.standard_normal((8, 24), np.float32), be)}
    _, gradients = duoln.value_and_grad(_attend)(params)
    with composed_only():
        _, expected = duoln.value_and_grad(_attend)(params)
    for name in params:
        check_close(gradients[name].numpy(), expected[name].numpy(), 1e-5, name)


@pytest.mark.skipif(native.machine_refusal() is not None, reason="attention is not compiled here")
def test_attention_leaves_them_side_by_side_where_its_operands_are(rng, numpy_backend):
    rule = ops.scaled_dot_product_attention.rules("numpy")[0]
    whole = rng.standard_normal((2, 9, 3, 2, 4)).astype(np.float32).transpose(2, 0, 3, 1, 4)  # queries, keys, values of each time step
    for arrays, count in ((list(whole), 1), ([a.copy() for a in whole], 3), ([whole[0], whole[2], whole[1]], 3)):
        y, saved = rule.forward(numpy_backend, *arrays, None, causal=False, scale=0.5)
        gradients = rule.vjp(numpy_backend, saved, y, (True, True, True, False))[:3]
        assert len({id(owner(g)) for g in gradients}) == count
        rows = [g.transpose(0, 2, 1, 3) for g in gradients]
        assert (host.side_by_side(rows, 2) is not None) == (count == 1)
