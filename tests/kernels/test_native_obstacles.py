"""What stands in the way of compiling costs the speed and nothing else, and the reason is told with a line to type."""

import re

import numpy as np
import pytest
from compiled import COMPILED, PROGRAM, libraries, make_compiler, run, values, without_package

from duoln.kernels import native

pytestmark = pytest.mark.skipif(native.compiler() is None, reason="there is no C++ compiler")


NOEXEC = """
import ctypes
class Refused(ctypes.CDLL):
    def __init__(self, name, *args, **options):
        if name and "native" in str(name):
            raise OSError(f"{name}: failed to map segment from shared object")
        super().__init__(name, *args, **options)
ctypes.CDLL = Refused
"""
"""As in a folder that is mounted without the right to execute."""


@pytest.fixture(scope="module")
def compiled_values(tmp_path_factory):
    return values(run(tmp_path_factory.mktemp("cache")))


@pytest.mark.long
@pytest.mark.parametrize(("variables", "words", "line"), [
    ({"DUOLN_NATIVE": 0}, "DUOLN_NATIVE=0 is set", "unset DUOLN_NATIVE"),
    ({"PATH": "/nowhere"}, "no C++ compiler of c++, g++, clang++", "install"),
    ({"DUOLN_CXX": "/bin/false"}, "DUOLN_CXX=/bin/false is no compiler that answers", "unset DUOLN_CXX"),
    ({"DUOLN_CXX": "no-such-compiler"}, "DUOLN_CXX=no-such-compiler is no compiler", "unset DUOLN_CXX"),
    ({"DUOLN_KERNELS": "/dev/null"}, "/dev/null cannot be made", "DUOLN_KERNELS=")])
def test_numpys_rules_run_and_the_reason_is_told(compiled_values, variables, words, line, tmp_path):
    done = run(tmp_path, **{"DUOLN_CXX": "", "PYTHONPATH": without_package(tmp_path), **variables})
    rule, _, facts, summary = done.stdout.split("|")
    assert all(words in text for text in (rule, facts, summary)) and done.stderr == ""
    assert "rules interpreted, because" in summary and line in summary.partition("; for faster ones: ")[2]
    interpreted, expected = (np.frombuffer(bytes.fromhex(text.strip()), np.float32)
                             for text in (values(done), compiled_values))
    np.testing.assert_allclose(interpreted, expected, rtol=1e-5, atol=1e-6)
    assert not (tmp_path / "native").exists() or not libraries(tmp_path)


@pytest.mark.long
def test_a_compiler_that_fails_is_told_once_with_its_log(tmp_path):
    compiler = make_compiler(tmp_path / "c++", tmp_path / "log", "echo 'no room on this ship'; seq 1000; exit 1")
    done = run(tmp_path / "cache", DUOLN_CXX=compiler)
    assert "does not compile" in done.stdout and "'composed', 'runs'" in run(
        tmp_path / "cache", PROGRAM.replace("[0]", "[1]"), DUOLN_CXX=compiler).stdout
    assert done.stderr.count("norm/norm.cpp for float32 does not compile") == 1 and "no room on this ship" in done.stderr
    assert len(done.stderr.splitlines()) < 30 and "more lines)" in done.stderr
    assert "-march=native" in done.stderr  # the command, so that one can try it


@pytest.mark.long
@pytest.mark.parametrize("call", ["tempfile.TemporaryDirectory", "pathlib.Path.write_text", "pathlib.Path.replace"])
def test_a_full_disk_costs_the_speed_and_nothing_else(call, tmp_path):
    module, _, name = call.rpartition(".")
    full = f"""
import errno, pathlib, tempfile
def full(*args, **options):
    raise OSError(errno.ENOSPC, "No space left on device")
{module}.{name} = full
"""
    done = run(tmp_path, before=full)
    assert "No space left on device" in done.stdout.split("|")[0] and not libraries(tmp_path), done.stdout + done.stderr
    assert done.stderr.count("No space left on device; NumPy's rule runs instead") == 1


