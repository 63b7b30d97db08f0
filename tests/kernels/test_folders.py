"""Each backend's rules of an operator are in that operator's folder."""

import importlib

import pytest

from duoln.kernels import source


@pytest.mark.parametrize("backend", ["numpy", "mlx"])
@pytest.mark.parametrize("cell", ["lstm", "gru", "rnn"])
def test_the_folder_of_a_cell_attaches_its_own_rules(cell, backend):
    if backend == "mlx":
        pytest.importorskip("mlx.core")
    attach = importlib.import_module(f"duoln.kernels.{cell}.{backend}").attach
    assert attach.__module__ == f"duoln.kernels.{cell}.{backend}"


def test_what_the_cells_share_is_no_backends_file():
    shared = {path.name for path in (source.FOLDER / "recurrent").glob("*.py")}
    assert shared and not shared & {"numpy.py", "cupy.py", "mlx.py"}
