"""Backends for the tests.

`DUOLN_TEST_BACKENDS=numpy,mlx,cupy` names the backends to test; one that is named and missing fails. By
default NumPy and MLX are tested, and the CuPy backend's file over a stand-in for CuPy.
"""

from __future__ import annotations

import ctypes
import gc
import getpass
import importlib
import itertools
import os
import re
import signal
import sys
import tempfile
import zlib
from collections import defaultdict
from importlib.util import find_spec
from pathlib import Path
from textwrap import dedent

if "PYTEST_XDIST_WORKER" in os.environ:  # with several workers, the BLAS threads of all would compete for the cores
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

# A shell's background job ignores Ctrl-C, and what `nohup` starts ignores SIGHUP; so would the processes that the tests start and
# interrupt. A handler that does nothing is not handed on to them.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
if sys.platform != "win32" and signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
    signal.signal(signal.SIGHUP, lambda number, frame: None)

os.environ["DUOLN_PROVE"] = "0"  # the tests themselves prove every rule; kernels/test_proofs.py is about the proof
# Compiled kernels are kept from one run of the tests to the next.
os.environ["DUOLN_KERNELS"] = str(Path(tempfile.gettempdir()) / f"duoln-test-kernels-{getpass.getuser()}")

import numpy as np
import pytest
import stand_in_cupy

from duoln import runtime
from duoln.kernels import host, native
from duoln.kernels.recurrent import positions

if os.environ.get("DUOLN_NATIVE") == "0":  # tests of an operator's first rule are then of NumPy's
    runtime._MODULES["numpy"] = ("numpy",)

TESTS = Path(__file__).parent
TOOLS = TESTS / "tools"
STAND_IN = "cupy-stand-in"
PATIENCE = 900
"""Seconds to wait for a process or thread that ends by itself: only one that hangs takes so long on a busy machine."""
_DEFAULT = {"linux": f"numpy,mlx,{STAND_IN}", "darwin": "numpy,mlx"}.get(sys.platform, "numpy")
NAMES = os.environ.get("DUOLN_TEST_BACKENDS", _DEFAULT).split(",")
_made: dict[str, object] = {}
_OF_CUPY = (("duoln.backends", "cupy"), ("duoln.backends", "cublas"), ("duoln.backends", "cuda_graph"))
"""What is loaded anew over the stand-in, and anew after it."""


def get_backend(name: str):
    """The backend; a name that cannot be used is a failure, never a skip."""
    if name not in _made:
        if name == STAND_IN:
            with pytest.MonkeyPatch.context() as patch:
                patch.setitem(sys.modules, "cupy", stand_in_cupy.make())
                for package, module in _OF_CUPY:
                    patch.delitem(sys.modules, f"{package}.{module}", raising=False)
                    patch.delattr(sys.modules.get(package, object), module, raising=False)
                import duoln.backends.cupy

                _made[name] = duoln.backends.cupy.create()
                runtime._attach(_made[name])
            for package, module in _OF_CUPY:
                sys.modules.pop(f"{package}.{module}", None)
                vars(sys.modules[package]).pop(module, None)
        else:
            _made[name] = runtime.backend(name)
    return _made[name]


@pytest.fixture(params=NAMES)
def be(request):
    """Each backend under test."""
    return get_backend(request.param)


ON_NUMPY = pytest.mark.parametrize("be", [name if name == "numpy" else pytest.param(name, marks=pytest.mark.long) for name in NAMES],
                                   indirect=True)
"""For a test of whole trainings: on the other backends with --long."""

GPU = "cupy" if "cupy" in NAMES else STAND_IN


@pytest.fixture(scope="session")
def gpu():
    """The CuPy backend: on a real GPU if `DUOLN_TEST_BACKENDS` names cupy, else over the stand-in."""
    if GPU == STAND_IN and sys.platform != "linux":
        pytest.skip("kernels run on the CPU under Linux only")
    return get_backend(GPU)


@pytest.fixture
def cublas(gpu):
    """The module of products that this backend uses."""
    return type(gpu).matmul.__globals__["cublas"]


@pytest.fixture
def numpy_backend():
    return runtime.backend("numpy")


@pytest.fixture
def rng():
    return np.random.default_rng(0)


@pytest.fixture
def differences_taken(monkeypatch):
    """`check_op` without its central differences: another test takes them of the same values, once for all backends."""
    monkeypatch.setattr("duoln.testing.operators.gradcheck", lambda fn, *args: 0.0)


