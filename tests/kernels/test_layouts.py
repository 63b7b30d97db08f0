"""How an array lies in memory changes no result of a fused rule: values and gradients, each array in each layout."""

from __future__ import annotations

import pytest
import windowed_conv
from conftest import GPU, STAND_IN, get_backend
from layout_cases import layout_cases, long_layout_cases
from layout_table import Tally
from numpy.lib.stride_tricks import as_strided

from duoln import ops
from duoln.core import Op, Rule
from duoln.kernels import native

LEAST = {"activated_linear": 20, "add": 140, "add_layer_norm": 340, "add_rms_norm": 290, "adam_update": 200, "batch_norm": 650,
         "conv2d": 480, "global_norm": 20, "gru": 600, "layer_norm": 700, "leaky_relu": 140,
         "linear": 20, "linear_cross_entropy": 260, "lstm": 1000, "lstm_cell": 480,
         "matmul": 10, "max_pool2d": 140, "multiply": 20, "relu": 140, "rms_norm": 190, "rnn": 430, "softmax_cross_entropy": 140, "scaled_dot_product_attention": 100,
         "split": 40, "sum": 10, "take": 40, "where": 40}
"""The operators with a fused rule on NumPy, and how many cases the table has of each at least."""


def _of(op: str) -> list:
    return [proof for proof in layout_cases() if proof.op == op]


def test_the_table_holds_every_operator_with_a_fused_rule(numpy_backend):
    fused = {name for name, op in vars(ops).items() if isinstance(op, Op) and len(op.rules("numpy")) > 1}
    assert fused == set(LEAST) if native.reason() is None else fused < set(LEAST)  # some have a compiled rule alone
    assert sum(LEAST.values()) >= 5000


@pytest.mark.parametrize("op", LEAST)
def test_no_layout_changes_a_fused_rule(op, numpy_backend):
    if len(getattr(ops, op).rules("numpy")) == 1:
        pytest.skip(f"its only fused rule is compiled: {native.reason()}")
    tally = Tally()
    tally.run(_of(op), numpy_backend)
    assert tally.cases[op] >= LEAST[op]
    # The rules of Adam, of products and of sums leave what is not contiguous to the composed rule.
    assert tally.fused[op] >= {"adam_update": 50, "linear": 10, "matmul": 5, "sum": 3}.get(op, 0.98 * tally.cases[op])


@pytest.mark.minutes
def test_no_layout_changes_a_fused_rule_of_any_variant_or_size(numpy_backend):
    tally = Tally()
    tally.run(long_layout_cases(), numpy_backend)
    assert sum(tally.cases.values()) >= 8000


def _steps_of_any_axis(padded, kernel, axes):
    """The windows as `sliding_window_view` gives them, from strides that an axis of length 1 need not have."""
    batch, height, width, channels = padded.shape
    image, _, _, value = padded.strides
    rows, columns = kernel
    return as_strided(padded, (batch, height - rows + 1, width - columns + 1, channels, rows, columns),
                      (image, width * channels * value, channels * value, value, width * channels * value,
                       channels * value))


def test_a_rule_that_trusts_the_stride_of_an_axis_of_length_1_is_found(numpy_backend, monkeypatch):
    monkeypatch.setitem(ops.conv2d._rules, "numpy", [windowed_conv.RULE])
    monkeypatch.setattr(windowed_conv, "sliding_window_view", _steps_of_any_axis)
    with pytest.raises(AssertionError, match=r"conv2d.*'image by image'"):
        Tally().run([proof for proof in _of("conv2d") if proof.inputs[0].shape[-1] == 1], numpy_backend)


def test_a_rule_that_writes_into_what_it_is_given_is_found(numpy_backend, monkeypatch):
    def forward(be, x, slope):
        x *= slope
        return x, None

    monkeypatch.setattr(ops.leaky_relu, "select", lambda *call: Rule("in place", forward))
    with pytest.raises(AssertionError, match=r"leaky_relu.*read-only"):
        Tally().run(_of("leaky_relu"), numpy_backend)


@pytest.mark.long
@pytest.mark.parametrize("op", ["conv2d", "layer_norm", "lstm", "gru", "rnn"])
def test_no_layout_changes_a_rule_of_mlx(op):
    pytest.importorskip("mlx.core", reason="MLX is not for this platform")
    tally = Tally()
    tally.run(_of(op)[:2], get_backend("mlx"))
    assert tally.cases[op] >= 40


CUDA = {"layer_norm": 3, "rms_norm": 2, "add_layer_norm": 2, "add_rms_norm": 2, "softmax_cross_entropy": 2, "take": 2, "adam_update": 1, "lstm_cell": 1, "lstm": 1, "gru": 1, "rnn": 1}
"""The operators with a rule on CUDA, and how many of their cases are run."""


@pytest.mark.long
@pytest.mark.skipif(GPU != STAND_IN, reason="the layouts are made for the stand-in")
@pytest.mark.parametrize("op", CUDA)
def test_no_layout_changes_a_rule_of_cuda(op, gpu):
    tally = Tally()
    tally.run(_of(op)[:CUDA[op]], gpu)
    assert tally.cases[op] >= 20 and tally.fused[op] >= 8
