"""`duoln.tensor`, the methods of tensors, gradients and compiled steps, called wrongly."""

import numpy as np
import pytest
from misuse.misuses import unnamed

import duoln
from duoln import ops
from duoln.data import Batches
from duoln.data.batches import check_range, count_examples
from duoln.errors import AxisIndexError, CompileError, DataError, DtypeError, ShapeError, UsageError


def test_values_that_are_no_numbers_or_do_not_fit(be):
    made = duoln.tensor([1.0, 2.0], be)
    kinds = [2 ** 31, -2 ** 31 - 1, 2 ** 40, 2 ** 70, [1, 2 ** 40], np.array([2 ** 40]), np.uint32(2 ** 31), np.longdouble(1),
             1j, np.ones(2, complex), "a", ["a"], b"a", [1, "a"], None, [None], [1, None], object(), {}, {1}, np.array([None]), 1e300, [1e300],
             np.datetime64("2020"), np.zeros(2, [("a", "i4")]), [made], lambda: 1,
             np.ma.array([1.0, 2.0], mask=[0, 1]), [np.ma.array([1.0]), [2.0]], np.ma.array([1, 2])]
    rows = [("tensor", DtypeError, lambda v=v: duoln.tensor(v, be)) for v in kinds]
    rows += [("tensor", ShapeError, lambda v=v: duoln.tensor(v, be)) for v in ([[1], [1, 2]], [1, [2]], [[[1]], [2]])]
    rows += [("tensor", DtypeError, lambda v=v, d=d: duoln.tensor(v, be, dtype=d)) for v, d in [
        (2.5, "int32"), (float("nan"), "int32"), (float("inf"), "int32"), (3e9, "int32"), (2 ** 31, "int32"), ([1.5], "int32"),
        *((np.array([x], kind), "int32") for x in (np.nan, np.inf, 3e9) for kind in ("float32", "float64")), (2, "bool"), (0.5, "bool"),
        (1e300, "float32"), (np.array([1e39]), "float32"), ("a", "float32"), (1j, "float32"), (None, "float32"), (1, "int64"), (1, "half"),
        (1, np.longdouble), (1e5, "float16"), (3.4e38, "bfloat16"), (1, "bf16"), (1, 32), (1, ["float32"])]]
    assert unnamed(rows) == {}


def test_other_arguments_of_tensor(be):
    rows = [("tensor", DtypeError, lambda b=b: duoln.tensor(1.0, b)) for b in (5, np, [], object())]
    rows += [("backend", UsageError, lambda b=b: duoln.tensor(1.0, b)) for b in ("", "torch")]
    rows += [("backend", DtypeError, lambda b=b: duoln.backend(b)) for b in (0, 1, False, [], ["numpy"], np, be)]
    rows += [("tensor", DataError, lambda w=w: duoln.tensor([0, 4], be, within=w)) for w in ((0, 4), (1, 5), (5, 9), (0, 0))]
    rows += [("tensor", DtypeError, lambda w=w: duoln.tensor([0, 4], be, within=w)) for w in (4, "a", (0.0, 5), (None, 5))]
    rows += [("tensor", ShapeError, lambda w=w: duoln.tensor([0, 4], be, within=w)) for w in ((), (0,), (0, 1, 2))]
    rows += [("tensor", DtypeError, lambda: duoln.tensor([0.5], be, within=(0, 4)))]
    assert unnamed(rows) == {}
    assert duoln.tensor([0, 4, -1], be, within=(-1, 5)).numpy().tolist() == [0, 4, -1]


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64", ">i2", ">i4", ">i8", "<i4"])
def test_integers_of_every_width_become_int32(dtype, be):
    made = duoln.tensor(np.arange(6, dtype=dtype).reshape(2, 3)[::-1], be)
    assert made.dtype == "int32" and made.numpy().tolist() == [[3, 4, 5], [0, 1, 2]]
    assert duoln.tensor(np.array(3, dtype)[()], be).item() == 3


@pytest.mark.parametrize("dtype", ["float32", "float64", ">f4", ">f8"])
def test_floats_keep_their_dtype_whatever_their_bytes_and_strides(dtype, be):
    array = np.arange(12, dtype=dtype).reshape(3, 4)
    for view in (array, array[::-1], array[:, ::-2], array.T, array[1, 1], array[:0]):
        made = duoln.tensor(view, be)
        assert made.dtype == np.dtype(dtype).newbyteorder("=").name
        np.testing.assert_array_equal(made.numpy(), view)


