"""Variables that switch something: a value that means nothing is an error, in the command and in Python."""

import subprocess
import sys

import pytest
from conftest import PATIENCE

from duoln.cli import main
from duoln.errors import UsageError
from duoln.system import switches


@pytest.mark.parametrize(("name", "value"), [("DUOLN_NATIVE", "no"), ("DUOLN_OFFLINE", "true"), ("DUOLN_GRAPH", "off"),
                                             ("DUOLN_RULES", "interpreted"), ("DUOLN_TRACEBACK", "2"), ("DUOLN_WALK", "off")])
def test_a_value_that_means_nothing(name, value, monkeypatch, capsys):
    monkeypatch.setenv(name, value)
    with pytest.raises(UsageError, match=f"{name}: expected .*, found '{value}'"):
        switches.check()
    assert main(["list"]) == 2 and f"{name}: expected" in capsys.readouterr().err


@pytest.mark.parametrize("value", ["", "0", "1"])
def test_values_that_mean_something(value, monkeypatch):
    monkeypatch.setenv("DUOLN_OFFLINE", value)
    monkeypatch.setenv("DUOLN_RULES", "composed")
    switches.check()


def test_python_is_told_too():
    done = subprocess.run([sys.executable, "-c", "import os; os.environ['DUOLN_NATIVE'] = 'off'\nimport duoln; duoln.tensor([1.0], 'numpy')"],
                          capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert "UsageError: [environment] DUOLN_NATIVE: expected 0 or 1, found 'off'" in done.stderr
