"""One command surveys a device: every part writes its figures, and the other parts run when one fails."""

import json
import os
import re
import signal
import subprocess
import sys
import tarfile
import time
from pathlib import Path

import pytest
from bench import made
from conftest import PATIENCE

from duoln import runtime
from duoln.bench import survey as surveying
from duoln.bench.records import make_record
from duoln.bench.survey import Folder, Outcome, Part, chosen_parts, limit_of, parts, summary, survey
from duoln.cli import main
from duoln.errors import CheckpointError, RecordError, UsageError
from duoln.testing import check_error

ROOT = Path(__file__).parents[2]


def _survey(wanted, folder, say=lambda line: None, seconds=10 * PATIENCE, archive=None):
    return survey(wanted, folder, say, time.monotonic() + seconds, archive)


def _python(name, code, seconds=PATIENCE):
    return Part(name, f"what {name} is", [sys.executable, "-c", code], seconds)


def _writing(folder, name, content, after=""):
    return _python(name, f"open({str(folder / f'{name}.json')!r}, 'w').write({json.dumps(content)!r}); {after}")


@pytest.mark.long
def test_a_part_that_fails_hangs_or_talks_nonsense(tmp_path):
    folder, output = Folder(tmp_path / "new", "numpy"), []
    wanted = [_python("breaks", "import sys; sys.exit('no such device')"), _python("hangs", "import time; time.sleep(3600)", 1),
              _python("silent", "pass"), _python("dies", "import os; os.abort()"),
              _writing(folder.path, "keeps", {"cases": [], "missing": {"read": "7.5"}}, "raise SystemExit(3)"),
              _writing(folder.path, "slow", {"cases": [], "missing": {"write GB/s": "6.5"}}, "import time; time.sleep(3600)")._replace(seconds=10),
              _writing(folder.path, "lacks", {"not there": "no such program here"}),
              _writing(folder.path, "works", {"cases": [], "missing": {"copy": "12.5"}})]
    assert not _survey(wanted, folder, output.append)
    assert {o.name: o.state for o in folder.outcomes} == {
        "breaks": "FAILED", "hangs": "FAILED", "silent": "FAILED", "dies": "FAILED", "keeps": "FAILED", "slow": "cut short",
        "lacks": "not there", "works": "done"}
    text = (folder.path / "summary.md").read_text()
    for words in ("no such device", "stopped after 1 s", "no JSON", "exit code -6", "copy: 12.5", "read: 7.5", "did not run: write GB/s: 6.5",
                  "no such program here"):
        assert words in text
    assert _survey(wanted[-2:], folder, output.append)


def test_a_part_that_is_stopped_leaves_no_process(tmp_path):
    folder = Folder(tmp_path, "numpy")
    folder.begin([])
    child = "import subprocess, sys, time; p = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(3600)']); "
    outcome = surveying.run_part(_python("hangs", f"{child} print(p.pid, flush=True); time.sleep(3600)", 3), folder, 3)
    assert outcome.state == "FAILED"
    grandchild = int(folder.log_path("hangs").read_text())
    until = time.monotonic() + PATIENCE
    while _runs(grandchild) and time.monotonic() < until:
        time.sleep(0.01)
    assert not _runs(grandchild)


def _runs(process):
    try:
        return "\nState:\tZ" not in Path(f"/proc/{process}/status").read_text() if sys.platform == "linux" else not os.kill(process, 0)
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_parts_that_run_alone_join_those_of_before(tmp_path):
    one, two = (_writing(tmp_path, name, {"cases": [], "missing": {f"of {name}": "1"}}) for name in ("one", "two"))
    assert _survey([one, two], Folder(tmp_path, "numpy"))
    again = _writing(tmp_path, "two", {"cases": [], "missing": {"of two": "2"}}, "raise SystemExit('worse')")
    assert not _survey([again], Folder(tmp_path, "numpy"))
    assert [(o.name, o.state) for o in Folder(tmp_path, "numpy").outcomes] == [("one", "done"), ("two", "FAILED")]
    text = (tmp_path / "summary.md").read_text()
    assert "of one: 1" in text and "of two: 2" in text and "worse" in text


