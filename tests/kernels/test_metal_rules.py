"""Every Metal kernel, run on the CPU from its own text: against float64, to the bit on every run, and broken on purpose; values of 16 bits,
pipelines that allow few threads, and trainings, whose steps run eagerly: hostgpu computes at once, so it cannot be traced.
"""

import re
import sys
from collections import Counter

import numpy as np
import pytest
from broken_text import break_metal
from conftest import get_backend
from device_rules import beside_float32, cases, in_16_bits, recurrent_losses, rules, stored
from zeros import values

from duoln import ops
from duoln.errors import DtypeError, ShapeError
from duoln.kernels.recurrent.cases import recurrent
from duoln.testing import check_error, selftest

mx = pytest.importorskip("mlx.core", reason="MLX is not for this platform")
if sys.platform != "linux":
    pytest.skip("kernels run on the CPU under Linux only", allow_module_level=True)

import stand_in_metal

from duoln.kernels import source
from duoln.kernels.norm import metal as layer_norm
from duoln.kernels.norm.cases import NORMS
from duoln.kernels.norm.metal import MOST_COLUMNS
from duoln.kernels.registry import Case

SIZES = [(3, 5, 3, 8), (2, 9, 2, 31), (2, 3, 5, 70), (2, 2, 3, 8), (4, 2, 2, 7), (1, 7, 1, 128), (1, 2, 1, 257)]
RULES = {op: rule.name for op, rule in rules("metal")}
CASES = [c for c in cases("metal") if (c.attrs["norm"] != "none" if "norm" in c.attrs else c.sizes[-1] <= MOST_COLUMNS)]
CELLS = dict.fromkeys((c.op, c.attrs["norm"]) for c in CASES if len(c.sizes) == 4)
CASES += [recurrent(*cell, sizes, masked, reverse) for cell in CELLS for sizes in SIZES for masked in (False, True)
          for reverse in (False, True)]
"""Other layouts of threads than those of CUDA."""


@pytest.fixture
def mlx(monkeypatch):
    """The MLX backend with hostgpu in the place of Metal."""
    stand_in_metal.install(monkeypatch)
    return get_backend("mlx")


def test_there_are_many_cases_of_each():
    assert min(Counter(case.op for case in CASES).values()) >= 18 and len(CASES) >= 450
    files = {p.relative_to(source.FOLDER).as_posix() for p in source.FOLDER.rglob("*.metal")}
    assert set(stand_in_metal.KERNELS.values()) == files


@pytest.mark.few
@pytest.mark.parametrize("case", CASES, ids=str)
def test_kernel(case, mlx):
    outcome = selftest.prove(case, mlx)
    assert outcome.rule == RULES[case.op]
    assert outcome.repeats, "two runs differ"
    assert outcome.error <= 1, f"{outcome.worst}: {outcome.error:.3g} of what is allowed"


@pytest.mark.minutes
@pytest.mark.parametrize("case", [c for c, size in zip(CASES, values(CASES), strict=True) if size <= 2500 and c.attrs.get("norm", "layer") == "layer"],
                         ids=str)
def test_under_many_seeds(case, mlx):
    assert selftest.prove(case, mlx, repeats=200).passed


# Broken kernels: the case must fail ---------------------------------------------------------------------

def _case(*words):
    return next(p for p in CASES if all(f" {w}" in f" {p}" for w in words))


