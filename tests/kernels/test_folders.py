"""Each backend's rules of an operator are in that operator's folder."""

import importlib
import re

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


def test_the_page_of_the_kernels_has_every_folder_and_its_backends():
    page = (source.FOLDER / "README.md").read_text(encoding="utf-8")
    [table] = re.findall(r"^\| folder \|.*\n\|[ |-]+\|\n((?:\|.*\n)+)", page, re.MULTILINE)
    rows = {row[1]: row[3:6] for row in (re.split(r" *\| *", line) for line in table.splitlines())}
    with_rules = {path.parent for name in ("native", "numpy", "cupy", "mlx") for path in source.FOLDER.glob(f"*/{name}.py")}
    assert sorted(rows) == sorted(f"`{folder.name}`" for folder in with_rules)
    for folder in with_rules:
        cpu, cuda, mlx = rows[f"`{folder.name}`"]
        told = {"native": "compiled" in cpu, "numpy": "NumPy" in cpu, "cupy": cuda != "-", "mlx": mlx != "-"}
        assert told == {name: (folder / f"{name}.py").is_file() for name in told}, folder.name