def test_a_record_of_before_does_not_pass_for_this_ones(tmp_path):
    folder = Folder(tmp_path, "numpy")
    _survey([_writing(tmp_path, "one", {"cases": [], "missing": {"seconds_of_old": "1"}})], folder)
    _survey([_python("one", "pass")], folder)
    assert folder.outcomes[0].state == "FAILED" and "seconds_of_old" not in (tmp_path / "summary.md").read_text()


def test_an_interrupt_leaves_a_valid_folder(tmp_path):
    folder = Folder(tmp_path, "numpy")
    stops = _python("stops", "import os, signal, time; os.kill(os.getppid(), signal.SIGINT); time.sleep(3600)")
    waits = _python("waits", "pass")
    with pytest.raises(KeyboardInterrupt):
        _survey([_writing(tmp_path, "one", {"cases": [], "missing": {"of one": "1"}}), stops, waits], folder, archive=tmp_path.with_suffix(".tgz"))
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    assert [o.state for o in Folder(tmp_path, "numpy").outcomes] == ["done", "interrupted", "not yet run"]
    assert {"one.json", "survey.json"} <= _in(tmp_path.with_suffix(".tgz"))
    assert "of one: 1" in (tmp_path / "summary.md").read_text()


def test_a_folder_is_of_one_backend_and_one_size(tmp_path):
    Folder(tmp_path, "numpy").begin([])
    check_error(UsageError, lambda: Folder(tmp_path, "mlx"), "'backend': 'mlx'", "'backend': 'numpy'")
    check_error(UsageError, lambda: Folder(tmp_path, "numpy", quick=True), "'quick': True")
    for content in ("[]", "{", '{"schema": "other"}'):
        (tmp_path / "survey.json").write_text(content)
        with pytest.raises(RecordError):
            Folder(tmp_path, "numpy")


def test_outcomes_that_are_good():
    states = ("done", "not there", "cut short", "left out", "FAILED", "interrupted", "not yet run")
    assert [Outcome("p", "", state).good for state in states] == [True] * 4 + [False] * 3


@pytest.mark.long
def test_what_is_left_of_the_seconds_shortens_parts_or_leaves_them_out(tmp_path):
    folder = Folder(tmp_path / "new", "numpy")
    wanted = [_writing(folder.path, "quick", {"cases": [], "missing": {"of quick": "1"}}),
              _writing(folder.path, "long", {"cases": [], "missing": {"of long": "2"}}, "import time; time.sleep(3600)")._replace(seconds=18),
              _python("last", "raise SystemExit('it ran')", 30)]
    started = time.monotonic()
    lines = []
    assert _survey([wanted[0]], folder) and _survey(wanted[1:], folder, lines.append, seconds=14)
    assert time.monotonic() - started < PATIENCE / 2
    assert {o.name: o.state for o in folder.outcomes} == {"quick": "done", "long": "cut short", "last": "left out"}
    text = (folder.path / "summary.md").read_text()
    assert "of long: 2" in text and "too few of the 30 s" in text
    assert any("cut short" in line for line in lines) and any("left out" in line for line in lines)


def test_parts_share_the_seconds():
    part = _python("p", "", 100)
    assert [limit_of(part, seconds) for seconds in (38, 5, 0.1, 45, 900)] == [0, 0, 0, 40, 100]


def _in(archive):
    with tarfile.open(archive) as tar:
        return {name.partition("/")[2] for name in tar.getnames()}


def test_the_archive_has_all_that_there_is_after_every_part(tmp_path):
    folder, archive = Folder(tmp_path / "day", "numpy"), tmp_path / "day.tgz"
    looks = _python("looks", f"import tarfile; print(*tarfile.open({str(archive)!r}).getnames())")
    _survey([_writing(folder.path, "one", {"cases": [], "missing": {"of one": "1"}}), looks], folder, archive=archive)
    assert "day/one.json" in folder.log_path("looks").read_text()
    assert _in(archive) == {"", *(p.relative_to(folder.path).as_posix() for p in folder.path.rglob("*"))}
    assert {"summary.md", "survey.json", "one.json", "logs/looks.log"} <= _in(archive)


