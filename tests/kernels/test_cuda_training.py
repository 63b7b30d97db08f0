"""The whole CuPy path over the stand-in: the command line, a few MNIST steps, a few LN-LSTM steps."""

import json

import numpy as np
import pytest
import stand_in_cupy
from conftest import GPU, STAND_IN
from device_rules import recurrent_losses

from duoln import backends, cli


@pytest.fixture
def cupy(gpu, monkeypatch):
    """CuPy or its stand-in, under the name that a user gives."""
    monkeypatch.setitem(backends._loaded, "cupy", gpu)
    return gpu


def _losses(folder):
    lines = [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]
    return [line["loss"] for line in lines if "loss" in line]


@pytest.mark.long
def test_mnist_by_name(cupy, tmp_path, capsys):
    """`duoln run mnist --backend cupy`: the kernels run, and the losses are NumPy's."""
    losses = {}
    before = len(stand_in_cupy.launches)
    for name in ("cupy", "numpy"):
        folder = tmp_path / name
        assert cli.main(["run", "mnist", "--preset", "smoke", "--variant", "ln", "--backend", name, "--out",
                         str(folder)]) == 0
        logs = sorted(folder.rglob("log.jsonl"))
        assert logs
        losses[name] = _losses(logs[0].parent)
    assert len(losses["cupy"]) > 3
    np.testing.assert_allclose(losses["cupy"], losses["numpy"], rtol=1e-3)
    if GPU == STAND_IN:
        assert {"layer_norm_forward", "layer_norm_backward", "cross_entropy_forward", "cross_entropy_backward",
                "adam_update"} <= set(stand_in_cupy.launches[before:])


@pytest.mark.parametrize("cell", ["RNN", "LSTM", "GRU"])
def test_a_recurrent_layer_trains_as_on_numpy(cell, cupy):
    ours, right = recurrent_losses(cell, "layer", cupy)
    np.testing.assert_allclose(ours, right, rtol=1e-4)
    assert ours[-1] < ours[0]
