"""`duoln new-task`: the package that it writes is installed, listed, run, tested and linted without a change."""

import json
import os
import re
import shutil
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest
from conftest import PATIENCE

from duoln.cli import new_task
from duoln.cli.new_task import write_task
from duoln.errors import DuolnError, UsageError
from duoln.testing import check_error

ROOT = Path(__file__).resolve().parents[2]
NAME = "odd_rows"


def _run(*command, cwd, paths=()):
    env = {**os.environ, "DUOLN_OFFLINE": "1", "PYTHONPATH": os.pathsep.join(map(str, (*paths, ROOT)))}
    done = subprocess.run([sys.executable, "-m", *map(str, command)], cwd=cwd, capture_output=True, text=True,
                          check=False, timeout=PATIENCE, env=env)
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done


def _can_build():
    try:
        return int(version("setuptools").split(".")[0]) >= 77 and bool(version("wheel"))
    except ImportError:
        return False


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """The folder to which the command wrote a task, and its output."""
    folder = tmp_path_factory.mktemp("made")
    return folder, _run("duoln", "new-task", NAME, cwd=folder)


@pytest.fixture(scope="module")
def installed(made, tmp_path_factory):
    """The written package as pip installs it."""
    target = tmp_path_factory.mktemp("site")
    source = tmp_path_factory.mktemp("source") / NAME  # a build leaves files in its source
    shutil.copytree(made[0] / NAME, source)
    build = ["--no-build-isolation", "--no-index"] if _can_build() else []
    _run("pip", "install", "-q", "--no-deps", *build, "--target", target, source, cwd=target)
    return target


@pytest.mark.long
def test_what_is_written_and_said(made):
    folder, done = made
    assert [p.name for p in folder.iterdir()] == [NAME]  # no other file remains in the folder
    files = {p.relative_to(folder / NAME).as_posix() for p in (folder / NAME).rglob("*") if p.is_file()}
    assert files == {"pyproject.toml", "README.md", f"{NAME}/__init__.py", f"{NAME}/task.py", f"tests/test_{NAME}.py"}
    assert done.stdout.splitlines() == [f"pip install -e ./{NAME}", f"duoln run {NAME} --preset smoke", f"pytest ./{NAME}"]
    for path in files:
        text = (folder / NAME / path).read_text(encoding="utf-8")
        assert not [word for word in ("NAME", "TITLE", "DIST") if word in text], path


def test_a_name_that_is_nearly_one_is_proposed(tmp_path):
    check_error(UsageError, lambda: write_task("My-task", tmp_path), "found 'My-task'; did you mean my_task?")
    with pytest.raises(UsageError) as caught:
        write_task("1", tmp_path)
    assert "did you mean" not in str(caught.value)


@pytest.mark.parametrize(("name", "kind"), [("my_task", "MyTask"), ("odd_rows", "OddRowsTask"), ("task", "TaskTask")])
def test_the_class_is_called_a_task_once(name, kind):
    files = new_task.fill(name)
    assert "pirals" not in re.sub("[Tt]wo spirals|_spirals", "", files[f"{name}/task.py"])
    assert f"class {kind}(Task):" in files[f"{name}/task.py"] and f"check_task({kind}())" in files[f"tests/test_{name}.py"]


def test_an_operator_has_its_texts_cases_and_timing(tmp_path):
    package = write_task("odd_waves", tmp_path, operator=True)
    files = {p.relative_to(package).as_posix() for p in package.rglob("*") if p.is_file()}
    texts = {f"odd_waves/odd_waves_rows{end}" for end in (".cpp", ".cu", ".metal")}
    assert files >= {*texts, "odd_waves/operators.py", "tests/test_operator.py"}
    for path in files:
        text = (package / path).read_text(encoding="utf-8")
        assert not [word for word in ("NAME", "TITLE", "DIST", "l2_rows", "L2_ROWS") if word in text.replace("KEY", "")], path
    if shutil.which("ruff") is not None:
        assert subprocess.run(["ruff", "check", "--no-cache", "."], cwd=package, check=False).returncode == 0
    code = ("from odd_waves.operators import odd_waves_rows as op; from duoln import runtime; from duoln.kernels import registry\n"
            "runtime.backend('numpy'); print(len(registry.registered_cases()), len(op.rules('numpy')) > 1, list(registry.timed())[-1])")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, cwd=package,
                          env={**os.environ, "PYTHONPATH": os.pathsep.join([str(package), str(ROOT)])})
    assert done.stdout.split() == ["7", "True", "odd_waves_rows"], done.stderr