BROKEN = [
    ("no barrier before the sums are read", _case("layer_norm 3 x 2048"), "value[n];\n    threadgroup_barrier(mem_flags::mem_threadgroup);", "value[n];"),
    ("no barrier before the sums are overwritten", _case("layer_norm 3 x 2048"), "    threadgroup_barrier(mem_flags::mem_threadgroup);  // other threads may still read the last sums\n", ""),
    ("no bounds check in a load", _case("layer_norm 3 x 1000"), "u * THREADS + t < width ? float(x[start + u * THREADS + t]) : 0;", "float(x[start + u * THREADS + t]);"),
    ("no bounds check in a store", _case("layer_norm 3 x 1025"), "        if (column >= width) continue;\n        float through", "        float through"),
    ("the last values are skipped", _case("layer_norm 3 x 500"), "for (int u = 0; u < UNITS; ++u) {", "for (int u = 0; u < UNITS - 1; ++u) {"),
    ("groups of rows are added up once", _case("layer_norm 70 x 129"), "gain_sums[u] += d[u] * xhat[u];", "gain_sums[u] = d[u] * xhat[u] + 1;"),
    ("the activation has no slope", _case("layer_norm 4 x 500, tanh"), "return gradient * (real{} + 1 - tanh_y * tanh_y);", "return gradient;"),
    ("the mean is taken out once", _case("layer_norm 5 x 1000, mean 10"), "CENTRED && pass < 2; ++pass) {", "CENTRED && pass < 0; ++pass) {"),
    ("the mean is taken out of an RMS norm", _case("rms_norm 3 x 1000"), "CENTRED && pass < 2; ++pass) {", "pass < 2; ++pass) {"),
    ("the sum's own gradient is lost", _case("add_layer_norm 3 x 500"), "through += float(d_total[start + column]);", ""),
    ("the sum's own gradient goes through the norm", _case("add_rms_norm 3 x 500"), "d[u] = float(dy[start + column]);",
     "d[u] = float(dy[start + column]) + float(d_total[start + column]);"),
    ("the sum's own gradient is that of the row before", _case("add_rms_norm 70 x 33"), "d_total[start + column]", "d_total[start + column - (row ? width : 0)]"),
    ("the LSTM's sums do not wait", _case("lstm layer T2 B2 in3 H130"), "value[n];\n    threadgroup_barrier(mem_flags::mem_threadgroup);", "value[n];"),
    ("the LSTM's units behind the last one", _case("lstm layer T2 B3 in2 H33"), "if (u * THREADS + t < hidden)", ""),
    ("masked cells go on", _case("lstm layer-cell T3 B5", "masked"), "MASKED(row) ? c[state] : c_new[0][u]", "c_new[0][u]"),
    ("gradients of masked rows are lost", _case("lstm layer T3 B5", "masked"), "d_h_before[state] = masked ? d_h[state] : 0.0f;", "d_h_before[state] = 0.0f;"),
    ("the norm of the cell has no gradient", _case("lstm layer-cell T3 B5"), "standardise_gradient<State>(dc_new, c_new, c_stat, hidden, shared, t);", ""),
    ("the GRU's new gate shares the norm of the two before it", _case("gru layer T3 B5"), "return gate == 2; }", "return 0; }"),
    ("the GRU's sums do not wait", _case("gru layer T2 B2 in3 H130"), "value[n];\n    threadgroup_barrier(mem_flags::mem_threadgroup);", "value[n];"),
    ("masked rows of the GRU go on", _case("gru layer T3 B5", "masked"), "MASKED(row) ? h[state] : next", "next")]


@pytest.mark.long
@pytest.mark.parametrize(("what", "case", "old", "new"), BROKEN, ids=[b[0] for b in BROKEN])
def test_a_broken_kernel_fails_its_proof(what, case, old, new, mlx, monkeypatch):
    """A mutation of the text, at a few seeds of the scheduler: a case that the broken kernel passes tests nothing."""
    in_text = break_metal(monkeypatch, old, new)
    outcomes = list(selftest.run(mlx, [case] * 4))
    assert any(in_text), "the text to break is not there any more"
    assert not all(o.passed for o in outcomes)


def test_the_text_that_ran_was_ours(mlx):
    before = len(stand_in_metal.launches)
    selftest.prove(_case("lstm layer T3 B5"), mlx, repeats=1)
    assert stand_in_metal.ran(before) == {"lstm_forward", "lstm_backward", "layer_norm_backward"}


