"""NVIDIA's own compiler takes every kernel with every setting for every architecture; no GPU or driver is needed.

By default all of them for sm_90 and one for each architecture, with --long all of them for all. The compiler's logs are
kept from one run of the tests to the next, as compiled kernels are.
`pytest -rP tests/kernels/test_nvrtc.py` prints registers and spills of every kernel, setting and architecture.
"""

import getpass
import hashlib
import re
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from duoln.kernels import source
from duoln.kernels.settings import ARCHITECTURES, every_setting

KEPT = Path(tempfile.gettempdir()) / f"duoln-nvrtc-{getpass.getuser()}"
FILES = sorted({file for file, _ in every_setting()})
_ENTRY = re.compile(r"entry function '(\w+)'.*?(\d+) bytes spill stores, (\d+) bytes spill loads.*?Used (\d+) registers", re.S)
SMALL = {"THREADS": 32, "UNITS": 1, "NORM_GATES": 1, "NORM_CELL": 1}


@pytest.fixture(scope="module")
def nvrtc():
    """The compiler's library; `pip install duoln[test]` brings it on Linux."""
    return pytest.importorskip("cupy_backends.cuda.libs.nvrtc", reason="no NVRTC for this platform")


def _compile(nvrtc, text, macros, architecture):
    options = (f"--gpu-architecture={architecture}", "--std=c++17", "-ftz=true", "--ptxas-options=-v",
               *(f"-D{k}={v}" for k, v in macros.items()))
    key = "\0".join((text, *options, *map(str, nvrtc.getVersion())))
    kept = KEPT / f"{hashlib.sha256(key.encode()).hexdigest()[:24]}.log"
    if kept.exists():
        return kept.read_text()
    program = nvrtc.createProgram(text, "kernel.cu", (), ())
    try:
        nvrtc.compileProgram(program, options)
    except Exception as error:
        raise AssertionError(f"{architecture} {macros}: {nvrtc.getProgramLog(program)}") from error
    assert len(nvrtc.getCUBIN(program)) > 0
    log = nvrtc.getProgramLog(program)
    KEPT.mkdir(mode=0o700, exist_ok=True)
    with tempfile.NamedTemporaryFile("w", dir=KEPT, delete=False) as part:
        part.write(log)
    Path(part.name).replace(kept)
    return log


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_every_architecture_is_known(architecture, nvrtc):
    """One setting of the largest source."""
    assert _ENTRY.search(_compile(nvrtc, source.text("lstm/lstm.cu"), SMALL, architecture))


@pytest.mark.parametrize("architecture", [a if a == "sm_90" else pytest.param(a, marks=pytest.mark.long) for a in ARCHITECTURES])
@pytest.mark.parametrize("file", FILES)
def test_compiles_and_keeps_its_values_in_registers(file, architecture, nvrtc):
    _check(nvrtc, file, [macros for name, macros in every_setting() if name == file and "STORAGE" not in macros], architecture)


ORDINARY = [("take/take.cu", {"STORAGE": 1}, architecture) for architecture in ARCHITECTURES]
ORDINARY += [("layer_norm/layer_norm.cu", {"THREADS": 256, "CHUNKS": 8, "VECTOR": 8, "STORAGE": 2}, "sm_90")]
"""The conversions everywhere, and the setting that needs most registers: a compilation takes more than a second."""


def _stored():
    for architecture in ARCHITECTURES:
        for file, macros in every_setting():
            if "STORAGE" in macros:
                marks = [] if (file, macros, architecture) in ORDINARY else pytest.mark.long
                yield pytest.param(file, macros, architecture, marks=marks, id=f"{file} {macros} {architecture}")


@pytest.mark.parametrize(("file", "macros", "architecture"), list(_stored()))
def test_values_of_16_bits(file, macros, architecture, nvrtc):
    _check(nvrtc, file, [macros], architecture)


def _check(nvrtc, file, settings, architecture):
    assert settings
    with ThreadPoolExecutor(2) as pool:
        logs = list(pool.map(lambda macros: _compile(nvrtc, source.text(file), macros, architecture), settings))
    for macros, log in zip(settings, logs, strict=True):
        entries = _ENTRY.findall(log)
        assert entries, log
        for entry, stores, loads, registers in entries:
            print(f"{architecture} {entry} {macros}: {registers} registers, {stores} + {loads} bytes spilled")
            assert int(stores) + int(loads) == 0, (entry, macros, stores)
            assert int(registers) * macros.get("THREADS", 256) <= 65536, (entry, macros, registers)


def test_an_error_names_the_header_and_the_line(nvrtc):
    text = source.text("lstm/lstm.cu").replace("constexpr int WARP = 32;", "constexpr int WARP = thirty_two;")
    with pytest.raises(AssertionError, match=r"common\.cuh\(\d+\)"):
        _compile(nvrtc, text, SMALL, "sm_90")
