"""The parts of a survey that measure: sides that start together or are missing, the sanitizer and its output."""

import argparse
import json
import sys
from itertools import pairwise
from pathlib import Path

import pytest
from conftest import PATIENCE

from duoln import runtime
from duoln.bench import survey_parts, timed_process, turns
from duoln.bench.survey_parts import Comparison, Shape, time_comparisons
from duoln.bench.turns import Entry, Side
from duoln.errors import DuolnError
from duoln.testing import check_error

ROOT = Path(__file__).parents[2]
events = []


class _Side:
    """A side in the place of a process: it says when it starts, is ready and is closed."""

    def __init__(self, entry):
        self.name, self.checked, self.samples, self.device_samples = entry.name, entry.checked, [], []
        self.facts = {"checks": entry.asked.get("checks", [1.0]), "warmups": 0}
        self._breaks, self._hangs = (entry.asked.get(what, False) for what in ("breaks", "hangs"))
        self.ended = False
        events.append(f"start {self.name}")

    def imported(self, seconds):
        assert seconds <= survey_parts._IMPORT_SECONDS
        events.append(f"imported {self.name}")

    def ready(self, seconds):
        assert seconds <= 50
        events.append(f"ready {self.name}")
        if self._breaks:
            raise DuolnError(f"[bench] {self.name} stopped")

    def runs(self, count, seconds):
        events.append(f"run {self.name}")
        if self._hangs:
            self.ended = True
            raise DuolnError(f"[bench] {self.name} gave no answer in its time")
        return [2.0 if self.name.startswith("duoln") else 4.0] * count

    def close(self):
        events.append(f"close {self.name}")


@pytest.fixture
def timed(monkeypatch):
    monkeypatch.setattr(survey_parts, "Side", _Side)
    monkeypatch.setattr(survey_parts.os, "cpu_count", lambda: 4)
    events.clear()
    return lambda *wanted: list(time_comparisons(wanted, 1, 50.0))


def _pair(k, **peer):
    return Comparison(f"work {k}", [Entry(f"duoln {k}", {}), Entry(f"peer {k}", peer)], lambda row: {})


def test_as_many_sides_start_together_as_there_are_cores(timed):
    results = timed(*map(_pair, "123"))
    assert [event for event in events if event.startswith("start")][:4] == events[:4]
    assert events.index("run duoln 1") > events.index("ready peer 2")  # nothing prepares itself beside what is timed
    assert events.index("start duoln 3") > events.index("close peer 2")
    assert events.index("ready duoln 1") > events.index("imported peer 2")  # patience begins when all have loaded their libraries
    assert [[row["ratio"] for row in rows] for _, rows, _ in results] == [[1.0, 0.5]] * 3 and not any(missing for *_, missing in results)
    assert sum(event.startswith("close") for event in events) == 6


def test_a_peer_that_cannot_run_is_missing_and_the_rest_is_timed(timed):
    [(_, rows, missing)] = timed(_pair("1", breaks=True))
    assert [row["name"] for row in rows] == ["duoln 1"] and missing == {"peer 1": "[bench] peer 1 stopped"}


def test_without_our_side_there_is_nothing_to_time(timed):
    broken = Comparison("work 1", [Entry("duoln 1", {"breaks": True}), Entry("peer 1", {})], lambda row: {})
    (_, none, missing), (_, rows, _) = timed(broken, _pair("2"))
    assert none == [] and missing == {"duoln 1": "[bench] duoln 1 stopped"}
    assert len(rows) == 2 and "run peer 1" not in events


def test_a_peer_that_computes_something_else_is_not_timed(timed):
    [(_, rows, missing)] = timed(_pair("1", checks=[7.0]))
    assert rows == [] and "do not compute the same thing" in missing["work 1"]


def test_a_peer_that_hangs_while_it_is_timed_is_missing_and_the_others_are_timed_again(timed):
    [(_, rows, missing)] = timed(_pair("1", hangs=True))
    assert [row["name"] for row in rows] == ["duoln 1"] and len(rows[0]["samples"]) == 1
    assert missing == {"peer 1": "[bench] peer 1 gave no answer in its time"}


