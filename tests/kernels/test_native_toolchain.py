"""Which compiler is taken: a line of words, and the package that brings one where none may be installed."""

import os
import shutil

import pytest
from compiled import COMPILED, libraries, make_compiler, python_path, run

from duoln.kernels import native
from duoln.kernels.native import building, toolchain

pytestmark = pytest.mark.skipif(native.compiler() is None, reason="there is no C++ compiler")
ZIG = """#!/bin/sh
[ "$1" = c++ ] || exit 1
shift
case "$*" in
--version) echo 'clang version 22.0' ;;
*) PATH="{path}" exec {compiler} "$@" ;;
esac
"""
"""The program of the package, as far as it is asked here."""


@pytest.fixture
def package(tmp_path):
    """A folder of Python packages with the one that brings a compiler."""
    made = tmp_path / "packages" / toolchain.ZIG
    made.mkdir(parents=True)
    (made / "__init__.py").write_text("")
    (made / "zig").write_text(ZIG.format(path=os.environ["PATH"], compiler=" ".join(native.compiler().command)))
    (made / "zig").chmod(0o755)
    return made.parent


@pytest.mark.long
@pytest.mark.parametrize("words", ["env {}", "  env   A=1 {} "])
def test_a_compiler_of_several_words(words, tmp_path):
    done = run(tmp_path, DUOLN_CXX=words.format(shutil.which("c++") or native.compiler().command[0]))
    assert COMPILED in done.stdout and native.compiler().version in done.stdout and libraries(tmp_path)


@pytest.mark.long
def test_a_program_whose_name_has_a_space(tmp_path):
    program = tmp_path / "my compilers" / "c++"
    program.parent.mkdir()
    program.symlink_to(shutil.which(native.compiler().command[0]))
    assert COMPILED in run(tmp_path / "cache", DUOLN_CXX=program).stdout


@pytest.mark.long
@pytest.mark.few
@pytest.mark.parametrize("nothing", [" ", "no-such-compiler c++", "'"])
def test_words_that_are_no_compiler(nothing, tmp_path):
    done = run(tmp_path, DUOLN_CXX=nothing)
    assert f"DUOLN_CXX={nothing} is no compiler that answers" in done.stdout and not libraries(tmp_path)


@pytest.mark.long
@pytest.mark.parametrize(("words", "reason"), [
    ("cat", "invalid option"), ("true", "it compiles for unknown unknown")])
def test_programs_that_answer_and_cannot_compile_for_this_machine(words, reason, tmp_path):
    done = run(tmp_path, DUOLN_CXX=words)
    assert f"DUOLN_CXX={words} is no compiler for this machine" in done.stdout and reason in done.stdout, done.stdout
    assert not libraries(tmp_path) and "unset DUOLN_CXX" in done.stdout and not done.stderr


REFUSES = """#!/bin/sh
case "$*" in *{refused}*) echo "error: unsupported argument" >&2; exit 1 ;; esac
for word; do
    shift
    [ "$word" = -mcpu=native ] || set -- "$@" "$word"
done
exec {compiler} "$@"
"""
"""A compiler that knows no CPU by the flags that it refuses."""


def refusing(folder, refused):
    """The same as the `c++` of a PATH."""
    folder.mkdir()
    (folder / "c++").write_text(REFUSES.format(refused=refused, compiler=" ".join(native.compiler().command)))
    (folder / "c++").chmod(0o755)
    return f"{folder}:{os.environ['PATH']}"


@pytest.mark.long
@pytest.mark.few
@pytest.mark.parametrize(("refused", "flag"), [("-march=native", "-mcpu=native"), ("=native", "-fopenmp-simd")])
def test_a_compiler_names_its_own_cpu_as_it_can(refused, flag, tmp_path):
    """Apple's Clang knew no -march=native for ARM, and GCC knows none for PowerPC and RISC-V."""
    done = run(tmp_path / "cache", PATH=refusing(tmp_path / "path", refused), DUOLN_CXX="")
    assert COMPILED in done.stdout and libraries(tmp_path / "cache") and "does not compile" not in done.stderr
    assert f"{flag}'" in done.stdout.split("|")[2]


@pytest.mark.long
def test_a_compiler_of_the_path_that_cannot_compile_costs_the_speed_and_nothing_else(tmp_path):
    """As a `c++` whose parts are not all installed."""
    done = run(tmp_path / "cache", PATH=refusing(tmp_path / "path", "-std"), DUOLN_CXX="")
    assert "cannot compile for this machine: it says error: unsupported argument" in done.stdout.split("|")[3]
    assert not libraries(tmp_path / "cache") and done.stderr.count("\n") == 1 and "NumPy's rule runs instead" in done.stderr


def _check_refused(fault, words, tmp_path):
    """A compiler that does `fault` where its arguments are so is refused with these words, and the rules are NumPy's."""
    (tmp_path / "c++").write_text(f"#!/bin/sh\ncase \"$*\" in {fault} esac\nexec {native.compiler().command[0]} \"$@\"\n")
    (tmp_path / "c++").chmod(0o755)
    done = run(tmp_path / "cache", DUOLN_CXX=tmp_path / "c++")
    assert words in done.stdout and "rules interpreted, because what" in done.stdout, done.stdout
    assert done.stderr.count("\n") == 1 and "NumPy's rule runs instead" in done.stderr and not libraries(tmp_path / "cache")


