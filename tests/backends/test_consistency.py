"""Every primitive of the Protocol: one name, signature, value, dtype and exception type on every backend."""

import inspect

import numpy as np
import pytest

from duoln import runtime
from duoln.backends import protocol
from duoln.errors import DtypeError

X = np.array([[0.5, -1.5, 2.0], [1.0, 0.25, -0.75]], np.float32)
P = np.abs(X)
I = np.array([[1, 5, 3], [2, 2, 4]], np.int32)
B = np.array([[True, False, True], [False, False, True]])

# primitive -> calls that work: (arrays, keyword arguments)
CALLS = {
    "zeros": [([], dict(shape=(2, 3))), ([], dict(shape=(0,), dtype="int32")), ([], dict(shape=(), dtype="bool"))],
    "ones": [([], dict(shape=(2, 3))), ([], dict(shape=(2,), dtype="bool"))],
    "full": [([], dict(shape=(2, 3), value=1.5)), ([], dict(shape=(), value=3, dtype="int32"))],
    "arange": [([], dict(stop=5)), ([], dict(stop=0)), ([], dict(stop=3, dtype="float32"))],
    "astype": [([X], dict(dtype="int32")), ([B], dict(dtype="float32")), ([I], dict(dtype="bool"))],
    **{name: [([X], {})] for name in ("abs", "exp", "expm1", "sin", "cos", "tanh", "sign", "floor", "round", "isfinite")},
    **{name: [([P], {})] for name in ("log", "log1p", "sqrt")},
    "maximum": [([X, P], {}), ([X], dict(y=0.0)), ([X, X[0]], {}), ([I, I], {})],
    "signbit": [([np.float32([-0.0, 0.0, -1.5, np.nan, -np.inf])], {})],
    "fmod": [([np.float32([5.5, -5.5, 1.0, -1e-20]), np.float32([-2.0, 2.0, 0.1, 1.0])], {})],
    "minimum": [([X, P], {}), ([X], dict(y=0.0)), ([I, I], {})],
    "where": [([B, X, P], {}), ([B, X], dict(y=0.0)), ([B], dict(x=X[0], y=X))],
    "logical_and": [([B, ~B], {})], "logical_or": [([B, ~B], {})], "logical_not": [([B], {})],
    "sum": [([X], {}), ([X], dict(axis=0)), ([X], dict(axis=(0, 1), keepdims=True)), ([I], dict(axis=1)), ([B], {}),
            ([X[:0]], dict(axis=0)), ([X[:0]], {})],
    "mean": [([X], {}), ([X], dict(axis=-1, keepdims=True))],
    "max": [([X], {}), ([X], dict(axis=0)), ([I], dict(axis=1, keepdims=True))],
    "min": [([X], {}), ([X], dict(axis=0)), ([I], dict(axis=1, keepdims=True))],
    "all": [([B], {}), ([B], dict(axis=0))], "any": [([B], {}), ([B], dict(axis=0, keepdims=True))],
    "argmax": [([X], {}), ([X], dict(axis=0)), ([np.ones((2, 3), np.float32)], {})],
    "cumulative_sum": [([X], dict(axis=0)), ([X], dict(axis=-1)), ([I], dict(axis=1))],
    "exactly": [([I, I], dict(name="add", compute=lambda x, y: x + y)), ([I], dict(name="multiply", compute=lambda x: x * 3))],
    "reshape": [([X], dict(shape=(3, 2))), ([X[:0]], dict(shape=(3, 0)))],
    "permute_dims": [([X], dict(axes=(1, 0)))],
    "expand_dims": [([X], dict(axis=0)), ([X], dict(axis=-1))],
    "squeeze": [([X[None]], dict(axis=0))],
    "broadcast_to": [([X], dict(shape=(4, 2, 3)))],
    "concat": [([], dict(arrays=[X, X], axis=0)), ([], dict(arrays=[X, X[:, :0]], axis=1))],
    "flip": [([X], dict(axis=0)), ([X], dict(axis=-1))],
    "pad": [([X], dict(widths=((1, 0), (0, 2)))), ([X], dict(widths=((0, 0), (1, 1)), value=2.5))],
    "take": [([X, np.array([1, 0, 1], np.int32)], dict(axis=0)), ([X, np.array([[2], [0]], np.int32)], dict(axis=1))],
    "take_along_axis": [([X, np.array([[2, 0], [1, 1]], np.int32)], dict(axis=1))],
    "index_add": [([X, np.array([1, 0, 1], np.int32), np.ones((3, 3), np.float32)], {}),
                  ([X, np.array([], np.int32), np.ones((0, 3), np.float32)], {})],
    "slice_add": [([X], dict(key=(slice(None), slice(0, 2)), values=np.ones((2, 2), np.float32))),
                  ([X], dict(key=(slice(None), slice(None, None, 2)), values=np.ones((2, 2), np.float32)))],
    "matmul": [([X, X.T.copy()], {}), ([X[None], np.stack([X.T, X.T])], {}), ([X[:0], X.T.copy()], {})],
}