def test_methods(be):
    x, flat, zero = duoln.tensor(np.ones((2, 3), np.float32), be), duoln.tensor([1.0, 2.0], be), duoln.tensor(1.0, be)
    rows = [("item", ShapeError, x.item), ("float", ShapeError, lambda: float(x)), ("bool", ShapeError, lambda: bool(x > 0)), ("int", ShapeError, lambda: int(x)),
            ("round", ShapeError, lambda: round(x)), ("format", ShapeError, lambda: f"{x:.3f}"),
            ("item", ShapeError, x[:0].item), ("len", DtypeError, lambda: len(zero)), ("iter", DtypeError, lambda: list(zero)),
            ("getitem", ShapeError, lambda: x[::0]), ("getitem", ShapeError, lambda: x[0, ::0]), ("getitem", AxisIndexError, lambda: zero[0]),
            ("getitem", DtypeError, lambda: x[0.5:2]), ("getitem", DtypeError, lambda: x["a"]), ("getitem", DtypeError, lambda: x[flat]),
            ("getitem", ShapeError, lambda: x[(None,) * 40]), ("getitem", ShapeError, lambda: x[..., ...]),
            ("getitem", AxisIndexError, lambda: x[np.int64(2)]), ("matmul", DtypeError, lambda: x @ 2), ("matmul", DtypeError, lambda: 2 @ x),
            ("matmul", DtypeError, lambda: x @ None), ("matmul", DtypeError, lambda: np.ones((3, 2)) @ x), ("matmul", ShapeError, lambda: x @ x),
            ("pow", DtypeError, lambda: x ** "a"), ("pow", UsageError, lambda: x ** float("nan")), ("pow", UsageError, lambda: (-2) ** x),
            ("pow", DtypeError, lambda: "a" ** x), ("T", ShapeError, lambda: flat.T), ("index", DtypeError, lambda: [1][x]),
            ("reshape", ShapeError, lambda: x.reshape(4)), ("reshape", DtypeError, lambda: x.reshape(2.0, 3)), ("astype", DtypeError, lambda: x.astype(None)),
            ("sum", ShapeError, lambda: x.sum(2)), ("mean", DtypeError, lambda: x.mean("a")), ("max", ShapeError, lambda: x[:0].max()),
            ("add", DtypeError, lambda: sum([x, x], start=None)), ("add", ShapeError, lambda: x + flat), ("equal", DtypeError, lambda: x == None),  # noqa: E711
            ("stop_gradient", DtypeError, lambda: duoln.stop_gradient(1.0)), ("stop_gradient", DtypeError, lambda: duoln.stop_gradient([x]))]
    rows += [(name, DtypeError, call) for operand in (None, "a", [1.0], {}, np.ones((2, 3), np.float32), 1j, object()) for name, call in [
        ("add", lambda o=operand: x + o), ("add", lambda o=operand: o + x), ("subtract", lambda o=operand: x - o), ("subtract", lambda o=operand: o - x),
        ("multiply", lambda o=operand: x * o), ("multiply", lambda o=operand: o * x), ("divide", lambda o=operand: x / o), ("divide", lambda o=operand: o / x),
        ("less", lambda o=operand: x < o), ("less_equal", lambda o=operand: x <= o), ("greater", lambda o=operand: x > o),
        ("greater_equal", lambda o=operand: x >= o), ("equal", lambda o=operand: x == o), ("not_equal", lambda o=operand: x != o)]]
    assert unnamed(rows) == {}


