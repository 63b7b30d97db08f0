"""What tests of several experiments share: peers, models, runs, data of the user, the paper's LSTM."""

import os
from pathlib import Path

import numpy as np

from duoln import runtime, tree
from duoln.randomness import Stream
from duoln.tasks import Trained, make_config
from duoln.testing import check_task
from duoln.testing.references import STEPS
from duoln.training.session import Session
from duoln.training.trainer import Trainer


def check_task_on(be, task, **how):
    """The kit for tasks on one backend: derivatives are taken on NumPy, with which the others are compared."""
    check_task(task, backend=be, gradients=be.name == "numpy", agreement=be.name != "numpy", **how)


def check_peer(task, variant, cfg, steps, rtol, peer="torch"):
    """A peer's losses are ours, from the same start on the same batches."""
    splits = task.data(cfg)
    trainer = Trainer(task, variant, cfg, splits, runtime.backend("numpy"))
    step, facts = task.peer(peer)(cfg, tree.map(lambda t: t.numpy(), trainer.state["params"]))
    theirs = [step(splits.train(k)) for k in range(steps)]
    np.testing.assert_allclose([trainer.advance() for _ in range(steps)], theirs, rtol=rtol)
    assert facts["library"].startswith("torch")


def untrained(task, variant):
    """The model at its start, as `Task.sample` is given one."""
    cfg = make_config(task, variant, "smoke")
    model = task.model(cfg)
    return Trained(cfg, variant, 1, model, runtime.to_tensors(model.init(Stream(0, "init")), "numpy"))


def short_run(task, variant, folder, **settings):
    """A run of a few updates in a folder; its result."""
    cfg, backend = make_config(task, variant, "smoke", settings), runtime.backend("numpy")
    return Session(Trainer(task, variant, cfg, task.data(cfg), backend)).run(folder)


def root_with(*places):
    """The folder of `DUOLN_DATA` that has all of these; None if none has. For tests of the true data."""
    roots = [Path(root) for root in os.environ.get("DUOLN_DATA", "").split(os.pathsep) if root]
    return next((root for root in roots if all((root / place).exists() for place in places)), None)


def lstm_reference(p, x, h, c):
    """A step of an LSTM from the equations, with those of its norms that `p` has."""
    norm = "layer" if "gain_x" in p else "layer-cell" if "gain_c" in p else "none"
    return STEPS["lstm", norm](p, x, h, c)
