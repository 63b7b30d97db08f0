"""The rows of the table: every side computes the same, a wrong rule is not timed, and what is read and written is counted."""

import contextlib
import sys
import types

import numpy as np
import pytest
import stand_in_capture
from conftest import GPU, STAND_IN

from duoln import ops, runtime
from duoln.backends.numpy import NumpyBackend
from duoln.bench import clock, groups, in_duoln, in_torch, row as rows, timed_process
from duoln.bench.clock import Timer
from duoln.bench.groups import WIDE_NAMES, row_of
from duoln.bench.wide import WIDE
from duoln.core import Rule, composed_only
from duoln.errors import DuolnError
from duoln.kernels import device_limits, native
from duoln.kernels.attention import cases as attention_cases
from duoln.kernels.recurrent.cases import Shape, flops, least_bytes
from duoln.kernels.registry import timed
from duoln.testing import check_error

over_stand_in = pytest.mark.skipif(GPU != STAND_IN, reason="the stand-in counts the launches of graphs")
OPERATORS = list(groups.operators())
WIDE_ROWS = [pytest.param(name, marks=[pytest.mark.long] * (name == "adam-3000"))
             for group, names in WIDE_NAMES.items() if group in WIDE for name in names]
LAYERS = [("lstm", "layer"), ("lstm", "none"), ("lstm", "layer-per-gate"), ("lstm", "batch"), ("gru", "layer"), ("gru", "none")]


@pytest.fixture(autouse=True)
def _small(monkeypatch):
    """Caches of 256 KiB, and rows of `wide` with axes below 1000."""
    monkeypatch.setattr(rows, "CACHE_BYTES", 1 << 18)
    for group in WIDE.values():
        for name, row in group.items():
            shapes = {key: tuple(size if size < 1000 else size % 7 + 3 for size in shape) for key, shape in row.shapes.items()}
            monkeypatch.setitem(group, name, row._replace(shapes=shapes))


def _work(group, peer=None, backend="numpy", **row):
    return timed_process.prepare({"group": group, "row": row, "peer": peer, "backend": backend})


def _agree(group, peers=("torch",), **row):
    """Every side that is checked has our figures, and goes on."""
    asked = {"group": group, "row": row, "peer": None, "backend": "numpy"}
    ours, sides = timed_process.prepare(asked), row_of(asked).sides(peers)
    assert sides and np.ptp(ours.checks) > 0
    for side in sides:
        theirs = timed_process.prepare({**asked, **side.asked})
        theirs.wait(theirs.call(theirs.first))
        assert theirs.facts["library"].startswith("torch ")
        if side.checked:
            assert theirs.checks == pytest.approx(ours.checks, rel=1e-4, abs=1e-5), side.name


@pytest.mark.parametrize("name", WIDE_ROWS)
def test_every_row_of_wide_runs(name):
    work = _work("wide", name=name)
    work.wait(work.call(0))
    assert work.checks and np.all(np.isfinite(work.checks)) and work.checks[0] > 0


@pytest.mark.peers
@pytest.mark.parametrize("name", WIDE_ROWS)
def test_every_row_of_wide_agrees_with_torch(name):
    _agree("wide", name=name)


@pytest.mark.parametrize("backward", [False, True])
@pytest.mark.parametrize("op", OPERATORS)
def test_an_operator_on_every_backend(be, op, backward, monkeypatch):
    monkeypatch.setattr(runtime, "choose", lambda name: (be, "named"))
    work = _work("ops", op=op, shape=[5, 7], backward=backward, backend=be.name)
    work.wait(work.call(0))
    assert work.facts["rule"] in (groups.operator(op).rules(be.name)[0].name, "composed") and work.keeps in (1, None)


@pytest.mark.peers
@pytest.mark.parametrize("backward", [False, True])
@pytest.mark.parametrize("op", OPERATORS)
def test_operators_agree_with_torch(op, backward):
    _agree("ops", op=op, shape=[5, 7], backward=backward)


