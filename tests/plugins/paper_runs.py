"""Made runs of MNIST for the tests of verdicts."""

from pathlib import Path

from duoln.runs.curve import Curve
from duoln.tasks import Dataset

OVERRIDES = {"none": "none", "bn": "batch", "ln": "layer", "bn-hidden": "batch-hidden"}
ORIGINAL = Dataset("MNIST", "original")


def made(variant, values, seed=0, dataset=ORIGINAL, metric="train_nll", result=None, time="2026-01-01", path=None, **settings):
    """A run of 100 updates an epoch, evaluated after each; `values` are its metric's."""
    points = [{"update": 100 * k, "epoch": float(k), "wall_s": 1.0, metric: value} for k, value in enumerate(values, start=1)]
    config = {"seed": seed, "batch_size": 128, "epochs": len(values), "norm": OVERRIDES.get(variant, ""), **settings}
    ended = {"status": "done", "updates": points[-1]["update"], metric: values[-1]} if result is None else result
    return Curve(path or Path(f"{variant}-{seed}"), "mnist", variant, config, dataset, points, [], ended, [{"time": time}])
