"""Patience with several processes: only process 0 evaluates, and all of them stop where it does."""

import pytest
from groups import together
from small_runs import VALUES, Told

from duoln.distributed.ranks import Ranks
from duoln.runs.folder import RunFolder
from duoln.runs.log import read_log
from duoln.tasks import make_config
from duoln.training.loop import fit, follow
from duoln.training.trainer import Trainer


@pytest.mark.parametrize("size", [2, 4])
def test_every_rank_stops_where_the_patience_of_the_first_ends(size, tmp_path):
    """Its metrics end a run of 30 steps at step 20."""
    def work(g, be):
        task = Told()
        cfg = make_config(task, "plain", None, {"epochs": 6, "patience": 2})
        trainer = Trainer(task, "plain", cfg, task.data(cfg), be, ranks=Ranks(g, be))
        task.metrics = lambda predict, split: {"mse": VALUES[trainer.step]}
        if g.rank:
            follow(trainer)
            return trainer.step
        folder = RunFolder(tmp_path, be)
        fit(trainer, folder)
        folder.close()
        return max(e["step"] for e in read_log(tmp_path) if e["event"] == "step")

    assert together(size, work) == [20] * size
