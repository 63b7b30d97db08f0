"""The gradients of parameters that many calls of `lstm_cell` share, on CUDA: the cell's kernel runs once more for all of them."""

import numpy as np
import pytest
import stand_in_cupy
from conftest import GPU, STAND_IN

from duoln import ops, runtime
from duoln.core import value_and_grad
from duoln.ops.recurrent.variants import norm_shapes
from duoln.runtime import to_tensors
from duoln.testing.closeness import check_close, tolerance

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
