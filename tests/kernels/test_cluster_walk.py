"""Recurrent cells that walk through all time steps in one launch, by clusters of blocks, run on the CPU from their own text."""

import sys

import numpy as np
import pytest
from broken_text import break_text
from conftest import GPU, STAND_IN
from h100 import H100, use_h100, with_clusters
from zeros import zeros

from duoln import ops
from duoln.errors import KernelError
from duoln.kernels.recurrent import cluster_plan
from duoln.kernels.recurrent.cases import recurrent
from duoln.kernels.recurrent.cells import FUSED
from duoln.kernels.recurrent.cluster_plan import CLUSTERS, Device, plan
from duoln.testing import selftest

pytestmark = [pytest.mark.skipif(sys.platform != "linux", reason="kernels run on the CPU under Linux only"),
              pytest.mark.skipif(GPU != STAND_IN, reason="the device is that of the stand-in")]

RTX_4090, RTX_5090 = Device.of(8, 128, 99 << 10), Device.of(12, 170, 99 << 10)
B200 = Device.of(10, 148, 227 << 10)
SHAPES = [((3, 5, 3, 9), 2), ((9, 3, 2, 33), 4)]
"""Time steps, rows, inputs, hidden units; and blocks of a cluster. At nine time steps each place and parity comes again."""
LONG_SHAPES = [((1, 1, 1, 1), 1), ((2, 2, 2, 48), 16), ((3, 2, 2, 16), 4), ((2, 9, 2, 32), 2), ((3, 3, 5, 70), 8), ((2, 1, 2, 100), 4),
               ((5, 17, 1, 12), 4), ((2, 3, 2, 130), 8), ((3, 4, 3, 64), 1), ((2, 2, 3, 257), 8)]
KINDS = [{"masked": False, "reverse": False}, {"masked": True, "reverse": True},
         {"masked": False, "reverse": True, "gradient_limit": 0.05}, {"masked": True, "reverse": False}]
SEEDS, SMALL = 20, 100
"""Each run of a case has another seed; layers of at most so many units run under many."""


@pytest.fixture
def on_clusters(gpu, monkeypatch):
    """A function that makes all walks use clusters of so many blocks; None leaves them to the plan."""
    from duoln.kernels.recurrent import cuda_walk

    def use(cluster):
        here = H100 if cluster is None else with_clusters(cluster)
        monkeypatch.setattr(cuda_walk, "device", lambda: here)
        return gpu

    return use


def _cases(shapes):
    return [pytest.param(recurrent(cell, norm, sizes, **kind), cluster, id=f"{cell} {norm} {sizes} by {cluster}, {k}")
            for cell, norm in FUSED for sizes, cluster in shapes for k, kind in enumerate(KINDS)]


LARGEST = _cases([((2, 2, 2, 48), 16)])[4:6]
"""Two of them by the largest cluster."""


@pytest.mark.long
@pytest.mark.few
@pytest.mark.parametrize(("case", "cluster"), [*_cases(SHAPES), *LARGEST])
def test_walk(case, cluster, on_clusters):
    outcome = selftest.prove(case, on_clusters(cluster))
    assert outcome.rule == "cuda walk"
    assert outcome.passed, outcome


@pytest.mark.minutes
@pytest.mark.parametrize(("case", "cluster"), _cases([*SHAPES, *LONG_SHAPES]))
def test_walk_under_many_seeds(case, cluster, on_clusters):
    repeats = SEEDS if case.inputs[1].shape[1] <= SMALL else 2
    outcome = selftest.prove(case, on_clusters(cluster), repeats=repeats)
    assert outcome.rule == "cuda walk" and outcome.passed, outcome


@pytest.mark.minutes
@pytest.mark.parametrize(("cell", "norm", "hidden"), [("lstm", "layer", 400), ("gru", "layer", 400), ("rnn", "layer", 240)])
def test_sizes_of_the_paper(cell, norm, hidden, on_clusters):
    outcome = selftest.prove(recurrent(cell, norm, (2, 3, 3, hidden), masked=False, reverse=False), on_clusters(None))
    assert outcome.rule == "cuda walk" and outcome.passed, outcome


@pytest.mark.long
def test_a_large_mean_of_the_cell(on_clusters):
    """A cell that float32 holds exactly, with a mean of 10,000: all that rounds is its norm, whose parts the blocks merge."""
    case = recurrent("lstm", "layer-cell", (1, 2, 2, 33), masked=False, reverse=False)
    inputs = list(case.inputs)
    inputs[2] = np.round(4 * inputs[2]) / 4 + np.float32(20_000)
    for place in (3, 4, 5):  # without weights and biases the gates are a half, and what they let in is 0
        inputs[place] = 0 * inputs[place]
    outcome = selftest.prove(case._replace(make=lambda inputs=inputs: inputs), on_clusters(4))
    assert outcome.rule == "cuda walk" and outcome.passed, outcome


# Broken walks: the machine finds each --------------------------------------------------------------------------------

