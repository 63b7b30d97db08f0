"""Compiled steps beside the steps themselves: equal bits pass, a bit that differs is named, and a step that is not captured says why."""


import pytest
import stand_in_capture
from conftest import GPU, STAND_IN

from duoln.testing import graphs

LARGE = ("las", "attentive_reader", "transformer", "convnet")


@pytest.mark.long
@pytest.mark.parametrize("task", [pytest.param(task, marks=pytest.mark.minutes if task != "mnist" else ()) for task in graphs.TASKS])
def test_a_graph_has_the_bits_of_the_step(task, gpu):
    before = len(stand_in_capture.graphs)
    outcome = graphs.compare(gpu, task)
    assert outcome.passed and outcome.obstacle == "" and len(outcome.losses) == 6, outcome
    assert GPU != STAND_IN or len(stand_in_capture.graphs) - before == 3


def test_every_task_is_compared():
    from duoln.tasks.registry import Registry

    assert sorted(graphs.TASKS) == sorted(Registry().tasks)


def test_bits_that_differ_are_named(numpy_backend, monkeypatch):
    def wrong(step):
        count = iter(range(100))

        def compiled(state, batch, rate):
            return step(state, batch, rate * 1.5 if next(count) == 2 else rate)

        return compiled

    monkeypatch.setattr(graphs, "compile", wrong)
    outcome = graphs.compare(numpy_backend, "mnist", updates=4)
    assert not outcome.passed
    assert any(line.startswith("params") and line.endswith("from update 3 on") for line in outcome.differing), outcome.differing
    assert "loss, from update 4 on" in outcome.differing


@pytest.mark.skipif(GPU != STAND_IN, reason="the stand-in refuses to capture")
def test_a_step_that_cannot_be_captured_says_why(gpu, monkeypatch):
    def refuse(self):
        raise RuntimeError("the stand-in captures nothing")

    monkeypatch.setattr(stand_in_capture.Stream, "begin_capture", refuse, raising=True)
    outcome = graphs.compare(gpu, "mnist", updates=4)
    assert outcome.passed and "the stand-in captures nothing" in outcome.obstacle
