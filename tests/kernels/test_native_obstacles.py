"""Which compiler is taken; what stands in the way of compiling costs the speed and nothing else, and is told with a line to type."""

import os
import re
import shutil

import numpy as np
import pytest
from compiled import COMPILED, PROGRAM, libraries, make_compiler, python_path, run, values, without_package

from duoln.kernels import native
from duoln.kernels.native import building, toolchain

pytestmark = pytest.mark.skipif(native.compiler() is None, reason="there is no C++ compiler")
PARTS = "rule", "value", "facts", "summary"
INSTEAD = "NumPy's rule runs instead"
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
FULL = """
import errno, pathlib, tempfile
def full(*args, **options):
    raise OSError(errno.ENOSPC, "No space left on device")
"""
REFUSES = """
case "$*" in *{refused}*) echo "error: unsupported argument" >&2; exit 1 ;; esac
for word; do
    shift
    [ "$word" = -mcpu=native ] || set -- "$@" "$word"
done
exec {compiler} "$@"
"""
"""A compiler that knows no CPU by the flags that it refuses."""
ZIG = """
[ "$1" = c++ ] || exit 1
shift
case "$*" in
--version) echo 'clang version 22.0' ;;
*) PATH="{path}" exec {compiler} "$@" ;;
esac
"""
"""The program of the package, as far as it is asked here."""
EMPTY = 'shift $(($# - 1)); echo "int nothing;" | c++ -x c++ -shared -fPIC -o "$1" -; exit'
"""Makes a library without functions in the file that the last word names."""
HIDDEN = 'exec c++ "$@" -fvisibility=hidden'


def command():
    return " ".join(native.compiler().command)


