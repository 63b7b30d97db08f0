"""Every CUDA kernel, run on the CPU from its own text: against float64, to the bit on every run, and broken on purpose."""


import numpy as np
import pytest
import stand_in_cupy
from broken_text import break_text
from conftest import GPU, STAND_IN
from device_rules import cases

from duoln.kernels.recurrent.cases import LONG_SIZES, recurrent
from duoln.testing import selftest

CASES = cases("cuda")


def test_there_are_many_cases():
    assert len(CASES) >= 300


@pytest.mark.few
@pytest.mark.parametrize("case", CASES, ids=str)
def test_kernel(case, gpu):
    outcome = selftest.prove(case, gpu)
    assert outcome.rule.startswith("cuda")
    assert outcome.repeats, "two runs differ"
    assert outcome.error <= 1, f"{outcome.worst}: {outcome.error:.3g} of what is allowed"


@pytest.mark.minutes
@pytest.mark.parametrize("sizes", LONG_SIZES, ids=str)
@pytest.mark.parametrize(("cell", "norm"), [("lstm", "layer"), ("gru", "layer"), ("rnn", "layer")])
def test_wide_cells(cell, norm, sizes, gpu):
    outcome = selftest.prove(recurrent(cell, norm, sizes, masked=False, reverse=False), gpu)
    assert outcome.rule == "cuda steps" and outcome.passed


# Broken kernels: the case must fail ---------------------------------------------------------------------

def _case(*words):
    return next(p for p in CASES if all(f" {w}" in f" {p}" for w in words))


BROKEN = [
    ("no barrier before the sums are read", _case("layer_norm 3 x 2048"), "value[n];\n    __syncthreads();", "value[n];"),
    ("no barrier before the sums are overwritten", _case("layer_norm 3 x 2048"),
     "    __syncthreads();  // other threads may still read the last sums\n", ""),
    ("no bounds check in a load", _case("layer_norm 3 x 1000"),
     "column(c, 0) < width ? *reinterpret_cast<const float4*>(from + column(c, 0))\n", "true ? *reinterpret_cast<const float4*>(from + column(c, 0))\n"),
    ("no bounds check in a store", _case("layer_norm 3 x 1025"), "if (column(c, k) < width) to[column(c, k)]", "to[column(c, k)]"),
    ("the last chunk is skipped", _case("layer_norm 3 x 500"), "for (int c = 0; c < CHUNKS; ++c)", "for (int c = 0; c < CHUNKS - 1; ++c)"),
    ("rows behind the last one are written", _case("layer_norm 3 x 32"), "    if (!inside) return;\n#pragma unroll", "#pragma unroll"),
    ("the activation has no slope", _case("layer_norm 4 x 500, tanh"), "return gradient * (real{} + 1 - tanh_y * tanh_y);", "return gradient;"),
    ("the mean is taken out of an RMS norm", _case("rms_norm 3 x 1000"), "CENTRED && pass < 2; ++pass) {", "pass < 2; ++pass) {"),
    ("the mean is taken out of a wide RMS norm", _case("rms_norm 3 x 8193"), "const float mean = CENTRED ? sum_of_row", "const float mean = true ? sum_of_row"),
    ("an RMS norm keeps one number and reads the third", _case("rms_norm 70 x 33"), "rstd = stat[STATS - 1];", "rstd = stat[2];"),
    ("the sum is written before it is one", _case("add_rms_norm 3 x 500"), "r.add(residual + start, inside ? width : 0);\n        if (inside) r.store(total + start, width);",
     "if (inside) r.store(total + start, width);\n        r.add(residual + start, inside ? width : 0);"),
    ("sums behind the last row are written", _case("add_layer_norm 70 x 33"), "if (inside) r.store(total", "r.store(total"),
    ("the residual's bounds are not those of x", _case("add_layer_norm 3 x 500"), "r.add(residual + start, inside ? width : 0);", "r.add(residual + start, CHUNKS * 4 * THREADS);"),
    ("the sum's own gradient is lost", _case("add_layer_norm 3 x 500"), "if (RESIDUAL && d_total) d.add(d_total + start, width);", ""),
    ("a wide sum's own gradient is lost", _case("add_rms_norm 3 x 8193"), "stored(RESIDUAL && d_total ? through + loaded(d_total[place]) : through)", "stored(through)"),
    ("the sum's own gradient goes through the norm", _case("add_rms_norm 3 x 500"), "        d.load(dy + start, inside ? width : 0);",
     "        d.load(dy + start, inside ? width : 0);\n        if (d_total) d.add(d_total + start, inside ? width : 0);"),
    ("no barrier between the sums of two norms", _case("lstm layer T2 B2 in3 H130"), "value[n];\n    __syncthreads();", "value[n];"),
    ("the LSTM's units behind the last one are stored", _case("lstm layer T2 B3 in2 H33"), "if (unit(u) < hidden) f(gate, u);", "f(gate, u);"),
    ("the GRU's new gate shares the norm of the two before it", _case("gru layer T3 B5"), "return gate == 2; }", "return 0; }"),
    ("masked rows go on", _case("rnn layer T3 B5", "masked"), "masked ? h[row * hidden + unit(u)] : h_new", "h_new"),
    ("a warp's largest logit is not shared", _case("softmax_cross_entropy 3 x 1025"), "shared[threadIdx.x / WARP] = value;\n    __syncthreads();", "shared[threadIdx.x / WARP] = value;"),
    ("the tail of Adam's last chunk", _case("adam_update (4095,)"), "min(CHUNK, tensors.sizes[tensor] - first)", "min(CHUNK, (tensors.sizes[tensor] - first) / 4 * 4)"),
    ("words that were taken twice count once", _case("take 20 of 7"), "for (int k = first; k < taken && sorted[k] == row; ++k)", "for (int k = first; k < min(first + 1, taken) && sorted[k] == row; ++k)"),
    ("the columns' warps do not wait", _case("layer_norm 70 x 129"), "= sum;\n    __syncthreads();", "= sum;")]


