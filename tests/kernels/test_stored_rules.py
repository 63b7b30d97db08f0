"""CUDA rules on values of 16 bits, run on the CPU from their own text: float32 arithmetic on them, rounded once."""

import sys

import hostgpu
import numpy as np
import pytest
from conftest import GPU, STAND_IN

from duoln import ops, runtime
from duoln.kernels import source
from duoln.kernels.case_table import rule_cases
from duoln.kernels.layer_norm.plan import plan
from duoln.testing import check_rule

pytestmark = pytest.mark.skipif(GPU == STAND_IN and sys.platform != "linux", reason="kernels run on the CPU under Linux only")

NUMBERS = {"float16": 1, "bfloat16": 2}
CONVERT = """
extern "C" __global__ void convert(const float* from, storage_t* to, const storage_t* bits, float* wide, int count) {
    const int k = int(blockIdx.x * blockDim.x + threadIdx.x);
    if (k >= count) return;
    to[k] = stored(from[k]);
    wide[k] = loaded(bits[k]);
}
"""


CASES = [case for case in rule_cases() if case.op == "layer_norm"]
ORDINARY = ("bfloat16 3 x 33", "float16 3 x 33", "float16 4 x 100, tanh", "bfloat16 70 x 512", "bfloat16 5 x 513, mean 10, no bias, misaligned",
            "bfloat16 3 x 8193", "bfloat16 2 x 2 x 7, alone")
"""Each compiles its kernel, which takes a second or more."""


def _pairs():
    """Every case in both dtypes; the ordinary suite runs a few of them."""
    for case in CASES:
        for dtype in NUMBERS:
            yield pytest.param(case, dtype, id=f"{dtype} {case.label}", marks=[] if f"{dtype} {case.label}" in ORDINARY else pytest.mark.long)


def _edges():
    """Float32 values around every tie of both dtypes, the largest and the smallest values, infinities and NaN."""
    bits = np.arange(1 << 16, dtype=np.uint32) << 16
    ties = [(bits + low).view(np.float32) for low in (0, 1, 0x7FFF, 0x8000, 0x8001, 0xFFFF)]
    with np.errstate(all="ignore"):
        halves = np.arange(1 << 16, dtype=np.uint16).view(np.float16).astype(np.float32)
        between = (halves[:-1] + halves[1:]) / 2
    whole = np.concatenate([*ties, halves, between, np.nextafter(between, np.float32(0)), np.nextafter(between, np.float32(np.inf))])
    return whole.astype(np.float32)


@pytest.mark.parametrize("dtype", NUMBERS)
def test_conversions(dtype, numpy_backend):
    """They give the bits of the NumPy backend, whose own are tested one by one."""
    _check_conversions(dtype, numpy_backend, (source.FOLDER / "storage.cuh").read_text())


@pytest.mark.parametrize(("dtype", "right", "wrong"), [
    ("bfloat16", "+ (bits >> 16 & 1)", "+ 1"), ("bfloat16", "if ((bits & 0x7fffffffu) > 0x7f800000u) return storage_t(bits >> 16 | 0x40);", ""),
    ("float16", ">= 0x477ff000u", ">= 0x7f000000u"), ("float16", "< 0x38800000u", "< 0x38000000u")])
def test_broken_conversions_are_noticed(dtype, right, wrong, numpy_backend):
    text = (source.FOLDER / "storage.cuh").read_text()
    assert right in text
    with pytest.raises(AssertionError):
        _check_conversions(dtype, numpy_backend, text.replace(right, wrong))


