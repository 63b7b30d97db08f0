"""The choice of OpenBLAS kernels: raised on AMD CPUs with AVX-512, never lowered, never against the user."""

import os
import subprocess
import sys

import numpy as np
import pytest

from duoln.system import openblas

AVX512 = "avx512f avx512dq avx512bw avx512vl avx512cd"


def _cpuinfo(vendor, flags):
    return f"processor : 0\nvendor_id : {vendor}\nmodel name : x\nflags : fpu avx2 {flags}\n\nprocessor : 1\n"


def test_amd_with_avx512_is_raised():
    assert openblas.preferred_core(_cpuinfo("AuthenticAMD", AVX512)) == "SkylakeX"


def test_intel_and_smaller_amd_are_left_alone():
    assert openblas.preferred_core(_cpuinfo("GenuineIntel", AVX512)) is None
    assert openblas.preferred_core(_cpuinfo("AuthenticAMD", "avx2")) is None
    assert openblas.preferred_core(_cpuinfo("AuthenticAMD", "avx512f avx512cd")) is None
    assert openblas.preferred_core("") is None


def test_the_users_choice_stands(monkeypatch, tmp_path):
    (tmp_path / "cpuinfo").write_text(_cpuinfo("AuthenticAMD", AVX512))
    monkeypatch.setattr(openblas, "_CPUINFO", tmp_path / "cpuinfo")
    monkeypatch.setattr(openblas.sys, "platform", "linux")
    monkeypatch.setenv("OPENBLAS_CORETYPE", "Haswell")
    openblas.choose_core()
    assert os.environ["OPENBLAS_CORETYPE"] == "Haswell"
    monkeypatch.delenv("OPENBLAS_CORETYPE")
    openblas.choose_core()
    assert os.environ["OPENBLAS_CORETYPE"] == "SkylakeX"


def test_advice_where_numpy_was_loaded_first(monkeypatch, tmp_path):
    (tmp_path / "cpuinfo").write_text(_cpuinfo("AuthenticAMD", AVX512))
    monkeypatch.setattr(openblas, "_CPUINFO", tmp_path / "cpuinfo")
    monkeypatch.setattr(openblas, "loaded_core", lambda: "Haswell")
    monkeypatch.setenv("OPENBLAS_CORETYPE", "SkylakeX")  # duoln's own choice came too late
    assert openblas.advice() == "OpenBLAS runs its Haswell kernels on an AVX-512 CPU; set OPENBLAS_CORETYPE=SkylakeX"
    monkeypatch.setenv("OPENBLAS_CORETYPE", "haswell")
    assert "because OPENBLAS_CORETYPE=haswell is set; set OPENBLAS_CORETYPE=SkylakeX" in openblas.advice()
    monkeypatch.setattr(openblas, "loaded_core", lambda: "SkylakeX")
    assert openblas.advice() is None


@pytest.mark.skipif(openblas.threads() is None, reason="NumPy has no OpenBLAS here")
@pytest.mark.parametrize("first", ["", "import numpy; "])
def test_openblas_uses_the_threads_that_duoln_may_use(first):
    """Whether NumPy is loaded before duoln or after it; its own variable comes first."""
    asked = first + "import duoln, numpy; from duoln.system import openblas; print(openblas.threads())"
    environment = {k: v for k, v in os.environ.items() if k not in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS")}
    two = str(min(os.cpu_count() or 1, 2))
    for extra, expected in (({"DUOLN_THREADS": "1"}, "1"), ({"DUOLN_THREADS": "1", "OPENBLAS_NUM_THREADS": two}, two),
                            ({"DUOLN_THREADS": "1.0"}, two)):
        done = subprocess.run([sys.executable, "-c", asked], env=environment | extra, capture_output=True, text=True,
                              check=True)
        assert done.stdout.strip() == expected


@pytest.mark.parametrize("first", ["", "import numpy; "])
def test_threads_spin_briefly_unless_the_user_said_how_long(first):
    """Whether NumPy is loaded before duoln or after it."""
    asked = first + "import os, duoln; print(os.environ['OPENBLAS_THREAD_TIMEOUT'])"
    environment = {k: v for k, v in os.environ.items() if k != "OPENBLAS_THREAD_TIMEOUT"}
    for extra, expected in (({}, openblas._SPIN_CYCLES), ({"OPENBLAS_THREAD_TIMEOUT": "26"}, "26")):
        done = subprocess.run([sys.executable, "-c", asked], env=environment | extra, capture_output=True, text=True,
                              check=True)
        assert done.stdout.strip() == expected


def test_products_are_right_after_openblas_has_new_threads(monkeypatch):
    monkeypatch.delenv("OPENBLAS_THREAD_TIMEOUT", raising=False)
    monkeypatch.setattr(openblas.threading, "active_count", lambda: 1)
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((300, 200)), rng.standard_normal((200, 400))
    before, count = x @ y, openblas.threads()
    openblas.spin_briefly()
    assert os.environ["OPENBLAS_THREAD_TIMEOUT"] == openblas._SPIN_CYCLES
    assert np.array_equal(x @ y, before) and openblas.threads() == count
