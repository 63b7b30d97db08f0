"""Readers of run folders: the one that resumes training and the one that loads a model, with small runs of MNIST."""

import dataclasses
import json
from functools import cache

import safetensors.numpy

from duoln import runtime, tree
from duoln.plugins.mnist.task import Mnist
from duoln.runs import checkpoint
from duoln.runs.tensor_file import sealed
from duoln.runs.trained import load_trained
from duoln.tasks import make_config
from duoln.training.trainer import Trainer

HIDDEN = "4"


@cache
def _trainer():
    task = Mnist()
    cfg = make_config(task, "ln", "smoke", {"hidden": HIDDEN, "rows": "200", "epochs": "1"})
    return Trainer(task, "ln", cfg, task.data(cfg), runtime.backend("numpy"))


def config():
    """`config.json` of the run."""
    content = {"task": "mnist", "variant": "ln", "precision": "float32", "config": dataclasses.asdict(_trainer().cfg)}
    return json.dumps(content, indent=2).encode()


def saved(step=3, **notes):
    """A checkpoint of the run."""
    trainer = _trainer()
    arrays = dict(tree.items(tree.map(lambda t: t.numpy(), trainer.state)))
    return safetensors.numpy.save(arrays, {"duoln": sealed(json.dumps({
        "format": 1, "update": step, "task": "mnist", "variant": "ln", "precision": "float32", "config": dataclasses.asdict(trainer.cfg),
        "train_seconds": 1.5, "evaluated": {"test_error": 0.5}, "best": 0.5, "worse": 0, "identity": {"data": "made digits"}, "changes": [],
        **notes}), arrays)})


def read_model(path):
    """The model of the run that a file belongs to."""
    folder = path.parent if path.name == "config.json" else path.parents[1]
    return load_trained(Mnist(), folder, runtime.backend("numpy"))


def resume(path):
    """Resume from a checkpoint."""
    _trainer().resume(checkpoint.load(path))