_BUFFERS = "int slot_of(int use) { return use & 1; }\n__device__ __forceinline__ int parity_of(int use) { return use >> 1 & 1; }"
_ONE_BUFFER = "int slot_of(int use) { return 0; }\n__device__ __forceinline__ int parity_of(int use) { return use & 1; }"
BROKEN = {  # what is broken, of which norm and direction: the text, and what takes its place
    ("no wait for what blocks tell", "layer", "forward"): ("    wait_at(signal, parity_of(use));\n", ""),
    ("no wait for the states", "layer", "forward"): ("if (t > 0) wait_at(states.signals[slot_of(t)], parity_of(t - 1));", ""),
    ("no wait for the gradient of the states", "layer", "backward"): ("    wait_at(d.signals[slot], parity_of(use));\n", ""),
    **{("one buffer", norm, direction): (_BUFFERS, _ONE_BUFFER)
       for norm, direction in (("none", "forward"), ("none", "backward"), ("layer", "forward"))},
    **{("the wrong parity", "layer", direction): ("return use >> 1 & 1;", "return ~use >> 1 & 1;") for direction in ("forward", "backward")},
    ("states are sent after the last time step", "layer", "forward"): ("if (t + 1 < time_steps) send", "send"),
    ("no barrier of the cluster before the first push", "layer", "forward"): ("    cluster_barrier();\n", "    __syncthreads();\n"),
    ("a block tells all but the last", "layer", "forward"): ("if (p.lane < CLUSTER) push_values", "if (p.lane < CLUSTER - 1) push_values"),
    ("too few bytes are expected", "layer", "forward"): ("ROWS * HIDDEN * int(sizeof(float))", "(ROWS * HIDDEN - 1) * int(sizeof(float))"),
    ("bytes are expected by every thread", "layer", "forward"): ("if (threadIdx.x == 0) expect_at(signal", "expect_at(signal"),
    ("parts of the product are read at once", "layer", "forward"): (
        "        product<Cell>(weights, states, partial, t);\n        __syncthreads();", "        product<Cell>(weights, states, partial, t);"),
    ("the gradient of the gates is multiplied at once", "layer", "backward"): ("        __syncthreads();\n        distribute", "        distribute"),
}


@pytest.mark.few
@pytest.mark.parametrize(("what", "norm", "direction"), BROKEN)
def test_a_broken_walk_is_found(what, norm, direction, gpu, monkeypatch):
    use_h100(monkeypatch, (4, 2))
    in_text = break_text(monkeypatch, *BROKEN[what, norm, direction], only=f"lstm_walk_{direction}")
    outcome, *_ = selftest.run(gpu, [recurrent("lstm", norm, (5, 3, 2, 12))], repeats=1)
    assert any(in_text), "the text to break is not there any more"
    assert not outcome.passed and f"lstm_walk_{direction}" in outcome.problem, outcome


def test_all_blocks_add_up_in_one_order(gpu, monkeypatch):
    """Units that are alike in two blocks stay so to the bit, unless each block begins with its own values."""
    use_h100(monkeypatch, (4, 2))
    case = recurrent("lstm", "layer", (5, 3, 2, 12))
    inputs = [None if a is None else a.copy() for a in case.inputs]
    for a in inputs:
        if a is not None and a.shape[-1] % 12 == 0:
            units = a.reshape(-1, 4, 3)  # of each block
            units[:, 1] = units[:, 0]

    def differ():
        arrays = [None if a is None else gpu.asarray(a) for a in inputs]
        [walk] = [rule for rule in ops.lstm.rules(gpu.name) if rule.name == "cuda walk"]
        units = gpu.to_numpy(walk.forward(gpu, *arrays, **case.attrs)[0][0]).reshape(5, 3, 4, 3)
        return (units[:, :, 0] != units[:, :, 1]).any()

    assert not differ()
    break_text(monkeypatch, "told.values[slot_of(use)][rank][p.row][n]", "told.values[slot_of(use)][(rank + p.rank) % CLUSTER][p.row][n]")
    try:
        assert differ()
    except KernelError as error:
        assert "a push over what is read" in str(error)


# Launches ---------------------------------------------------------------------------------------------------------

# Plans ------------------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("direction", ["forward", "backward"])
@pytest.mark.parametrize(("cell", "norm"), FUSED)
@pytest.mark.parametrize("device", [H100, RTX_5090])
def test_plans_fit_the_device(cell, norm, direction, device):
    for hidden in (1, 2, 9, 31, 33, 64, 100, 128, 240, 256, 257, 300, 400, 512, 640, 1024):
        for batch in (1, 3, 8, 64, 128):
            p = plan(cell, norm, direction, hidden, batch, device)
            if p is None:
                continue
            assert (p.cluster - 1) * p.own < hidden <= p.cluster * p.own
            assert device.clusters(p.cluster) and p.rows <= cluster_plan.THREADS // 32
            assert p.grid(batch) % p.cluster == 0 and p.grid(batch) * p.rows >= batch * p.cluster
            assert p.kept >= 4 and p.kept % 4 == 0 and p.shared < device.shared


@pytest.mark.parametrize(("cell", "hidden"), [("lstm", 512), ("gru", 560), ("rnn", 1000)])
def test_what_fits_an_h100(cell, hidden):
    assert all(plan(cell, "layer", direction, hidden, 8, H100) for direction in ("forward", "backward"))