@pytest.mark.peers
@pytest.mark.parametrize("backward", [False, True])
@pytest.mark.parametrize(("cell", "norm"), LAYERS)
def test_layers_agree_with_torch(cell, norm, backward):
    _agree("rnn", cell=cell, norm=norm, shape=[3, 2, 4, 5], backward=backward)


@pytest.mark.peers
def test_a_plain_gru_of_torch_is_no_check():
    assert [(side.name, side.checked) for side in groups.rnn("gru", "recurrent-bias", (1, 2, 3, 4)).sides(["torch"])] == [("torch.nn.GRU", False)]
    assert groups.rnn("lstm", "rms", (1, 2, 3, 4)).sides(["torch"]) == []


@pytest.mark.peers
@pytest.mark.parametrize("causal", [False, True])
def test_attention_agrees_with_torch(causal):
    _agree("attention", shape=[2, 3, 33, 8], causal=causal)
    _agree("attention", shape=[2, 3, 9, 8], causal=causal, backward=False)


@pytest.mark.peers
@pytest.mark.parametrize(("subject", "form"), [("update", ""), ("token", ""), ("token", "cells")])
def test_a_language_model_agrees_with_torch(subject, form):
    """Parameters after an update, and logits of a token."""
    _agree("language-model", subject=subject, sizes=[5, 3, 16, 11], form=form)


@pytest.mark.few
@pytest.mark.peers
@pytest.mark.parametrize("peer", ["torch", "torch-fused"])
def test_training_steps_agree_with_torch(peer):
    for variant in ("none", "bn", "ln"):
        ours, theirs = (_work("train", task="mnist", variant=variant, preset="smoke", plugins=["mnist"], peer=side,
                              settings={"source": "made", "batch_size": 20}) for side in (None, peer))
        assert ours.checks == pytest.approx(theirs.checks, rel=1e-3) and ours.first == theirs.first == len(ours.checks) == 5


def test_an_eager_step_has_the_losses_of_a_compiled_one():
    asked = {"group": "train", "peer": None, "backend": "numpy", "row": {
        "task": "mnist", "variant": "ln", "preset": "smoke", "settings": {"batch_size": 20}, "plugins": ["mnist"]}}
    eager, compiled = (timed_process.prepare({**asked, **more}) for more in ({"form": "eager"}, {}))
    assert eager.checks == pytest.approx(compiled.checks, rel=1e-4) and eager.is_training


@pytest.mark.peers
def test_peers_by_the_compiler_of_torch_go_through_it(monkeypatch):
    import torch

    compiled = []
    monkeypatch.setattr(torch, "compile", lambda function: compiled.append(function) or function)
    ours = _work("ops", op="softmax_cross_entropy", shape=[6, 8])
    assert _work("ops", op="softmax_cross_entropy", shape=[6, 8], peer="torch-compile").checks == pytest.approx(ours.checks)
    [side] = groups.rnn("lstm", "layer", (3, 2, 4, 5)).sides(["torch-compile"])
    _agree("rnn", ["torch-compile"], cell="lstm", norm="layer", shape=[3, 2, 4, 5])
    assert len(compiled) == 2 and side.name == "torch loop, compiled"
    _work("train", task="mnist", variant="ln", preset="smoke", settings={"batch_size": 20}, plugins=["mnist"], peer="torch")
    asked = groups.train("mnist", "ln", "smoke", {"batch_size": 20}).sides(["torch-compile"])[0].asked
    timed_process.prepare({"group": "train", "backend": "numpy", **asked, "row": {
        "task": "mnist", "variant": "ln", "preset": "smoke", "settings": {"batch_size": 20}, "plugins": ["mnist"]}})
    assert len(compiled) == 3


def test_only_the_products_of_a_layer():
    [side] = groups.rnn("lstm", "layer", (3, 2, 4, 5)).sides(["products"])
    work = timed_process.prepare({"group": "rnn", "row": {"cell": "lstm", "norm": "layer", "shape": [3, 2, 4, 5]}, "peer": None, "backend": "numpy", **side.asked})
    assert not side.checked and [a.shape for a in work.call(0)] == [(6, 20), *[(2, 20)] * 3, *[(2, 5)] * 3, (5, 20), (4, 20), (6, 4)]


