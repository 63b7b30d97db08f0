"""CUDA rules on values of 16 bits, run on the CPU from their own text: float32 arithmetic on them, rounded once."""

import sys

import numpy as np
import pytest
from broken_text import break_text
from conftest import GPU, STAND_IN
from device_rules import beside_float32, cases, in_16_bits, stored

from duoln import ops, runtime
from duoln.kernels import source
from duoln.kernels.norm.cases import NORMS
from duoln.kernels.norm.plan import plan
from duoln.testing import hostgpu

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


EVERY = cases("cuda")
CASES = [case for case in EVERY if case.op in NORMS]
_LAYER = ("bfloat16 3 x 33", "float16 3 x 33", "float16 4 x 100, tanh", "bfloat16 70 x 512", "bfloat16 5 x 513, mean 10, no bias, misaligned",
            "bfloat16 3 x 8193", "bfloat16 2 x 2 x 7, alone")
ORDINARY = (*(f"layer_norm {name}" for name in _LAYER), "rms_norm float16 70 x 33", "rms_norm bfloat16 3 x 1000", "rms_norm bfloat16 3 x 8193",
            "add_layer_norm bfloat16 70 x 33", "add_layer_norm float16 3 x 1000", "add_layer_norm bfloat16 2 x 2 x 500, mean 10, alone, misaligned",
            "add_layer_norm bfloat16 3 x 8193", "add_rms_norm bfloat16 3 x 512", "add_rms_norm float16 2 x 2 x 128, mean 10, alone, misaligned", "add_rms_norm float16 3 x 8193")
"""Each compiles its kernel, which takes a second or more."""


def _edges():
    """Float32 values around every tie of both dtypes, the largest and the smallest values, infinities and NaN."""
    bits = np.arange(1 << 16, dtype=np.uint32) << 16
    ties = [(bits + low).view(np.float32) for low in (0, 1, 0x7FFF, 0x8000, 0x8001, 0xFFFF)]
    with np.errstate(all="ignore"):
        halves = np.arange(1 << 16, dtype=np.uint16).view(np.float16).astype(np.float32)
        between = (halves[:-1] + halves[1:]) / 2
    whole = np.concatenate([*ties, halves, between, np.nextafter(between, np.float32(0)), np.nextafter(between, np.float32(np.inf))])
    return whole.astype(np.float32)


@pytest.mark.long
@pytest.mark.parametrize("dtype", NUMBERS)
def test_conversions(dtype, numpy_backend):
    """They give the bits of the NumPy backend, whose own are tested one by one."""
    text, values = (source.FOLDER / "text" / "cuda" / "storage.cuh").read_text(), _edges()
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
    """The natives of a case, of which the first are stored in 16 bits; 2 bytes behind an aligned address if misaligned."""
    def first(x):
        if not case.misaligned:
            return be.asarray(x, dtype)
        return be.reshape(be.asarray(np.concatenate((np.zeros(1, np.float32), x.reshape(-1))), dtype)[1:], x.shape)

    count = stored(case.op, "cupy")
    return [*map(first, case.inputs[:count]), *(None if a is None else be.asarray(a) for a in case.inputs[count:])]


def _near(be, result, reference, dtype):
    """Whether a result is within a unit in the last place of what float32 has."""
    assert be.dtype(result) == dtype
    a, b = be.to_numpy(result).astype(np.float64), be.to_numpy(reference).astype(np.float64)
    unit = 2.0 ** -7 if dtype == "bfloat16" else 2.0 ** -10
    return (np.abs(a - b) <= np.maximum(np.abs(b) * unit, 1e-6 * np.abs(b).max())).all()


@pytest.mark.few
@pytest.mark.parametrize(("case", "dtype"), list(in_16_bits(CASES, ORDINARY)))
def test_norms_take_values_as_they_are_stored(case, dtype, gpu):
    """Within a unit in the last place of what the kernel for float32 gives on the same values."""
    _check_stored(case, dtype, gpu)


def _check_stored(case, dtype, gpu):
    rule, results = beside_float32(case, _stored(gpu, case, dtype), dtype, gpu)
    assert rule.name == "cuda row"
    for mine, own, is_stored in results:
        if is_stored:
            assert _near(gpu, mine, own, dtype)
        else:
            assert gpu.dtype(mine) == "float32"
            a, b = gpu.to_numpy(mine), gpu.to_numpy(own)
            np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5 * np.abs(b).max())


@pytest.mark.long
@pytest.mark.skipif(GPU != STAND_IN, reason="a broken kernel could take a real device with it")
@pytest.mark.parametrize(("what", "label", "old", "new"), [
    ("what is normalised is rounded", "bfloat16 70 x 33", "        if (inside) r.store(total + start, width);",
     "        if (inside) r.store(total + start, width);\n        for (auto& four : r.v) for (auto& v : four) v = loaded(stored(v));"),
    ("the gradient is that of x alone", "float16 3 x 1000", "if (RESIDUAL && residual) xhat.add", "if (false) xhat.add"),
    ("the gradient of wide rows is that of x alone", "bfloat16 3 x 8193", "RESIDUAL && residual ? loaded(x[place]) + loaded(residual[place]) :", "")])
def test_a_sum_that_is_rounded_too_early_is_noticed(what, label, old, new, gpu, monkeypatch):
    dtype, _, size = label.partition(" ")
    case = next(c for c in CASES if str(c) == f"add_layer_norm {size}")
    in_text = break_text(monkeypatch, old, new)
    with pytest.raises(AssertionError):
        _check_stored(case, dtype, gpu)
    assert any(in_text), "the text to break is not there any more"


def test_every_width_of_an_access_has_a_plan():
    assert [plan(1024, vector, 2).vector for vector in (8, 4, 1)] == [8, 1, 1]
    assert [plan(100, vector, 2).vector for vector in (8, 4, 1)] == [4, 4, 1]
    assert [plan(1024, vector).vector for vector in (8, 4, 1)] == [4, 4, 1]
    assert plan(1024, 8, 2).macros["STORAGE"] == 2 and "STORAGE" not in plan(1024, 8).macros
    assert plan(20_000, 8, 1).macros == {"THREADS": 512, "STORAGE": 1}


def test_gains_in_16_bits_are_widened(gpu):
    rng = np.random.default_rng(0)
    x, gain = (gpu.asarray(rng.standard_normal(s).astype(np.float32), "bfloat16") for s in ((3, 40), (40,)))
    rule = ops.layer_norm.select(gpu, [x, gain, None], {"eps": 1e-5, "activation": None})
    assert rule.name == "cuda row"
    y, saved = rule.forward(gpu, x, gain, None, eps=1e-5, activation=None)
    dx, d_gain, _ = rule.vjp(gpu, saved, y, (True, True, False))
    assert [gpu.dtype(a) for a in (y, dx, d_gain)] == ["bfloat16"] * 3
    numpy = runtime.backend("numpy")
    plain = ops.layer_norm.rules("numpy")[-1].forward(numpy, gpu.to_numpy(x), gpu.to_numpy(gain), None, eps=1e-5, activation=None)[0]
    np.testing.assert_allclose(gpu.to_numpy(y), plain, rtol=8e-3, atol=1e-6)