def _check_conversions(dtype, numpy_backend, text):
    values = _edges()
    rounded = numpy_backend.astype(values, dtype).view(np.uint16)
    with np.errstate(invalid="ignore"):
        widened = numpy_backend.astype(rounded.view(numpy_backend.native_dtype(dtype)), "float32")
    to, wide = np.zeros(len(values), np.uint16), np.zeros(len(values), np.float32)
    program = hostgpu.compile(text + CONVERT, {"STORAGE": str(NUMBERS[dtype])})
    for first in range(0, len(values), 1 << 16):
        part = slice(first, first + (1 << 16))
        out, back = to[part].copy(), wide[part].copy()
        program.launch("convert", (-(-len(out) // 256),), (256,), [values[part].copy(), out, rounded[part].copy(), back, np.int32(len(out))])
        to[part], wide[part] = out, back
    nan = np.isnan(values)
    np.testing.assert_array_equal(to[~nan], rounded[~nan])
    assert np.isnan(numpy_backend.astype(to.view(numpy_backend.native_dtype(dtype)), "float32")[nan]).all()
    np.testing.assert_array_equal(wide[~nan].view(np.uint32), widened[~nan].view(np.uint32))


def _stored(be, case, dtype):
    """The natives of a case, of which the first is stored in 16 bits; 2 bytes behind an aligned address if misaligned."""
    x = case.inputs[0]
    if case.misaligned:
        first = be.reshape(be.asarray(np.concatenate((np.zeros(1, np.float32), x.reshape(-1))), dtype)[1:], x.shape)
    else:
        first = be.asarray(x, dtype)
    return [first, *(None if a is None else be.asarray(a) for a in case.inputs[1:])]


@pytest.mark.parametrize(("case", "dtype"), list(_pairs()))
def test_layer_norm_takes_values_as_they_are_stored(case, dtype, gpu):
    """Within a unit in the last place of what the kernel for float32 gives on the same values."""
    natives = _stored(gpu, case, dtype)
    rule = ops.layer_norm.select(gpu, natives, case.attrs)
    assert rule.name == "cuda row"
    wide = [gpu.astype(natives[0], "float32"), *natives[1:]]
    plain = ops.layer_norm.select(gpu, wide, case.attrs)
    (y, saved), (expected, kept) = rule.forward(gpu, *natives, **case.attrs), plain.forward(gpu, *wide, **case.attrs)
    gout = gpu.asarray(np.random.default_rng(1).standard_normal(y.shape).astype(np.float32), dtype)
    needs = tuple(a is not None for a in natives)
    mine = rule.vjp(gpu, saved, gout, needs)
    own = plain.vjp(gpu, kept, gpu.astype(gout, "float32"), needs)
    for result, reference in ((y, expected), (mine[0], own[0])):
        assert gpu.dtype(result) == dtype
        a, b = gpu.to_numpy(result).astype(np.float64), gpu.to_numpy(reference).astype(np.float64)
        unit = 2.0 ** -7 if dtype == "bfloat16" else 2.0 ** -10
        assert (np.abs(a - b) <= np.maximum(np.abs(b) * unit, 1e-6 * np.abs(b).max())).all()
    for result, reference in zip(mine[1:], own[1:], strict=True):
        if reference is not None:
            assert gpu.dtype(result) == "float32"
            a, b = gpu.to_numpy(result), gpu.to_numpy(reference)
            np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5 * np.abs(b).max())


OTHERS = [case for case in rule_cases() if case.op in ("softmax_cross_entropy", "take")]
KIT = ["softmax_cross_entropy 5 x 10", "softmax_cross_entropy 3 x 1025", "take 20 of 7 x 3", "take 200 of 3 x 5"]


@pytest.mark.parametrize("dtype", NUMBERS)
@pytest.mark.parametrize("case", [next(c for c in CASES if c.label == "3 x 33"), *(
    c if str(c) in KIT else pytest.param(c, marks=pytest.mark.long) for c in OTHERS)], ids=str)
def test_the_kit_for_rules(case, dtype, gpu):
    """Values and all gradients against the composed rule on the same values, and their dtypes."""
    op = getattr(ops, case.op)
    natives = [gpu.asarray(a, dtype) if k == 0 else gpu.asarray(a) for k, a in enumerate(case.inputs) if a is not None]
    rule = op.select(gpu, natives, case.attrs)
    assert rule.name.startswith("cuda") and "float32" not in rule.name
    check_rule(op, rule, case.inputs, gpu, case.attrs, case.length, dtype=dtype)


def test_every_width_of_an_access_has_a_plan():
    assert [plan(1024, vector, 2).vector for vector in (8, 4, 1)] == [8, 1, 1]
    assert [plan(100, vector, 2).vector for vector in (8, 4, 1)] == [4, 4, 1]
    assert [plan(1024, vector).vector for vector in (8, 4, 1)] == [4, 4, 1]
    assert plan(1024, 8, 2).macros["STORAGE"] == 2 and "STORAGE" not in plan(1024, 8).macros
    assert plan(20_000, 8, 1).macros == {"THREADS": 512, "STORAGE": 1}


def test_gains_in_16_bits_are_widened(gpu):
    rng = np.random.default_rng(0)
    x, gain = (gpu.asarray(rng.standard_normal(s).astype(np.float32), "bfloat16") for s in ((3, 40), (40,)))
    rule = ops.layer_norm.select(gpu, [x, gain, None], {"eps": 1e-5, "eps_place": "inside", "activation": None})
    assert rule.name == "cuda row"
    y, saved = rule.forward(gpu, x, gain, None, eps=1e-5, eps_place="inside", activation=None)
    dx, d_gain, _ = rule.vjp(gpu, saved, y, (True, True, False))
    assert [gpu.dtype(a) for a in (y, dx, d_gain)] == ["bfloat16"] * 3
    numpy = runtime.backend("numpy")
    plain = ops.layer_norm.rules("numpy")[-1].forward(numpy, gpu.to_numpy(x), gpu.to_numpy(gain), None, eps=1e-5, eps_place="inside", activation=None)[0]
    np.testing.assert_allclose(gpu.to_numpy(y), plain, rtol=8e-3, atol=1e-6)