def script(path, text):
    """A program of shell."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}")
    path.chmod(0o755)
    return path


def alone(tmp_path, **variables):
    """Where no package brings a compiler."""
    return {"DUOLN_CXX": "", "PYTHONPATH": without_package(tmp_path), **variables}


def refusing(tmp_path, refused):
    """A `c++` of the PATH."""
    made = script(tmp_path / "path" / "c++", REFUSES.format(refused=refused, compiler=command()))
    return {"PATH": f"{made.parent}:{os.environ['PATH']}", "DUOLN_CXX": ""}


def faulty(tmp_path, fault):
    """A compiler that does this where its arguments are so."""
    return {"DUOLN_CXX": script(tmp_path / "c++", f'case "$*" in {fault} esac\nexec {native.compiler().command[0]} "$@"\n')}


def lying(tmp_path, line):
    """One that does this for kernels alone."""
    return {"DUOLN_CXX": make_compiler(tmp_path / "c++", tmp_path / "log", line)}


def package(tmp_path):
    """The PYTHONPATH with the package that brings a compiler."""
    made = script(tmp_path / "packages" / toolchain.ZIG / "zig", ZIG.format(path=os.environ["PATH"], compiler=command()))
    (made.parent / "__init__.py").write_text("")
    return {"PYTHONPATH": python_path(made.parent.parent), "DUOLN_CXX": ""}


def open_folder(tmp_path):
    (tmp_path / "cache" / "native").mkdir(parents=True)
    (tmp_path / "cache" / "native").chmod(0o777)
    return {}


FAULTS = {
    "no assembler": ("*.so*) echo 'cannot execute as' >&2; exit 1 ;;", "it says cannot execute as"),
    "no library": ('*.so*) shift $(($# - 1)); echo garbage > "$1"; exit ;;', "trial.so"),
    "no file": ("*.so*) exit ;;", "it makes no file"), "silent": ("*.so*) exit 1 ;;", "it says nothing"),
    "nothing in it": (f"*.so*) {EMPTY} ;;", "lacks the function duoln_trial"),
    "hidden": (f"*.so*) {HIDDEN} ;;", "lacks the function duoln_trial"),
    "another value": ('*trial.so*) sed -i "s/return n/return 0/" "$(echo "$*" | grep -o "[^ ]*trial.cpp")"; exec c++ "$@" ;;',
                      "its code gives 0 in the place of 31")}
EACH = "rule facts summary"
OBSTACLES = {  # what a process is given, words in the parts of its output, and the one line that stderr has of it, if any
    "DUOLN_NATIVE=0": (lambda tmp: alone(tmp, DUOLN_NATIVE=0), {EACH: "DUOLN_NATIVE=0 is set", "summary": "unset DUOLN_NATIVE"}, ""),
    "no compiler": (lambda tmp: alone(tmp, PATH="/nowhere"),
                    {EACH: "no C++ compiler of c++, g++, clang++", "summary": "install"}, ""),
    **{f"DUOLN_CXX={words}": (lambda tmp, w=words: alone(tmp, DUOLN_CXX=w),
                              {EACH: f"DUOLN_CXX={words} is no compiler", "summary": "unset DUOLN_CXX"}, "")
       for words in ("/bin/false", "no-such-compiler", " ", "no-such-compiler c++", "'", "cat", "true")},
    "a folder that is none": (lambda tmp: alone(tmp, DUOLN_KERNELS="/dev/null"),
                              {EACH: "/dev/null cannot be made", "summary": "DUOLN_KERNELS="}, ""),
    **{f"a full disk, {call}": (lambda tmp, c=call: {"before": f"{FULL}{c} = full\n"},
                                {"rule": "No space left on device"}, "No space left on device")
       for call in ("tempfile.TemporaryDirectory", "pathlib.Path.write_text", "pathlib.Path.replace")},
    "no right to execute": (lambda tmp: {"before": NOEXEC}, {"rule facts": "failed to map segment", "summary": "rules interpreted"},
                            "failed to map segment from shared object"),
    **{f"no permission, {right}": (lambda tmp,
        r=right: {"before": f"import os\nos.access = lambda path, mode: not mode & os.{r}\n"},  # root may do all
                                   {EACH: f"native {words}", "summary": "for faster ones: export DUOLN_KERNELS=FOLDER"}, "")
       for right, words in (("W_OK", "cannot be written"), ("R_OK", "cannot be read"))},
    "a folder that others can write": (open_folder, {"rule": "can be written by others; make it yours alone with chmod go-w",
                                                     "facts": "'remedy': 'chmod go-w "}, ""),
    "a PATH whose compiler cannot compile": (lambda tmp: refusing(tmp, "-std"),
                                             {"summary": "cannot compile for this machine: it says error: unsupported argument"},
                                             "unsupported argument"),
    **{name: (lambda tmp, f=fault: faulty(tmp, f), {"rule": words, "summary": "rules interpreted, because what"},
              words) for name, (fault, words) in FAULTS.items()},
    "a program that is silent": (lambda tmp: {"DUOLN_CXX": script(tmp / "c++", '[ "$1" = --version ] && echo 1 || exit 1\n')},
                                 {"rule": "for this machine: it says nothing"}, ""),
    **{f"{name} in kernels alone": (lambda tmp, line=line: lying(tmp, line), {"rule": "does not compile"}, "lacks the function")
       for name, line in (("nothing", EMPTY), ("hidden", HIDDEN))},
}
"""A library that a lying compiler makes is not kept, so that a compiler that is mended makes it anew."""
QUICK = "no right to execute"


def floats(done):
    return np.frombuffer(bytes.fromhex(values(done).strip()), np.float32)


@pytest.fixture(scope="module")
def compiled_values(tmp_path_factory):
    return floats(run(tmp_path_factory.mktemp("cache")))


@pytest.mark.parametrize("name", [name if name == QUICK else pytest.param(name, marks=pytest.mark.long) for name in OBSTACLES])
def test_an_obstacle_costs_the_speed_and_is_told(name, compiled_values, tmp_path):
    make, told, once = OBSTACLES[name]
    done = run(tmp_path / "cache", **make(tmp_path))
    parts = dict(zip(PARTS, done.stdout.split("|"), strict=True))
    for places, words in told.items():
        for place in places.split():
            assert words in parts[place], parts[place]
    if once:
        assert once in done.stderr and done.stderr.count(INSTEAD) == 1, done.stderr
    else:
        assert done.stderr == ""
    np.testing.assert_allclose(floats(done), compiled_values, rtol=1e-5, atol=1e-6)
    assert not libraries(tmp_path / "cache") or name == QUICK


@pytest.mark.long
def test_a_compiler_that_fails_is_told_once_with_its_log(tmp_path):
    compiler = lying(tmp_path, "echo 'no room on this ship'; seq 1000; exit 1")
    done = run(tmp_path / "cache", **compiler)
    assert "does not compile" in done.stdout and "'composed', 'runs'" in run(tmp_path / "cache",
                                                                             PROGRAM.replace("[0]", "[1]"), **compiler).stdout
    assert done.stderr.count("norm/norm.cpp for float32 does not compile") == 1 and "no room on this ship" in done.stderr
    assert len(done.stderr.splitlines()) < 30 and "more lines)" in done.stderr
    assert "-march=native" in done.stderr  # the command, so that one can try it


# What is no obstacle ----------------------------------------------------------------------------------------

def spaced(tmp_path):
    program = tmp_path / "my compilers" / "c++"
    program.parent.mkdir()
    program.symlink_to(shutil.which(native.compiler().command[0]))
    return {"DUOLN_CXX": program}


COLOURED = "[ \"$1\" = --version ] && printf 'a \\033[31mcompiler \\377\\n' && exit\n"
WAYS = {  # what a process is given, and words of its output
    **{words: (lambda tmp, w=words: {"DUOLN_CXX": w.format(shutil.which("c++") or native.compiler().command[0])},
               lambda: native.compiler().version)
       for words in ("env {}", "  env   A=1 {} ")},
    "a name with a space": (spaced, lambda: ""),
    # Apple's Clang knew no -march=native for ARM, and GCC knows none for PowerPC and RISC-V.
    **{f"no {refused}": (lambda tmp, r=refused: refusing(tmp, r), lambda f=flag: f"{f}'") for refused, flag in (
        ("-march=native", "-mcpu=native"), ("=native", "-fopenmp-simd"))},
    "the package": (lambda tmp: {**package(tmp), "PATH": "/nowhere"}, lambda: "clang version 22.0"),
    # What is told of it cannot be written, and a compiler's words do not control the terminal.
    **{f"stderr is {stream}": (lambda tmp, s=stream: {"program": PROGRAM + "sys.stdout.flush()\nos._exit(0)",
                                                      "before": f"import os, sys\nsys.stderr = {s}\n"},
                               lambda: "") for stream in ("open('/dev/full', 'w')", "None")},
    "coloured words": (lambda tmp: {"DUOLN_CXX": script(tmp / "c++", f'{COLOURED}exec {native.compiler().command[0]} "$@"\n')},
                       lambda: "with a \\x1b[31mcompiler \ufffd; this is done once"),
}


@pytest.mark.long
@pytest.mark.parametrize("name", WAYS)
def test_a_compiler_is_taken(name, tmp_path):
    make, words = WAYS[name]
    done = run(tmp_path / "cache", **make(tmp_path))
    assert COMPILED in done.stdout and words() in done.stdout + done.stderr and libraries(tmp_path / "cache"), done.stdout + done.stderr
    assert "does not compile" not in done.stderr


@pytest.mark.long
def test_a_compiler_of_the_path_comes_before_the_package(tmp_path):
    done = run(tmp_path / "cache", **package(tmp_path))
    assert COMPILED in done.stdout and "clang version 22.0" not in done.stdout


@pytest.mark.long
def test_a_folder_is_where_it_was_when_it_was_first_asked_for(tmp_path):
    (tmp_path / "a").mkdir()
    done = run(tmp_path, PROGRAM, "import os\nos.chdir(os.environ['START'])\nfrom duoln.kernels.native import storage\n"
               "storage.folder()\nos.chdir('/')\n", DUOLN_KERNELS="-o", START=tmp_path / "a")
    assert COMPILED in done.stdout and len(list((tmp_path / "a" / "-o").glob("*.so"))) == 1, done.stderr


@pytest.mark.long
def test_the_choice_of_a_backend_and_doctor_say_compiler_and_vectors(tmp_path):
    done = run(tmp_path, PROGRAM + "\nfrom duoln import runtime\nprint(runtime.choose('numpy')[1])\nfrom duoln.cli import main\n"
               "main(['doctor', '--plugin', 'mnist'])")
    assert COMPILED in done.stdout and re.search(r"^numpy, compiled by [\w +-]+ \d+, [^,]+$", done.stdout, re.M)
    [line] = [line for line in done.stdout.splitlines() if line.startswith("rules of numpy: compiled, ")]
    assert native.compiler().version in line and "-march=native, vectors of " in line and " bits, kept in " in line


@pytest.fixture
def trial(tmp_path, monkeypatch):
    """A function that tries a compiler which does something first."""
    monkeypatch.setenv("DUOLN_KERNELS", str(tmp_path / "kernels"))
    (tmp_path / "kernels").mkdir(mode=0o700)

    def run_trial(first, version):
        compiler = make_compiler(tmp_path / "c++", tmp_path / "log", "")
        compiler.write_text(compiler.read_text().replace("exec c++", f"{first}; exec c++"))
        return building.trial(toolchain.Compiler((str(compiler),), version))

    return run_trial


def test_a_slow_compiler_is_waited_for_and_told(trial, monkeypatch, capsys):
    monkeypatch.setattr(building, "_SLOW_SECONDS", 0.01)
    assert trial("sleep 0.3", "a slow one") is None
    assert capsys.readouterr().err == "duoln: waiting for a slow one\n"
    monkeypatch.setattr(building, "_SECONDS", 0.01)
    assert trial("sleep 0.3", "a slower one") == "it says stopped after 0 s"


@pytest.mark.parametrize(("command", "flag"), [
    (("/usr/bin/g++",), "-march=x86-64-v3"), (("/a/zig", "c++"), "-march=x86_64_v3"), (("ccache", "clang++"), "-march=x86-64-v3"),
    (("python", "-m", "ziglang", "c++"), "-march=x86_64_v3"), (("/opt/zig/g++",), "-march=x86-64-v3")])
def test_a_cpu_is_named_as_the_compiler_names_it(command, flag):
    assert toolchain.flags_for(toolchain.Compiler(command, "1"), "x86-64-v3")[-1] == flag


@pytest.mark.parametrize(("user", "programs", "line"), [
    (0, ["apt-get"], "apt install g++"), (1000, ["apt-get"], "pip install ziglang"),
    (1000, ["sudo", "apk"], "apk add g++"), (0, [], "apt install g++")])
def test_the_line_to_type_is_one_that_the_user_may_run(user, programs, line, monkeypatch):
    monkeypatch.setattr(toolchain.sys, "platform", "linux")
    monkeypatch.setattr(toolchain.os, "geteuid", lambda: user)
    monkeypatch.setattr(toolchain.shutil, "which", lambda name: name if name in programs else None)
    monkeypatch.delenv("CONDA_PREFIX", raising=False)
    monkeypatch.delenv("DUOLN_CXX", raising=False)
    assert toolchain.install_line() == line
