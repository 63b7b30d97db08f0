"""DRAW's CUDA rules, from their own text: values and every gradient against float64, sizes, layouts, and the compiler."""

import numpy as np
import pytest
from conftest import GPU, STAND_IN

from duoln import runtime
from duoln.kernels.case_table import RuleCase
from duoln.plugins.draw import ops
from duoln.plugins.draw.ops.cuda import filterbank_on_cuda, glimpse_on_cuda, latent_on_cuda
from duoln.testing import selftest
from duoln.testing.closeness import check_close, tolerance


def _floats(rng, *shapes):
    return [rng.standard_normal(shape).astype(np.float32) for shape in shapes]


def glimpse(batch, pixels, read, write, centre="edge", misaligned=False):
    rng = np.random.default_rng([batch, pixels, read, write])
    canvas, image, looked = _floats(rng, (batch, pixels, pixels), (batch, pixels, pixels), (batch, 10 + write * write))
    looked *= np.float32(0.5)
    if batch > 1:
        looked[0, :10] = 30 * np.sign(looked[0, :10])  # beyond the range to which the numbers of a grid are clamped
    attrs = {"read": read, "write": write, "centre": centre}
    return RuleCase("write_then_read", f"B{batch} P{pixels} read {read} write {write} {centre}", (canvas, image, looked), attrs,
                    pixels ** 2, misaligned)


def bank(batch, size, pixels, centre="edge", inverse=False):
    [where] = _floats(np.random.default_rng([batch, size, pixels]), (batch, 5))
    if batch > 1:
        where[0] = 30 * np.sign(where[0])
    return RuleCase("filterbank", f"B{batch} {size} of {pixels}, {centre}{', inverse' if inverse else ''}", (where,),
                    {"size": size, "pixels": pixels, "centre": centre, "inverse": inverse}, pixels ** 2)


def latent(batch, size, misaligned=False):
    statistics, noise = _floats(np.random.default_rng([batch, size]), (batch, 2 * size), (batch, size))
    return RuleCase("gaussian_latent", f"B{batch} of {size}", (statistics, noise), {}, 2 * size, misaligned)


CASES = [glimpse(1, 28, 2, 5), glimpse(3, 28, 5, 2, "draw"), glimpse(2, 5, 3, 4), glimpse(1, 1, 2, 2), glimpse(2, 33, 2, 3, "draw"),
         glimpse(2, 16, 2, 3, misaligned=True), glimpse(1, 64, 4, 3), bank(1, 2, 28), bank(3, 5, 7, "draw", True),
         bank(2, 3, 1), bank(2, 12, 65, inverse=True), latent(1, 1), latent(3, 4), latent(4, 32), latent(5, 33, misaligned=True),
         latent(9, 100)]
RULES = {"write_then_read": glimpse_on_cuda, "filterbank": filterbank_on_cuda, "gaussian_latent": latent_on_cuda}


def run(case, gpu, needs=None, used=None, seed=0):
    """Values and gradients of the CUDA rule, and of the composed one in float64."""
    op, exact = getattr(ops, case.op), runtime.backend("numpy")
    made = []
    for backend, rule, inputs in ((gpu, RULES[case.op], [selftest._native(gpu, a, case.misaligned) for a in case.inputs]),
                                  (exact, op.rules("numpy")[-1], [a.astype(np.float64) for a in case.inputs])):
        assert rule.supports is None or rule.supports(backend, *inputs, **case.attrs) is None
        outs, saved = rule.forward(backend, *inputs, **case.attrs)
        rng = np.random.default_rng(1)
        gouts = [backend.asarray(rng.standard_normal(o.shape), backend.dtype(o)) for o in outs]
        gouts = tuple(g if use else None for g, use in zip(gouts, used or (True, True), strict=True))
        gradients = rule.vjp(backend, saved, gouts, needs or (True,) * len(inputs))
        made.append([backend.to_numpy(a) if a is not None else None for a in (*outs, *gradients)])
    return made


def compare(case, ours, exact):
    limit = tolerance("float32", case.length)
    for k, (mine, wide) in enumerate(zip(ours, exact, strict=True)):
        if mine is None:
            assert wide is None or not wide.any(), k
        else:
            expected = np.zeros(mine.shape) if wide is None else wide
            check_close(mine, expected, limit if k < 2 else 4 * limit, f"{case}: {k}")


@pytest.mark.parametrize("case", CASES, ids=str)
def test_values_and_gradients(case, gpu):
    compare(case, *run(case, gpu))