@pytest.mark.long
@pytest.mark.parametrize(("fault", "words"), [
    ("*.so*) echo 'cannot execute as' >&2; exit 1 ;;", "it says cannot execute as"),
    ('*.so*) shift $(($# - 1)); echo garbage > "$1"; exit ;;', "trial.so"),
    ("*.so*) exit ;;", "it makes no file"), ("*.so*) exit 1 ;;", "it says nothing")],
    ids=["no assembler", "no library", "no file", "silent"])
def test_a_compiler_whose_libraries_do_not_run(fault, words, tmp_path):
    """It is told before a kernel is compiled, and also where nothing else is asked for, as by `duoln doctor`."""
    _check_refused(fault, words, tmp_path)
    told = run(tmp_path / "cache", "from duoln.kernels import native\nprint(native.facts()['rules'])", DUOLN_CXX=tmp_path / "c++")
    assert told.stdout == "interpreted\n"


def test_a_slow_compiler_is_waited_for_and_told(tmp_path, monkeypatch, capsys):
    compiler = make_compiler(tmp_path / "c++", tmp_path / "log", "")
    compiler.write_text(compiler.read_text().replace("exec c++", "sleep 0.3; exec c++"))
    monkeypatch.setattr(building, "_SLOW_SECONDS", 0.01)
    monkeypatch.setenv("DUOLN_KERNELS", str(tmp_path / "kernels"))
    (tmp_path / "kernels").mkdir(mode=0o700)
    assert building.trial(toolchain.Compiler((str(compiler),), "a slow one")) is None
    assert capsys.readouterr().err == "duoln: waiting for a slow one\n"
    monkeypatch.setattr(building, "_SECONDS", 0.01)
    assert building.trial(toolchain.Compiler((str(compiler),), "a slower one")) == "it takes more than 0 s"


def test_a_trial_writes_nothing_where_the_system_keeps_such_files(tmp_path, monkeypatch):
    """That place may be full."""
    make_compiler(tmp_path / "c++", tmp_path / "log", "")
    (tmp_path / "c++").write_text((tmp_path / "c++").read_text().replace("exec c++", f"echo $TMPDIR >> {tmp_path}/places; exec c++"))
    monkeypatch.setenv("DUOLN_KERNELS", str(tmp_path / "kernels"))
    (tmp_path / "kernels").mkdir(mode=0o700)
    assert building.trial(toolchain.Compiler((str(tmp_path / "c++"),), "1.0")) is None
    assert str(tmp_path / "kernels" / "building-") in (tmp_path / "places").read_text().splitlines()[-1]


@pytest.mark.long
def test_a_compiler_of_c_alone(tmp_path):
    gcc = shutil.which("gcc")
    if gcc is None:
        pytest.skip("there is no gcc")
    done = run(tmp_path, DUOLN_CXX=gcc)
    assert "undefined symbol" in done.stdout.split("|")[2] and not libraries(tmp_path)


@pytest.mark.long
def test_a_program_that_is_silent_when_it_should_compile(tmp_path):
    program = tmp_path / "c++"
    program.write_text('#!/bin/sh\n[ "$1" = --version ] && echo 1 || exit 1\n')
    program.chmod(0o755)
    assert "for this machine: it says nothing" in run(tmp_path / "cache", DUOLN_CXX=program).stdout


@pytest.mark.long
def test_the_package_compiles_where_the_path_has_no_compiler(package, tmp_path):
    done = run(tmp_path / "cache", PATH="/nowhere", PYTHONPATH=python_path(package), DUOLN_CXX="")
    assert COMPILED in done.stdout and "clang version 22.0" in done.stdout and libraries(tmp_path / "cache"), done.stderr


@pytest.mark.long
def test_a_compiler_of_the_path_comes_before_the_package(package, tmp_path):
    done = run(tmp_path / "cache", PYTHONPATH=python_path(package), DUOLN_CXX="")
    assert COMPILED in done.stdout and "clang version 22.0" not in done.stdout


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


_EMPTY = 'shift $(($# - 1)); echo "int nothing;" | c++ -x c++ -shared -fPIC -o "$1" -; exit'
"""Makes a library without functions in the file that the last word names."""


@pytest.mark.long
@pytest.mark.parametrize(("fault", "words"), [
    (f"*.so*) {_EMPTY} ;;", "lacks the function duoln_trial"),
    ('*.so*) exec c++ "$@" -fvisibility=hidden ;;', "lacks the function duoln_trial"),
    ('*trial.so*) sed -i "s/return n/return 0/" "$(echo "$*" | grep -o "[^ ]*trial.cpp")"; exec c++ "$@" ;;', "its code gives 0 in the place of 31")],
    ids=["nothing in it", "hidden", "another value"])
def test_a_compiler_whose_libraries_lack_functions(fault, words, tmp_path):
    _check_refused(fault, words, tmp_path)


@pytest.mark.long
@pytest.mark.parametrize("fault", [_EMPTY, 'exec c++ "$@" -fvisibility=hidden'], ids=["nothing in it", "hidden"])
def test_a_compiler_that_lies_about_kernels_alone(fault, tmp_path):
    """The library is not kept, so that a compiler that is mended makes it anew."""
    compiler = make_compiler(tmp_path / "c++", tmp_path / "log", fault)
    done = run(tmp_path / "cache", DUOLN_CXX=compiler)
    assert "does not compile" in done.stdout.split("|")[0] and "lacks the function" in done.stderr, done.stdout + done.stderr
    assert not libraries(tmp_path / "cache")
