"""The benchmark of the host's time over CuPy: what it measures runs, and nothing of it reaches a kernel."""

import pytest
import stand_in_cupy
from conftest import GPU, STAND_IN

from duoln.bench import host


@pytest.mark.skipif(GPU != STAND_IN, reason="only the stand-in keeps a list of launches")
def test_rows_of_every_cell_without_a_launch(gpu, monkeypatch):
    from duoln.kernels import launch

    monkeypatch.setattr(host, "SHORT", 2)
    monkeypatch.setattr(host, "LONG", 6)
    compiled = launch.Kernel.compiled

    def anew(self, macros):
        monkeypatch.setattr(self, "_compiled", {})  # what an earlier test compiled would run
        return compiled(self, macros)

    monkeypatch.setattr(launch.Kernel, "compiled", anew)
    before = len(stand_in_cupy.launches)
    rows = host.measure(gpu)
    assert len(stand_in_cupy.launches) == before
    assert list(rows) == ["bare", "layer_norm, an operator with one launch", "LN-RNN", "LN-GRU", "LN-LSTM"]
    assert all({"forward us", "backward us", "forward / bare"} <= rows[f"LN-{cell}"].keys() for cell in ("RNN", "GRU", "LSTM"))
