"""The cases for a device: what they reach, as plain data, and the small ones of them on the CPU from the kernels' own text.

Kernels are broken on purpose where only a device's sizes see it: these cases fail. The stand-in then has
the multiprocessors and clusters of an H100, so a launch has the grid and a walk the layout that it has there. A mistake of values is
seen by values; a walk that reads too early has other values on a device only sometimes, and the emulation says so by an error.
"""

import sys
from collections import Counter, defaultdict
from itertools import product
from math import ceil, prod
from typing import NamedTuple

import pytest
from broken_text import break_text
from conftest import GPU, STAND_IN
from device_rules import rules
from h100 import H100, MULTIPROCESSORS, use_h100
from zeros import zeros

from duoln.kernels.norm import Norm, plan as of_norms
from duoln.kernels.norm.cases import NORMS
from duoln.kernels.recurrent import plan as of_cells
from duoln.kernels.recurrent.cases import LONG
from duoln.kernels.recurrent.cells import FUSED
from duoln.kernels.recurrent.cluster_plan import plan
from duoln.kernels.registry import STORED, every_case, registered
from duoln.kernels.settings import every_setting
from duoln.testing import selftest

EVERY = selftest.every_device_case()
MOST_BYTES = 512 << 20
COMMON = ((1, 256), (1, 400), (1, 1000), (2, 64), (3, 33), (8, 128), (8, 256), (8, 300), (8, 400), (8, 512), (8, 1000), (16, 100),
          (17, 100), (32, 128), (32, 240), (64, 64), (64, 128), (64, 240), (64, 256), (64, 512), (100, 400), (128, 128), (128, 256),
          (256, 256))
"""Rows and hidden units of recurrent layers in the tasks and in other libraries' benchmarks."""
STORAGE = {"float32": 0, "float16": 1, "bfloat16": 2}


@pytest.fixture(scope="module")
def made():
    """The arrays of every case of duoln's own operators, of zeros that take no memory, by name."""
    with zeros():
        return {str(case): case.make() for case in (*every_case(), *every_case(gpu=True))}


def test_no_two_cases_have_the_same_name(made):
    assert len(made) == len(every_case()) + len(every_case(gpu=True)) and len({str(case) for case in EVERY}) == len(EVERY) >= 690


def test_no_array_is_large(made):
    assert max(a.nbytes for arrays in made.values() for a in arrays if a is not None) <= MOST_BYTES


def test_the_net_is_small(made):
    of_each = Counter((case.op, case.stored) for case in EVERY if case.net)
    assert max(of_each.values()) <= 7
    assert all(sum(a.size for a in made[str(case)] if a is not None) <= 1 << 23 for case in EVERY if case.net and str(case) in made)


@pytest.mark.parametrize("backend", ["cupy", "mlx"])
def test_the_net_has_every_rule_for_gpus(backend, gpu):
    pytest.importorskip("mlx.core") if backend == "mlx" else None
    of_plugins = [(name, rule) for name, known in registered().items()
                  if known.op.__module__.startswith("duoln.plugins.") for rule in known.op.rules(backend)[:-1]]
    wanted = {(op, stored) for op, rule in (*rules("metal" if backend == "mlx" else "cuda"), *of_plugins)
              for stored in ("float32", *(STORED if rule.stored else ()))}
    assert len(wanted) > 4
    assert wanted - {(case.op, case.stored) for case in EVERY if case.net} == set()


def _walks():
    """The cases that a walk takes."""
    return [case for case in every_case(gpu=True) if (case.op, case.attrs.get("norm")) in FUSED and case.stored == "float32"]


def _layouts(cell, norm, batch, hidden):
    """Blocks of a cluster, rows of a cluster and units of a lane, forward and backward, on an H100."""
    plans = (plan(cell, norm, direction, hidden, batch, H100) for direction in ("forward", "backward"))
    return {(p.cluster, p.rows, ceil(p.own / 32)) for p in plans if p}


def test_walks_have_every_layout_of_common_sizes():
    layouts = {layout for case in _walks() for layout in _layouts(case.op, case.attrs["norm"], case.sizes[1], case.sizes[3])}
    common = {layout for (cell, norm), (batch, hidden) in product(FUSED, COMMON) for layout in _layouts(cell, norm, batch, hidden)}
    assert len(common) > 19 and common - layouts == set()
    assert {cluster for cluster, _, _ in layouts} == {1, 2, 4, 8, 16} and {rows for _, rows, _ in layouts} == {1, 2, 4, 8}


def test_walks_use_every_place_and_parity_again():
    assert all(case.sizes[0] >= 9 for case in _walks())
    long = [case for case in EVERY if case.runs > 10]
    assert {case.op for case in long} == {"lstm", "gru", "rnn"} and all(case.sizes[0] == LONG for case in long)


def test_every_variant_is_masked_and_reversed_in_clusters():
    kinds = defaultdict(set)
    for case in _walks():
        variant = case.op, case.attrs["norm"]
        if all(cluster > 1 for cluster, _, _ in _layouts(*variant, case.sizes[1], case.sizes[3])):
            kinds[variant].add(("masked" in case.label, case.attrs["reverse"]))
    assert all({(False, False), (True, False), (True, True)} <= kinds[variant] for variant in FUSED)


