"""The device's own time is that of a graph: launches are captured once, and a launch of the graph is timed between events."""

import contextlib
from types import SimpleNamespace

import numpy as np
import pytest
import stand_in_capture
from conftest import GPU, STAND_IN

import duoln
from duoln import runtime
from duoln.bench import clock, operators, operators_torch, recurrent
from duoln.bench.launch_chains import DuolnChain
from duoln.bench.operators import Plan
from duoln.bench.subjects import every_subject
from duoln.core import Tensor
from duoln.errors import KernelError
from duoln.testing import check_error

SHAPE = (8, 64)
over_stand_in = pytest.mark.skipif(GPU != STAND_IN, reason="the stand-in counts the launches of graphs")


@pytest.fixture
def ticking(monkeypatch, gpu):
    """Events whose time is what was launched so far: 1 a graph, 100 an operation that runs outside a graph."""
    at = [0.0]
    launch = stand_in_capture.Graph.launch
    monkeypatch.setattr(stand_in_capture.Event, "record", lambda event, stream=None: setattr(event, "at", at[0]))

    def launched(graph, stream=None):
        at[0] += 1.0
        launch(graph, stream)

    monkeypatch.setattr(stand_in_capture.Graph, "launch", launched)
    return at


@pytest.mark.few
@over_stand_in
@pytest.mark.parametrize(("name", "backward"), [(name, backward) for name in every_subject() for backward in (False, True)
                                                if name != "copy" or not backward])
def test_the_devices_time_is_that_of_one_launch_of_the_graph(gpu, ticking, name, backward):
    subject = every_subject()[name]
    inputs = subject.inputs(SHAPE)
    chain = DuolnChain(subject, gpu, inputs, "warm", backward)
    chain.launch(1)
    chain.wait()
    seconds = chain.capture(3)
    before = len(stand_in_capture.graphs)
    assert [seconds(), seconds()] == [1.0, 1.0] and len(stand_in_capture.graphs) == before + 4
    [operations] = {len(graph._operations) for graph in stand_in_capture.graphs[before:]}
    assert operations % 3 == 0 and operations > 0


@over_stand_in
def test_a_graph_computes_what_the_launches_compute(gpu):
    subject = every_subject()["layer_norm"]
    inputs = subject.inputs(SHAPE)
    tensors = {name: Tensor(gpu.asarray(a), gpu) for name, a in inputs.items()}
    kept = []
    seconds = gpu.device_seconds(lambda: kept.append(subject.run(tensors, tensors["gout"].data)))
    seconds()
    expected = subject.run(tensors, tensors["gout"].data)
    for name, array in expected.items():
        assert np.array_equal(gpu.to_numpy(kept[0][name]), gpu.to_numpy(array)), name


@over_stand_in
def test_what_cannot_be_captured_has_a_reason_and_no_time_of_the_device(gpu, monkeypatch):
    subject = every_subject()["layer_norm"]
    real = type(subject).run

    def run(self, tensors, gout):
        result = real(self, tensors, gout)
        gpu.wait(list(result.values()))  # a wait
        return result

    monkeypatch.setattr(type(subject), "run", run)
    [case] = operators.measure(Plan(subject, SHAPE, "warm", True), gpu, (), 1, copy_gbps=10.0)
    assert "event_seconds" not in case and "event_samples" not in case and case["median"] > 0
    assert "a wait for a stream" in case["no_event_seconds"]


@over_stand_in
@pytest.mark.parametrize("backward", [False, True])
def test_a_layer_has_the_devices_time_of_a_run(gpu, ticking, monkeypatch, backward):
    monkeypatch.setattr(runtime, "choose", lambda name: (gpu, "named"))
    monkeypatch.setattr(duoln, "backend", lambda name: gpu)
    work = recurrent.prepare({"cell": "lstm", "norm": "layer", "shape": [3, 2, 4, 8], "backward": backward,
                              "backend": "cupy", "peer": None})
    seconds, why = clock.captured(work.capture)
    assert why is None and [seconds(), seconds()] == [1.0, 1.0]


@over_stand_in
def test_graphs_that_are_switched_off_are_a_reason(gpu, monkeypatch):
    monkeypatch.setenv("DUOLN_GRAPH", "0")
    check_error(KernelError, lambda: gpu.device_seconds(lambda: None), "DUOLN_GRAPH is 0")


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

    cuda = SimpleNamespace(Event=Event, CUDAGraph=lambda: SimpleNamespace(replay=lambda: done.append("replay")), graph=graph)
    monkeypatch.setattr(operators_torch, "_torch", lambda: SimpleNamespace(cuda=cuda))
    assert operators_torch.graph_seconds(lambda: done.append("run"))() == 0.005


@pytest.mark.peers
@pytest.mark.parametrize("fails", [False, True])
def test_no_result_of_pytorch_lives_while_another_stream_captures(monkeypatch, fails):
    """Its gradients would be given on the stream of the first use of their tensors."""
    chain = operators_torch.TorchChain(every_subject()["layer_norm"], every_subject()["layer_norm"].inputs(SHAPE), "warm", True, "cpu")
    assert chain.capture(2) is None
    chain._on_gpu = True
    chain.launch(1)

    def capture(run):
        assert not chain._results
        run()
        if fails:
            raise RuntimeError("operation not permitted when stream is capturing")
        return lambda: 2.0

    monkeypatch.setattr(operators_torch, "graph_seconds", capture)
    with pytest.raises(RuntimeError) if fails else contextlib.nullcontext():
        assert chain.capture(2)() == 2.0
    assert not chain._results
