"""Every CUDA kernel, run on the CPU from its own text: against float64, to the bit on every run, and broken on purpose; gradients that calls
share, those of `take`, and trainings over the stand-in.
"""



import numpy as np
import pytest
import stand_in_capture
import stand_in_cupy
from broken_text import break_text
from conftest import GPU, STAND_IN
from device_rules import cases, recurrent_losses
from zeros import values

import duoln
from duoln import backends, ops, runtime, value_and_grad
from duoln.core import Tensor
from duoln.kernels.recurrent.cases import LONG_SIZES, recurrent
from duoln.kernels.recurrent.plan import MOST_KEPT
from duoln.ops.recurrent.variants import norm_shapes
from duoln.runtime import to_tensors
from duoln.testing import check_rule, selftest
from duoln.testing.closeness import check_close, tolerance

CASES = cases("cuda")


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


SEEDS, MOST_VALUES = 200, {"adam_update": 100_000, "global_norm": 30_000, "linear": 70_000}
"""A launch's seed is its number. The values of a case that runs so often: of other operators 2,500."""
OFTEN = [c for c, size in zip(CASES, values(CASES), strict=True) if size <= MOST_VALUES.get(c.op, 2500)
         or (c.op in ("lstm", "gru") and c.sizes[-1] > MOST_KEPT)]


@pytest.mark.minutes
@pytest.mark.parametrize("case", OFTEN, ids=str)
def test_under_many_seeds(case, gpu):
    assert selftest.prove(case, gpu, repeats=SEEDS).passed


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
    ("the columns' warps do not wait", _case("layer_norm 70 x 129"), "= sum;\n    __syncthreads();", "= sum;"),
    ("columns that belong to two blocks", _case("layer_norm 70 x 129"), "blockIdx.x * COLUMNS", "blockIdx.x * (COLUMNS / 2)"),
    ("more than 48 KB of shared memory", _case("layer_norm 70 x 129"), "shared[WARPS][COLUMNS]", "shared[100 * WARPS][COLUMNS]"),
    ("all blocks write one partial row", _case("layer_norm 70 x 129"), "(size_t(blockIdx.x) * blockDim.y + threadIdx.y) * width", "size_t(threadIdx.y) * width"),
    ("four values at once in rows that four does not divide", _case("layer_norm 3 x 33"), "// Layer norm or RMS norm", "#undef VECTOR\n#define VECTOR 4\n//"),
    ("a load before the first row", _case("layer_norm 3 x 33"), "? from[column(c, k)] : 0", "? from[column(c, k) - 1] : 0"),
    ("the sum's own gradient is that of the next row", _case("add_layer_norm 3 x 500"), "d.add(d_total + start, width)", "d.add(d_total + start + width, width)"),
    ("the search goes behind the last index", _case("take 20 of 7"), "k < taken && sorted", "sorted"),
    ("half of the lanes shuffle", _case("layer_norm 3 x 33"), "EVERY_LANE = 0xffffffffu", "EVERY_LANE = 0x0000ffffu"),
    ("all lanes but the last shuffle", _case("layer_norm 3 x 1000"), "EVERY_LANE = 0xffffffffu", "EVERY_LANE = 0x7fffffffu"),
    ("sums of four warps in one place", _case("layer_norm 3 x 1000"), "__shared__ float shared[WARP];", "__shared__ float shared[1];"),
    ("a block has half of its threads", _case("layer_norm 3 x 1000"), "__launch_bounds__(BLOCK, 1)", "__launch_bounds__(BLOCK / 2, 1)")]


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


@pytest.mark.few
@pytest.mark.parametrize("op", ["add_layer_norm", "add_rms_norm"])
@pytest.mark.parametrize("used", [("y",), ("total",), ("y", "total")], ids="+".join)
@pytest.mark.parametrize("width", [33, 8200])
def test_what_nothing_used_of_a_sum_and_its_norm_has_no_gradient(op, used, width, gpu, numpy_backend, rng):
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


TIME_STEPS, ROWS, HIDDEN = 4, 3, 9


def _gradients(norm, backend, dtype, used=("h", "c")):
    """Gradients of everything that four calls of a cell take; the cell's state goes from call to call."""
    rng, shapes = np.random.default_rng(3), norm_shapes("lstm", norm, HIDDEN)
    x_proj, h_proj, c, *shared = (rng.standard_normal(shape).astype(np.float32).astype(dtype) for shape in (
        (ROWS, 4 * HIDDEN), (ROWS, 4 * HIDDEN), (ROWS, HIDDEN), (4 * HIDDEN,), *shapes.values()))

    def norms(p):
        return dict(zip(shapes, p["shared"][1:], strict=True)) or None

    def total(p):
        cell, sums = p["c"], []
        for t in range(TIME_STEPS):
            h, cell = ops.lstm_cell(p["x"] * (0.5 + t), p["h"], cell, p["shared"][0], norms(p), norm=norm)
            sums += [ops.sum(h * h)] if "h" in used else []
        return sum(sums, ops.sum(cell * 0.3) if "c" in used else ops.sum(h))

    params = to_tensors({"x": x_proj, "h": h_proj, "c": c, "shared": shared}, backend)
    return value_and_grad(total)(params)[1]


