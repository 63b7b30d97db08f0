"""Kernels that were compiled ahead: for a CPU by name, used without a compiler, refused where the CPU lacks something."""

import json
import os
import stat

import pytest
from compiled import COMPILED, remembering_compiler, run, values

from duoln import runtime
from duoln.cli import main
from duoln.errors import KernelError
from duoln.kernels import native
from duoln.kernels.native import processor, storage, toolchain
from duoln.testing import check_error

pytestmark = pytest.mark.skipif(native.compiler() is None, reason="there is no C++ compiler")

UNIT = storage.Unit("norm/norm.cpp", "float32")
NO_COMPILER = {"PATH": "/nowhere"}
HERE = "x86-64" if processor.own_platform().endswith("x86_64") else "armv8-a"
"""A CPU that every machine of this architecture can stand in for."""
@pytest.fixture(scope="module", autouse=True)
def _one_kernel_without_optimisation():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(toolchain, "FLAGS", tuple("-O0" if flag == "-O3" else flag for flag in toolchain.FLAGS))
        patch.setattr(storage, "units", lambda: [UNIT])
        patch.setattr(toolchain, "compiler", remembering_compiler)
        yield


@pytest.fixture(scope="module")
def ahead(tmp_path_factory):
    """A folder with a library for any CPU of this architecture, and what the command printed of it."""
    folder = tmp_path_factory.mktemp("ahead") / "kernels"
    return folder, runtime.compile_kernels(HERE, folder)


def _copy(folder, to, **changes):
    """A copy of the library, with another record."""
    to.mkdir(mode=0o755)
    for path in folder.iterdir():
        (to / path.name).write_bytes(path.read_bytes())
        (to / path.name).chmod(0o644)
    [record] = to.glob("*.json")
    record.write_text(json.dumps({**json.loads(record.read_text()), **changes}))
    return to


@pytest.mark.long
def test_the_command_names_what_it_made(tmp_path, capfd, monkeypatch):
    assert main(["compile", "--march", HERE, "--out", str(tmp_path / "out"), "--json"]) == 0
    stdout, stderr = capfd.readouterr()
    made = json.loads(stdout)
    assert made["march"] == HERE and made["platform"] == processor.own_platform() and made["vector_bits"] == 128
    assert f"-march={HERE}" in made["flags"] and made["compiler"] == native.compiler().version
    assert [(each["file"], each["dtype"]) for each in made["libraries"]] == [UNIT]
    names = [each["name"] for each in made["libraries"]]
    assert all((tmp_path / "out" / name).is_file() for name in names) and all(each["new"] for each in made["libraries"])
    assert f"compiling norm in float32 for {HERE}" in stderr
    assert main(["compile", "--march", HERE, "--out", str(tmp_path / "out")]) == 0
    stdout, stderr = capfd.readouterr()
    assert stdout.splitlines() == [str(tmp_path / "out" / name) for name in names]
    assert "compiling" not in stderr and f"DUOLN_KERNELS={tmp_path / 'out'}" in stderr and "0 of them new" in stderr
    assert "DUOLN_NATIVE" not in stderr
    monkeypatch.setenv("DUOLN_NATIVE", "0")
    assert main(["compile", "--march", HERE, "--out", str(tmp_path / "out")]) == 0
    assert "no run uses them before it is unset" in capfd.readouterr().err


def test_other_users_may_read_the_folder_and_not_write_it(ahead):
    folder, _ = ahead
    assert stat.S_IMODE(folder.stat().st_mode) == 0o755
    assert {stat.S_IMODE(path.stat().st_mode) for path in folder.glob("norm*")} == {0o644}


@pytest.mark.long
def test_it_serves_where_there_is_no_compiler(ahead, tmp_path):
    folder, made = ahead
    done = run(tmp_path, DUOLN_KERNELS=folder, **NO_COMPILER)
    _, _, facts, summary = done.stdout.split("|")
    assert COMPILED in done.stdout and done.stderr == "" and f"-march={HERE}" in facts and made["compiler"] in facts
    assert "rules compiled by " in summary and "for vectors of 128 bits" in summary


@pytest.mark.long
def test_it_serves_where_there_is_a_compiler_too(ahead, tmp_path):
    done = run(tmp_path, DUOLN_KERNELS=ahead[0])
    assert COMPILED in done.stdout and done.stderr == "" and len(list(ahead[0].glob("*.so"))) == 1