def test_an_archive_that_cannot_be_written_is_told_before_the_first_part(tmp_path):
    ran = _python("one", f"open({str(tmp_path / 'ran')!r}, 'w')")
    with pytest.raises(CheckpointError, match="cannot be written"):
        _survey([ran], Folder(tmp_path / "new", "numpy"), archive=tmp_path / "none" / "day.tgz")
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("wrong", ["0", "-5", "nan", "inf", "soon"])
def test_a_wrong_number_of_seconds(wrong, tmp_path, capsys):
    assert main(["bench", "survey", "--out", str(tmp_path / "new"), "--seconds", wrong]) == UsageError.exit_code
    assert "a number of seconds above 0" in capsys.readouterr().err and not (tmp_path / "new").exists()


def test_the_parts_of_a_gpu_take_nine_minutes_at_most(tmp_path):
    of_gpu = parts("cupy", tmp_path, False, 16)
    correct, times = ["ladder", "selftest", "graphs", "repeats"], ["ops", "rnn", "steps"]
    assert [p.name for p in of_gpu] == [*correct, "device", *times, "sanitizer"]
    assert sum(p.seconds for p in of_gpu) <= 540
    assert [p.name for p in parts("mlx", tmp_path, False, 8)] == [*correct, *times]


def test_the_selftest_has_time_to_compile_every_setting(tmp_path):
    """583 settings take 200 s, on some machines half as much again; with few cores, one after the other."""
    for cores in (1, 2, 8, 16):
        assert parts("cupy", tmp_path, False, cores)[1].seconds >= 1.5 * 200 / cores + 60


def test_parts_by_name(tmp_path):
    everything = parts("cupy", tmp_path, False, 16)
    assert [p.name for p in chosen_parts(everything, ["rnn", "ops"])] == ["ops", "rnn"]
    assert chosen_parts(everything, []) == everything
    check_error(UsageError, lambda: chosen_parts(everything, ["gpu"]), "selftest", "'gpu'")


