"""Batches and ranges, made and called wrongly; indices that no table has."""

import contextlib

import numpy as np
import pytest
from misuse.misuses import unnamed

import duoln
from duoln import ops
from duoln.core import composed_only
from duoln.data import Batches
from duoln.data.batches import check_range, count_examples
from duoln.errors import DataError, DtypeError, ShapeError, UsageError

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


@pytest.mark.parametrize("stray", [4, 100, -5, 2 ** 31 - 1, -2 ** 31])
def test_indices_out_of_range_are_named_where_they_can_be_read(stray, numpy_backend):
    table = duoln.tensor(np.ones((4, 3), np.float32), numpy_backend)
    for indices in ([0, stray], [[3, 0], [stray, 1]]):
        ids = duoln.tensor(indices, numpy_backend)
        rows = [("take", ShapeError, lambda ids=ids: ops.take(table, ids, axis=0)), ("embedding", ShapeError, lambda ids=ids: ops.embedding(table, ids))]
        assert unnamed(rows) == {}
    single = duoln.tensor(stray, numpy_backend)
    along = duoln.tensor([[stray, 0, 0]], numpy_backend)
    rows = [("take", ShapeError, lambda: ops.take(table, single, axis=0)), ("take_along_axis", ShapeError, lambda: ops.take_along_axis(table, along, axis=0))]
    assert unnamed(rows) == {}
    with pytest.raises(ShapeError, match=f"found {stray}$"):
        ops.take(table, single, axis=0)


@pytest.mark.parametrize("stray", [4, 100, 2 ** 31 - 1])
@pytest.mark.parametrize("rules", [contextlib.nullcontext, composed_only])
def test_labels_above_the_classes_are_named_where_they_can_be_read(stray, rules, numpy_backend):
    logits, weight = (duoln.tensor(np.ones(shape, np.float32), numpy_backend) for shape in ((2, 4), (4, 4)))
    bias, labels = duoln.tensor(np.ones(4, np.float32), numpy_backend), duoln.tensor([0, stray], numpy_backend)
    rows = [("softmax_cross_entropy", ShapeError, lambda: ops.softmax_cross_entropy(logits, labels)),
            ("linear_cross_entropy", ShapeError, lambda: ops.linear_cross_entropy(logits, weight, bias, labels))]
    with rules():
        assert unnamed(rows) == {}
