"""Kernels that this machine's compiler makes: where they are kept, what is refused, and what happens without a compiler."""

import os
import stat
import subprocess
import sys

import numpy as np
import pytest
from conftest import PATIENCE

from duoln import ops
from duoln.errors import DtypeError, KernelError, ShapeError
from duoln.kernels import native
from duoln.testing import check_error

pytestmark = pytest.mark.skipif(native.compiler() is None, reason="there is no C++ compiler")

PROGRAM = """
import numpy as np, duoln
from duoln import ops
from duoln.kernels import native
native.FLAGS = tuple("-O0" if flag == "-O3" else flag for flag in native.FLAGS)  # the tests compile often
x = duoln.tensor(np.arange(12, dtype=np.float32).reshape(3, 4) ** 2, "numpy")
print(ops.layer_norm.explain(x, None, None)[0], "|", ops.layer_norm(x).numpy().tobytes().hex(), "|", native.facts())
"""


def _run(folder, program=PROGRAM, **variables):
    environment = {**os.environ, "DUOLN_CACHE": str(folder), **{k: str(v) for k, v in variables.items()}}
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=PATIENCE,
                          env=environment)


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    """A cache that one process has filled; the values that it printed."""
    folder = tmp_path_factory.mktemp("cache")
    done = _run(folder)
    assert "'compiled', 'runs'" in done.stdout and done.stderr == "", done.stderr
    return folder, done.stdout.split("|")[1]


def _libraries(folder):
    return sorted((folder / "native").glob("*.so"))


def test_each_kernel_is_compiled_once_for_the_user_alone(cache):
    folder, values = cache
    before = {path: path.stat().st_mtime_ns for path in _libraries(folder)}
    assert len(before) == len(native.sources()) and _run(folder).stdout.split("|")[1] == values
    assert {path: path.stat().st_mtime_ns for path in _libraries(folder)} == before
    assert stat.S_IMODE((folder / "native").stat().st_mode) == 0o700
    assert all(stat.S_IMODE(path.stat().st_mode) == 0o600 for path in before)
    assert not list((folder / "native").glob("building-*"))


def test_processes_that_start_together(tmp_path):
    started = [subprocess.Popen([sys.executable, "-c", PROGRAM], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                                env={**os.environ, "DUOLN_CACHE": str(tmp_path)}) for _ in range(4)]
    outputs = [process.communicate(timeout=PATIENCE) for process in started]
    assert len({out for out, _ in outputs}) == 1 and all("'compiled', 'runs'" in out for out, _ in outputs), outputs
    assert len(_libraries(tmp_path)) == len(native.sources())


@pytest.mark.parametrize("damage", [lambda p: p.write_bytes(b""), lambda p: p.write_bytes(p.read_bytes()[:4000]),
                                    lambda p: p.write_text("no library"), lambda p: p.chmod(0o666)],
                         ids=["empty", "cut short", "text", "writable by others"])
def test_a_damaged_library_is_made_again(cache, damage, tmp_path):
    folder, values = cache
    (tmp_path / "native").mkdir(mode=0o700)
    for path in _libraries(folder):
        copied = tmp_path / "native" / path.name
        copied.write_bytes(path.read_bytes())
        copied.chmod(0o600)
        checksum = path.with_suffix(".sha256")
        (tmp_path / "native" / checksum.name).write_bytes(checksum.read_bytes())
        (tmp_path / "native" / checksum.name).chmod(0o600)
        damage(copied)
    done = _run(tmp_path)
    assert "'compiled', 'runs'" in done.stdout and done.stdout.split("|")[1] == values, done.stdout + done.stderr


def test_a_folder_that_others_can_write_is_refused(tmp_path):
    (tmp_path / "native").mkdir()
    (tmp_path / "native").chmod(0o777)
    done = _run(tmp_path)
    assert "can be written by others; make it yours alone with chmod 700" in done.stdout.split("|")[0]
    assert not _libraries(tmp_path)


def test_a_planted_link_is_not_loaded(cache, tmp_path):
    folder, values = cache
    (tmp_path / "native").mkdir(mode=0o700)
    for path in _libraries(folder):
        (tmp_path / "native" / path.name).symlink_to("/dev/null")
    done = _run(tmp_path)
    assert "'compiled', 'runs'" in done.stdout and done.stdout.split("|")[1] == values
    assert all(path.is_file() and not path.is_symlink() for path in _libraries(tmp_path))


@pytest.mark.parametrize(("variables", "words"), [
    ({"DUOLN_NATIVE": 0}, "DUOLN_NATIVE=0 is set"), ({"PATH": "/nowhere"}, "no C++ compiler of c++, g++, clang++"),
    ({"DUOLN_CXX": "/bin/false"}, "DUOLN_CXX=/bin/false is no compiler that answers"),
    ({"DUOLN_CXX": "no-such-compiler"}, "DUOLN_CXX=no-such-compiler is no compiler")])
def test_without_a_compiler_numpys_rules_run_and_doctor_says_why(cache, variables, words, tmp_path):
    done = _run(tmp_path, **variables)
    rule, values, facts = done.stdout.split("|")
    assert words in rule and words in facts and "install a C++ compiler" in facts and done.stderr == ""
    expected, interpreted = (np.frombuffer(bytes.fromhex(text.strip()), np.float32) for text in (cache[1], values))
    np.testing.assert_allclose(interpreted, expected, rtol=1e-5, atol=1e-6)
    assert not (tmp_path / "native").exists() or not _libraries(tmp_path)