@pytest.mark.parametrize(("device", "batch", "hidden", "steps"), [
    (H100, 8, 400, {"lstm": "16 x 2: 3171, 16 x 2: 3873", "gru": "16 x 2: 2411, 16 x 2: 2993", "rnn": "8 x 1: 1825, 8 x 1: 2199"}),
    (H100, 128, 256, {"lstm": "4 x 8: 8329, 4 x 8: 8663", "gru": "4 x 8: 6337, 4 x 8: 6255", "rnn": "2 x 4: 3036, 4 x 8: 3431"}),
    (H100, 32, 240, {"lstm": "8 x 4: 3525, 8 x 4: 3851", "gru": "8 x 4: 2637, 8 x 4: 2907", "rnn": "4 x 2: 1927, 4 x 2: 2077"}),
    (B200, 8, 400, {"lstm": "16 x 1: 2801, 16 x 1: 3527", "gru": "16 x 1: 2129, 16 x 1: 2695", "rnn": "16 x 1: 1793, 16 x 1: 2015"}),
    (B200, 128, 256, {"lstm": "4 x 4: 4892, 8 x 8: 5431", "gru": "4 x 4: 3644, 8 x 8: 4231", "rnn": "4 x 4: 2396, 4 x 4: 2546"}),
    (B200, 32, 240, {"lstm": "8 x 2: 2871, 8 x 2: 3197", "gru": "8 x 2: 2079, 8 x 2: 2365", "rnn": "4 x 1: 1719, 4 x 1: 1869"})])
def test_how_the_work_is_divided(device, batch, hidden, steps):
    """Blocks of a cluster x rows, and the cycles of a time step by the model, forward and backward."""
    for cell, expected in steps.items():
        plans = [plan(cell, "layer", direction, hidden, batch, device) for direction in ("forward", "backward")]
        assert ", ".join(f"{p.cluster} x {p.rows}: {p.cycles:.0f}" for p in plans) == expected, cell


def test_clusters_that_do_not_fit_are_not_planned():
    assert plan("lstm", "layer", "forward", 240, 32, H100).cluster == 8
    assert plan("lstm", "layer", "forward", 240, 32, with_clusters(1, 2, 4)).cluster == 4
    assert plan("lstm", "layer", "forward", 240, 32, with_clusters(1)) is None
    assert plan("lstm", "layer", "forward", 64, 8, RTX_4090) is None


def _refusal(gpu, cell, hidden):
    case = recurrent(cell, "layer", (1, 1, 2, hidden), masked=False, reverse=False)
    with zeros():
        arrays = [None if a is None else gpu.zeros(a.shape) for a in case.inputs]
    [walk] = [rule for rule in getattr(ops, cell).rules(gpu.name) if rule.name == "cuda walk"]
    return walk.supports(gpu, *arrays, **case.attrs)


def test_why_a_walk_cannot_run(on_clusters, monkeypatch):
    gpu = on_clusters(None)
    assert _refusal(gpu, "lstm", 64) is None
    assert _refusal(gpu, "lstm", 1024) == "the weights of 1024 units do not fit the multiprocessors of a cluster"
    assert _refusal(gpu, "gru", 5000) == "5000 hidden units are more than 4096"
    monkeypatch.setenv("DUOLN_WALK", "0")
    assert _refusal(gpu, "lstm", 64) == "DUOLN_WALK is 0"


def _fails(*sizes):
    raise KernelError("libcuda.so.1: undefined symbol")


@pytest.mark.parametrize(("answer", "refused", "times"), [
    (lambda blocks, threads, shared: 128 // blocks, [None, None], len(CLUSTERS)),
    (lambda blocks, threads, shared: 8 if blocks <= 4 else 0,
     [None, "the weights of 400 units do not fit the multiprocessors of a cluster"], len(CLUSTERS)),
    (_fails, ["the driver does not say which clusters fit: libcuda.so.1: undefined symbol"] * 2, 1)], ids=["all", "small ones", "no answer"])
def test_the_driver_is_asked_once_which_clusters_fit(answer, refused, times, gpu, monkeypatch):
    """The reasons for 64 units, and for 400."""
    from duoln.kernels.launch import cuda as launch
    from duoln.kernels.recurrent import cuda_walk

    asked = []
    monkeypatch.setattr(launch, "properties", lambda: {"major": 9, "multiProcessorCount": 132, "sharedMemPerBlockOptin": 227 << 10})
    monkeypatch.setattr(cuda_walk.clusters, "max_active_clusters", lambda function, *sizes: asked.append(sizes) or answer(*sizes))
    cuda_walk._device_of.cache_clear()
    try:
        assert [_refusal(gpu, "lstm", hidden) for hidden in (64, 400)] == refused
    finally:
        cuda_walk._device_of.cache_clear()
    assert asked == [(blocks, 256, 227 << 10) for blocks in CLUSTERS[:times]]


def test_the_stand_in_has_no_clusters(gpu):
    assert _refusal(gpu, "rnn", 9) == "the device has no clusters of blocks"
