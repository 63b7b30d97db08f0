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
from conftest import GPU, PATIENCE, STAND_IN

from duoln import runtime
from duoln.bench import device, groups, steps, survey as surveying, survey_parts
from duoln.bench.clock import Timer
from duoln.bench.records import make_record
from duoln.bench.survey import Outcome, Part, limit_of, parts, summary
from duoln.cli import main
from duoln.errors import CheckpointError, UsageError
from duoln.kernels.device_limits import _push_layout
from duoln.kernels.launch import Launch
from duoln.randomness import Stream

ROOT = Path(__file__).parents[2]


def survey(wanted, folder, say=lambda line: None, seconds=10 * PATIENCE, archive=None):
    """The states of the parts, and whether all are good."""
    good = surveying.survey(wanted, folder, say, time.monotonic() + seconds, archive)
    return states(folder), good


def states(folder):
    table = (folder / "summary.md").read_text().partition("| --- |")[2].partition("##")[0]
    return dict(re.findall(r"^\| (\w+) \| .* \| ([\w ]+) \|$", table, re.MULTILINE))


def python(name, code, seconds=PATIENCE):
    return Part(name, f"what {name} is", [sys.executable, "-c", code], seconds)


def writing(folder, name, content, after="", seconds=PATIENCE):
    return python(name, f"open({str(folder / f'{name}.json')!r}, 'w').write({json.dumps(content)!r}); {after}", seconds)


def _of(name, figure="1"):
    return {"cases": [], "missing": {f"of {name}": figure}}


@pytest.mark.long
def test_a_part_that_fails_hangs_or_talks_nonsense(tmp_path):
    wanted = [python("breaks", "import sys; sys.exit('no such device')"), python("hangs", "import time; time.sleep(3600)", 1),
              python("silent", "pass"), python("dies", "import os; os.abort()"),
              writing(tmp_path, "keeps", _of("keeps"), "raise SystemExit(3)"),
              writing(tmp_path, "slow", _of("slow"), "import time; time.sleep(3600)", 10), writing(tmp_path, "works", _of("works"))]
    assert survey(wanted, tmp_path) == ({"breaks": "FAILED", "hangs": "FAILED", "silent": "FAILED", "dies": "FAILED", "keeps": "FAILED",
                                         "slow": "cut short", "works": "done"}, False)
    text = (tmp_path / "summary.md").read_text()
    for words in ("no such device", "stopped after 1 s", "no record", "exit code -6", "of works: 1", "of keeps: 1", "did not run: of slow: 1"):
        assert words in text
    assert survey(wanted[-2:], tmp_path)[1]


def test_a_part_that_is_stopped_leaves_no_process(tmp_path):
    child = "import subprocess, sys, time; p = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(3600)']); "
    outcome = surveying.run_part(python("hangs", f"{child} print(p.pid, flush=True); time.sleep(3600)", 3), tmp_path, 3)
    assert outcome.state == "FAILED"
    grandchild = int((tmp_path / "log.txt").read_text().splitlines()[-1])
    until = time.monotonic() + PATIENCE
    while _runs(grandchild) and time.monotonic() < until:
        time.sleep(0.01)
    assert not _runs(grandchild)


def _runs(process):
    try:
        return "\nState:\tZ" not in Path(f"/proc/{process}/status").read_text() if sys.platform == "linux" else not os.kill(process, 0)
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_a_part_that_runs_alone_joins_the_records_of_before(tmp_path):
    survey([writing(tmp_path, name, _of(name)) for name in ("one", "two")], tmp_path)
    again = writing(tmp_path, "two", _of("two", "2"), "raise SystemExit('worse')")
    assert survey([again], tmp_path) == ({"two": "FAILED", "one": "of before"}, False)
    text = (tmp_path / "summary.md").read_text()
    assert "of one: 1" in text and "of two: 2" in text and "worse" in text


def test_a_record_of_before_does_not_pass_for_this_ones(tmp_path):
    survey([writing(tmp_path, "one", _of("old"))], tmp_path)
    assert survey([python("one", "pass")], tmp_path)[0] == {"one": "FAILED"} and "of old" not in (tmp_path / "summary.md").read_text()


