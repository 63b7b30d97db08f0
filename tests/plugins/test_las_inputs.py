"""What the layers of the LAS model get, against plain NumPy."""

import numpy as np
import pytest
from ops.cases import layer_norm_reference
from test_las import TASK, _listen, _start

from duoln.runtime import to_tensors
from duoln.testing import check_close


@pytest.mark.parametrize("variant", ["none", "both", "encoder-over-time"])
def test_the_inputs_of_every_layer_without_padding_and_dropout(variant, numpy_backend):
    cfg, params, batch = _start(variant)
    t = to_tensors({"p": params, "b": batch}, numpy_backend)
    inputs = TASK.layer_inputs(TASK.model(cfg), t["p"], t["b"])
    assert list(inputs) == ["listener 1, gates", "listener 2", "listener 2, gates", "listener 3", "listener 3, gates", "attention", "softmax"]

    cell, frames = params["listener"]["layer0"]["forward0"], batch["x"][batch["mask"]]
    gates = frames @ cell["w_x"]
    if "gain_x" in cell:
        gates = layer_norm_reference(gates, cell["gain_x"], cell["bias_x"])
    check_close(inputs["listener 1, gates"], gates + cell["bias"], 1e-11, "gates")
    np.testing.assert_array_equal(np.shape(inputs["listener 2"])[1], params["listener"]["layer1"]["forward0"]["w_x"].shape[0])

    values = [_listen(params["listener"], batch["x"][:, b], int(batch["mask"][:, b].sum()), cfg.pyramids, [1.0] * 3)
              for b in range(batch["x"].shape[1])]
    flat = sorted(np.concatenate(values).tolist())
    check_close(np.array(sorted(inputs["attention"].tolist())), np.array(flat), 1e-11, "attention")
    assert inputs["softmax"].shape == ((batch["weight"] > 0).sum(), params["speller"]["output"]["bias"].shape[0])


def test_padding_is_left_out(numpy_backend):
    """Numbers in the padding reach nothing that is measured."""
    cfg, params, batch = _start("both")
    dirty = {**batch, "x": np.where(batch["mask"][..., None], batch["x"], 1e6)}
    t = to_tensors({"p": params, "a": batch, "b": dirty}, numpy_backend)
    clean, dirtied = (TASK.layer_inputs(TASK.model(cfg), t["p"], t[name]) for name in "ab")
    assert not batch["mask"].all()
    for layer in clean:
        np.testing.assert_array_equal(clean[layer], dirtied[layer])