def test_more_axes_than_an_array_library_holds(be):
    """MLX ends the process at some of them."""
    most = (1,) * 32
    x, whole, zero = (duoln.tensor(np.ones(shape, np.float32), be) for shape in ((1,), most, ()))
    ids, many, deep = duoln.tensor(np.zeros(most, np.int32), be), (1,) * 33, 0.0
    for _ in range(70):
        deep = [deep]
    rows = [("reshape", lambda: ops.reshape(x, many)), ("broadcast_to", lambda: ops.broadcast_to(x, many)), ("tile", lambda: ops.tile(x, many)),
            ("expand_dims", lambda: ops.expand_dims(whole)), ("stack", lambda: ops.stack(whole, whole)), ("one_hot", lambda: ops.one_hot(ids, 2)),
            ("take", lambda: ops.take(ops.reshape(x, (1, 1)), ids, axis=0)), ("getitem", lambda: ops.reshape(x, (1, 1))[ids]),
            ("embedding", lambda: ops.embedding(ops.reshape(x, (1, 1)), ids)), ("tensordot", lambda: ops.tensordot(whole, x, axes=0)),
            ("einsum", lambda: ops.einsum("...,a->...a", whole, x)), ("zeros", lambda: ops.zeros(many, be)), ("ones", lambda: ops.ones(many, be)),
            ("full", lambda: ops.full(many, 1.0, be)), ("tensor", lambda: duoln.tensor(np.ones(many, np.float32), be)),
            ("tensor", lambda: duoln.tensor(np.ones(many, np.float64), be)), ("tensor", lambda: duoln.tensor(deep, be)),
            ("Stream.gaussian", lambda: duoln.Stream(0, "x").gaussian(many)), ("LayerNorm", lambda: duoln.nn.LayerNorm(many))]
    assert unnamed([(name, ShapeError, call) for name, call in rows]) == {}
    for y in (ops.reshape(x, most), ops.broadcast_to(zero, most), ops.tile(x, most), ops.zeros(most, be) + 1.0, whole[..., None, 0]):
        assert (y * 1.0).numpy().shape == most


def test_slices_of_any_length_and_integers_of_any_library(be):
    plain = np.arange(12, dtype=np.float32).reshape(3, 4)
    x = duoln.tensor(plain, be)
    for key in (slice(0, 2 ** 70), slice(-2 ** 70, None), slice(None, None, 2 ** 70), slice(2 ** 70, None, -1), slice(None, None, -2 ** 70),
                np.int64(1), np.uint8(2), (np.int32(0), slice(np.int64(1), None)), (slice(5, 1, -1), -1)):
        np.testing.assert_array_equal(x[key].numpy(), plain[key])
    assert [row.numpy().tolist() for row in x] == plain.tolist()


def test_sequences_where_tensors_are_wanted(be):
    x, large = duoln.tensor(np.ones((2, 3), np.float32), be), duoln.tensor(np.ones((2, 3)), be)
    rows = [(name, DtypeError, lambda n=name, g=given: getattr(ops, n)(g)) for name in ("concat", "stack") for given in ([x, 1.0], ([x],), [[x, x]], "ab")]
    rows += [("concat", ShapeError, lambda: ops.concat([])), ("stack", ShapeError, lambda: ops.stack(())), ("concat", ShapeError, ops.concat), ("stack", ShapeError, ops.stack), ("stack", ShapeError, lambda: ops.stack(x, x[:1])),
             ("stack", DtypeError, lambda: ops.stack(x, large)), ("concat", DtypeError, lambda: ops.concat(x, large)),
             ("clip", UsageError, lambda: ops.clip(x, 2.0, 1.0)), ("clip", DtypeError, lambda: ops.clip(x, [0.0], 1.0)), ("clip", ShapeError, lambda: ops.clip(x, ops.stack(x, x))),
             ("pad", DtypeError, lambda: ops.pad(duoln.tensor([1], be), widths=((1, 1),), value=0.5))]
    assert unnamed(rows) == {}