def test_wrong_arguments_of_a_declared_launch_are_refused(mlx):
    x, integers = mx.zeros((2, 3)), mx.zeros((2, 3), mx.int32)
    for arrays, kind, words in (((x, None, None, None, integers, None), DtypeError, ["dy", "float32", "int32"]),
                                ((x, integers, None, None, x, None), DtypeError, ["residual", "float32", "int32"]),
                                ((x.astype(mx.bfloat16), None, None, None, x, None), DtypeError, ["dy", "bfloat16", "float32"]),
                                ((integers, None, None, None, x, None), DtypeError, ["x: expected float32, float16 or bfloat16, found int32"]),
                                ((x, None, x, None, x, None), ShapeError, ["gain: expected shape (3,), found (2, 3)"])):
        check_error(kind, lambda a=arrays: layer_norm._BACKWARD[True](*a, 0.1, 0), "[layer_norm_backward]", *words)


NARROW = ("bfloat16", "float16")
NORM_CASES = [c for c in cases("metal") if c.op in NORMS and c.sizes[-1] <= MOST_COLUMNS and not c.misaligned]
ORDINARY = (*(f"layer_norm {name}" for name in ("bfloat16 3 x 33", "float16 3 x 33", "bfloat16 4 x 500, tanh", "float16 70 x 129",
                                                "bfloat16 2 x 2 x 7, alone", "bfloat16 3 x 2048")),
            "rms_norm bfloat16 70 x 33", "rms_norm float16 3 x 500", "add_layer_norm bfloat16 70 x 33", "add_layer_norm float16 3 x 2048",
            "add_rms_norm float16 70 x 33", "add_rms_norm bfloat16 3 x 500")


def _natives(be, case, dtype):
    count = stored(case.op, "mlx")
    return [*(be.asarray(a, dtype) for a in case.inputs[:count]), *(None if a is None else be.asarray(a) for a in case.inputs[count:])]


def _differences(case, dtype, be, numpy):
    """The places of the results whose bits are not those of float32, rounded as NumPy's backend rounds."""
    before = len(stand_in_metal.launches)
    rule, results = beside_float32(case, _natives(be, case, dtype), dtype, be)
    assert rule.name == "metal gradient"
    assert [("storage" in name) for name in stand_in_metal.launches[before:]] == [True, False]
    assert [be.dtype(mine) for mine, _, is_stored in results] == [dtype if is_stored else "float32" for _, _, is_stored in results]
    right = [numpy.to_numpy(numpy.asarray(be.to_numpy(own), dtype)) if is_stored else be.to_numpy(own) for _, own, is_stored in results]
    return [k for k, (mine, _, _) in enumerate(results) if not np.array_equal(be.to_numpy(mine), right[k])]


@pytest.mark.few
@pytest.mark.parametrize(("case", "dtype"), list(in_16_bits(NORM_CASES, ORDINARY)))
def test_the_bits_of_float32_rounded_once(case, dtype, mlx, numpy_backend):
    assert _differences(case, dtype, mlx, numpy_backend) == []


@pytest.mark.long
@pytest.mark.parametrize(("what", "old", "new"), [
    ("a gradient is rounded before the norm", "through_norm(d[u], xhat[u]", "through_norm(float(storage_t(d[u])), xhat[u]"),
    ("what is centred is rounded", "xhat[u] -= sum[0] / width;", "xhat[u] = float(storage_t(xhat[u] - sum[0] / width));"),
    ("what is normalised is rounded", "xhat[u] += float(residual[start + u * THREADS + t]);",
     "xhat[u] = float(storage_t(xhat[u] + float(residual[start + u * THREADS + t])));"),
    ("the gradient is rounded before the sum's own is added", "through += float(d_total[start + column]);",
     "through = float(storage_t(through)) + float(d_total[start + column]);"),
    ("the sums are stored", "gain_sums[u] += d[u] * xhat[u];", "gain_sums[u] = float(storage_t(gain_sums[u] + d[u] * xhat[u]));")])
def test_a_broken_kernel_is_noticed(what, old, new, mlx, numpy_backend, monkeypatch):
    case = next(c for c in NORM_CASES if c.op == "add_layer_norm" and c.label == "70 x 129")
    in_text = break_metal(monkeypatch, old, new)
    assert _differences(case, "bfloat16", mlx, numpy_backend) != []
    assert any(in_text), "the text to break is not there any more"