def _plan(case):
    """Of a norm."""
    width, storage = case.sizes[-1], STORAGE[case.stored]
    vector = 1 if case.misaligned else next(n for n in (8, 4, 1) if width % n == 0)
    return of_norms.plan(width, vector, storage, Norm(case.op.endswith("layer_norm"), case.op.startswith("add_")))


def test_each_block_takes_several_rows():
    """For every entry of the table of plans, and for rows that are too wide for registers."""
    loops = defaultdict(set)
    for case in EVERY:
        if case.op in NORMS:
            p = _plan(case)
            if ceil(prod(case.sizes[:-1]) / p.rows) > MULTIPROCESSORS * p.blocks_per_processor:
                loops[case.op].add((p.threads, p.chunks))
    entries = {(threads, chunks) for threads, chunks, _ in of_norms._LADDER} | {(of_norms._WIDE.threads, 0)}
    assert all(entries - loops[op] <= {(16, 1), (32, 1)} for op in NORMS), {op: entries - loops[op] for op in NORMS}


@pytest.mark.long
def test_every_setting_runs():
    """The tests compile each of them, and the cases launch each."""
    ran = set()
    for case in (*every_case(), *every_case(gpu=True)):
        storage = {"STORAGE": STORAGE[case.stored]} if STORAGE[case.stored] else {}
        if case.cpu:
            continue
        if case.op in NORMS:
            p = _plan(case)
            ran.add(("norm/wide.cu" if p.wide else "norm/norm.cu", *sorted(p.macros.items())))
        elif case.op in ("lstm", "gru", "rnn", "lstm_cell"):
            cell, hidden = case.op.partition("_")[0], case.sizes[-1]
            p = of_cells.plan(hidden, cell)
            macros = {**p.macros(**of_cells.norm_macros(cell, case.attrs["norm"])), **storage}
            ran.add((f"recurrent/{cell}/wide.cu" if hidden > of_cells.MOST_KEPT and cell != "rnn" else f"recurrent/{cell}/{cell}.cu", *sorted(macros.items())))
    wanted = {(file, *sorted(macros.items())) for file, macros in every_setting() if file.startswith(("norm/", *(f"recurrent/{cell}/" for cell in ("lstm", "gru", "rnn"))))}
    assert len(wanted) > 300 and wanted - ran == set()


# On the CPU -------------------------------------------------------------------------------------------------------

ORDINARY = ("layer_norm float16 9 x 64", "layer_norm bfloat16 5 x 64, misaligned", "add_rms_norm bfloat16 5 x 33",
            "lstm float16 layer T4 B5 in3 H33 masked, reverse", "gru bfloat16 none T4 B5 in3 H33 masked, reverse",
            "rnn float16 layer T4 B5 in3 H33 masked, reverse", "lstm_cell bfloat16 layer-cell B3 H33",
            "softmax_cross_entropy bfloat16 130 x 10", "take float16 20 of 7 x 3", "linear 2500 x 33 x 50",
            "lstm layer T9 B3 in2 H130", "write_then_read B3 P28 read 5 write 2")
"""Of each kind one, of those that take about a second."""
MOST_COLUMNS = 1 << 18
"""Of these the sum over rows has more threads than the emulation launches."""
MOST_VALUES, MOST_WORK = 1 << 19, 50_000
"""Of a case, and time steps times rows times units of a walk, that take seconds on the CPU."""


def _is_quick(case):
    if case.op in ("lstm", "gru", "rnn"):
        steps, rows, _, hidden = case.sizes
        return steps * rows * hidden <= MOST_WORK
    return prod(case.sizes) <= MOST_VALUES and max(case.sizes, default=0) < MOST_COLUMNS


def _on_this_device():
    for case in EVERY:
        if GPU != STAND_IN or str(case) in ORDINARY:
            yield pytest.param(case, id=str(case))
        elif _is_quick(case):
            yield pytest.param(case, id=str(case), marks=pytest.mark.minutes)


@pytest.mark.long
@pytest.mark.few
@pytest.mark.skipif(GPU == STAND_IN and sys.platform != "linux", reason="kernels run on the CPU under Linux only")
@pytest.mark.parametrize("case", list(_on_this_device()))
def test_case(case, gpu, monkeypatch):
    """On a GPU all of them; on the CPU those that are quick, with the layouts of an H100."""
    if GPU == STAND_IN:
        use_h100(monkeypatch)
    outcomes = list(selftest.run(gpu, [case], case.runs if GPU != STAND_IN else 2))
    assert outcomes and all(o.passed for o in outcomes), outcomes
    assert any(o.rule.startswith("cuda") for o in outcomes)


ON_STAND_IN = pytest.mark.skipif(GPU != STAND_IN or sys.platform != "linux", reason="a broken kernel could take a real device with it")


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


BY_NAME = {str(case): case for case in EVERY}


@pytest.mark.long
@pytest.mark.parametrize("broken", [pytest.param(b, marks=() if b.ordinary else pytest.mark.minutes) for b in BROKEN], ids=lambda b: b.what)
@ON_STAND_IN
def test_the_cases_for_a_device_fail(broken, gpu, monkeypatch):
    use_h100(monkeypatch, broken.layout)
    in_text = break_text(monkeypatch, broken.old, broken.new)
    [first, *_] = selftest.run(gpu, [BY_NAME[broken.case]], repeats=1)
    assert any(in_text), "the text to break is not there any more"
    assert not first.passed
