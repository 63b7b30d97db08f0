"""Compiled steps beside the steps themselves: equal bits pass, a bit that differs is named, and a step that is not captured says why."""


import pytest
import stand_in_capture
from conftest import GPU, STAND_IN

from duoln.errors import KernelError
from duoln.testing import checks


@pytest.mark.long
@pytest.mark.parametrize("task", [pytest.param(task, marks=pytest.mark.minutes if task != "mnist" else ()) for task in checks.TASKS])
def test_a_graph_has_the_bits_of_the_step(task, gpu):
    before = len(stand_in_capture.graphs)
    assert checks.compare_compiled(task, gpu).endswith(", 6 updates, repeated as one")
    assert GPU != STAND_IN or len(stand_in_capture.graphs) - before == 3


def test_every_task_is_compared():
    from duoln.tasks.registry import Registry

    assert sorted(checks.TASKS) == sorted(Registry().tasks.keys() - {"sequential_mnist"})  # it makes no data


def test_bits_that_differ_are_named(numpy_backend, monkeypatch):
    def wrong(step):
        count = iter(range(100))

        def compiled(state, batch, rate):
            return step(state, batch, rate * 1.5 if next(count) == 2 else rate)

        return compiled

    monkeypatch.setattr(checks, "compile", wrong)
    with pytest.raises(KernelError) as caught:
        checks.compare_compiled("mnist", numpy_backend, updates=4)
    lines = str(caught.value).partition("found others: ")[2].split("; ")
    assert any(line.startswith("params") and line.endswith("from update 3 on") for line in lines), lines
    assert "loss, from update 4 on" in lines


@pytest.mark.long
@pytest.mark.skipif(GPU != STAND_IN, reason="the stand-in refuses to capture")
def test_a_step_that_cannot_be_captured_says_why(gpu, monkeypatch):
    def refuse(self):
        raise RuntimeError("the stand-in captures nothing")

    monkeypatch.setattr(stand_in_capture.Stream, "begin_capture", refuse, raising=True)
    assert "the stand-in captures nothing" in checks.compare_compiled("mnist", gpu, updates=4)
