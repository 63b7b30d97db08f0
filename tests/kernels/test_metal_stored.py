"""The gradients of the norms in Metal on values of 16 bits, run on the CPU from its own text: that of float32, rounded once."""

import sys

import numpy as np
import pytest
from broken_text import break_metal
from conftest import get_backend
from device_rules import beside_float32, cases, in_16_bits, stored

from duoln import ops
from duoln.testing import check_rule

mx = pytest.importorskip("mlx.core", reason="MLX is not for this platform")
if sys.platform != "linux":
    pytest.skip("kernels run on the CPU under Linux only", allow_module_level=True)

import stand_in_metal

from duoln.kernels.norm.cases import NORMS
from duoln.kernels.norm.metal import MOST_COLUMNS

DTYPES = ("bfloat16", "float16")
CASES = [c for c in cases("metal") if c.op in NORMS and c.sizes[-1] <= MOST_COLUMNS and not c.misaligned]
ORDINARY = (*(f"layer_norm {name}" for name in ("bfloat16 3 x 33", "float16 3 x 33", "bfloat16 4 x 500, tanh", "float16 70 x 129",
                                                "bfloat16 2 x 2 x 7, alone", "bfloat16 3 x 2048")),
            "rms_norm bfloat16 70 x 33", "rms_norm float16 3 x 500", "add_layer_norm bfloat16 70 x 33", "add_layer_norm float16 3 x 2048",
            "add_rms_norm float16 70 x 33", "add_rms_norm bfloat16 3 x 500")


@pytest.fixture
def mlx(monkeypatch):
    """The MLX backend with hostgpu in the place of Metal."""
    stand_in_metal.install(monkeypatch)
    return get_backend("mlx")


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
@pytest.mark.parametrize(("case", "dtype"), list(in_16_bits(CASES, ORDINARY)))
def test_the_bits_of_float32_rounded_once(case, dtype, mlx, numpy_backend):
    assert _differences(case, dtype, mlx, numpy_backend) == []


@pytest.mark.long
@pytest.mark.parametrize("op", NORMS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_the_kit_for_rules(dtype, op, mlx):
    case = next(c for c in CASES if c.op == op and c.label == "3 x 33")
    rule = getattr(ops, op).select(mlx, _natives(mlx, case, dtype), case.attrs)
    check_rule(getattr(ops, op), rule, case.inputs, mlx, case.attrs, case.length, dtype=dtype)


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
    case = next(c for c in CASES if c.op == "add_layer_norm" and c.label == "70 x 129")
    in_text = break_metal(monkeypatch, old, new)
    assert _differences(case, "bfloat16", mlx, numpy_backend) != []
    assert any(in_text), "the text to break is not there any more"
