"""Products by cuBLAS: every layout of the operands, sizes of 0 and 1, batches, and the products of a time loop."""

import numpy as np
import pytest

from duoln.errors import KernelError
from duoln.testing import check_error

TOLERANCE = {"float32": 1e-5, "float64": 1e-13}


def _laid_out(gpu, values, layout):
    """The values with contiguous rows or columns, with gaps, reversed, or as a part of wider rows."""
    array = gpu.asarray(values)
    swapped = (*range(array.ndim - 2), array.ndim - 1, array.ndim - 2)
    if layout == "columns":
        return gpu.xp.ascontiguousarray(array.transpose(swapped)).transpose(swapped)
    if layout == "gaps":
        room = gpu.zeros((*values.shape[:-1], 2 * values.shape[-1]), str(values.dtype))
        room[..., ::2] = array
        return room[..., ::2]
    if layout == "reversed":
        return gpu.xp.ascontiguousarray(array[..., ::-1, :])[..., ::-1, :]
    if layout == "part":
        room = gpu.zeros((*values.shape[:-2], values.shape[-2] + 2, values.shape[-1] + 3), str(values.dtype))
        room[..., 1:-1, 2:-1] = array
        return room[..., 1:-1, 2:-1]
    return array


LAYOUTS = ("rows", "columns", "gaps", "reversed", "part")


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("sizes", [(3, 4, 5), (1, 1, 1), (1, 7, 1), (5, 1, 3), (1, 4, 5), (4, 5, 1), (0, 2, 3), (2, 0, 3), (2, 3, 0)])
def test_two_matrices_in_every_layout(cublas, gpu, rng, sizes, dtype):
    m, k, n = sizes
    x, y = rng.standard_normal((m, k)).astype(dtype), rng.standard_normal((k, n)).astype(dtype)
    for of_x in LAYOUTS:
        for of_y in LAYOUTS:
            product = cublas.multiply(_laid_out(gpu, x, of_x), _laid_out(gpu, y, of_y))
            assert product.shape == (m, n) and product.dtype == dtype
            np.testing.assert_allclose(gpu.to_numpy(product), x @ y, rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype],
                                       err_msg=f"{of_x} {of_y}")


@pytest.mark.parametrize(("of_x", "of_y"), [((6,), (6,)), ((6,), ()), ((), (6,)), ((2, 3), ()), ((2, 3), (2, 3)), ((2, 1), (1, 3)),
                                            ((1,), (4,)), ((1,), ()), ((3,), (2, 3)), ((0,), (0,))])
def test_batches_are_broadcast(cublas, gpu, rng, of_x, of_y):
    x = rng.standard_normal((*of_x, 3, 4)).astype(np.float32)
    y = rng.standard_normal((*of_y, 4, 5)).astype(np.float32)
    for layout in LAYOUTS:
        product = cublas.multiply(_laid_out(gpu, x, layout), _laid_out(gpu, y, layout))
        assert product.shape == (x @ y).shape
        np.testing.assert_allclose(gpu.to_numpy(product), x @ y, rtol=1e-5, atol=1e-5, err_msg=layout)


def test_room_for_the_product(cublas, gpu, rng):
    x, y = (gpu.asarray(rng.standard_normal((4, 4)).astype(np.float32)) for _ in range(2))
    room = gpu.zeros((3, 4, 4))
    assert cublas.multiply(x, y, out=room[1]) is not None
    np.testing.assert_allclose(gpu.to_numpy(room[1]), gpu.to_numpy(x) @ gpu.to_numpy(y), rtol=1e-5)
    assert not gpu.to_numpy(room[0]).any() and not gpu.to_numpy(room[2]).any()
    check_error(KernelError, lambda: cublas.multiply(x, y, out=room[:, :, 0][:, None].reshape(3, 4)[:, ::-1]), "contiguous")


@pytest.mark.parametrize("shared", [False, True])
def test_the_products_of_time_steps(cublas, gpu, rng, shared):
    xs, y = rng.standard_normal((5, 2, 3)).astype(np.float32), rng.standard_normal((4, 3)).astype(np.float32)
    out = gpu.zeros((2, 4) if shared else (5, 2, 4))
    multiply = cublas.TimeProducts(gpu.asarray(xs), gpu.asarray(y).T, out)
    for t in (3, 0, 4, 1, 2):
        multiply(t)
        np.testing.assert_allclose(gpu.to_numpy(out if shared else out[t]), xs[t] @ y.T, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("stored", ["float16", "bfloat16"])
@pytest.mark.parametrize(("of_x", "of_y"), [((), ()), ((3,), ()), ((2, 3), (3,))])
def test_16_bits_are_added_in_float32(gpu, rng, stored, of_x, of_y):
    x, y = (rng.standard_normal((*batch, *shape)).astype(np.float32) for batch, shape in ((of_x, (3, 400)), (of_y, (400, 2))))
    narrow_x, narrow_y = (gpu.astype(gpu.asarray(a), stored) for a in (x, y))
    wide_x, wide_y = (gpu.to_numpy(gpu.astype(a, "float32")) for a in (narrow_x, narrow_y))
    expected = wide_x.astype(np.float64) @ wide_y
    sums = gpu.matmul(narrow_x, narrow_y, "float32")
    assert gpu.dtype(sums) == "float32"
    np.testing.assert_allclose(gpu.to_numpy(sums), expected, rtol=1e-4, atol=1e-4)
    product = gpu.matmul(narrow_x, narrow_y)
    assert gpu.dtype(product) == stored
    np.testing.assert_allclose(gpu.to_numpy(gpu.astype(product, "float32")), expected, rtol=1e-2, atol=1e-2)


def test_an_error_of_cublas_is_named(cublas, gpu, monkeypatch):
    x = gpu.ones((2, 3))
    handle = cublas.handle()
    monkeypatch.setattr(cublas, "handle", lambda: handle)
    monkeypatch.setattr(handle, "library", type("Broken", (), {"cublasGemmEx": staticmethod(lambda *arguments: 13)})())
    check_error(KernelError, lambda: cublas.multiply(x, x.T), "the product of (2, 3) and (3, 2)", "status 13")