@pytest.mark.long
def test_the_tests_of_an_operator_pass(tmp_path):
    package = write_task("odd_waves", tmp_path, operator=True)
    done = _run("pytest", "-p", "no:cacheprovider", "tests", cwd=package, paths=[package])
    assert "4 passed" in done.stdout


@pytest.mark.long
def test_it_is_listed_and_runs(installed, tmp_path):
    listed = json.loads(_run("duoln", "list", "--json", cwd=tmp_path, paths=[installed]).stdout)
    assert listed["broken"] == []
    assert {t["name"]: t["distribution"] for t in listed["tasks"]}[NAME] == "duoln-odd-rows"
    done = _run("duoln", "run", NAME, "--preset", "smoke", "--backend", "numpy", "--json", cwd=tmp_path, paths=[installed])
    result = json.loads(done.stdout)
    assert result["dataset"]["provenance"] == "synthetic" and [r["variant"] for r in result["results"]] == ["ln", "none"]


@pytest.mark.long
def test_its_own_test_passes(made, installed, tmp_path):
    tests = shutil.copytree(made[0] / NAME / "tests", tmp_path / "tests")
    assert "1 passed" in _run("pytest", "-p", "no:cacheprovider", tests, cwd=tmp_path, paths=[installed]).stdout


def test_an_editable_install_is_found_beside_its_folder(made, tmp_path):
    """`python -m duoln` finds ./NAME, a folder without __init__.py, before the installed package."""
    if not _can_build():
        pytest.skip("setuptools and wheel are needed to build without fetching them")
    shutil.copytree(made[0] / NAME, tmp_path / NAME)
    site = tmp_path / "site"
    _run("pip", "install", "-q", "--no-deps", "--no-build-isolation", "--no-index", "--target", site, "-e",
         tmp_path / NAME, cwd=tmp_path)
    # A .pth is read in a site folder only, which a folder of PYTHONPATH is not.
    paths = [line for pth in site.glob("*.pth") for line in pth.read_text().splitlines()]
    assert paths == [str(tmp_path / NAME)]
    listed = json.loads(_run("duoln", "list", "--json", cwd=tmp_path, paths=[site, *paths]).stdout)
    assert NAME in {t["name"] for t in listed["tasks"]} and listed["broken"] == []


def test_its_code_is_clean(made):
    if shutil.which("ruff") is None:
        pytest.skip("ruff is not installed")
    done = subprocess.run(["ruff", "check", "--no-cache", "."], cwd=made[0] / NAME, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("name", [
    "", "Upper", "two words", "a-b", "1st", "_a", "a_", "class", "..", "a/b", "/tmp/x", "é", "a.b", "a\n"])
def test_names_that_cannot_be(name, tmp_path):
    check_error(UsageError, lambda: write_task(name, tmp_path), "[new-task] expected a name of lower-case", repr(name))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("name", "word"), [
    ("mnist", "duoln's"), ("json", "installed module"), ("numpy", "installed module"), ("tests", "installed module")])
def test_names_that_are_taken(name, word, tmp_path):
    check_error(UsageError, lambda: write_task(name, tmp_path), "[new-task]", word, repr(name))
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_is_there_is_left_alone(tmp_path):
    (tmp_path / "mine").mkdir()
    check_error(UsageError, lambda: write_task("mine", tmp_path), "mine", "found one")
    assert list((tmp_path / "mine").iterdir()) == []


def test_a_failure_leaves_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr(new_task, "FILES", {"pyproject.toml": "README.md", "pyproject.toml/b": "README.md"})
    check_error(DuolnError, lambda: write_task("mine", tmp_path), "mine: cannot be written")
    assert list(tmp_path.iterdir()) == []