# Operators -----------------------------------------------------------------------------------------------------

@pytest.mark.parametrize(("spoil", "backward", "words"), [("value", False, "result 0"), ("gradient", True, "result 3")])
def test_a_wrong_rule_is_not_timed(monkeypatch, spoil, backward, words):
    right = ops.layer_norm.rules("numpy")[0]

    def forward(be, *arrays, **attrs):
        y, saved = right.forward(be, *arrays, **attrs)
        return (y * 1.01 if spoil == "value" else y), saved

    def vjp(be, saved, gout, needs):
        *gradients, bias = right.vjp(be, saved, gout, needs)
        return (*gradients, bias * 1.01 if spoil == "gradient" else bias)

    monkeypatch.setitem(ops.layer_norm._rules, "numpy", [Rule("wrong", forward, vjp)])
    check_error(DuolnError, lambda: _work("ops", op="layer_norm", shape=[5, 7], backward=backward), "rule 'wrong'", words)


def test_the_composed_rule_is_timed_where_it_alone_is_allowed():
    with composed_only():
        assert _work("ops", op="layer_norm", shape=[5, 7]).facts["rule"] == "composed"


def test_a_rule_may_be_preferred(monkeypatch):
    second = Rule("second", ops.layer_norm.rules("numpy")[-1].forward, ops.layer_norm.rules("numpy")[-1].vjp)
    monkeypatch.setitem(ops.layer_norm._rules, "numpy", [*ops.layer_norm._rules.get("numpy", []), second])
    work = timed_process.prepare({"group": "ops", "row": {"op": "layer_norm", "shape": [5, 7]}, "peer": None, "backend": "numpy", "rule": "second"})
    assert work.facts["rule"] == "second"


def test_cold_inputs_and_results_take_turns(numpy_backend):
    work = _work("ops", op="layer_norm", shape=[256, 64])
    assert (work.keeps - 1) * (2 * 256 + 2) * 64 * 4 > 2 * rows.CACHE_BYTES
    results = [work.call(k) for k in range(work.keeps)]
    assert len({result[1].data.ctypes.data for result in results}) == work.keeps
    assert groups.ops("layer_norm", (8, 16)).cache == groups.ops("layer_norm", (256, 64), cold=False).cache == "warm"


def test_results_of_a_lazy_library_are_kept_until_the_wait(monkeypatch):
    monkeypatch.setattr(NumpyBackend, "lazy", True)
    monkeypatch.setattr(in_duoln, "_RESULT_BYTES", 10 * 4 * 5 * 7)
    work = _work("ops", op="layer_norm", shape=[5, 7], backward=False)
    assert work.keeps is None and work.most == 10


def test_the_copy_is_one(be, monkeypatch):
    monkeypatch.setattr(runtime, "choose", lambda name: (be, "named"))
    work = _work("copy", shape=[5, 3], backend=be.name)
    [copied] = work.call(0)
    assert np.array_equal(copied.numpy(), groups.copy((5, 3)).arrays()["x"])


@pytest.mark.skipif(native.machine_refusal() is not None, reason="nothing is compiled")
@pytest.mark.parametrize("size", [1, 1000, (8 << 18) + 5])
def test_a_streaming_copy_has_every_value(size):
    """The last size is written with streaming stores."""
    x = np.arange(size, dtype=np.float32)
    assert np.array_equal(device_limits.streaming_copy(x), x)


def test_least_bytes_and_operations():
    rows, width = 3, 5
    moved = {op: [timed()[op].bytes_moved(rows, width, backward) for backward in (False, True)] for op in
             ("layer_norm", "softmax_cross_entropy", "rms_norm", "add_layer_norm", "add_rms_norm")}
    assert list(moved.values()) == [[2 * 60, 4 * 60], [60 + 24, 2 * 60 + 36], [2 * 60, 4 * 60], [4 * 60, 6 * 60], [4 * 60, 6 * 60]]
    assert groups.copy((3, 5)).moved == 2 * 60
    assert [timed()[op].operations(3, 5, True) for op in ("rms_norm", "add_layer_norm", "add_rms_norm")] == [12 * 15, 20 * 15, 14 * 15]


