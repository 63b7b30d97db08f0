"""The benchmark of compiled steps gives every figure, on a backend with a compiler and on one without."""

import json

import pytest

from duoln.bench import compiling


@pytest.mark.parametrize("backend", ["numpy", "mlx"])
def test_compiling(backend, capsys):
    assert compiling.main(["--backend", backend, "--steps", "2"]) == 0
    results = json.loads(capsys.readouterr().out)
    assert results.pop("backend") == backend and results.pop("device")
    assert list(results) == ["mnist ln", "LN-LSTM B 4, H 32, T 2"]
    for figures in results.values():
        assert figures["eager ms"] > 0 and figures["compiled ms"] > 0 and figures["first call s"] > 0
        assert (figures["graph nodes"] or 0) > 100 or backend == "numpy"