def test_a_backend_that_is_not_there_is_one_error(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("duoln.backends.load", _no_backend)
    assert main(["bench", "survey", "--out", str(tmp_path / "new")]) == 3
    assert "no such device" in capsys.readouterr().err and not (tmp_path / "new").exists()


def _no_backend(name):
    raise RuntimeError("no such device")


BARE = "import sys\nfor name in ('safetensors', 'pooch', 'mlx', 'torch', 'matplotlib'):\n    sys.modules[name] = None\n"
OVER_STAND_IN = f"{BARE}sys.path.append({str(ROOT / 'tests' / 'tools')!r})\nimport stand_in_cupy\nsys.modules['cupy'] = stand_in_cupy.make()\n"


def _uninstalled(tmp_path, at_start, *words):
    """The survey from the checkout, with a module that every Python runs at its start. On a busy machine it takes longer."""
    (tmp_path / "sitecustomize.py").write_text(at_start)
    code = f"""
from duoln.cli.bench import survey
parts = survey.parts
survey.parts = lambda *args: [part._replace(seconds={PATIENCE}) for part in parts(*args)]
from duoln.cli import main
raise SystemExit(main(["bench", "survey", "--out", {str(tmp_path / "day")!r}, "--seconds", "{10 * PATIENCE}", "--quick", *{words!r}]))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, cwd=ROOT,
                          env={**os.environ, "PYTHONPATH": str(tmp_path)})
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout == (tmp_path / "day" / "summary.md").read_text() + "\n" and "FAILED" not in done.stdout
    return done.stdout


@pytest.mark.long
def test_a_whole_survey_with_nothing_installed_but_numpy_pluggy_and_rich(tmp_path):
    """The machine with the GPU may lack other packages and a network."""
    text = _uninstalled(tmp_path, BARE, "--backend", "numpy")
    for name in ("ladder", "selftest", "graphs", "repeats", "ops", "rnn", "steps"):
        assert json.loads((tmp_path / "day" / f"{name}.json").read_text())
    assert re.search(r"layer_norm, (compiled|interpreted): \d+ cases, .*, repeats, 0 failed", text)
    sides = {case["side"] for case in json.loads((tmp_path / "day" / "steps.json").read_text())["cases"]}
    assert sides == {"duoln", "duoln, eager"}


@pytest.mark.long
@pytest.mark.skipif(sys.platform != "linux", reason="kernels run on the CPU under Linux only")
def test_some_parts_of_a_gpu_over_the_stand_in(tmp_path):
    text = _uninstalled(tmp_path, OVER_STAND_IN, "--part", "ops", "--part", "sanitizer")
    assert "| sanitizer |" in text and "| not there |" in text and "compute-sanitizer is neither on the PATH" in text
    record = json.loads((tmp_path / "day" / "ops.json").read_text())
    assert record["backend"]["name"] == "cupy" and all("event_seconds" in case for case in record["cases"])


# The summary, of synthetic records ---------------------------------------------------------------

DEVICE = {"name": "cupy", "device": "NVIDIA H200", "library": "cupy 14"}


def _case(op, passes, shape, side, seconds, **more):
    return {**made.CASE, "op": op, "pass": passes, "shape": list(shape), "side": side, "median": seconds, "samples": [seconds], "cache": "running", **more}


@pytest.fixture
def surveyed(tmp_path):
    """A folder with synthetic records of an H200."""
    folder = Folder(tmp_path / "day", "cupy")
    folder.begin([])
    cases = [_case("layer_norm", "forward", (4096, 4096), "duoln", 1e-3, event_seconds=37.1e-6),
             _case("layer_norm", "forward", (4096, 4096), "torch", 1e-3, ratio=0.3)]
    steps = [_case("mnist ln", "step", (128,), side, seconds, ratio=1e-3 / seconds)
             for side, seconds in (("duoln", 1e-3), ("duoln, eager", 4e-3), ("torch", 9e-4))]
    numpy = runtime.backend("numpy")
    compiled = {"settings": 76, "processes": 16, "seconds": 21.0, "processor seconds": 240.0, "slowest seconds": 4.1,
                "slowest": "recurrent/lstm/lstm.cu UNITS=4", "failures": []}
    rule = {"op": "layer_norm", "rule": "cuda", "cases": 9, "error": 0.2, "worst": "", "repeats": True, "failures": [], "near": []}
    tried = {"expected": 9, "left out": 0, "running": [], "failures": [], "checks": {"a product": "130 x 257 x 67"}}
    records = {"selftest": {"backend": DEVICE, "host": {"cores": 16}, "compilation": compiled, "complete": True,
                            "rules": [rule], **tried},
               "sanitizer": {"program": "/cuda/bin/compute-sanitizer", "tools": {"racecheck": {"result": "0 hazards"}}},
               "device": {**make_record("device", numpy, None, 4200.0, []), "missing": {"launch of our kernel, duoln": "RuntimeError: no"}},
               "ops": {**make_record("ops", numpy, None, 4200.0, cases), "missing": {"layer_norm, liger": "not installed"}},
               "steps": make_record("train", numpy, None, 4200.0, steps)}
    for name, record in records.items():
        folder.record_path(name).write_text(json.dumps(record))
        folder.add(Outcome(name, f"what {name} is", "done", 12.0))
    return folder


def test_the_summary_has_what_was_measured(surveyed):
    text = summary(surveyed)
    for words in ("device: NVIDIA H200", "| sanitizer | what sanitizer is | 12 | done |", "racecheck: 0 hazards",
                  "launch of our kernel, duoln: RuntimeError: no", "compiled: 76 settings by 16 processes in 21 s",
                  "did not run: layer_norm, liger: not installed", "| layer_norm fwd 4096x4096 | duoln | 1 ms |", "37.1 us", "| 0.30 |"):
        assert words in text, words


def test_what_failed_is_whole_and_what_was_left_out_is_told(surveyed):
    record = surveyed.record("selftest")
    log = "add a: KernelError: it does not compile:\nline one of the log\nline two"
    surveyed.record_path("selftest").write_text(json.dumps({
        **record, "complete": False, "expected": 700, "left out": 691, "running": ["gru a case"], "failures": [log]}))
    text = summary(surveyed)
    for words in ("left out: 691 of 700", "* failed: add a: KernelError: it does not compile:\n\n```\nline one of the log\nline two\n```",
                  "stopped while it tried: gru a case", "a product: 130 x 257 x 67"):
        assert words in text, words
