"""Each failure of a plug-in is reported in its own row or its own error, and has no other effect."""

import json
import os
import signal
import subprocess

import pytest
from conftest import PATIENCE
from hostile_plugins import BESIDE, LOADED, METHODS, module, task

from duoln.cli import main
from duoln.errors import PluginError, TaskError
from duoln.system import processes
from duoln.tasks import Task
from duoln.tasks.boundary import METHODS as GUARDED
from duoln.tasks.registry import Registry, find_task
from duoln.testing import check_error

RUN = ["--preset", "smoke", "--backend", "numpy", "--epochs", "1", "--json", "--out"]


@pytest.fixture(autouse=True)
def _here(tmp_path, monkeypatch):
    """The working folder is restored, after the test at the latest; nothing is drawn."""
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.setattr("duoln.pictures.drawing.refusal", lambda: "pip install matplotlib")


def _documents(text):
    """What stdout must be: one JSON document on a line of its own."""
    assert text.count("\n") == 1
    return json.loads(text, parse_constant=pytest.fail)


@pytest.mark.few
@pytest.mark.parametrize(("source", "words"), LOADED.values(), ids=LOADED)
def test_what_cannot_be_offered_is_a_row_of_its_own(install, capsys, source, words):
    install("hostile", source)
    assert main(["list", "--json", "--plugin", "mnist", "--plugin", "hostile"]) == 0
    listed = _documents(capsys.readouterr().out)
    [row] = listed["broken"]
    assert (row["name"], row["distribution"]) == ("hostile", "hostile-dist") and words in row["reason"], row
    assert "\n" not in row["reason"] and "mnist" in [t["name"] for t in listed["tasks"]]
    check_error(PluginError, lambda: find_task("hostile"), "plug-in 'hostile' of hostile-dist is broken: ", words)


@pytest.mark.few
@pytest.mark.parametrize(("source", "method", "words"), METHODS.values(), ids=METHODS)
def test_what_fails_in_use_is_an_error_of_that_task(install, capsys, tmp_path, source, method, words):
    install("hostile", source)
    code = main(["run", "hostile", "--plugin", "hostile", "--variant", "ln", *RUN, "r"])
    captured = capsys.readouterr()
    error = _documents(captured.out)["error"]
    assert code == error["exit_code"] == (1 if method else 2)
    assert words in error["message"] and "Traceback" not in captured.err
    if method:
        assert error["class"] == "TaskError"
        assert error["message"].startswith(f"task 'hostile' of hostile-dist: {method}")
    log = tmp_path / "here" / "r" / "ln" / "log.jsonl"
    if log.exists() and log.read_text():
        assert json.loads(log.read_text().splitlines()[-1])["status"] == "failed"


@pytest.mark.few
@pytest.mark.parametrize(("source", "words"), [
    pytest.param(*case, id=name, marks=() if k % 4 == 0 else pytest.mark.minutes) for k, (name, case) in enumerate(BESIDE.items())])
def test_another_task_runs_on(install, capsys, tmp_path, source, words):
    install("hostile", source)
    install("good", task("name = 'good'"))
    before = signal.getsignal(signal.SIGINT)
    code = main(["run", "good", "--variant", "ln", *RUN, "r"])
    captured = capsys.readouterr()
    assert code == ("is told of nothing more" in captured.err) and len(_documents(captured.out)["results"]) == 1, captured.err
    assert words in " ".join(captured.err.split()) and (tmp_path / "here" / "r" / "ln" / "result.json").exists()
    assert os.getcwd() == str(tmp_path / "here") and signal.getsignal(signal.SIGINT) is before


def test_strict_makes_a_failing_listener_an_error(install, capsys, monkeypatch):
    install("hostile", BESIDE["a listener that exits"][0])
    install("good", task("name = 'good'"))
    monkeypatch.setenv("DUOLN_STRICT_PLUGINS", "1")
    assert main(["run", "good", "--variant", "ln", *RUN, "r"]) == 1
    error = _documents(capsys.readouterr().out)["error"]
    assert error["class"] == "PluginError" and "on_update raised SystemExit" in error["message"]


def test_all_methods_of_the_contract_are_guarded():
    assert {"data", "evaluate", "pictures", "reference_curves", "population", "peer", "layer_inputs"} <= set(GUARDED)
    assert {name for name in vars(Task) if callable(getattr(Task, name)) and name[0] != "_"} - set(GUARDED) == {"config"}


@pytest.mark.parametrize("method", GUARDED)
def test_each_of_them_names_itself(install, method):
    install("hostile", task(f"def {method}(self, *a, **k):\n    raise SystemExit(0)"))
    broken = find_task("hostile")
    check_error(TaskError, getattr(broken, method), f"task 'hostile' of hostile-dist: {method} raised SystemExit: 0")


def test_the_working_folder_is_the_same_after_each_call(install, tmp_path):
    install("hostile", task("def model(self, cfg):\n    import os; os.chdir('/'); return super().model(cfg)"))
    assert main(["run", "hostile", "--variant", "ln", *RUN, "r"]) == 0
    assert (tmp_path / "here" / "r" / "ln" / "result.json").exists()


def test_figures_that_are_not_finite_are_null_with_their_reason(install, capsys, tmp_path):
    install("hostile", task("def metrics(self, predict, split):\n    return {'error': float('nan'), 'more': np.float32('inf')}"))
    assert main(["run", "hostile", "--variant", "ln", *RUN, "r"]) == 0
    [result] = _documents(capsys.readouterr().out)["results"]
    assert result["test_error"] is None and result["not_finite"] == {"test_error": "nan", "test_more": "infinity"}
    for file in ("log.jsonl", "result.json"):
        text = (tmp_path / "here" / "r" / "ln" / file).read_text()
        assert "NaN" not in text and "Infinity" not in text and '"not_finite"' in text
    assert main(["report", "r", "--json"]) == 0
    [run] = _documents(capsys.readouterr().out)["runs"]
    assert run["evaluations"][-1]["not_finite"] == {"test_error": "nan", "test_more": "infinity"}


def test_a_plug_in_that_prints_everywhere(install, capsys):
    install("hostile", task("def data(self, *a):\n    print('noise')\n    return super().data(*a)\n"
                            "def metrics(self, *a):\n    print('noise')\n    return super().metrics(*a)", "print('noise')"))
    assert main(["run", "hostile", "--variant", "ln", *RUN, "r"]) == 0
    captured = capsys.readouterr()
    assert _documents(captured.out)["results"] and captured.err.count("noise") >= 3


@pytest.mark.parametrize("file", ["METADATA", "entry_points.txt"])
@pytest.mark.parametrize("content", [b"\xff\xfe\x00", b"\x00" * 100, b"", b"[duoln\nx", b"Name: \xff"])
def test_distributions_with_damaged_files(install, tmp_path, file, content):
    install("hostile", module(""))
    (tmp_path / "hostile_dist-1.0.dist-info" / file).write_bytes(content)
    registry = Registry()
    assert "mnist" in registry.tasks and len(registry.broken) <= 1
    assert find_task("mnist").name == "mnist"


# In processes of their own -------------------------------------------------------------------------------

def _process(words, **more):
    return subprocess.run(processes.command("duoln", *words), env=processes.environment(more), capture_output=True,
                          text=True, check=False, timeout=PATIENCE)


@pytest.mark.long
def test_a_plug_in_that_writes_past_python(install):
    install("hostile", module("import os, sys; os.write(1, b'noise'); sys.__stdout__.write('noise')"))
    done = _process(["list", "--json"])
    assert done.returncode == 0 and _documents(done.stdout)["broken"] == [] and done.stderr.count("noise") == 2
