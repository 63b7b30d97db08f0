"""Each backend's rules of an operator are in that operator's folder."""

import importlib
import sys

import pytest
from conftest import STAND_IN, get_backend
from readme_tables import renewed

from duoln.kernels import native, registry, source


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


@pytest.mark.skipif(native.reason() is not None, reason="the page has the compiled rules")
def test_the_page_of_the_kernels_has_the_rules_of_every_operator():
    pytest.importorskip("mlx.core")
    page = source.FOLDER / "README.md"
    assert renewed(page) == page.read_text(encoding="utf-8")


def test_every_folder_with_rules_has_the_cases_of_its_operators():
    """Or another folder has them."""
    for name in ("numpy", "mlx", STAND_IN) if sys.platform == "linux" else ("numpy",):
        fused = {op.name for op, _ in registry.every_rule(get_backend(name))}
        assert fused - {case.op for case in registry.every_case()} == set()