def test_an_interrupt_leaves_a_valid_folder(tmp_path):
    stops = python("stops", "import os, signal, time; os.kill(os.getppid(), signal.SIGINT); time.sleep(3600)")
    with pytest.raises(KeyboardInterrupt):
        survey([writing(tmp_path, "one", _of("one")), stops, python("waits", "pass")], tmp_path, archive=tmp_path.with_suffix(".tgz"))
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    assert states(tmp_path) == {"one": "done", "stops": "interrupted", "waits": "not yet run"}
    with tarfile.open(tmp_path.with_suffix(".tgz")) as tar:
        assert {name.partition("/")[2] for name in tar.getnames()} == {"", "one.json", "summary.md", "log.txt"}
    assert "of one: 1" in (tmp_path / "summary.md").read_text()


@pytest.mark.long
def test_what_is_left_of_the_seconds_shortens_parts_or_leaves_them_out(tmp_path):
    wanted = [writing(tmp_path, "long", _of("long"), "import time; time.sleep(3600)", 18), python("last", "raise SystemExit('it ran')", 30)]
    started, lines = time.monotonic(), []
    assert survey(wanted, tmp_path, lines.append, seconds=14) == ({"long": "cut short", "last": "left out"}, True)
    assert time.monotonic() - started < PATIENCE / 2
    text = (tmp_path / "summary.md").read_text()
    assert "of long: 1" in text and "too few of the 30 s" in text
    assert any("cut short" in line for line in lines) and any("left out" in line for line in lines)


def test_parts_share_the_seconds():
    part = python("p", "", 100)
    assert [limit_of(part, seconds) for seconds in (38, 5, 0.1, 45, 900)] == [0, 0, 0, 40, 100]


def test_an_archive_that_cannot_be_written_is_told_before_the_first_part(tmp_path):
    ran = python("one", f"open({str(tmp_path / 'ran')!r}, 'w')")
    with pytest.raises(CheckpointError, match="cannot be written"):
        survey([ran], tmp_path / "new", archive=tmp_path / "none" / "day.tgz")
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(("option", "wrong", "words"), [
    *(("--seconds", wrong, "a number of seconds above 0") for wrong in ("0", "-5", "nan", "inf", "soon")), ("--part", "gpu", "'selftest'")])
def test_a_wrong_option(option, wrong, words, tmp_path, capsys):
    assert main(["bench", "survey", "--out", str(tmp_path / "new"), option, wrong]) == UsageError.exit_code
    assert words in capsys.readouterr().err and not (tmp_path / "new").exists()


def test_the_parts_of_a_gpu_take_nine_minutes_at_most_and_leave_eight_files(tmp_path):
    assert sum(part.seconds for part in parts("cupy", tmp_path, False, 16)) <= 540
    for cores in (1, 2, 8, 16):  # 583 settings take 200 s to compile, on some machines half as much again
        assert parts("cupy", tmp_path, False, cores)[1].seconds >= 1.5 * 200 / cores + 60
    assert len(surveying.PARTS) + len((surveying.SUMMARY, surveying.LOG)) <= 8


def test_a_backend_that_is_not_there_is_one_error(tmp_path, monkeypatch, capsys):
    def no_backend(name):
        raise RuntimeError("no such device")

    monkeypatch.setattr("duoln.backends.load", no_backend)
    assert main(["bench", "survey", "--out", str(tmp_path / "new")]) == 3
    assert "no such device" in capsys.readouterr().err and not (tmp_path / "new").exists()


BARE = "import sys\nfor name in ('safetensors', 'pooch', 'mlx', 'torch', 'matplotlib'):\n    sys.modules[name] = None\n"
OVER_STAND_IN = f"{BARE}sys.path.append({str(ROOT / 'tests' / 'tools')!r})\nimport stand_in_cupy\nsys.modules['cupy'] = stand_in_cupy.make()\n"