def _of_threads(monkeypatch, allowed):
    """The MLX backend over pipelines that allow so many threads, by a kernel's name and the values of a thread."""
    def of_name(name):
        return allowed(name, int(re.search(r"units(\d+)", name)[1]))

    stand_in_metal.install(monkeypatch, stand_in_metal.make(allowed=of_name))
    return get_backend("mlx")


def _norm(op, width):
    rng = np.random.default_rng(width)
    x, row = rng.standard_normal((2, width)).astype(np.float32), np.ones(width, np.float32)
    if op == "layer_norm":
        return Case(op, f"2 x {width}", lambda: (x, row, row), {"eps": 1e-5}, 1)
    return Case(op, f"2 x {width}", lambda: (x, x, row), {"eps": 1e-5}, 1)


WIDE_CASES = [_norm("layer_norm", 8192), _norm("add_rms_norm", 5000), recurrent("lstm", "layer", (1, 1, 1, 1100), False, False),
         recurrent("gru", "layer", (1, 1, 1, 2100), False, False), recurrent("lstm", "layer-cell", (2, 1, 1, 1030), True, False)]

FEW = [case if "H2100" not in case.label else pytest.param(case, marks=pytest.mark.long) for case in WIDE_CASES]
"""Without one that takes half a gigabyte."""


@pytest.mark.parametrize("case", FEW, ids=str)
def test_fewer_threads_have_more_values(case, monkeypatch):
    mlx = _of_threads(monkeypatch, lambda name, values: 384)
    before = len(stand_in_metal.launches)
    outcome = selftest.prove(case, mlx, repeats=1)
    assert outcome.rule.startswith("metal") and outcome.passed, outcome
    assert stand_in_metal.ran(before)


@pytest.mark.parametrize("case", FEW, ids=str)
def test_a_pipeline_that_allows_too_few_is_left_to_another_rule(case, monkeypatch):
    mlx = _of_threads(monkeypatch, lambda name, values: 384 if values < 8 else 128)
    arrays = [None if a is None else mlx.asarray(a) for a in case.inputs]
    op = getattr(ops, case.op)
    [metal] = [rule for rule in op.rules("mlx") if rule.name.startswith("metal")]
    reason = metal.supports(mlx, *arrays, **case.attrs)
    assert re.fullmatch(r"256 threads with \d+ values each cannot run here: Thread group size .256. is greater than .*", reason)
    assert op.select(mlx, arrays, case.attrs).name != metal.name


def test_a_layout_is_tried_once(monkeypatch):
    mlx = _of_threads(monkeypatch, lambda name, values: 1024)
    x = mlx.asarray(np.ones((1, 8192), np.float32))
    for _ in range(3):
        assert layer_norm.supports(x) is None
    assert list(layer_norm._layouts._refused.values()) == [None]
    before = len(stand_in_metal.launches)
    assert layer_norm.supports(x[:, :7000]) is None and layer_norm.supports(x[:, :2048]) is None
    assert len(stand_in_metal.launches) == before


@pytest.fixture
def eager_mlx(monkeypatch):
    """The MLX backend as on a Mac, but eager."""
    be = get_backend("mlx")
    stand_in_metal.install(monkeypatch)
    monkeypatch.setattr(be, "compile", lambda step: step)
    return be


@pytest.mark.parametrize(("cell", "norm"), [("LSTM", "layer"), ("LSTM", "layer-cell"), ("GRU", "layer")])
def test_a_recurrent_layer_trains_as_on_numpy(cell, norm, eager_mlx):
    before = len(stand_in_metal.launches)
    ours, right = recurrent_losses(cell, norm, eager_mlx)
    np.testing.assert_allclose(ours, right, rtol=1e-4)
    assert ours[-1] < ours[0] and {f"{cell.lower()}_forward", f"{cell.lower()}_backward"} <= stand_in_metal.ran(before)