def test_products_are_counted():
    assert least_bytes("rnn", Shape(2, 3, 4, 5)) == 4 * (2 * 3 * (4 + 10 + 5) + 9 * 5)
    assert flops("lstm", Shape(2, 3, 4, 5), backward=False) == 2 * 2 * 3 * (4 + 5) * 20
    assert flops("gru", Shape(2, 3, 4, 5), backward=True) == 3 * 2 * 2 * 3 * (4 + 5) * 15
    shape = attention_cases.Shape(2, 3, 4, 5)
    assert attention_cases.flops(shape, causal=False, backward=False) == 2 * 2 * 3 * 2 * 4 * 4 * 5
    assert attention_cases.flops(shape, causal=True, backward=True) == 7 * 2 * 3 * 2 * 4 * 4 * 5 // 2
    assert attention_cases.least_bytes(shape) == 4 * (3 * 2 * 3 * 4 * 5 + 2 * 3 * 4 * 5)


def test_products_with_made_weights_are_as_large_as_their_inputs():
    made = groups.rnn("lstm", "none", (1, 2, 100, 400)).arrays()
    assert np.std(made["w_x"]) == pytest.approx(0.1, rel=0.05) and np.std(made["w_h"]) == pytest.approx(0.05, rel=0.05)


# The device's own time -----------------------------------------------------------------------------------------

@pytest.mark.few
@over_stand_in
@pytest.mark.parametrize(("group", "row"), [*(("ops", {"op": op, "shape": [8, 64]}) for op in OPERATORS), ("copy", {"shape": [8, 64]}),
                                            *(("rnn", {"cell": "lstm", "norm": "layer", "shape": [3, 2, 4, 8], "backward": backward}) for backward in (False, True))])
def test_the_devices_time_is_that_of_one_launch_of_a_graph(gpu, group, row, monkeypatch):
    """Events whose time is what was launched so far: 1 a graph, 100 an operation that runs outside a graph."""
    at, launch = [0.0], stand_in_capture.Graph.launch
    monkeypatch.setattr(stand_in_capture.Event, "record", lambda event, stream=None: setattr(event, "at", at[0]))

    def launched(graph, stream=None):
        at[0] += 1.0
        launch(graph, stream)

    monkeypatch.setattr(stand_in_capture.Graph, "launch", launched)
    monkeypatch.setattr(runtime, "choose", lambda name: (gpu, "named"))
    monkeypatch.setattr(clock, "RUN_SECONDS", 1e-9)
    timer = Timer(_work(group, backend="cupy", **row)._replace(most=2))
    assert timer.no_graph is None and [timer.device_seconds(), timer.device_seconds()] == [1.0 / timer.calls] * 2


@over_stand_in
def test_what_cannot_be_captured_has_a_reason(gpu, monkeypatch):
    monkeypatch.setattr(runtime, "choose", lambda name: (gpu, "named"))
    work = _work("ops", op="layer_norm", shape=[8, 64], backend="cupy")
    real = work.call
    timer = Timer(work._replace(call=lambda k: (work.wait(result := real(k)), result)[1], most=1))
    assert timer.device_seconds is None and "a wait for a stream" in timer.no_graph


def test_pytorch_captures_a_graph_and_times_its_second_launch(monkeypatch):
    done = []

    class Event:
        def __init__(self, enable_timing):
            assert enable_timing

        def record(self):
            done.append(self)

        def synchronize(self):
            assert done[-1] is self

        def elapsed_time(self, last):
            assert done == ["begin", "run", "end", "replay", self, "replay", last]
            return 5.0

    @contextlib.contextmanager
    def graph(captured):
        done.append("begin")
        yield
        done.append("end")

    cuda = types.SimpleNamespace(Event=Event, CUDAGraph=lambda: types.SimpleNamespace(replay=lambda: done.append("replay")), graph=graph)
    monkeypatch.setitem(sys.modules, "torch", types.SimpleNamespace(cuda=cuda))
    assert in_torch.graph_seconds(lambda: done.append("run"))() == 0.005
