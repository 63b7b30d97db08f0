"""The page for those who know PyTorch: each side runs from top to bottom, and both give the same shapes."""

import re
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
from safetensors.numpy import load_file

FILE = Path(__file__).parent.parent / "duoln" / "docs" / "from_pytorch.md"


class Pair(NamedTuple):
    """Lines of PyTorch, which the page has as a comment, and the lines of ours below them."""

    torch: str
    duoln: str


def pairs():
    blocks = re.findall(r"```python\n(.*?)```", FILE.read_text(encoding="utf-8"), re.DOTALL)
    return [Pair(re.sub(r"^# ", "", theirs, flags=re.MULTILINE), ours) for block in blocks
            for theirs, ours in re.findall(r"((?:^#.*\n)+)((?:^[^#\n].*\n)+)", block, re.MULTILINE)]


def run(side):
    """The values of one side after each pair, by name, with the shapes of those that have one."""
    namespace, shapes = {}, []
    for pair in pairs():
        code = getattr(pair, side)
        exec(compile(code, code, "exec"), namespace)
        shapes.append({name: tuple(value.shape) for name, value in namespace.items()
                       if isinstance(getattr(value, "shape", None), tuple)})
    return namespace, shapes


@pytest.fixture
def ours(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DUOLN_BACKEND", "numpy")
    return run("duoln")


def test_every_line_is_one_of_a_pair():
    code = "".join(re.findall(r"```python\n(.*?)```", FILE.read_text(encoding="utf-8"), re.DOTALL))
    assert len(pairs()) >= 27 and sum(text.count("\n") for pair in pairs() for text in pair) == code.count("\n")


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
    ends, ended = np.array([[2], [1], [1], [2]]) == 2, h[1, 1:3]
    assert not ended.any() and np.array_equal(np.where(ends, h[1], h[0]), h_last.numpy()) and not np.array_equal(h[1, 0], h[0, 0])


@pytest.mark.peers
def test_every_line_of_pytorch_runs_and_has_the_shapes_of_ours(ours, tmp_path):
    pytest.importorskip("torch")
    values, theirs = run("torch")
    for pair, left, right in zip(pairs(), theirs, ours[1], strict=True):
        shared = left.keys() & right.keys()
        assert {name: left[name] for name in shared} == {name: right[name] for name in shared}, pair.duoln
    assert values["count"] == ours[0]["count"] and len(shared) >= 8
