"""The norm of many tensors, and that of Adam's gradients: compiled, the same bits for any number of threads."""

import ctypes
from itertools import chain

import numpy as np
import pytest

import duoln
from duoln import ops, optim, runtime
from duoln.errors import DtypeError
from duoln.kernels import host, native
from duoln.kernels.adam import table
from duoln.testing import check_error

pytestmark = pytest.mark.skipif(native.compiler() is None, reason="there is no C++ compiler")
SHAPES = ((8191,), (100, 300), (), (0, 3), (40_000,))


def _rule(op):
    return runtime.backend("numpy") and op.rules("numpy")[0]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_the_norm_and_its_gradient(dtype, rng, numpy_backend):
    arrays = [rng.standard_normal(s).astype(dtype) for s in SHAPES]
    norm, saved = _rule(ops.global_norm).forward(numpy_backend, *arrays)
    expected = np.sqrt(sum(np.sum(a.astype(np.float64) ** 2) for a in arrays))
    np.testing.assert_allclose(norm, expected, rtol=1e-6 if dtype == "float32" else 1e-13)
    gradients = _rule(ops.global_norm).vjp(numpy_backend, saved, np.array(2.0, dtype), (True,) * 4 + (False,))
    assert gradients[-1] is None
    for gradient, a in zip(gradients[:-1], arrays, strict=False):
        np.testing.assert_allclose(gradient, 2 * a / expected, rtol=1e-5, atol=1e-7)


def test_the_same_bits_for_any_number_of_threads(rng, numpy_backend, same_bits):
    groups = [[rng.standard_normal(s).astype(np.float32) for s in SHAPES] for _ in range(4)]
    groups[3] = [np.abs(a) for a in groups[3]]
    rate, eps, scale = (np.array(x, np.float32) for x in (0.1, 1e-3, 0.7))

    def run():
        yield _rule(ops.global_norm).forward(numpy_backend, *groups[1])[0]
        yield from _rule(ops.adam_update).forward(numpy_backend, rate, eps, scale, None, *chain(*groups), beta1=0.9, beta2=0.99, donate=False)[0]

    norm, *_, norm_of_update = same_bits(run)
    assert norm.tobytes() == norm_of_update.tobytes()


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_what_is_not_a_number_comes_out(value, numpy_backend):
    a = np.ones(9000, np.float32)
    a[8500] = value
    assert not np.isfinite(_rule(ops.global_norm).forward(numpy_backend, np.ones(3, np.float32), a)[0])


def test_scaling_within_the_update_equals_scaling_before_it(be, rng):
    """Adam reads the scale of `clip_global_norm` while it updates; other clips make new gradients first."""
    params, gradients = ({k: duoln.tensor(rng.standard_normal(s).astype(np.float32), be) for k, s in (("a", 5), ("b", (3, 4)))}
                         for _ in range(2))
    for limit in (0.5, 100.0):
        clip = optim.clip_global_norm(limit)
        within, before = optim.Adam(0.1, clip=clip), optim.Adam(0.1, clip=lambda g, clip=clip: clip(g))
        results = [o.update_with_norm(params, gradients, o.init(params), 0.1) for o in (within, before)]
        norms = [float(norm.numpy()) for _, _, norm in results]
        expected = np.sqrt(sum(np.sum(g.numpy().astype(np.float64) ** 2) for g in gradients.values()))
        np.testing.assert_allclose(norms, expected, rtol=1e-5)
        for k in params:
            np.testing.assert_allclose(results[0][0][k].numpy(), results[1][0][k].numpy(), rtol=1e-5, atol=1e-6)


def test_a_scalar_of_numpy_is_never_given_by_its_address():
    check_error(DtypeError, lambda: table([np.zeros(3, np.float32), np.float32(2)]), "array", "float32")


def test_places_are_of_words_that_hold_addresses(rng):
    arrays = [rng.standard_normal(5), np.zeros((2, 3), np.float32)[1:], np.zeros(0)]
    places = host.places(arrays)
    words = [ctypes.c_int64.from_address(int(place)).value for place in places]
    assert words == [a.__array_interface__["data"][0] for a in arrays]