# primitive -> a call that fails, and how
FAILURES = {
    "astype": ([X], dict(dtype="complex64"), DtypeError),
    "zeros": ([], dict(shape=(2,), dtype="int8"), DtypeError),
    "maximum": ([X, np.ones(4, np.float32)], {}, ValueError),
    "where": ([B, X, np.ones(4, np.float32)], {}, ValueError),
    "sum": ([X], dict(axis=5), IndexError),
    "max": ([X[:0]], dict(axis=0), ValueError),
    "argmax": ([X], dict(axis=4), IndexError),
    "cumulative_sum": ([X], dict(axis=4), IndexError),
    "reshape": ([X], dict(shape=(4,)), ValueError),
    "permute_dims": ([X], dict(axes=(0, 2)), (IndexError, ValueError)),
    "expand_dims": ([X], dict(axis=5), IndexError),
    "squeeze": ([X], dict(axis=0), ValueError),
    "broadcast_to": ([X], dict(shape=(3, 3)), ValueError),
    "concat": ([], dict(arrays=[X, X[:, :1]], axis=0), ValueError),
    "flip": ([X], dict(axis=4), IndexError),
    "take": ([X, np.array([0], np.int32)], dict(axis=4), IndexError),
    "matmul": ([X, X], {}, ValueError),
}


def _native(be, value):
    if isinstance(value, np.ndarray):
        return be.asarray(value)
    return [be.asarray(v) for v in value] if isinstance(value, list) else value


def _call(be, name, arrays, kwargs):
    function, natives = getattr(be, name), [be.asarray(a) for a in arrays]
    given = {k: _native(be, v) for k, v in kwargs.items()}
    if not inspect.ismethod(function):  # the library has other names for what is given by position
        kinds = inspect.signature(getattr(protocol.Backend, name)).parameters
        natives += [given.pop(k) for k in list(given) if kinds[k].kind is inspect.Parameter.POSITIONAL_OR_KEYWORD]
    return function(*natives, **given)


def test_every_primitive_is_called_here():
    assert sorted(CALLS) == sorted(protocol.PRIMITIVES)


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


@pytest.mark.parametrize("name", sorted(CALLS))
def test_values_and_dtypes_are_numpys(be, name, numpy_backend):
    for arrays, kwargs in CALLS[name]:
        before = [a.copy() for a in arrays]
        actual, expected = _call(be, name, arrays, kwargs), _call(numpy_backend, name, arrays, kwargs)
        assert be.dtype(actual) == numpy_backend.dtype(expected)
        assert tuple(actual.shape) == expected.shape
        np.testing.assert_allclose(be.to_numpy(actual), expected, rtol=2e-6, atol=1e-6)
        for a, b in zip(arrays, before, strict=True):
            np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("name", sorted(FAILURES))
def test_exception_types_are_the_same(be, name):
    arrays, kwargs, kind = FAILURES[name]
    with pytest.raises(kind):
        be.wait([_call(be, name, arrays, kwargs)])


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