def test_gradients_and_steps(be):
    x = duoln.tensor([1.0, 2.0], be)
    grad = duoln.value_and_grad
    rows = [("value_and_grad", DtypeError, lambda f=f: grad(f)) for f in (None, 1, x, "f")]
    rows += [("value_and_grad", DtypeError, lambda: grad(ops.sum, has_aux="yes")), ("value_and_grad", ShapeError, lambda: grad(ops.sum, True)(x)),
             ("value_and_grad", ShapeError, lambda: grad(lambda p: None)(x)), ("value_and_grad", ShapeError, lambda: grad(lambda p: p)(x)),
             ("value_and_grad", ShapeError, lambda: grad(lambda p: 1.0)(x)),
             ("value_and_grad", ShapeError, lambda: grad(lambda p: (ops.sum(p), 1, 2), has_aux=True)(x)),
             ("value_and_grad", ShapeError, lambda: grad(lambda p: (1.0, ops.sum(p)), has_aux=True)(x))]
    rows += [("value_and_grad", DtypeError, lambda p=p: grad(lambda q: ops.sum(q["w"]))({"w": p})) for p in
             (1.0, "a", np.ones(2), duoln.tensor([1], be), duoln.tensor([True], be))]
    rows += [("compile", DtypeError, lambda f=f: duoln.compile(f)) for f in (None, 1, x, "f")]
    rows += [("compile", CompileError, lambda a=a: duoln.compile(lambda *args: args)(*a)) for a in ((), (None,), (1.0,), (x, 1.0), (x, np.ones(2)))]
    rows += [("compile", CompileError, lambda: duoln.compile(lambda v: 1.0)(x)), ("gradcheck", DtypeError, lambda: duoln.testing.gradcheck(None, x)),
             ("gradcheck", DtypeError, lambda: duoln.testing.gradcheck(ops.sum, x)), ("gradcheck", DtypeError, lambda: duoln.testing.gradcheck(ops.sum, 1.0))]
    assert unnamed(rows) == {}


ARRAYS = {"x": np.ones((10, 2), np.float32), "label": np.arange(10, dtype=np.int32)}


def test_batches():
    rows = [("Batches", DtypeError, lambda a=a: Batches(a, 2, 0)) for a in
            (None, [ARRAYS["x"]], ARRAYS["x"], {"x": [1, 2]}, {"x": None}, {"x": np.float32(1)}, {"x": np.array(1.0)})]
    rows += [("Batches", DtypeError, lambda n=n: Batches(ARRAYS, n, 0)) for n in (None, 2.0, "2", True, [2])]
    rows += [("Batches", DtypeError, lambda s=s: Batches(ARRAYS, 2, s)) for s in (None, 0.5, "seed")]
    rows += [("Batches", UsageError, lambda n=n: Batches(ARRAYS, n, 0)) for n in (0, -1, 11)]
    rows += [("Batches", ShapeError, lambda a=a: Batches(a, 2, 0)) for a in ({}, {"x": np.ones(3), "y": np.ones(2)})]
    rows += [("Batches", DtypeError, lambda s=s: Batches(ARRAYS, 2, 0)(s)) for s in (None, 1.0, "1")]
    rows += [("Batches", ShapeError, lambda: Batches(ARRAYS, 2, 0)(-1)), ("Batches", ShapeError, lambda: Batches(ARRAYS, 2, -1))]
    rows += [("Batches: label", DataError, lambda w=w: Batches(ARRAYS, 2, 0, within={"label": w})) for w in ((0, 9), (1, 10), (20, 30))]
    rows += [("Batches: x", DtypeError, lambda: Batches(ARRAYS, 2, 0, within={"x": (0, 9)})),
             ("Batches", UsageError, lambda: Batches(ARRAYS, 2, 0, within={"labels": (0, 9)}))]
    rows += [("Batches", DtypeError, lambda w=w: Batches(ARRAYS, 2, 0, within=w)) for w in (10, "label", [("label", 10)], {"label": 10}, {"label": (0, 9.5)})]
    rows += [("Batches", ShapeError, lambda w=w: Batches(ARRAYS, 2, 0, within={"label": w})) for w in ((10,), (0, 5, 10))]
    assert unnamed(rows) == {}
    assert len(Batches(ARRAYS, np.int64(5), 0, within={"label": (0, 10)})(np.int64(1))["label"]) == 5


def test_ranges():
    rows = [("label", DtypeError, lambda v=v: check_range("label", v, 3)) for v in (None, [0, 1], 1, "a", np.array([0.5]), np.array([True]))]
    rows += [("label", DtypeError, lambda n=n: check_range("label", np.array([0]), n)) for n in (None, 2.5, "3", [3])]
    rows += [("label", DataError, lambda v=v: check_range("label", np.array([v]), 3)) for v in (-1, 3, 2 ** 40, -2 ** 40)]
    rows += [("batch_axes", DtypeError, lambda b=b: count_examples(b, {})) for b in (None, [], ARRAYS["x"])]
    rows += [("batch_axes", DtypeError, lambda: count_examples(ARRAYS, None)), ("batch_axes", ShapeError, lambda: count_examples({}, {}))]
    assert unnamed(rows) == {}
    assert check_range("label", np.array([-1, 2]), 3, low=-1).tolist() == [-1, 2]