def test_a_compiler_that_fails_is_told_once_with_its_log(tmp_path):
    compiler = tmp_path / "c++"
    compiler.write_text("#!/bin/sh\n[ \"$1\" = --version ] && echo 'a compiler 1.0' && exit 0\necho 'no room on this ship'\nexit 1\n")
    compiler.chmod(0o755)
    done = _run(tmp_path / "cache", DUOLN_CXX=compiler)
    assert "does not compile" in done.stdout and "'interpreted', 'runs'" in _run(
        tmp_path / "cache", PROGRAM.replace("[0]", "[1]"), DUOLN_CXX=compiler).stdout
    assert done.stderr.count("layer_norm/layer_norm.cpp does not compile") == 1 and "no room on this ship" in done.stderr
    assert "-march=native" in done.stderr  # the command, so that one can try it


@pytest.mark.parametrize("call", ["tempfile.TemporaryDirectory", "pathlib.Path.write_text", "pathlib.Path.replace"])
def test_a_full_disk_costs_the_speed_and_nothing_else(call, tmp_path):
    module, _, name = call.rpartition(".")
    full = f"""
import errno, pathlib, tempfile
def full(*args, **options):
    raise OSError(errno.ENOSPC, "No space left on device")
{module}.{name} = full
"""
    done = _run(tmp_path, full + PROGRAM)
    assert "No space left on device" in done.stdout.split("|")[0] and not _libraries(tmp_path), done.stdout + done.stderr


def test_another_folder_in_the_same_process_is_made_too(tmp_path, monkeypatch):
    monkeypatch.setattr(native, "_state", native._State())
    monkeypatch.setattr(native, "FLAGS", tuple("-O0" if flag == "-O3" else flag for flag in native.FLAGS))
    for name in ("a", "b"):
        monkeypatch.setenv("DUOLN_CACHE", str(tmp_path / name))
        native._state.libraries.clear()
        assert native.failure("adam/adam.cpp") is None and len(_libraries(tmp_path / name)) == len(native.sources())


def test_the_same_bits_for_any_number_of_threads(numpy_backend, monkeypatch, rng):
    x, gout = (rng.standard_normal((1000, 300)).astype(np.float32) for _ in range(2))
    labels = rng.integers(0, 300, 1000).astype(np.int32)
    d_loss = rng.standard_normal(1000).astype(np.float32)
    gain, bias = (rng.standard_normal(300).astype(np.float32) for _ in range(2))

    def bits():
        norm, loss = (op.rules("numpy")[0] for op in (ops.layer_norm, ops.softmax_cross_entropy))
        assert norm.name == loss.name == "compiled"
        y, saved = norm.forward(numpy_backend, x, gain, bias, 1e-5, "inside", "tanh")
        each, kept = loss.forward(numpy_backend, x, labels)
        arrays = (y, each, *norm.vjp(numpy_backend, saved, gout, (True,) * 3), loss.vjp(numpy_backend, kept, d_loss, (True, False))[0])
        return [a.tobytes() for a in arrays]

    runs = []
    for threads in (1, 2, 3, 8, 8):
        monkeypatch.setattr(native, "threads_for", lambda count_bytes, threads=threads: threads)
        runs.append(bits())
    assert all(run == runs[0] for run in runs)


_FUNCTION = native.Function("layer_norm/layer_norm.cpp", "layer_norm_forward",
                            "x: real[2], gain: real[1]?, bias: real[1]?, y: real[2], mean: real[1], rstd: real[1], "
                            "rows: int64, width: int64, eps: float64, activation: int32, threads: int32")


@pytest.mark.parametrize(("place", "value", "kind", "words"), [
    (0, np.ones((2, 3)), DtypeError, "y: expected a contiguous real array of 2 dimensions, found float32"),
    (3, np.ones((2, 3), np.int32), DtypeError, "int32"), (0, None, DtypeError, "x: expected"), (0, [[1.0]], DtypeError, "list"),
    (0, np.ones((2, 6), np.float32)[:, ::2], ShapeError, "x: expected a contiguous real array of 2 dimensions, found a strided"),
    (0, np.ones(6, np.float32), ShapeError, "shape (6,)"), (4, np.ones(2), DtypeError, "mean"), (1, np.ones((3, 1), np.float32), ShapeError, "gain")])
def test_arguments_are_checked(place, value, kind, words):
    arguments = [np.ones((2, 3), np.float32), None, None, np.empty((2, 3), np.float32), np.empty(2, np.float32),
                 np.empty(2, np.float32), 2, 3, 1e-5, 0, 1]
    _FUNCTION(*arguments)
    arguments[place] = value
    check_error(kind, lambda: _FUNCTION(*arguments), "[layer_norm_forward]", words)
    check_error(KernelError, lambda: _FUNCTION(*arguments[1:]), "expected 11 arguments, found 10")


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_what_is_not_a_number_comes_out(value, numpy_backend):
    x = np.arange(20, dtype=np.float32).reshape(4, 5)
    x[1, 2] = value
    y = ops.layer_norm.rules("numpy")[0].forward(numpy_backend, x, None, None, 1e-5, "inside", "relu")[0]
    loss = ops.softmax_cross_entropy.rules("numpy")[0].forward(numpy_backend, x, np.zeros(4, np.int32))[0]
    assert np.isnan(y[1]).all() and np.isfinite(y[[0, 2, 3]]).all()
    assert (np.isfinite(loss[[0, 2, 3]]).all() and not np.isfinite(loss[1])) or value == -np.inf
