"""The gradient of layer norm in Metal on values of 16 bits, run on the CPU from its own text: that of float32, rounded once."""

import sys

import numpy as np
import pytest
from conftest import get_backend
from every_case import every_case

from duoln import ops
from duoln.testing import check_rule

mx = pytest.importorskip("mlx.core", reason="MLX is not for this platform")
if sys.platform != "linux":
    pytest.skip("kernels run on the CPU under Linux only", allow_module_level=True)

import stand_in_metal

from duoln.kernels import metal, source
from duoln.kernels.layer_norm.metal import MOST_COLUMNS

DTYPES = ("bfloat16", "float16")
CASES = [c for c in every_case() if c.op == "layer_norm" and c.inputs[0].shape[-1] <= MOST_COLUMNS and not c.misaligned]
ORDINARY = ("bfloat16 3 x 33", "float16 3 x 33", "bfloat16 4 x 500, tanh", "float16 70 x 129", "bfloat16 2 x 2 x 7, alone", "bfloat16 3 x 2048")


@pytest.fixture
def mlx(monkeypatch):
    """The MLX backend with hostgpu in the place of Metal."""
    stand_in_metal.install(monkeypatch)
    return get_backend("mlx")


def _pairs():
    for case in CASES:
        for dtype in DTYPES:
            name = f"{dtype} {case.label}"
            yield pytest.param(case, dtype, id=name, marks=[] if name in ORDINARY else pytest.mark.long)


def _natives(be, case, dtype):
    return [be.asarray(case.inputs[0], dtype), *(None if a is None else be.asarray(a) for a in case.inputs[1:])]


def _differences(case, dtype, be, numpy):
    """Names of the results whose bits are not those of float32, rounded as NumPy's backend rounds."""
    natives = _natives(be, case, dtype)
    rule = ops.layer_norm.select(be, natives, case.attrs)
    assert rule.name == "metal gradient"
    wide = [be.astype(natives[0], "float32"), *natives[1:]]
    plain = ops.layer_norm.select(be, wide, case.attrs)
    (y, saved), (expected, kept) = rule.forward(be, *natives, **case.attrs), plain.forward(be, *wide, **case.attrs)
    gout = be.asarray(np.random.default_rng(1).standard_normal(y.shape).astype(np.float32), dtype)
    needs = tuple(a is not None for a in natives)
    before = len(stand_in_metal.launches)
    mine, own = rule.vjp(be, saved, gout, needs), plain.vjp(be, kept, be.astype(gout, "float32"), needs)
    assert [("storage" in name) for name in stand_in_metal.launches[before:]] == [True, False]
    assert [be.dtype(a) for a in (y, *mine) if a is not None] == [dtype, dtype, *["float32"] * (sum(needs) - 1)]
    rounded = [(numpy.to_numpy(numpy.asarray(be.to_numpy(a), dtype)), be.to_numpy(b)) for a, b in ((expected, y), (own[0], mine[0]))]
    pairs = [*rounded, *((be.to_numpy(a), be.to_numpy(b)) for a, b in zip(own[1:], mine[1:], strict=True) if a is not None)]
    return [name for name, (a, b) in zip(("y", "dx", "d_gain", "d_bias"), pairs, strict=False) if not np.array_equal(a, b)]


@pytest.mark.parametrize(("case", "dtype"), list(_pairs()))
def test_the_bits_of_float32_rounded_once(case, dtype, mlx, numpy_backend):
    assert _differences(case, dtype, mlx, numpy_backend) == []


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_kit_for_rules(dtype, mlx):
    case = next(c for c in CASES if c.label == "3 x 33")
    rule = ops.layer_norm.select(mlx, _natives(mlx, case, dtype), case.attrs)
    check_rule(ops.layer_norm, rule, case.inputs, mlx, case.attrs, case.length, dtype=dtype)


@pytest.mark.parametrize(("what", "old", "new"), [
    ("a gradient is rounded before the norm", "through_norm(d[u], xhat[u]", "through_norm(float(storage_t(d[u])), xhat[u]"),
    ("what is centred is rounded", "xhat[u] -= sum[0] / width;", "xhat[u] = float(storage_t(xhat[u] - sum[0] / width));"),
    ("the sums are stored", "gain_sums[u] += d[u] * xhat[u];", "gain_sums[u] = float(storage_t(gain_sums[u] + d[u] * xhat[u]));")])
def test_a_broken_kernel_is_noticed(what, old, new, mlx, numpy_backend, monkeypatch):
    case, in_text = next(c for c in CASES if c.label == "70 x 129"), []

    def broken(file):
        header, body = source.metal(file)
        in_text.append(old in body)
        return header, body.replace(old, new) if len(in_text) == 1 else body  # the text for 16 bits, which comes first

    class Source:
        metal = staticmethod(broken)

    monkeypatch.setattr(metal, "source", Source)
    assert _differences(case, "bfloat16", mlx, numpy_backend) != []
    assert any(in_text), "the text to break is not there any more"
