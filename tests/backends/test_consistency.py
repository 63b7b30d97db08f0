"""The Protocol on every backend: names, signatures and dtypes; values are those of the operators in `ops/cases.py`."""

import inspect

import numpy as np
import pytest

from duoln import runtime
from duoln.backends import protocol
from duoln.errors import DtypeError

X = np.array([[0.5, -1.5, 2.0], [1.0, 0.25, -0.75]], np.float32)
I = np.array([[1, 5, 3], [2, 2, 4]], np.int32)


@pytest.mark.parametrize("name", [*protocol.PRIMITIVES, *protocol.EDGES])
def test_signatures_are_the_protocols(be, name):
    if not inspect.ismethod(getattr(be, name)):
        return  # a function of the library, which is called by position
    expected = list(inspect.signature(getattr(protocol.Backend, name)).parameters.values())[1:]
    parameters = list(inspect.signature(getattr(be, name)).parameters.values())
    assert [(p.name, p.default, p.kind) for p in parameters] == [(p.name, p.default, p.kind) for p in expected]


def test_nothing_public_beside_the_protocol(be):
    allowed = {*protocol.PRIMITIVES, *protocol.EDGES, *protocol.OPTIONAL_EDGES, "name", "device", "dtypes", "narrow", "wide", "natives", "lazy", "queues", "proofs", "xp", "native_dtype", "on_gpu"}
    assert {n for n in dir(be) if not n.startswith("_")} <= allowed


def test_dtypes_are_kept_by_arithmetic_with_numbers(be):
    x = be.asarray(X)
    for y in (x + 1, 2.0 * x, x / 3, x ** 2, -x, 1 - x):
        assert be.dtype(y) == "float32"
    for y in (x < 0, x >= 1.0, x == x):
        assert be.dtype(y) == "bool"
    assert be.dtype(be.asarray(I) * 2) == "int32"


def test_to_numpy_is_a_copy(be):
    x = be.asarray(X)
    host = be.to_numpy(x)
    host[:] = 0
    np.testing.assert_array_equal(be.to_numpy(x), X)


def test_asarray_is_a_copy(be):
    host = X.copy()
    x = be.asarray(host)
    host[:] = 0
    np.testing.assert_array_equal(be.to_numpy(x), X)


def test_unknown_dtypes_are_refused(be):
    with pytest.raises(DtypeError, match="float32"):
        be.dtype(_unknown(be))


def _unknown(be):
    x = be.asarray(X)
    if be.name == "mlx":
        import mlx.core as mx

        return x.astype(mx.int8)
    return x.astype(np.int8)


def test_index_add_repeats_to_the_bit(be, rng):
    values, rows = rng.standard_normal((500, 7)).astype(np.float32), rng.integers(0, 9, 500).astype(np.int32)
    first = [be.to_numpy(be.index_add(be.zeros((9, 7)), be.asarray(rows), be.asarray(values))) for _ in range(20)]
    assert all(np.array_equal(first[0], again) for again in first)


def test_info_says_what_a_number_depends_on(be):
    info = be.info()
    assert {"library", "device"} <= info.keys()
    assert all(isinstance(v, str) for v in info.values())


def test_clock_goes_forward(be):
    a = be.clock()
    assert be.clock() >= a


def test_one_object_per_library():
    assert runtime.backend("numpy") is runtime.backend("numpy")


def test_a_step_ends_with_its_figures(be):
    """The values are those of the time when the step ended, whatever is computed later."""
    state, figures = be.asarray(np.ones((3, 2), np.float32)), [be.asarray(np.array(v, np.float32)) for v in (0.5, 7.0)]
    read = be.end_step([state], figures)
    be.end_step([state + state], [figures[0] * 2.0])
    values = read()
    assert [(v.shape, v.dtype, float(v)) for v in values] == [((), np.float32, 0.5), ((), np.float32, 7.0)]
