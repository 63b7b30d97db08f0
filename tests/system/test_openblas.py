"""The choice of OpenBLAS kernels: raised on AMD CPUs with AVX-512, never lowered, never against the user."""

import os

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
    assert "OPENBLAS_CORETYPE=SkylakeX" in openblas.advice()
    monkeypatch.setattr(openblas, "loaded_core", lambda: "SkylakeX")
    assert openblas.advice() is None


def test_one_thread_is_for_a_while_only():
    get, put = openblas._function("get_num_threads"), openblas._function("set_num_threads")
    before = get()
    put(2)
    try:
        with openblas.one_thread():
            assert get() == 1
        assert get() == 2
    finally:
        put(before)


def test_where_there_is_no_openblas_nothing_can_be_limited(monkeypatch):
    monkeypatch.setattr(openblas, "_function", lambda name: None)
    assert not openblas.can_limit()
    with pytest.raises(RuntimeError, match="can_limit"), openblas.one_thread():
        pass