@pytest.mark.long
@pytest.mark.skipif(GPU != STAND_IN, reason="a broken kernel could take a real device with it")
@pytest.mark.parametrize(("what", "case", "old", "new"), BROKEN, ids=[b[0] for b in BROKEN])
def test_a_broken_kernel_fails_its_proof(what, case, old, new, gpu, monkeypatch):
    """A mutation of the text, at a few seeds of the scheduler: a case that the broken kernel passes tests nothing."""
    in_text = break_text(monkeypatch, old, new)
    outcomes = list(selftest.run(gpu, [case] * 4))
    assert any(in_text), "the text to break is not there any more"
    assert not all(o.passed for o in outcomes)


@pytest.mark.skipif(GPU != STAND_IN, reason="only the stand-in keeps a list of launches")
def test_the_text_that_ran_was_ours(gpu):
    before = len(stand_in_cupy.launches)
    selftest.prove(_case("lstm layer T3 B5"), gpu, repeats=1)
    ran = set(stand_in_cupy.launches[before:])
    assert ran == {"lstm_forward", "lstm_backward", "layer_norm_backward", "sum_columns"}


def test_layer_norm_of_a_strided_view(gpu, rng):
    from duoln import ops
    from duoln.core import Tensor

    x = rng.standard_normal((6, 40)).astype(np.float32)
    view = Tensor(gpu.asarray(x)[::2, 4:31], gpu)
    wide = x[::2, 4:31].astype(np.float64)
    expected = (wide - wide.mean(-1, keepdims=True)) / np.sqrt(wide.var(-1, keepdims=True) + 1e-5)
    np.testing.assert_allclose(ops.layer_norm(view).numpy(), expected, atol=1e-5)


@pytest.mark.few
@pytest.mark.parametrize("op", ["add_layer_norm", "add_rms_norm"])
@pytest.mark.parametrize("used", [("y",), ("total",), ("y", "total")], ids="+".join)
@pytest.mark.parametrize("width", [33, 8200])
def test_what_nothing_used_of_a_sum_and_its_norm_has_no_gradient(op, used, width, gpu, numpy_backend, rng):
    from duoln import ops
    from duoln.core import Tensor, value_and_grad

    x, residual, gain = (rng.standard_normal(shape).astype(np.float32) for shape in ((3, width), (3, width), (width,)))

    def gradients(be, dtype):
        def loss(p):
            y, total = getattr(ops, op)(p["x"], p["residual"], p["gain"])
            values = [ops.sum(v * v * v) for name, v in (("y", y), ("total", total)) if name in used]
            return sum(values[1:], values[0])

        made = value_and_grad(loss)({name: Tensor(be.asarray(a.astype(dtype)), be) for name, a in
                                     {"x": x, "residual": residual, "gain": gain}.items()})[1]
        return {name: g.numpy() for name, g in made.items()}

    ours, exact = gradients(gpu, np.float32), gradients(numpy_backend, np.float64)
    for name, wide in exact.items():
        np.testing.assert_allclose(ours[name], wide, rtol=1e-4, atol=2e-5 * max(np.abs(wide).max(), 1e-9), err_msg=name)
    np.testing.assert_array_equal(ours["x"], ours["residual"])


@pytest.mark.skipif(GPU != STAND_IN, reason="only the stand-in keeps a list of launches")
@pytest.mark.parametrize("op", ["add_layer_norm", "add_rms_norm"])
def test_a_sum_and_its_norm_are_one_launch_forward_and_two_back(op, gpu):
    before = len(stand_in_cupy.launches)
    selftest.prove(_case(f"{op} 70 x 33"), gpu, repeats=1)
    assert stand_in_cupy.launches[before:] == ["layer_norm_forward", "layer_norm_backward", "sum_columns"]
