"""The table for those who know PyTorch: each side runs from top to bottom, and both give the same shapes."""

import re
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
from safetensors.numpy import load_file

FILE = Path(__file__).parent.parent / "examples" / "README.md"


class Row(NamedTuple):
    """A row of the table."""

    what: str
    torch: str
    duoln: str


def rows():
    [table] = re.findall(r"^\| what \| PyTorch \| duoln \|\n\| --- \| --- \| --- \|\n((?:\|.*\n)+)", FILE.read_text(), re.MULTILINE)
    cells = [re.fullmatch(r"\| (.+?) \| `([^|]+)` \| `([^|]+)` \|", line) for line in table.splitlines()]
    assert all(cells), "a row has three cells, the last two of code"
    return [Row(*cell.groups()) for cell in cells]


def run(side):
    """The values of one side after each row, by name, with the shapes of those that have one."""
    namespace, shapes = {}, []
    for row in rows():
        exec(compile(getattr(row, side), f"{row.what}, {side}", "exec"), namespace)
        shapes.append({name: tuple(value.shape) for name, value in namespace.items()
                       if isinstance(getattr(value, "shape", None), tuple)})
    return namespace, shapes


@pytest.fixture
def ours(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DUOLN_BACKEND", "numpy")
    return run("duoln")


def test_it_has_twenty_rows_and_more():
    assert len(rows()) >= 20 and len({row.what for row in rows()}) == len(rows())


def test_every_line_of_ours_runs(ours):
    values, shapes = ours
    assert values["y"].shape == (8, 3) and values["h"].shape == (2, 4, 16) and len(values["states"]) == 2
    assert values["count"] == 4 * 16 + 16 + 2 * 16 + 16 * 3 + 3 and isinstance(values["number"], float)
    assert values["batch"]["x"].shape == (4, 4) and {"x", "label", "y", "rows"} <= shapes[-1].keys()


def test_the_parameters_that_are_read_are_those_that_were_written(ours):
    values, _ = ours
    params = dict(values["tree"].items(values["params"]))
    saved = load_file("model.safetensors")
    assert set(saved) == set(params) == {"0.weight", "0.bias", "1.gain", "1.bias", "3.weight", "3.bias"}
    assert all(np.array_equal(saved[path], p.numpy()) and p.dtype == "float32" for path, p in params.items())


def test_an_ended_sequence_keeps_its_state(ours):
    values, _ = ours
    (h_last, _), h = values["states"][1], values["h"].numpy()
    assert np.array_equal(h_last.numpy(), h[1]) and np.array_equal(h[1, 1], h[0, 1]) and not np.array_equal(h[1, 0], h[0, 0])


@pytest.mark.peers
def test_every_line_of_pytorch_runs_and_has_the_shapes_of_ours(ours, tmp_path):
    pytest.importorskip("torch")
    values, theirs = run("torch")
    for row, left, right in zip(rows(), theirs, ours[1], strict=True):
        shared = left.keys() & right.keys()
        assert {name: left[name] for name in shared} == {name: right[name] for name in shared}, row.what
    assert values["count"] == ours[0]["count"] and len(shared) >= 8