@pytest.mark.long
def test_the_cache_itself_serves_after_the_compiler_has_gone(tmp_path):
    first = run(tmp_path)
    again = run(tmp_path, **NO_COMPILER)
    assert COMPILED in again.stdout and values(again) == values(first)


@pytest.mark.long
def test_the_widest_vectors_are_taken(ahead, tmp_path):
    folder = _copy(ahead[0], tmp_path / "two")
    [library] = folder.glob("*.so")
    wider = folder / "norm-float32-wider.so"
    wider.write_bytes(library.read_bytes())
    record = json.loads(library.with_suffix(".json").read_text())
    wider.with_suffix(".json").write_text(json.dumps({**record, "vector_bits": 4096}))
    assert "for vectors of 4096 bits" in run(tmp_path, DUOLN_KERNELS=folder, **NO_COMPILER).stdout
    wider.with_suffix(".json").write_text(json.dumps({**record, "vector_bits": 4096, "needs": ["nosuchset"]}))
    assert "for vectors of 128 bits" in run(tmp_path, DUOLN_KERNELS=folder, **NO_COMPILER).stdout


@pytest.mark.long
@pytest.mark.few
@pytest.mark.parametrize(("changes", "words"), [
    ({"needs": ["sse2", "nosuchset"]}, "this CPU lacks nosuchset"), ({"platform": "linux s390x"}, "is compiled for linux s390x"),
    ({"source": "0"}, "compiled from the text of another version of duoln"), ({"sha256": "0"}, "is not what was compiled"),
    ({"vector_bits": "wide"}, "is no record of a library")])
def test_what_does_not_fit_is_refused_with_the_reason(ahead, changes, words, tmp_path):
    changes = {key: ["asimd", "nosuchset"] if key == "needs" and not HERE.startswith("x86") else value
               for key, value in changes.items()}
    folder = _copy(ahead[0], tmp_path / "other", **changes)
    rule, _, facts, summary = run(tmp_path, DUOLN_KERNELS=folder, **NO_COMPILER).stdout.split("|")
    assert all(words in text for text in (rule, facts, summary)) and "interpreted" in facts
    assert "no C++ compiler of" in rule and "install" in summary


def test_a_cpu_that_the_compiler_does_not_know(tmp_path, capsys):
    assert main(["compile", "--march", "no-such-cpu", "--out", str(tmp_path / "out")]) == 2
    stderr = capsys.readouterr().err
    assert "[compile] expected a CPU that " in stderr and "found -march=no-such-cpu; it says" in stderr
    assert stderr.count("no-such-cpu") > 1 and not (tmp_path / "out").exists()


@pytest.mark.parametrize(("name", "mode", "words"), [
    ("file/out", 0o755, "cannot be written: Not a directory"), ("file", 0o755, "cannot be made: File exists"),
    ("open", 0o777, "can be written by others; make it yours alone with chmod go-w")])
def test_a_folder_that_cannot_keep_libraries(name, mode, words, tmp_path):
    (tmp_path / "file").touch()
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(mode)
    check_error(KernelError, lambda: runtime.compile_kernels(HERE, tmp_path / name), "[compile] expected a folder", words)


def test_a_folder_without_permission(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "access", lambda path, mode: not mode & os.W_OK)  # root may write everywhere
    check_error(KernelError, lambda: runtime.compile_kernels(HERE, tmp_path), f"found that {tmp_path} cannot be written")


def test_without_a_compiler_there_is_nothing_to_compile_with(tmp_path, monkeypatch):
    monkeypatch.setattr(toolchain, "compiler", lambda: None)
    check_error(KernelError, lambda: runtime.compile_kernels(HERE, tmp_path), "expected a C++ compiler", "try: ")


def test_a_kernel_that_does_not_compile_is_an_error_with_the_log(tmp_path, monkeypatch):
    monkeypatch.setattr(toolchain, "FLAGS", (*toolchain.FLAGS, "-Wno-such-ship", "-include", "no-such-header.h"))
    monkeypatch.setattr(toolchain, "target", lambda chosen, march: toolchain.Target("linux x86_64", [], 128))
    check_error(KernelError, lambda: runtime.compile_kernels(HERE, tmp_path), "norm/norm.cpp for float32 does not compile",
                "no-such-header.h")
    assert not list(tmp_path.glob("*.so"))
