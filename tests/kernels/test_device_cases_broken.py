"""Kernels broken on purpose where only a device's sizes see it: the device's cases fail, and those for any machine pass.

The stand-in has the multiprocessors and the clusters of an H100 here, so a launch has the grid and a walk the layout that it has
there. A mistake of values is seen by values; a walk that reads too early has other values on a device only sometimes, and the
emulation says so by an error. Those never come to the broken words with a number that matters.
"""

import sys
from typing import NamedTuple

import pytest
from broken_text import break_text
from conftest import GPU, STAND_IN
from h100 import use_h100

from duoln.kernels.registry import every_case
from duoln.testing import selftest

pytestmark = [pytest.mark.skipif(sys.platform != "linux", reason="kernels run on the CPU under Linux only"),
              pytest.mark.skipif(GPU != STAND_IN, reason="a broken kernel could take a real device with it")]


class Broken(NamedTuple):
    """A kernel with a mistake."""

    what: str
    case: str
    """The name of a case for GPUs that fails."""
    old: str
    new: str
    layout: tuple[int, ...] = ()
    """Blocks and rows of a cluster that the walk of that case takes here, so that few units are enough."""
    ordinary: bool = True
    """Whether the ordinary suite runs it: each compiles its kernels."""


_SMALL_WALK = "lstm layer T9 B3 in2 H33 reverse, gradients within 0.05"
BROKEN = [
    Broken("a place is used again too early", _SMALL_WALK, "slot_of(int use) { return use & 1; }", "slot_of(int use) { return use < 4 ? use & 1 : 0; }", (4, 1)),
    Broken("a parity is wrong from the seventh exchange on", _SMALL_WALK, "return use >> 1 & 1;", "return use < 4 ? use >> 1 & 1 : 0;", (4, 1)),
    Broken("a norm's sums are those of another row", _SMALL_WALK, "told.values[slot_of(use)][rank][p.row][n]", "told.values[slot_of(use)][rank][ROWS - 1 - p.row][n]", (4, 2)),
    Broken("the product is that of another row", _SMALL_WALK, "mine + r * STRIDE + i", "mine + (ROWS - 1 - r) * STRIDE + i", (4, 2), ordinary=False),
    Broken("a cluster's second row of the batch starts as the first", _SMALL_WALK, "h[size_t(first + row) * HIDDEN + state]", "h[size_t(first) * HIDDEN + state]", (4, 2), ordinary=False),
    Broken("the gradient is distributed to another row", _SMALL_WALK, "d.gates[slot_of(use)][p.row][gate * OWN", "d.gates[slot_of(use)][ROWS - 1 - p.row][gate * OWN", (4, 2), ordinary=False),
    Broken("a block's second rows have no gradient", "layer_norm 50021 x 7", "base < rows; base += rows_at_once", "base < rows; base = rows"),
    Broken("the gain's gradient forgets the rows before", "rms_norm 50021 x 7", "gain_sums.v[c][k] += d.v[c][k] * value;", "gain_sums.v[c][k] = d.v[c][k] * value;", ordinary=False),
    Broken("the bias's gradient forgets the rows before", "add_layer_norm 50021 x 7", "bias_sums.v[c][k] += d.v[c][k];", "bias_sums.v[c][k] = d.v[c][k];", ordinary=False),
    Broken("a wide block's second rows have no gradient", "rms_norm 1033 x 8201", "dx && row < rows; row += int(gridDim.x)", "dx && row < rows; row = rows", ordinary=False),
    Broken("all groups of rows are added up in one place", "linear 2500 x 33 x 50", "(size_t(blockIdx.z) * gridDim.y + blockIdx.y) * width", "size_t(blockIdx.z) * gridDim.y * width"),
    Broken("bfloat16 is read one bit to the left", "layer_norm bfloat16 5 x 33", "unsigned(value) << 16", "unsigned(value) << 15"),
    Broken("the two values of a word are exchanged", "layer_norm bfloat16 9 x 64", "loaded(storage_t(two & 0xffffu));\n    to[1] = loaded(storage_t(two >> 16));",
           "loaded(storage_t(two >> 16));\n    to[1] = loaded(storage_t(two & 0xffffu));", ordinary=False),
    Broken("two words of eight values are exchanged", "add_rms_norm float16 5 x 1000", "unpack(v[c + 1], eight.z), unpack(v[c + 1] + 2, eight.w);", "unpack(v[c + 1], eight.w), unpack(v[c + 1] + 2, eight.z);", ordinary=False),
    Broken("a gradient is cut to a whole number", "softmax_cross_entropy bfloat16 130 x 10", "stored(by * (probability - (i == labels[row] ? 1.0f : 0.0f)))", "storage_t(by * (probability - (i == labels[row] ? 1.0f : 0.0f)))", ordinary=False),
    Broken("bits are added up as numbers", "take float16 20 of 7 x 3", "sum += loaded(g[size_t(order[k]) * width + i]);", "sum += g[size_t(order[k]) * width + i];", ordinary=False),
    Broken("columns behind the last group", "take 5 of 3 x 300001", "i += gridDim.y * blockDim.x", "i += width", ordinary=False),
    Broken("a product takes a state that is not there yet", "gru bfloat16 layer T4 B5 in3 H33 masked, reverse", "if (STORAGE) h_stored[(row + batch) * hidden + unit(u)]", "if (STORAGE) h_stored[row * hidden + unit(u)]", ordinary=False),
    Broken("DRAW sees the canvas instead of the error", "write_then_read B3 P28 read 5 write 2", "= of_image - of_chances;", "= of_chances;"),
    Broken("the gradient of DRAW's divergence has no slope", "gaussian_latent B4 of 32", "along * (sigma * sigma - 1)", "along * sigma * sigma", ordinary=False)]


BY_NAME = {str(case): case for case in selftest.every_device_case()}


@pytest.mark.long
@pytest.mark.parametrize("broken", [pytest.param(b, marks=() if b.ordinary else pytest.mark.minutes) for b in BROKEN], ids=lambda b: b.what)
def test_the_cases_for_a_device_fail(broken, gpu, monkeypatch):
    use_h100(monkeypatch, broken.layout)
    in_text = break_text(monkeypatch, broken.old, broken.new)
    [first, *_] = selftest.run(gpu, [BY_NAME[broken.case]], repeats=1)
    assert any(in_text), "the text to break is not there any more"
    assert not first.passed


@pytest.mark.minutes
@pytest.mark.parametrize("broken", BROKEN, ids=lambda b: b.what)
def test_the_cases_of_the_table_pass(broken, gpu, monkeypatch):
    """All of the same operator and variant; of DRAW's operators the table has none."""
    use_h100(monkeypatch)
    case = BY_NAME[broken.case]
    in_text = break_text(monkeypatch, broken.old, broken.new)
    chosen = [c for c in every_case() if (c.op, c.attrs.get("norm")) == (case.op, case.attrs.get("norm"))]
    assert [str(o.case) for o in selftest.run(gpu, chosen, repeats=1) if not o.passed] == []
    assert any(in_text) == bool(chosen)


@pytest.mark.minutes
@pytest.mark.parametrize(("name", "layout"), sorted({(b.case, b.layout) for b in BROKEN}), ids=str)
def test_the_sound_text_passes(name, layout, gpu, monkeypatch):
    use_h100(monkeypatch, layout)
    outcomes = list(selftest.run(gpu, [BY_NAME[name]]))
    assert outcomes and all(o.passed for o in outcomes), outcomes
