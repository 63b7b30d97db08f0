"""One command surveys a device: every part writes its figures, and the other parts run when one fails."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

from conftest import GPU, PATIENCE, STAND_IN

from duoln.bench import survey
from duoln.bench.survey import Part
from duoln.cli import main

ROOT = Path(__file__).parents[2]
PARTS = survey.parts


def _patient_parts(*args):
    return [part._replace(seconds=PATIENCE) for part in PARTS(*args)]


def test_a_part_that_fails_hangs_or_talks_nonsense(tmp_path, capsys, monkeypatch):
    def python(code):
        return [sys.executable, "-c", code]

    monkeypatch.setattr(survey, "parts", lambda *a: [
        Part("breaks", "", python("import sys; sys.exit('no such device')"), PATIENCE),
        Part("hangs", "", python("import time; time.sleep(10 * 3600)"), 1),
        Part("talks", "", python("print('not JSON')"), PATIENCE),
        Part("dies", "", python("import os; os.abort()"), PATIENCE),
        Part("works", "", python("print('{\"copy GB/s\": 12.5}')"), PATIENCE)])
    assert main(["bench", "survey", "--backend", "numpy", "--out", str(tmp_path / "new")]) == 1
    text = capsys.readouterr().out
    for words in ("no such device", "stopped after 1 s", "no JSON", "exit code -6", "copy GB/s: 12.5"):
        assert words in text
    assert text.count("FAILED") == 4


def test_a_backend_that_is_not_there_is_one_error(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("duoln.backends.load", _no_backend)
    assert main(["bench", "survey", "--out", str(tmp_path / "new")]) == 3
    assert "no such device" in capsys.readouterr().err and not (tmp_path / "new").exists()


def _no_backend(name):
    raise RuntimeError("no such device")


def test_the_device_is_measured_where_there_is_one(tmp_path):
    names = [p.name for p in survey.parts("cupy", tmp_path, quick=False)]
    assert names == ["selftest", "repeats", "device", "ops", "rnn", "mnist"]
    assert sum(p.seconds for p in survey.parts("cupy", tmp_path, quick=False)) <= 11 * 60


def test_what_measures_the_device(gpu, monkeypatch):
    from duoln.kernels import launch, source

    monkeypatch.setitem(sys.modules, "cupy", launch.cupy)
    from duoln.kernels.device_limits import cuda

    exchanges = cuda._exchanges(1)
    assert len(exchanges) == 3
    assert f" GATHERED = {cuda._GATHERED // 16};" in source.text("device_limits/exchange.cu")  # there in units of 16 bytes
    if GPU == STAND_IN:  # blocks that are not there at once cannot wait for each other
        monkeypatch.setattr(cuda, "_exchanges", lambda rounds: {})
        monkeypatch.setattr(cuda, "_ROUNDS", 1)
    figures = cuda.measure(mib=1, rounds=1, launches=1)
    measured = {"copy GB/s", "read GB/s", "write GB/s", "launch of our kernel, us", "product 64 x 256 x 1024, us",
                "multiprocessors", "tensor cores bf16, TFLOP/s", "tensor cores tf32, TFLOP/s", "gathered in a cluster, GB/s a block",
                "gathered from L2, GB/s a block"}
    assert all(figures[name] > 0 for name in measured)
    [graph] = set(figures) - measured - set(exchanges)
    assert graph == "the same in a graph, us" and (GPU != STAND_IN or "AttributeError" in figures[graph])


def test_a_whole_survey_with_nothing_installed_but_numpy_pluggy_and_rich(tmp_path):
    """The machine with the GPU may lack other packages and a network. On a busy one the parts take longer."""
    (tmp_path / "sitecustomize.py").write_text(
        "import sys\nfor name in ('safetensors', 'pooch', 'mlx', 'torch', 'matplotlib'):\n    sys.modules[name] = None\n")
    code = f"""
from duoln.bench import survey
parts = survey.parts
survey.parts = lambda *args: [part._replace(seconds={PATIENCE}) for part in parts(*args)]
from duoln.cli import main
raise SystemExit(main(["bench", "survey", "--out", {str(tmp_path / "day")!r}, "--backend", "numpy", "--quick"]))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, cwd=ROOT,
                          env={**os.environ, "PYTHONPATH": str(tmp_path)})
    assert done.returncode == 0, done.stdout + done.stderr
    for name in ("selftest", "repeats", "ops", "rnn", "mnist"):
        assert json.loads((tmp_path / "day" / f"{name}.json").read_text())
    assert json.loads((tmp_path / "day" / "mnist.json").read_text())["last loss"] < 2.3
    assert done.stdout == (tmp_path / "day" / "summary.md").read_text() + "\n" and "FAILED" not in done.stdout
    assert re.search(r"layer_norm, (compiled|interpreted): \d+ cases, .*, repeats, 0 failed", done.stdout)