def _uninstalled(tmp_path, at_start, *words):
    """The survey from the checkout, with a module that every Python runs at its start. On a busy machine it takes longer."""
    (tmp_path / "sitecustomize.py").write_text(at_start)
    code = f"""
from duoln.cli import bench
parts = bench.parts
bench.parts = lambda *args: [part._replace(seconds={PATIENCE}) for part in parts(*args)]
from duoln.cli import main
raise SystemExit(main(["bench", "survey", "--out", {str(tmp_path / "day")!r}, "--seconds", "{10 * PATIENCE}", "--quick", *{words!r}]))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, cwd=ROOT,
                          env={**os.environ, "PYTHONPATH": str(tmp_path)})
    assert done.stdout == (tmp_path / "day" / "summary.md").read_text() + "\n", done.stderr
    return done


@pytest.mark.long
def test_a_whole_survey_with_nothing_installed_but_numpy_pluggy_and_rich(tmp_path):
    """The machine with the GPU may lack other packages and a network."""
    done = _uninstalled(tmp_path, BARE, "--backend", "numpy")
    assert done.returncode == 0 and set(states(tmp_path / "day").values()) == {"done"} and list(states(tmp_path / "day")) == list(surveying.PARTS)
    assert re.search(r"layer_norm, (compiled|interpreted): \d+ cases, .*, repeats, 0 failed", done.stdout)
    assert "the step of mnist: ln, 6 updates" in done.stdout
    sides = {case["side"] for case in json.loads((tmp_path / "day" / "steps.json").read_text())["cases"]}
    assert sides == {"duoln", "duoln, eager"}


@pytest.mark.long
@pytest.mark.skipif(sys.platform != "linux", reason="kernels run on the CPU under Linux only")
def test_a_part_of_a_gpu_over_the_stand_in(tmp_path):
    done = _uninstalled(tmp_path, OVER_STAND_IN, "--part", "rnn")
    record = json.loads((tmp_path / "day" / "rnn.json").read_text())
    assert done.returncode == 0 and record["backend"]["name"] == "cupy"
    assert all("event_seconds" in case for case in record["cases"] if case["side"] == "duoln")


# The rows ----------------------------------------------------------------------------------------

def _sides(plan):
    return [side.name for side in groups.row_of(plan._asdict()).sides(plan.peers)]


def test_what_the_layers_and_steps_are_compared_with():
    layers = {groups.row_of(plan._asdict()).name: _sides(plan) for plan in survey_parts.plans("rnn", "cupy", False, True)}
    beside = ["our products alone", "duoln, by steps", "duoln in torch", "torch loop", "torch loop, hoisted", "torch.nn.LSTM, no norm"]
    assert layers["lstm layer forward+backward 100x8x400x400, running"] == [*beside, "torch loop, compiled"]
    assert layers["lstm layer forward 100x8x400x400, running"] == beside and len(layers) == 7
    assert _sides(survey_parts.plans("rnn", "numpy", True, False)[0]) == ["our products alone"]
    mnist, *others = map(_sides, survey_parts.plans("steps", "cupy", False, True))
    assert mnist == ["duoln, eager", "torch", "torch, compiled"] and others == [mnist[:2]] * 2  # it takes minutes for DRAW


def test_what_operators_are_compared_with():
    assert {peers for plan in survey_parts.plans("ops", "numpy", False, False) for peers in plan.peers} == set()
    every = survey_parts.plans("ops", "cupy", False, True)
    on_device, limits = ([plan for plan in every if plan.group == group] for group in ("ops", "device"))
    assert every == [*on_device, *limits] and [plan.row["name"] for plan in limits] == list(device.LIMITS)
    compiled = [plan for plan in on_device if "torch-compile" in plan.peers]
    assert len(compiled) == 4 and on_device[-4:] == compiled and [plan.peers for plan in compiled] == [["torch", "torch-compile"]] * 4


@pytest.mark.parametrize("plan", survey_parts.plans("steps", "cupy", False, False), ids=lambda plan: plan.row["task"])
def test_the_steps_need_no_data_no_network_and_no_pooch(plan, monkeypatch):
    monkeypatch.setenv("DUOLN_OFFLINE", "1")
    monkeypatch.setenv("DUOLN_DATA", "")
    monkeypatch.setitem(sys.modules, "pooch", None)
    _, cfg, splits = steps.of_task(plan.row)
    assert cfg.source == "made" and splits.dataset.provenance == "synthetic" and splits.train(0)
    assert cfg.batch_size == plan.row["settings"]["batch_size"]


@pytest.mark.peers
@pytest.mark.parametrize(("name", "variant"), [("draw", "ln"), *(
    pytest.param(name, variant, marks=pytest.mark.minutes) for name, variant in (
        ("mnist", "ln"), ("attentive_reader", "ln"), ("handwriting", "ln"), ("las", "both"), ("skip_thoughts", "ln")))])
def test_a_peers_step_stays_on_the_device_on_which_it_was_built(name, variant):
    """PyTorch's "meta" device has shapes without values: a tensor that a step makes elsewhere meets one there and raises."""
    import torch

    task, cfg, splits = steps.of_task({"task": name, "variant": variant, "preset": "smoke", "settings": {}, "plugins": [name]})
    with torch.device("meta"):
        step, facts = task.peer("torch")(cfg, task.model(cfg).init(Stream(cfg.seed, "init")))
    assert facts["device"] == "meta"
    with pytest.raises(RuntimeError, match=r"item.*meta"):  # the loss has no value there; all before it went well
        step(splits.train(0))