LOADED, FACTS, SLEEPS = "print('\"imported\"', flush=True); ", "print('{}', flush=True); ", "import time; time.sleep(3600)"


@pytest.fixture
def side(monkeypatch):
    """A side whose process runs a line of Python."""
    monkeypatch.setattr(turns, "_LEAST_SECONDS", 0.1)
    sides = []

    def start(code):
        monkeypatch.setattr(turns.processes, "command", lambda *words: [sys.executable, "-c", code])
        sides.append(Side(Entry("a compiler", {})))
        return sides[-1]

    yield start
    for one in sides:
        one.close()


@pytest.mark.parametrize(("code", "wait"), [
    (SLEEPS, lambda side: side.imported(0.1)),
    (LOADED + SLEEPS, lambda side: (side.imported(), side.ready(0.1))),
    (LOADED + FACTS + SLEEPS, lambda side: (side.ready(), side.runs(1, 0.1)))], ids=["imports", "prepares", "runs"])
def test_a_side_that_takes_too_long_is_ended(side, code, wait):
    started = side(code)
    check_error(DuolnError, lambda: wait(started), "a compiler gave no answer in its time")
    assert started.ended


@pytest.mark.parametrize(("facts", "device", "events"), [
    ({"checks": [], "no_graph": None}, 0.25, {"event_seconds": 0.25, "event_samples": [0.25, 0.25]}),
    ({"checks": [], "no_graph": "KernelError: none"}, None, {"no_event_seconds": "KernelError: none"}),
    ({"checks": [], "no_graph": None}, None, {})])
def test_a_row_has_the_devices_own_seconds_or_why_not(side, facts, device, events):
    answer = json.dumps([[1.5, 1.5], device])
    started = side(f"{LOADED}print({json.dumps(facts)!r}, flush=True)\nwhile input(): print({answer!r}, flush=True)")
    started.ready()
    [row] = turns.take_turns([started], 2, 2)
    assert row["samples"] == [1.5, 1.5] and row["events"] == events


def test_a_side_that_was_ready_in_time_is_not_ended_because_another_took_all_of_it(side, monkeypatch):
    started = side(LOADED + FACTS + SLEEPS)
    started.imported()
    monkeypatch.setattr(turns, "_LEAST_SECONDS", float(PATIENCE))
    started.ready(-5.0)
    assert not started.ended


def test_what_the_layers_and_steps_are_compared_with():
    def sides(comparison):
        return [entry.name for entry in comparison.entries]

    assert sides(survey_parts.of_layer(*survey_parts.COMPILED_LAYER, "cupy", ["torch"])) == [
        "duoln", "our products alone", "torch loop", "torch.nn.LSTM, no norm", "duoln, by steps", "torch loop, compiled"]
    assert survey_parts.COMPILED_LAYER in survey_parts.LAYERS
    assert sides(survey_parts.of_layer("gru", Shape(1, 2, 3, 4), False, "numpy", [])) == ["duoln", "our products alone"]
    mnist, *others = [sides(survey_parts.of_step(step, "cupy", ["torch"])) for step in survey_parts.STEPS]
    assert mnist == ["duoln, eager", "duoln, compiled", "torch", "torch, compiled"]
    assert others == [mnist[:3]] * 2  # the compiler of PyTorch takes minutes for DRAW


@pytest.mark.parametrize("step", survey_parts.STEPS, ids=lambda step: step.task)
def test_the_steps_need_no_data_no_network_and_no_pooch(step, monkeypatch):
    monkeypatch.setenv("DUOLN_OFFLINE", "1")
    monkeypatch.setenv("DUOLN_DATA", "")
    monkeypatch.setitem(sys.modules, "pooch", None)
    [asked] = {str(entry.asked["settings"]): entry.asked for entry in survey_parts.of_step(step, "cupy", []).entries}.values()
    _, cfg, splits = timed_process.of_task(asked)
    assert cfg.source == "made" and splits.dataset.provenance == "synthetic" and cfg.batch_size == step.batch and splits.train(0)