@pytest.mark.long
def test_a_full_folder_is_tried_once(tmp_path):
    """What was to be compiled beside the first kernel is not tried again when it is needed."""
    done = run(tmp_path, PROGRAM + """
print("|", ops.softmax.explain(x)[0], "|", ops.softmax_cross_entropy.explain(x, duoln.tensor([0, 1, 2], "numpy"))[0])
""", """
import errno, pathlib
from duoln.core.donation import compiled_step
from duoln.kernels.native import storage
from duoln import ops
def full(*args):
    raise OSError(errno.ENOSPC, "No space left on device")
pathlib.Path.replace = full
names = "norm", "softmax", "softmax_cross_entropy"
storage.units = lambda: [storage.Unit(f"{name}/{name}.cpp", "float32") for name in names]
compiled_step.set(lambda x: ops.softmax_cross_entropy(ops.softmax(ops.layer_norm(x)), None))
""")
    assert done.stdout.count("No space left on device") >= 3 and not libraries(tmp_path), done.stdout
    assert done.stderr.count("duoln: compiling") == 1 and done.stderr.count("NumPy's rule runs instead") == 1


def test_a_library_that_the_system_does_not_load_is_told_once(tmp_path):
    done = run(tmp_path, before=NOEXEC)
    rule, _, facts, summary = done.stdout.split("|")
    assert "failed to map segment" in rule and "failed to map segment" in facts and "rules interpreted" in summary
    assert done.stderr.count("failed to map segment from shared object; NumPy's rule runs instead") == 1


@pytest.mark.long
@pytest.mark.parametrize(("right", "words"), [("W_OK", "cannot be written"), ("R_OK", "cannot be read")])
def test_a_folder_without_permission(right, words, tmp_path):
    """Root may write everywhere, so the answer of the system is replaced."""
    done = run(tmp_path, before=f"import os\nos.access = lambda path, mode: not mode & os.{right}\n")
    rule, _, facts, summary = done.stdout.split("|")
    assert all(f"{tmp_path / 'native'} {words}" in text for text in (rule, facts, summary)) and done.stderr == ""
    assert "for faster ones: export DUOLN_KERNELS=FOLDER" in summary and not libraries(tmp_path)


@pytest.mark.long
def test_the_choice_of_a_backend_and_doctor_say_compiler_and_vectors(tmp_path):
    done = run(tmp_path, PROGRAM + "\nfrom duoln import runtime\nprint(runtime.choose('numpy')[1])\nfrom duoln.cli import main\n"
               "main(['doctor', '--plugin', 'mnist'])")
    version = native.compiler().version
    assert COMPILED in done.stdout
    assert re.search(r"^numpy, compiled by [\w +-]+ \d+, [^,]+$", done.stdout, re.M)
    [line] = [line for line in done.stdout.splitlines() if line.startswith("rules of numpy: compiled, ")]
    assert version in line and "-march=native, vectors of " in line and " bits, kept in " in line


@pytest.mark.long
def test_libraries_that_no_longer_load(tmp_path):
    assert COMPILED in run(tmp_path).stdout
    done = run(tmp_path, before=NOEXEC)
    assert all("failed to map segment" in text for text in done.stdout.split("|")[2:]) and "interpreted" in done.stdout


@pytest.mark.long
@pytest.mark.parametrize("stream", ["open('/dev/full', 'w')", "None"])
def test_a_line_that_cannot_be_written_decides_nothing(stream, tmp_path):
    done = run(tmp_path, PROGRAM + "sys.stdout.flush()\nos._exit(0)", f"import os, sys\nsys.stderr = {stream}\n")
    assert COMPILED in done.stdout and libraries(tmp_path)


@pytest.mark.long
def test_what_a_compiler_says_does_not_control_the_terminal(tmp_path):
    (tmp_path / "c++").write_text(f"#!/bin/sh\n[ \"$1\" = --version ] && printf 'a \\033[31mcompiler \\377\\n' && exit\n"
                                  f"exec {native.compiler().command[0]} \"$@\"\n")
    (tmp_path / "c++").chmod(0o755)
    done = run(tmp_path / "cache", DUOLN_CXX=tmp_path / "c++")
    assert COMPILED in done.stdout and "with a \\x1b[31mcompiler \ufffd; this is done once" in done.stderr


@pytest.mark.long
def test_a_folder_is_where_it_was_when_it_was_first_asked_for(tmp_path):
    (tmp_path / "a").mkdir()
    done = run(tmp_path, PROGRAM, "import os\nos.chdir(os.environ['START'])\nfrom duoln.kernels.native import storage\n"
               "storage.folder()\nos.chdir('/')\n", DUOLN_KERNELS="-o", START=tmp_path / "a")
    assert COMPILED in done.stdout and len(list((tmp_path / "a" / "-o").glob("*.so"))) == 1, done.stderr
