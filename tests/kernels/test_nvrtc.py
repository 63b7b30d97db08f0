"""NVIDIA's own compiler takes every kernel with every setting for every architecture; no GPU or driver is needed.

By default all of them for sm_90 and one for each architecture, with --long all of them for all. The compiler's logs are
kept from one run of the tests to the next, as compiled kernels are.
`pytest -rP tests/kernels/test_nvrtc.py` prints registers and spills of every kernel, setting and architecture.
"""

from concurrent.futures import ThreadPoolExecutor

import nvrtc_logs
import pytest
from nvrtc_logs import every_setting

from duoln.kernels import source
from duoln.kernels.settings import ARCHITECTURES

pytestmark = pytest.mark.skipif(nvrtc_logs.version() is None, reason="no NVRTC for this platform")

FILES = sorted({file for file, _ in every_setting()})
SMALL = {"THREADS": 32, "UNITS": 1, "NORM_GATES": 1, "NORM_CELL": 1}


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_every_architecture_is_known(architecture):
    """One setting of the largest source."""
    assert nvrtc_logs.used(nvrtc_logs.log(source.text("lstm/lstm.cu"), SMALL, architecture))


@pytest.mark.parametrize("architecture", [a if a == "sm_90" else pytest.param(a, marks=pytest.mark.long) for a in ARCHITECTURES])
@pytest.mark.parametrize("file", FILES)
def test_compiles_and_keeps_its_values_in_registers(file, architecture):
    settings = [macros for name, macros in every_setting() if name == file]
    assert settings
    with ThreadPoolExecutor(2) as pool:
        logs = list(pool.map(lambda macros: nvrtc_logs.log(source.text(file), macros, architecture), settings))
    for macros, log in zip(settings, logs, strict=True):
        entries = nvrtc_logs.used(log)
        assert entries, log
        for entry, use in entries.items():
            print(f"{architecture} {entry} {macros}: {use.registers} registers, {use.spilled} bytes spilled")
            assert use.spilled == 0, (entry, macros, use)
            assert use.registers * macros.get("THREADS", 256) <= 65536, (entry, macros, use)


def test_an_error_names_the_header_and_the_line():
    text = source.text("lstm/lstm.cu").replace("constexpr int WARP = 32;", "constexpr int WARP = thirty_two;")
    with pytest.raises(AssertionError, match=r"common\.cuh\(\d+\)"):
        nvrtc_logs.log(text, SMALL, "sm_90")