@pytest.mark.few
@pytest.mark.parametrize("at_once", [1, 2, 3, 100], ids=lambda n: f"{n} at once")
@pytest.mark.parametrize("norm", ["none", "layer", "layer-cell", "layer-theano"])
def test_many_time_steps_in_one_launch(norm, at_once, gpu, monkeypatch):
    from duoln.kernels.recurrent import cupy as rules

    monkeypatch.setattr(rules, "_POOLED_VALUES", at_once * ROWS * 4 * HIDDEN)
    ours, exact = _gradients(norm, gpu, np.float32), _gradients(norm, runtime.backend("numpy"), np.float64)
    for mine, wide in zip([*ours["shared"], *(ours[k] for k in "xhc")], [*exact["shared"], *(exact[k] for k in "xhc")], strict=True):
        check_close(mine.numpy(), wide.numpy(), 8 * tolerance("float32", 4 * HIDDEN * TIME_STEPS), norm)


@pytest.mark.parametrize("used", [("h",), ("c",)])
def test_states_that_nothing_used_have_no_gradient(used, gpu):
    ours, exact = (_gradients("layer-cell", be, dtype, used) for be, dtype in ((gpu, np.float32), (runtime.backend("numpy"), np.float64)))
    for mine, wide in zip(ours["shared"], exact["shared"], strict=True):
        check_close(mine.numpy(), wide.numpy(), 8 * tolerance("float32", 4 * HIDDEN * TIME_STEPS), str(used))


@pytest.mark.skipif(GPU != STAND_IN, reason="only the stand-in keeps a list of launches")
def test_the_sums_of_all_time_steps_are_taken_at_once(gpu):
    _gradients("layer-cell", gpu, np.float32)
    before = len(stand_in_cupy.launches)
    _gradients("layer-cell", gpu, np.float32)
    ran = stand_in_cupy.launches[before:]
    # The cell's kernel once for each time step and once for each of the three parameters, not for each of their uses.
    assert ran.count("lstm_backward") == TIME_STEPS + 3
    assert ran.count("layer_norm_backward") == 3


def test_a_bias_that_two_cells_share_whose_norms_differ(gpu):
    rng = np.random.default_rng(4)
    params = {"bias": rng.standard_normal(4 * HIDDEN), **{name: rng.standard_normal(HIDDEN) for name in ("a", "b", "offset")}}
    x, c = (rng.standard_normal((ROWS, n)).astype(np.float32) for n in (4 * HIDDEN, HIDDEN))

    def gradients(backend, dtype):
        given = to_tensors({"x": x.astype(dtype), "c": c.astype(dtype)}, backend)

        def total(p):
            sums = []
            for name, norm in (("a", "layer-cell"), ("b", "layer-cell"), ("", "none"), ("b", "layer-cell")):
                norms = {"gain_c": p[name], "bias_c": p["offset"]} if name else None
                h, _ = ops.lstm_cell(given["x"], given["x"], given["c"], p["bias"], norms, norm=norm)
                sums.append(ops.sum(h * h))
            return sum(sums[1:], sums[0])

        return value_and_grad(total)(to_tensors({k: a.astype(dtype) for k, a in params.items()}, backend))[1]

    ours, exact = gradients(gpu, np.float32), gradients(runtime.backend("numpy"), np.float64)
    for name, wide in exact.items():
        check_close(ours[name].numpy(), wide.numpy(), 8 * tolerance("float32", 4 * HIDDEN * TIME_STEPS), name)


TAKEN = [((6,), 0, (9,)), ((3, 7), 1, (4,)), ((3, 7, 5), 1, (2, 3)), ((2, 3, 4), 2, (1,)), ((1, 5, 2), 1, (8,)), ((4, 1, 3), 1, (2, 2)),
          ((2, 2, 3, 5), 2, (40,)), ((7, 300), 0, (12,)), ((300, 7), 1, (12,))]


def _arrays(shape, axis, taken, rng):
    return rng.standard_normal(shape).astype(np.float32), rng.integers(-shape[axis], shape[axis], taken).astype(np.int32)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(("shape", "axis", "taken"), TAKEN, ids=str)
def test_every_axis(shape, axis, taken, dtype, gpu, rng):
    x, indices = _arrays(shape, axis, taken, rng)
    natives = [gpu.asarray(x, dtype), gpu.asarray(indices)]
    rule = ops.take.select(gpu, natives, {"axis": axis})
    assert rule.name == "cuda sorted rows"
    check_rule(ops.take, rule, (x, indices), gpu, {"axis": axis}, int(np.prod(taken)), dtype=dtype)


@pytest.mark.skipif(GPU != STAND_IN, reason="the stand-in counts the launches of graphs")
def test_one_graph_repeats_it(gpu, rng):
    """No axis needs a count on the host."""
    indices = duoln.tensor(np.array([3, -1, 0, 3], np.int32), gpu)

    def step(x, place):
        return value_and_grad(lambda p: ops.sum(ops.square(ops.take(p, place, axis=1))))(x)

    compiled, before = duoln.compile(step), len(stand_in_capture.graphs)
    for _ in range(5):
        x = duoln.tensor(rng.standard_normal((3, 4, 2)).astype(np.float32), gpu)
        mine, plain = compiled(x, indices), step(x, indices)
        assert mine[0].item() == plain[0].item()
        np.testing.assert_array_equal(mine[1].numpy(), plain[1].numpy())
    assert len(stand_in_capture.graphs) > before


@pytest.fixture
def cupy(gpu, monkeypatch):
    """CuPy or its stand-in, under the name that a user gives."""
    monkeypatch.setitem(backends._loaded, "cupy", gpu)
    return gpu


@pytest.mark.parametrize("cell", ["RNN", "LSTM", "GRU"])
def test_a_recurrent_layer_trains_as_on_numpy(cell, cupy):
    ours, right = recurrent_losses(cell, "layer", cupy)
    np.testing.assert_allclose(ours, right, rtol=1e-4)
    assert ours[-1] < ours[0]
