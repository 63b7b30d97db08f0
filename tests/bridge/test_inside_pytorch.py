"""The blocks of PyTorch on the page about it."""

import re
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.peers
PAGE = Path(__file__).parents[2] / "duoln" / "docs" / "inside_pytorch.md"


def test_its_pytorch_runs_in_order(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    first, *blocks = re.findall(r"```py\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    assert 'LSTM(400, 400, norm="layer")' in first
    namespace = {}
    for block in blocks:
        exec(compile(block, PAGE.name, "exec"), namespace)
    assert namespace["loss"].isfinite() and (tmp_path / "model.pt").exists()
