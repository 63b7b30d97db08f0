"""NVIDIA's own compiler takes every kernel with every setting for every architecture; no GPU or driver is needed.

By default one setting of each file for sm_90 and one file for each architecture, with --long all of them for all. The
compiler's logs are kept from one run of the tests to the next, as compiled kernels are.
`pytest -rP tests/kernels/test_nvrtc.py` prints registers and spills of every kernel, setting and architecture.
"""

from concurrent.futures import ThreadPoolExecutor

import nvrtc_logs
import pytest
from nvrtc_logs import every_setting

from duoln.kernels import source
from duoln.kernels.settings import ARCHITECTURES, WALK_DEVICES, walks

pytestmark = pytest.mark.skipif(nvrtc_logs.version() is None, reason="no NVRTC for this platform")

FILES = [nvrtc_logs.name_of(path) for path in nvrtc_logs.files()]
source.import_all()  # the declarations, which print the prototypes
STORED = [file for file in FILES if any("storage_t" in text for text in source._prototypes.get(file, {}).values())]
"""Those that take 16 bits."""
SMALL = {"THREADS": 32, "UNITS": 1, "NORM_GATES": 1, "NORM_CELL": 1}


def test_every_file_has_settings():
    assert {name for name, _ in every_setting()} == set(FILES)
    assert {name for name, macros in every_setting() if "STORAGE" in macros} == set(STORED)


@pytest.mark.long
@pytest.mark.parametrize("file", FILES)
def test_one_setting_of_each_file(file):
    _check(file, [next(macros for name, macros in every_setting() if name == file)], "sm_90")


@pytest.mark.long
@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("file", FILES)
def test_compiles_and_keeps_its_values_in_registers(file, architecture):
    _check(file, [macros for name, macros in every_setting() if name == file and "STORAGE" not in macros], architecture)


ORDINARY = [("take/take.cu", {"STORAGE": 1}, architecture) for architecture in ARCHITECTURES]
ORDINARY += [("norm/norm.cu", {"THREADS": 256, "CHUNKS": 8, "VECTOR": 8, "STORAGE": 2}, "sm_90")]
"""The conversions everywhere, and the setting that needs most registers: a compilation takes more than a second."""


@pytest.mark.long
@pytest.mark.few
@pytest.mark.parametrize(("file", "macros", "architecture"), ORDINARY, ids=str)
def test_values_of_16_bits(file, macros, architecture):
    assert (file, macros) in every_setting()
    _check(file, [macros], architecture)


@pytest.mark.minutes
@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("file", STORED)
def test_every_setting_with_values_of_16_bits(file, architecture):
    _check(file, [macros for name, macros in every_setting() if name == file and "STORAGE" in macros], architecture)


@pytest.mark.long
@pytest.mark.parametrize(("architecture", "device"), [
    pytest.param(architecture, device, id=architecture) for architecture, device in WALK_DEVICES.items()])
@pytest.mark.parametrize("file", sorted(f"recurrent/{cell}/walk{end}.cu" for cell in ("lstm", "gru", "rnn") for end in ("", "_backward")))
def test_walks(file, architecture, device):
    _check(file, [walk.macros for walk in walks(device) if walk.file == file], architecture)


def test_a_walk_that_says_for_what_it_waits():
    """The one with most registers."""
    most = next(walk for walk in walks(WALK_DEVICES["sm_90"]) if walk.macros["HIDDEN"] == 512)
    _check(most.file, [{**most.macros, "SAY_WAITS": 1}], "sm_90")


def _check(file, settings, architecture):
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
    text = source.text("recurrent/lstm/lstm.cu").replace("constexpr int WARP = 32;", "constexpr int WARP = thirty_two;")
    with pytest.raises(AssertionError, match=r"common\.cuh\(\d+\)"):
        nvrtc_logs.log(text, SMALL, "sm_90")
