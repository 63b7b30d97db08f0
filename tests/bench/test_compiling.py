"""The benchmark of compiled steps gives every figure, on a backend with a compiler and on one without."""

import json

import pytest

from duoln.bench import compiling


@pytest.mark.parametrize("backend", ["numpy", "mlx"])
def test_compiling(backend, capsys):
    assert compiling.main(["--backend", backend, "--steps", "2"]) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line["step"] for line in lines] == ["mnist ln", "LN-LSTM B 4, H 32, T 2"]
    for line in lines:
        assert line["eager ms"] > 0 and line["compiled ms"] > 0 and line["first call s"] > 0
        assert (line["graph nodes"] or 0) > 100 or backend == "numpy"
