"""NVIDIA's own compiler takes every kernel with every setting for every architecture; no GPU or driver is needed.

By default sm_90, with --long all of them.
`pytest -rP tests/kernels/test_nvrtc.py` prints registers and spills of every kernel, setting and architecture.
"""

import re
from concurrent.futures import ThreadPoolExecutor

import pytest

from duoln.kernels import source
from duoln.kernels.settings import ARCHITECTURES, every_setting

FILES = sorted({file for file, _ in every_setting()})
_ENTRY = re.compile(r"entry function '(\w+)'.*?(\d+) bytes spill stores, (\d+) bytes spill loads.*?Used (\d+) registers", re.S)
_MOST_THREADS = 1024
"""So many threads, 64 registers each, are for states of 2049 to 4096 units: a spill there costs less than a second
algorithm would."""


_FEW_BYTES = 128
"""A thread, stored and read again: around the call of a mathematical function, and in the LSTM's gradient with 512
threads of 4 units, which have 128 registers each."""


@pytest.fixture(scope="module")
def nvrtc():
    """The compiler's library; `pip install duoln[test]` brings it on Linux."""
    return pytest.importorskip("cupy_backends.cuda.libs.nvrtc", reason="no NVRTC for this platform")


def _compile(nvrtc, text, macros, architecture):
    program = nvrtc.createProgram(text, "kernel.cu", (), ())
    options = (f"--gpu-architecture={architecture}", "--std=c++17", "-ftz=true", "--ptxas-options=-v",
               *(f"-D{k}={v}" for k, v in macros.items()))
    try:
        nvrtc.compileProgram(program, options)
    except Exception as error:
        raise AssertionError(f"{architecture} {macros}: {nvrtc.getProgramLog(program)}") from error
    assert len(nvrtc.getCUBIN(program)) > 0
    return nvrtc.getProgramLog(program)


@pytest.mark.parametrize("architecture", [a if a == "sm_90" else pytest.param(a, marks=pytest.mark.long) for a in ARCHITECTURES])
@pytest.mark.parametrize("file", FILES)
def test_compiles_and_keeps_its_values_in_registers(file, architecture, nvrtc):
    settings = [macros for name, macros in every_setting() if name == file]
    assert settings
    with ThreadPoolExecutor(2) as pool:
        logs = list(pool.map(lambda macros: _compile(nvrtc, source.text(file), macros, architecture), settings))
    for macros, log in zip(settings, logs, strict=True):
        entries = _ENTRY.findall(log)
        assert entries, log
        for entry, stores, loads, registers in entries:
            print(f"{architecture} {entry} {macros}: {registers} registers, {stores} + {loads} bytes spilled")
            assert int(stores) + int(loads) <= _FEW_BYTES or macros.get("THREADS") == _MOST_THREADS, (entry, macros, stores)
            assert int(registers) * macros.get("THREADS", 256) <= 65536, (entry, macros, registers)


def test_an_error_names_the_header_and_the_line(nvrtc):
    text = source.text("lstm/lstm.cu").replace("constexpr int WARP = 32;", "constexpr int WARP = thirty_two;")
    with pytest.raises(AssertionError, match=r"common\.cuh\(\d+\)"):
        _compile(nvrtc, text, {"THREADS": 32, "UNITS": 1, "NORM_GATES": 1, "NORM_CELL": 1}, "sm_90")
