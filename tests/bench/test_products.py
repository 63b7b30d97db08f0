"""The table of products, and the processes that keep cores busy for it."""

import os

import pytest

from duoln.bench import products
from duoln.kernels import native


@pytest.mark.skipif(native.compiler() is None, reason="there is no C++ compiler")
def test_a_row_a_size_and_a_column_a_load(monkeypatch, capsys):
    monkeypatch.setattr(products, "SIZES", ((65, 64, 64), (64, 64, 256)))
    monkeypatch.setattr(products, "_RUNS", 2)
    assert products.main(["--busy", "0", "--busy", "1"]) == 0
    text = capsys.readouterr().out
    assert "0 busy" in text and "1 busy" in text
    for size in ("65 x 64 x 64", "64 x 64 x 256"):
        [line] = [line for line in text.splitlines() if size in line]
        assert line.count(" = ") == 2


def test_busy_processes_end_with_the_measurement(monkeypatch):
    started = []
    real = products.subprocess.Popen
    monkeypatch.setattr(products.subprocess, "Popen", lambda *args, **named: started.append(real(*args, **named)) or started[-1])
    with pytest.raises(ZeroDivisionError), products.busy_processes(2):
        assert [process.poll() for process in started] == [None, None]
        1 / 0  # noqa: B018
    for process in started:
        assert process.returncode is not None
        with pytest.raises(ProcessLookupError):
            os.kill(process.pid, 0)