def test_where_the_sanitizer_is_looked_for(tmp_path):
    def place(folder):
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "compute-sanitizer").write_text("")
        (folder / "compute-sanitizer").chmod(0o755)
        return str(folder / "compute-sanitizer")

    assert survey_parts.find_program({"PATH": str(tmp_path / "none")}) is None
    home = place(tmp_path / "cuda" / "bin")
    assert survey_parts.find_program({"PATH": str(tmp_path / "none"), "CUDA_HOME": str(tmp_path / "cuda")}) == home
    beside = place(tmp_path / "other" / "compute-sanitizer")
    assert survey_parts.find_program({"PATH": "", "CUDA_PATH": str(tmp_path / "other")}) == beside
    first = place(tmp_path / "path")
    assert survey_parts.find_program({"PATH": str(tmp_path / "path"), "CUDA_HOME": str(tmp_path / "cuda")}) == first


FAKE = """#!{python}
import sys
tool = sys.argv[sys.argv.index("--tool") + 1]
print("========= COMPUTE-SANITIZER")
if tool == "memcheck":
    assert sys.argv[-1] == "--no-pool"
    print("========= ERROR SUMMARY: 0 errors")
elif tool == "racecheck":
    print("========= Error: race in lstm_forward")
    print("========= RACECHECK SUMMARY: 1 hazard displayed (1 error, 0 warnings)")
    sys.exit(int(sys.argv[sys.argv.index("--error-exitcode") + 1]))
else:
    print("========= Error: Device not supported")
    sys.exit(1)
"""


def test_the_sanitizer_checks_our_kernels_alone():
    every, shared = (set(survey_parts.checked_kernels(tool)) for tool in ("memcheck", "racecheck"))
    assert {"layer_norm_backward", "lstm_walk_forward", "glimpse_forward", "sum_columns"} < shared < every
    assert every - shared == {"take_forward", "take_backward", "latent_forward", "latent_backward"}  # each thread works alone
    in_texts = sum(path.read_text().count("\nENTRY(") for folder in ("kernels", "plugins") for path in (ROOT / folder).rglob("*.cu")
                   if path.parent.name != "device_limits")
    assert len(every) == in_texts
    words = survey_parts.sanitizer_command("compute-sanitizer", "racecheck", "cupy", Path("record.json"))
    assert {word for before, word in pairwise(words) if before == "--kernel-regex"} == {f"kns={name}" for name in shared}


def test_what_the_sanitizer_finds_fails_the_part(tmp_path, monkeypatch):
    (tmp_path / "compute-sanitizer").write_text(FAKE.format(python=sys.executable))
    (tmp_path / "compute-sanitizer").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    args = argparse.Namespace(backend="cupy", json=tmp_path / "sanitizer.json", seconds=float(PATIENCE))
    assert survey_parts.sanitizer(args, runtime.backend("numpy")) == 1
    tools = json.loads((tmp_path / "sanitizer.json").read_text())["tools"]
    assert {tool: result["clean"] for tool, result in tools.items()} == {"memcheck": True, "racecheck": False, "synccheck": None}
    assert tools["memcheck"]["result"] == "ERROR SUMMARY: 0 errors" and "1 hazard" in tools["racecheck"]["result"]
    assert any("race in lstm_forward" in line for line in tools["racecheck"]["output"])
    assert tools["synccheck"]["result"] == "did not run: exit code 1"
    assert any("Device not supported" in line for line in tools["synccheck"]["output"])


def test_cases_that_fail_without_an_error_of_the_sanitizer_are_said():
    output = survey_parts.verdict(1, "========= ERROR SUMMARY: 0 errors")
    assert output["clean"] is None and output["result"] == "ERROR SUMMARY: 0 errors, but the cases ended with exit code 1"
    assert survey_parts.verdict(None, "")["result"].startswith("stopped at")
    assert survey_parts.verdict(0, "no summary")["clean"] is None
