"""A signal to any rank stops all of them after the same update, with a checkpoint."""

import os
import signal

import pytest
from meetings import together
from small_runs import VALUES, Line, Told, fit_into

from duoln.distributed.ranks import Ranks
from duoln.errors import Interrupted
from duoln.runs import checkpoint
from duoln.runs.log import read_log
from duoln.tasks import make_config
from duoln.training.session import Session
from duoln.training.trainer import Trainer


@pytest.fixture(autouse=True)
def of_one_process(monkeypatch):
    """The shares of a rank that is alone are not checked."""
    monkeypatch.setattr("duoln.training.trainer.check_sharing", lambda *given: None)


class Beside:
    """What a rank sees of another one that is in step with it and asks to stop after update `stops_at`."""

    size = 2

    def __init__(self, rank, stops_at=None, at_step=lambda step: None):
        self.rank, self.stops_at, self.at_step, self.flags = rank, stops_at, at_step, []

    def share(self, batch, axes):
        self.at_step(len(self.flags) + 1)
        return batch

    def part_of_loss(self, task, own, whole):
        return 1.0

    def total(self, tensors, part):
        return tensors

    def broadcast(self, tensors):
        return tensors

    def check_same(self, own):
        pass

    def any(self, flag):
        self.flags.append(flag)
        return flag or len(self.flags) == self.stops_at


def trainer(backend, ranks):
    task = Line()
    cfg = make_config(task, "plain", "smoke")
    return Trainer(task, "plain", cfg, task.data(cfg), backend, ranks=ranks)


def test_rank_0_stops_where_another_rank_was_asked_to(numpy_backend, tmp_path):
    with pytest.raises(Interrupted, match="stopped after update 4"):
        fit_into(trainer(numpy_backend, Beside(0, stops_at=4)), tmp_path, numpy_backend)
    assert checkpoint.list_paths(tmp_path / "checkpoints")[-1].stem == "update-000000004"


def test_rank_0_that_has_finished_was_not_interrupted(numpy_backend, tmp_path):
    ranks = Beside(0, stops_at=15)
    assert fit_into(trainer(numpy_backend, ranks), tmp_path, numpy_backend)["updates"] == 15
    assert ranks.flags == [False] * 14 + [True]


def test_another_rank_passes_on_that_it_was_asked_to_stop(numpy_backend):
    def interrupt(step):
        if step == 4:
            os.kill(os.getpid(), signal.SIGINT)

    ranks = Beside(1, at_step=interrupt)
    with pytest.raises(Interrupted, match="stopped after update 4, with the other ranks"):
        Session(trainer(numpy_backend, ranks)).follow()
    assert ranks.flags == [False] * 3 + [True]


def test_another_rank_ends_well_where_rank_0_stops(numpy_backend):
    ranks = Beside(1, stops_at=4)
    Session(trainer(numpy_backend, ranks)).follow()
    assert len(ranks.flags) == 4


@pytest.mark.parametrize("size", [2, 4])
def test_every_rank_stops_where_the_patience_of_the_first_ends(size, tmp_path):
    """Its metrics end a run of 30 steps at update 20."""
    def work(g, be):
        task = Told()
        cfg = make_config(task, "plain", None, {"epochs": 6, "patience": 2})
        trainer = Trainer(task, "plain", cfg, task.data(cfg), be, ranks=Ranks(g, be))
        task.metrics = lambda predict, split: {"mse": VALUES[trainer.update]}
        session = Session(trainer)
        if g.rank:
            session.follow()
            return trainer.update
        session.run(tmp_path)
        return max(e["update"] for e in read_log(tmp_path) if e["event"] == "update")

    assert together(size, work) == [20] * size