@pytest.mark.long
def test_what_measures_the_device(gpu, monkeypatch):
    monkeypatch.setattr(runtime, "backend", lambda name: gpu)
    monkeypatch.setattr(device, "MIB", 1)
    monkeypatch.setattr(device, "ROUNDS", 1)
    for name, limit in device.LIMITS.items():
        if GPU == STAND_IN and limit.blocks and not limit.is_push:  # blocks that are not there at once cannot wait for each other
            continue
        if GPU == STAND_IN and limit.is_push:
            [macros] = [each for each in device.PUSHES if device.PUSH[each["WIDTH"]] is limit.launch]
            monkeypatch.setattr(Launch, "every", [])
            small = Launch("device_limits/push", "push_in_cluster", "heard: own uint32, rounds: int32", _push_layout({**macros, "CLUSTER": 2}))
            monkeypatch.setitem(device.LIMITS, name, limit._replace(launch=small, blocks=2))
        work = device.prepare(groups.device(name), {"backend": "cupy"})
        assert Timer(work._replace(most=1)).run() > 0, name


# The summary, of synthetic records ---------------------------------------------------------------

DEVICE = {"name": "cupy", "device": "NVIDIA H200", "library": "cupy 14"}


def _case(op, passes, shape, side, seconds, **more):
    return {**made.CASE, "op": op, "pass": passes, "shape": list(shape), "side": side, "median": seconds, "samples": [seconds], "cache": "running", **more}


def test_the_summary_has_what_was_measured_and_what_failed_whole(tmp_path):
    """Of synthetic records of an H200."""
    cases = [_case("layer_norm", "forward", (4096, 4096), "duoln", 1e-3, event_seconds=37.1e-6),
             _case("layer_norm", "forward", (4096, 4096), "torch", 1e-3, ratio=0.3)]
    rule = {"op": "layer_norm", "rule": "cuda", "cases": 9, "error": 0.2, "worst": "", "repeats": True, "failures": [], "near": []}
    log = "add a: KernelError: it does not compile:\nline one of the log\nline two"
    records = {"selftest": {"backend": DEVICE, "host": {"cores": 16}, "complete": False, "rules": [rule], "expected": 700,
                            "left out": 691, "running": ["gru a case"], "failures": [log], "checks": {"a product": "130 x 257 x 67"}},
               "ops": {**make_record("ops", runtime.backend("numpy"), None, 4200.0, cases), "missing": {"layer_norm, torch": "not installed"}}}
    for name, record in records.items():
        (tmp_path / f"{name}.json").write_text(json.dumps(record))
    text = summary(tmp_path, [Outcome(python("selftest", ""), "done", 12.0)])
    for words in ("device: NVIDIA H200", "| selftest | what selftest is | 12 | done |",
                  "did not run: layer_norm, torch: not installed", "| layer_norm fwd 4096x4096 | duoln | 1 ms |", "37.1 us", "| 0.30 |",
                  "left out: 691 of 700", "* failed: add a: KernelError: it does not compile:\n\n```\nline one of the log\nline two\n```",
                  "stopped while it tried: gru a case", "a product: 130 x 257 x 67"):
        assert words in text, words