@pytest.fixture(params=[1, 2, 3], ids=lambda n: f"{n} threads")
def threads(request, monkeypatch):
    """Each number of threads for the compiled rules, with any amount of data."""
    monkeypatch.setattr(host, "workers", lambda: request.param)
    monkeypatch.setattr(host, "PARALLEL_BYTES", 1)
    return request.param


@pytest.fixture
def same_bits(monkeypatch):
    """Checks that the arrays that `run` returns have the same bits with any number of threads, which any amount of data gets; returns them."""
    def check(run):
        monkeypatch.setattr(host, "PARALLEL_BYTES", 0)
        runs = []
        for threads in (1, 2, 3, 8, 8):
            for place, name in ((host, "workers"), (host, "threads_for"), (native, "threads_for")):
                monkeypatch.setattr(place, name, lambda *amounts, threads=threads: threads)
            arrays = [a for a in run() if a is not None]
            runs.append([a.tobytes() for a in arrays])
        assert all(again == runs[0] for again in runs)
        return arrays
    return check


@pytest.fixture(autouse=True)
def _inputs_before_the_walk(request, monkeypatch):
    """Obeys the marker of that name."""
    if request.node.get_closest_marker("inputs_before_the_walk"):
        monkeypatch.setattr(positions, "FEW_INPUTS", -1)


def every_second(*axes):
    """Every second combination of some values of each axis: of three axes or more, any two values still meet."""
    places = itertools.product(*(range(len(axis)) for axis in axes))
    return [tuple(axis[k] for axis, k in zip(axes, place, strict=True)) for place in places if sum(place) % 2 == 0]


def pytest_addoption(parser):
    parser.addoption("--long", action="store_true", help="run every test: this takes hours on two cores")
    parser.addoption("--share", metavar="K/N", help="of what is left out without --long also one of N shares, the K-th from 0")


_TASKS = "attentive_reader convnet draw handwriting las mnist order_embeddings skip_thoughts skip_thoughts_judging transformer "\
    "draw_ops handwriting_ops order_embeddings_ops operators"
NUMERICAL = ("analysis/", "core/", "nn/", "ops/", "kernels/test_conv_rules.py", "kernels/test_large_means.py",
             "kernels/test_recurrent_rules.py", "kernels/test_rules.py", "test_optim.py",
             *(f"plugins/test_{name}.py" for name in _TASKS.split()))
"""Where tests compare what BLAS has multiplied, below tests/: they are run under OpenBLAS's kernels for several CPUs.

Emulated GPUs and MLX are left out: neither multiplies by OpenBLAS, and they take longest.
"""


_VARIANTS = re.compile(r"\[.*(layer-cell|per-gate|theano|recurrent-bias|(lstm|gru|rnn)\W{1,4}batch\b)", re.IGNORECASE)
"""Names of cases of cells that are neither plain nor layer-normalised as in the paper: each has kernels of its own, which
take five seconds to compile, for each dtype.
"""


_LEFT_OUT = pytest.StashKey[int]()
_LIBRARY = ctypes.CDLL(None) if sys.platform == "linux" else None
if hasattr(_LIBRARY, "mallopt"):
    _LIBRARY.mallopt(-8, 2)  # M_ARENA_MAX: each thread would keep freed memory of its own


_MANY = 6
"""Cases of one test; of more the quick run takes some."""


def _some(cases, few):
    """Those of a test's cases that together have each word of their names; if few, each word with which a name begins."""
    kept, seen = set(), set()
    for item in sorted(cases, key=lambda item: zlib.crc32(item.name.encode())):  # neighbours in a table are alike
        words = re.findall(r"\w+", item.name.partition("[")[2])[:1 if few else None]
        if not seen.issuperset(words) or not kept:
            kept.add(item)
            seen.update(words)
    return kept


def chosen_of(items, share=None):
    """The tests of the quick run, and a share of the others: "1/3" is the second of three, "0/1" all of them."""
    kept, tests = set(), defaultdict(list)
    for item in items:
        if "long" not in item.keywords and "minutes" not in item.keywords:
            tests[item.path, item.parent.name, getattr(item, "originalname", item.name)].append(item)
    for cases in tests.values():
        few = "few" in cases[0].keywords
        kept.update(_some(cases, few) if few or len(cases) > _MANY else cases)
    if share:
        k, shares = map(int, share.split("/"))
        kept.update(item for item in items if zlib.crc32(item.nodeid.encode()) % shares == k
                    and (shares == 1 or "minutes" not in item.keywords))
    return [item for item in items if item in kept]


