"""Numbers, folders and switches in variables of the environment, also values that make no sense."""

import subprocess
import sys

import numpy as np
import pytest
from conftest import PATIENCE
from small_runs import Line

from duoln.cli import main
from duoln.data import Batches
from duoln.errors import DataMissingError, KernelError, ShapeError, UsageError
from duoln.kernels import native
from duoln.kernels.native import loading, storage
from duoln.randomness import Stream
from duoln.system import openblas, paths, variables
from duoln.tasks import make_config
from duoln.tasks.settings import check_config
from duoln.testing import check_error


@pytest.mark.parametrize(("text", "number"), [
    ("9" * 5000, (1 << 31) - 1), ("0" * 5000 + "3", 3), ("0" * 5000, None), ("2147483647", (1 << 31) - 1), ("2147483646", (1 << 31) - 2),
    ("2147483648", (1 << 31) - 1), ("0", None), ("", None), ("-1", None), ("\u00b2", None), ("\u0663", None), ("4,2", None)])
def test_a_number_of_any_length(text, number, monkeypatch):
    monkeypatch.setenv("A_NUMBER", text)
    assert variables.read_positive("A_NUMBER") == number


def test_an_import_with_a_number_of_thousands_of_digits():
    """OpenBLAS has a number of its own, so that no thread is asked for."""
    code = "import os; os.environ.update(DUOLN_THREADS='9' * 5000, OPENBLAS_NUM_THREADS='1'); from duoln.system import limits; print(limits.workers())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "2147483647\n"


@pytest.fixture
def homeless(monkeypatch):
    """A user whom the system does not know, or whose HOME is no folder."""
    monkeypatch.setenv("HOME", "~")
    for name in ("XDG_CACHE_HOME", "DUOLN_CACHE", "DUOLN_KERNELS"):
        monkeypatch.delenv(name, raising=False)


def test_without_a_home_the_cache_is_told(homeless, monkeypatch, tmp_path):
    check_error(DataMissingError, paths.cache_folder, "expected a home folder", "DUOLN_CACHE")
    monkeypatch.setenv("DUOLN_CACHE", "~/x")
    check_error(DataMissingError, paths.cache_folder, "~/x: expected a home folder")
    monkeypatch.setenv("DUOLN_CACHE", str(tmp_path))
    assert paths.cache_folder() == tmp_path


def test_without_a_home_kernels_cost_their_speed_alone(homeless):
    told = loading.obstacle()
    assert "expected a home folder, found none" in told.reason and told.remedy == "export DUOLN_KERNELS=FOLDER"
    assert native.facts()["rules"] == "interpreted"


def test_a_working_folder_that_is_gone(tmp_path, monkeypatch):
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    monkeypatch.setenv("DUOLN_KERNELS", "kernels")
    check_error(KernelError, storage.folder, "DUOLN_KERNELS=kernels", "the working folder is gone")
    assert "the working folder is gone" in loading.obstacle().reason


def test_a_file_that_is_loaded_may_have_any_name(monkeypatch, tmp_path):
    maps = tmp_path / "maps"
    maps.write_bytes(b"7f00-7f01 r-xp 0 08:01 7 /a\xff/libopenblas.so\n7f02-7f03 r--p 0 08:01 7 /b\xfe.so\n7f04-7f05 rw-p 0 00:00 0\n")
    monkeypatch.setattr(openblas, "_MAPS", maps)
    assert openblas._loaded_libraries() == ["/a\udcff/libopenblas.so"]


@pytest.mark.parametrize("seed", [1 << 31, (1 << 63) + 1, (1 << 64) - 1])
def test_seeds_have_one_range(seed):
    rows = {"x": np.arange(6.0)}
    assert sorted(Batches(rows, 6, seed)(0)["x"]) == list(range(6)) and Stream(seed, "x").uniform(1).size == 1
    check_config(Line(), "plain", make_config(Line(), "plain", None, {"seed": seed}))


def test_a_seed_beyond_it_is_refused_everywhere():
    check_error(ShapeError, lambda: Batches({"x": np.arange(6.0)}, 6, 1 << 64), "seed")
    check_error(UsageError, lambda: check_config(Line(), "plain", make_config(Line(), "plain", None, {"seed": 1 << 64})), "a seed of at most 2^64 - 1")


@pytest.mark.parametrize(("name", "value"), [("DUOLN_NATIVE", "no"), ("DUOLN_OFFLINE", "true"), ("DUOLN_GRAPH", "off"),
                                             ("DUOLN_RULES", "interpreted"), ("DUOLN_TRACEBACK", "2"), ("DUOLN_WALK", "off")])
def test_a_value_that_means_nothing(name, value, monkeypatch, capsys):
    monkeypatch.setenv(name, value)
    with pytest.raises(UsageError, match=f"{name}: expected .*, found '{value}'"):
        variables.check_switches()
    assert main(["list"]) == 2 and f"{name}: expected" in capsys.readouterr().err


@pytest.mark.parametrize("value", ["", "0", "1"])
def test_values_that_mean_something(value, monkeypatch):
    monkeypatch.setenv("DUOLN_OFFLINE", value)
    monkeypatch.setenv("DUOLN_RULES", "composed")
    variables.check_switches()


def test_python_is_told_too():
    done = subprocess.run([sys.executable, "-c", "import os; os.environ['DUOLN_NATIVE'] = 'off'\nimport duoln; duoln.tensor([1.0], 'numpy')"],
                          capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert "UsageError: [environment] DUOLN_NATIVE: expected 0 or 1, found 'off'" in done.stderr
