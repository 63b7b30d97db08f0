"""A run whose checkpoints could not be read is refused before its first update; states of 16 bits go on to the bit."""

import os
import signal
from dataclasses import dataclass

import numpy as np
import pytest
from small_runs import At, Line, fit_into, state_bits

from duoln import nn, ops, optim, tree
from duoln.errors import DtypeError, Interrupted, ShapeError
from duoln.runs import tensor_file
from duoln.runs.trained import load_trained
from duoln.tasks import make_config
from duoln.testing import check_error
from duoln.training.trainer import Trainer


def trainer_of(task, be):
    cfg = make_config(task, "plain")
    return Trainer(task, "plain", cfg, task.data(cfg), be)


class Named(Line):
    """A model with children of given names, and a number of them."""

    def __init__(self, **layers):
        self.layers = layers

    def model(self, cfg):
        return nn.Sequential(nn.Linear(1, 1), **self.layers)


def test_more_arrays_than_a_header_holds(numpy_backend, tmp_path, monkeypatch):
    monkeypatch.setattr(tensor_file, "_MAX_HEADER", 2000)
    trainer = trainer_of(Named(**{f"layer{k}": nn.LayerNorm(1) for k in range(10)}), numpy_backend)
    check_error(ShapeError, lambda: fit_into(trainer, tmp_path, numpy_backend), "[checkpoint]", "2000 bytes")
    assert trainer.update == 0


@dataclass(frozen=True)
class Momentum(optim.Optimizer):
    """SGD whose velocity is stored in 16 bits."""

    stored: str = "bfloat16"

    def start(self, params):
        return {"velocity": tree.map(lambda p: ops.zeros_like(p).astype(self.stored), params)}

    def apply(self, params, gradients, slots, rate):
        velocity = tree.map(lambda v, g: (v * 0.9 + g).astype(self.stored), slots["velocity"], gradients)
        return tree.map(lambda p, v: p - v * rate, params, velocity), {"velocity": velocity}


class Narrow(Line):
    def __init__(self, stored):
        self.stored = stored

    def optimizer(self, cfg, updates):
        return Momentum(0.01, stored=self.stored)


@pytest.mark.long
@pytest.mark.parametrize("stored", ["bfloat16", "float16"])
def test_a_state_of_16_bits_goes_on_to_the_bit(stored, be, tmp_path):
    task = Narrow(stored)
    whole = trainer_of(task, be)
    fit_into(whole, tmp_path / "whole", be)
    with pytest.raises(Interrupted):
        fit_into(trainer_of(task, be), tmp_path / "cut", be, [At(7, lambda: os.kill(os.getpid(), signal.SIGINT))])
    resumed = trainer_of(task, be)
    fit_into(resumed, tmp_path / "cut", be, resume=True)
    assert state_bits(resumed) == state_bits(whole) and {v.dtype for v in tree.leaves(resumed.state["slots"]["velocity"])} == {stored}
    params = load_trained(task, tmp_path / "cut", be).params
    assert [p.numpy().tobytes() for p in tree.leaves(params)] == [p.numpy().tobytes() for p in tree.leaves(whole.state["params"])]


def test_weights_that_start_in_16_bits_are_refused(be):
    """An update of them is a float32 array: the checkpoints would not fit the model."""
    class Half(Line):
        def model(self, cfg):
            return nn.Sequential(nn.Linear(1, 1, weight_init=lambda rng, shape: np.ones(shape, np.float16)))

    check_error(DtypeError, lambda: trainer_of(Half(), be), "'0.weight'", "found float16", "precision")
