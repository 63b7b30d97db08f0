"""The compiled rules over channels, batch and group norm, against the composed ones: odd sizes, views, single outputs."""

import numpy as np
import pytest

from duoln import ops, runtime
from duoln.kernels import batch_norm, native
from duoln.testing import check_rule

pytestmark = pytest.mark.skipif(native.machine_refusal() is not None, reason="nothing is compiled here")

SHAPES = [(2, 1), (5, 3), (4, 1, 1, 7), (3, 5, 6, 2), (2, 9, 33), (50, 8, 8, 16), (200, 17), (20, 400), (4000, 1)]


def _rule():
    return runtime.backend("numpy") and ops.batch_norm.rules("numpy")[0]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("unbiased", [False, True])
@pytest.mark.parametrize("parts", [("gain", "bias"), ("gain",), ("bias",), ()], ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_batch_norm(shape, parts, unbiased, dtype, rng, numpy_backend):
    x, gain, bias = (rng.standard_normal(s).astype(dtype) for s in (shape, shape[-1:], shape[-1:]))
    # With two rows the values become +1 and -1 and hardly depend on x, so a larger epsilon is needed for a comparison.
    check_rule(ops.batch_norm, _rule(), [x, gain if "gain" in parts else None, bias if "bias" in parts else None],
               numpy_backend, {"eps": 1e-5 if x.size > 2 * shape[-1] else 1.0, "unbiased": unbiased}, length=4 * x.size // shape[-1])


def test_one_output_alone(rng, numpy_backend):
    """The loss depends on the normalised values alone, as in training, or on one of the statistics."""
    x, gain, bias = (rng.standard_normal(s) for s in ((3, 4, 5, 2), 2, 2))
    outs, saved = _rule().forward(numpy_backend, x, gain, bias, eps=1e-5, unbiased=False)
    composed = ops.batch_norm.rules("numpy")[-1]
    _, theirs = composed.forward(numpy_backend, x, gain, bias, eps=1e-5, unbiased=False)
    for k in range(3):
        gouts = tuple(rng.standard_normal(o.shape) if i == k else None for i, o in enumerate(outs))
        mine = _rule().vjp(numpy_backend, saved, gouts, (True, True, True))
        for a, b in zip(mine, composed.vjp(numpy_backend, theirs, gouts, (True, True, True)), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-12)


def test_a_view_and_an_empty_batch(rng, numpy_backend):
    x = rng.standard_normal((6, 8, 4)).astype(np.float32)[::2, ::-1]
    check_rule(ops.batch_norm, _rule(), [x, None, None], numpy_backend, {"eps": 1e-5, "unbiased": False}, length=100)
    assert "no values" in _rule().supports(numpy_backend, x[:0], None, None)


EXAMPLES = [((1, 1, 1), 1), ((3, 6), 2), ((5, 7), 7), ((2, 3, 4, 6), 3), ((2, 40, 40, 64), 32), ((3, 50, 50, 8), 1), ((1, 300, 100, 12), 4),
            ((200, 256), 32), ((70, 5, 3), 3), ((2, 9, 700), 7), ((33, 2, 2, 30), 5)]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("parts", [("gain", "bias"), ("gain",), ("bias",), ()], ids=str)
@pytest.mark.parametrize(("shape", "groups"), EXAMPLES, ids=str)
def test_group_norm(shape, groups, parts, dtype, rng, numpy_backend):
    x, gain, bias = (rng.standard_normal(s).astype(dtype) for s in (shape, shape[-1:], shape[-1:]))
    size = x[0].size // groups
    check_rule(ops.group_norm, ops.group_norm.rules("numpy")[0], [x, gain if "gain" in parts else None, bias if "bias" in parts else None],
               numpy_backend, {"groups": groups, "eps": 1e-5 if size > 2 else 1.0}, length=4 * max(size, x.size // shape[-1]))


@pytest.mark.long
def test_group_norm_has_the_same_bits_for_any_number_of_threads(rng, numpy_backend, same_bits):
    """Of many examples each thread takes some; of few they share the blocks of rows."""
    rule = ops.group_norm.rules("numpy")[0]
    calls = [[rng.standard_normal(s).astype(np.float32) for s in (shape, shape[-1:], shape[-1:], shape)]
             for shape in ((1, 90, 90, 12), (5, 70, 70, 6), (150, 3, 12))]

    def run():
        for x, gain, bias, gout in calls:
            y, saved = rule.forward(numpy_backend, x, gain, bias, groups=3, eps=1e-5)
            yield from (y, *rule.vjp(numpy_backend, saved, gout, (True, True, True)))

    same_bits(run)


def test_group_norm_of_what_is_not_a_number(rng, numpy_backend):
    """It stays in its example and its group."""
    x = rng.standard_normal((3, 20, 6)).astype(np.float32)
    x[1, 3, 2] = np.nan
    y = ops.group_norm.rules("numpy")[0].forward(numpy_backend, x, None, None, groups=3, eps=1e-5)[0]
    assert np.isnan(y[1, :, 2:4]).all() and np.isfinite(np.delete(y, 1, 0)).all() and np.isfinite(y[1][:, [0, 1, 4, 5]]).all()


@pytest.mark.long
def test_large_results_of_group_norm(rng, numpy_backend):
    """They are written with streaming stores, in lines of which none begins where a vector does."""
    x, gain = rng.standard_normal((3, 15_003, 47)).astype(np.float32), rng.standard_normal(47).astype(np.float32)
    assert x.nbytes > 8 << 20
    check_rule(ops.instance_norm, ops.instance_norm.rules("numpy")[0], [x, gain, gain], numpy_backend, {"groups": 47, "eps": 1e-5},
               length=4 * x.size // 47)


def test_a_large_mean_costs_batch_norm_no_bits(rng, numpy_backend):
    """The rows are exact in float32, so that what is lost is lost by the rule."""
    rows = rng.integers(-50, 50, (3000, 5)) / 64.0
    for mean in (0, 1e2, 1e3, 1e4):
        x = (rows + mean).astype(np.float32)
        y = _rule().forward(numpy_backend, x, None, None, 0.0, False)[0][0]
        exact = (x - x.mean(0, dtype=np.float64)) / x.std(0, dtype=np.float64)
        assert np.abs(y - exact).max() <= 4 * np.finfo(np.float32).eps * np.abs(exact).max()


def test_blocks_cover_all_rows():
    for width in (1, 3, 16, 255, 256, 257, 5000):
        block = batch_norm.block_rows(width)
        assert [batch_norm.blocks(rows, width) for rows in (1, block, block + 1, 3 * block)] == [1, 1, 2, 3]
