"""DRAW's CUDA rules, from their own text: values and every gradient against float64, sizes, layouts, seeds and barriers."""

import numpy as np
import pytest
from conftest import GPU, STAND_IN
from layout_table import Tally

from duoln import runtime
from duoln.errors import KernelError
from duoln.kernels import source
from duoln.plugins.draw import ops
from duoln.plugins.draw.ops.cases import glimpse, glimpses, latent, latents
from duoln.plugins.draw.ops.cuda import GLIMPSE, glimpse_on_cuda
from duoln.plugins.draw.ops.latent import latent_on_cuda
from duoln.tasks.registry import Registry
from duoln.testing import selftest
from duoln.testing.closeness import check_close, tolerance

CASES = [case for case in (*glimpses(), *latents()) if case.sizes[0] < 60]
RULES = {"write_then_read": glimpse_on_cuda, "gaussian_latent": latent_on_cuda}


def run(case, gpu, needs=None, used=None):
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


@pytest.mark.few
@pytest.mark.parametrize("case", CASES, ids=str)
def test_values_and_gradients(case, gpu):
    compare(case, *run(case, gpu))


SMALL = [glimpse(2, 5, 3, 2), latent(2, 3)]


@pytest.mark.parametrize("case", SMALL, ids=lambda case: case.op)
def test_every_set_of_needs_and_of_results_that_something_used(case, gpu):
    for used in ((True, False), (False, True), (True, True)):
        whole, _ = run(case, gpu, used=used)
        for chosen in range(len(case.inputs)):
            needs = tuple(k == chosen for k in range(len(case.inputs)))
            ours, exact = run(case, gpu, needs, used)
            compare(case, [*ours[:2], ours[2 + chosen]], [*exact[:2], exact[2 + chosen]])
            np.testing.assert_array_equal(ours[2 + chosen], whole[2 + chosen])
            assert all(a is None for k, a in enumerate(ours[2:]) if k != chosen)


@pytest.mark.parametrize("case", SMALL, ids=lambda case: case.op)
def test_every_seed_gives_the_same_bits(case, gpu):
    runs = [[a.tobytes() for a in run(case, gpu)[0]] for _ in range(5)]
    assert all(again == runs[0] for again in runs)


@pytest.mark.long
@pytest.mark.parametrize("case", SMALL, ids=lambda case: case.op)
def test_no_layout_changes_a_result(case, gpu):
    assert Registry(("draw",)).broken == []
    tally = Tally()
    tally.run([case], gpu, ops)
    assert tally.fused[case.op] == tally.cases[case.op] >= 20


def test_a_divergence_whose_gradient_is_one_number(gpu):
    case = latent(5, 3)
    inputs = [gpu.asarray(a) for a in case.inputs]
    _, saved = latent_on_cuda.forward(gpu, *inputs)
    one = gpu.asarray(np.array(0.3, np.float32))
    gradients = [latent_on_cuda.vjp(gpu, saved, (None, g), (True, True)) for g in
                 (gpu.broadcast_to(one, (5,)), gpu.full((5,), 0.3, "float32"))]
    for ours, plain in zip(*gradients, strict=True):
        np.testing.assert_array_equal(gpu.to_numpy(ours), gpu.to_numpy(plain))


def test_what_is_not_a_number_stays_in_its_image(gpu):
    for case in (glimpse(3, 9, 2, 2), latent(3, 5)):
        plain, _ = run(case, gpu)
        for place, given in enumerate(case.inputs):
            spoilt = given.copy()
            spoilt[1].reshape(-1)[1] = np.nan
            inputs = [spoilt if k == place else a for k, a in enumerate(case.inputs)]
            spoilt_results, _ = run(case._replace(make=lambda inputs=inputs: inputs), gpu)
            for mine, expected in zip(spoilt_results, plain, strict=True):
                np.testing.assert_array_equal(mine[[0, 2]], expected[[0, 2]])
            assert any(np.isnan(a[1]).any() for a in spoilt_results)


def test_what_the_kernels_leave_to_the_composed_rule(gpu):
    def reason(rule, *shapes, dtype="float32", **attrs):
        return rule.supports(gpu, *(gpu.zeros(shape, dtype) for shape in shapes), **attrs)

    sizes = {"read": 2, "write": 2}
    assert reason(glimpse_on_cuda, (0, 5, 5), (0, 5, 5), (0, 14), **sizes) == "there are no values"
    assert "more than 49152" in reason(glimpse_on_cuda, (1, 600, 600), (1, 600, 600), (1, 14), **sizes)
    assert reason(latent_on_cuda, (0, 4), (0, 2)) == "there are no values"
    assert reason(latent_on_cuda, (3, 0), (3, 0)) == "there are no values"


BARRIER = "__syncthreads();"
OF_COMMON = source.text("text/cuda/common.cuh").count(BARRIER)
BARRIERS = [pytest.param(k, marks=pytest.mark.minutes if k % 5 else ()) for k in range(source.text(GLIMPSE).count(BARRIER) - OF_COMMON)]


@pytest.mark.few
@pytest.mark.skipif(GPU != STAND_IN, reason="a broken kernel could take a real device with it")
@pytest.mark.parametrize("which", BARRIERS)
def test_no_barrier_can_be_left_out(which, gpu, monkeypatch):
    from duoln.kernels.launch import cuda as launch

    before, after = (source.text(GLIMPSE).split(BARRIER)[part] for part in (slice(None, OF_COMMON + which + 1), slice(OF_COMMON + which + 1, None)))
    broken = BARRIER.join(before) + BARRIER.join(after)
    monkeypatch.setattr(launch.Kernel, "compiled", lambda self, macros: launch.cupy.RawModule(code=broken).get_function(self.entry))
    for layouts in launch.Layouts.every:
        monkeypatch.setattr(layouts, "known", {})
    with pytest.raises(KernelError, match="race"):
        for _ in range(5):
            run(SMALL[0], gpu)