@pytest.hookimpl(wrapper=True)
def pytest_pycollect_makeitem(collector):
    """Mark and choose among the cases of a test as soon as they are made: those left out would fill more memory than the others.

    Where cases are named, as in `test_a.py::test_b[case]`, all of them are run.
    """
    made = yield
    if not isinstance(made, list):
        return made
    _mark(made)
    config = collector.config
    if any(word.endswith("]") for word in config.args):
        return made
    chosen = chosen_of(made, "0/1" if config.getoption("--long") else config.getoption("--share"))
    config.stash[_LEFT_OUT] = config.stash.get(_LEFT_OUT, 0) + len(made) - len(chosen)
    return chosen


def pytest_collection_finish(session):
    """Set apart what stays to the end: beside so many objects Python looks for garbage, which may hold large arrays, too rarely."""
    gc.collect()
    gc.freeze()
    gc.collect()


def _give_back():
    """Return the memory of freed arrays to the system: MLX and the C library of Linux keep hundreds of megabytes."""
    if "mlx.core" in sys.modules:
        sys.modules["mlx.core"].clear_cache()
    if hasattr(_LIBRARY, "malloc_trim"):
        _LIBRARY.malloc_trim(0)


def pytest_runtest_logreport(report):
    if report.when == "call" and report.duration > 0.1:
        _give_back()


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item, nextitem):
    if nextitem is None or nextitem.path != item.path:
        gc.collect()
        _give_back()


def pytest_sessionfinish(session):
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput["left_out"] = session.config.stash.get(_LEFT_OUT, 0)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node):
    """Every worker of pytest-xdist collects all tests."""
    node.config.stash[_LEFT_OUT] = getattr(node, "workeroutput", {}).get("left_out", 0)


def pytest_terminal_summary(terminalreporter, config):
    if left_out := config.stash.get(_LEFT_OUT, 0):
        terminalreporter.write_line(f"{left_out:,} tests were left out; pytest --long runs them, too")


def _mark(items):
    for item in items:
        without_blas = any(part in item.name for part in (STAND_IN, "_cuda", "[mlx", "-mlx"))
        if item.path.relative_to(TESTS).as_posix().startswith(NUMERICAL) and not without_blas:
            item.add_marker("numerical")
        if _VARIANTS.search(item.name) or ("mlx" in item.name and "compiled" in item.name):  # MLX compiles C++ at each
            item.add_marker("long")
        if "peers" in item.keywords and find_spec("torch") is None:
            item.add_marker(pytest.mark.skip(reason="PyTorch is not installed: the extra 'peers' has it"))


@pytest.fixture(autouse=True)
def _no_settings_from_outside(monkeypatch, tmp_path_factory):
    """Tests see no data, cache, backend or plug-in setting of the person who runs them, and no network."""
    for name in ("DUOLN_DATA", "DUOLN_BACKEND", "DUOLN_STRICT_PLUGINS", "DUOLN_DISABLE_PLUGIN_AUTOLOAD",
                 "DUOLN_TRACEBACK"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("DUOLN_CACHE", str(tmp_path_factory.getbasetemp() / "no-cache"))
    monkeypatch.setenv("DUOLN_OFFLINE", "1")


# Plug-ins as distributions on sys.path ------------------------------------------------------------------

@pytest.fixture
def install(tmp_path, monkeypatch):
    """Make distributions: `install("plug", source)` is "plug-dist" with one entry point and one module."""
    monkeypatch.syspath_prepend(tmp_path)
    known = set(sys.modules)

    def make(name, source, entry=None, value=None):
        (tmp_path / f"{name}_module.py").write_text(dedent(source))
        folder = tmp_path / f"{name}_dist-1.0.dist-info"
        folder.mkdir()
        (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}-dist\nVersion: 1.0\n")
        (folder / "entry_points.txt").write_text(f"[duoln]\n{entry or name} = {value or f'{name}_module'}\n")
        importlib.invalidate_caches()

    yield make
    for name in set(sys.modules) - known:
        if name.endswith("_module"):
            del sys.modules[name]
