"""`duoln bench`: rows in turns, their record and table, and errors. Nothing here is timed."""

import json
import re
import sys

import pytest

from duoln.bench import groups, running, turns
from duoln.bench.records import check_record, load, ratio, ratios, spread
from duoln.bench.turns import Entry, Side, SidePool, check_agreement
from duoln.cli import main
from duoln.errors import DuolnError, MemoryExhaustedError, UsageError
from duoln.kernels import device_limits, native
from duoln.testing import check_error

SMALL = ["--set", "source=made", "--set", "hidden=16", "--set", "rows=200", "--batch-size", "32"]
SIZES = {"rnn": ["--shape", "3,2,4,5"], "attention": ["--shape", "2,2,9,4"], "language-model": ["--sizes", "5,3,16,11"], "train": SMALL,
         "ops": ["--op", "layer_norm", "--shape", "64,64", "--shape", "300,300"], "wide": ["small-add"]}


@pytest.fixture(scope="module", autouse=True)
def _small_copy():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(groups, "COPIED", (256, 256))
        yield


@pytest.mark.long
@pytest.mark.parametrize("kind", SIZES)
def test_a_record_holds_samples_and_what_they_depend_on(kind, tmp_path, capsys):
    assert main(["bench", kind, *SIZES[kind], "--rounds", "2", "--runs", "2", "--backend", "numpy", "--json", str(tmp_path / "record.json"),
                 "--append", str(tmp_path / "timings.jsonl"), "--label", "here"]) == 0
    out, err = capsys.readouterr()
    record = load(tmp_path / "record.json")
    assert record["kind"] == kind and record["label"] == "here" and len((tmp_path / "timings.jsonl").read_text().splitlines()) == len(record["cases"])
    copied, *cases = record["cases"]
    assert copied["op"] == "copy" and copied["gbps"] == pytest.approx(record["copy_gbps"])
    for case in cases:
        assert case["clock"] == "wall_run" and case["runs"] == 2 and len(case["samples"]) == 2 and case["p10"] <= case["median"] <= case["p90"]
        assert {"duoln", "numpy", "blas_core", "flags", "backend", "calls"} <= case["facts"].keys() and case["ratio"] == 1.0
    expected = {
        "rnn": [("lstm layer", "forward+backward", [3, 2, 4, 5], "running")], "attention": [("attention", "forward+backward", [2, 2, 9, 4], "running")],
        "language-model": [("language model, an update", "step", [5, 3, 16, 11], "running"),
                           ("language model, 50 sampled tokens", "forward", [5, 3, 16, 11], "running")],
        "train": [("mnist ln", "step", [32], "running")], "wide": [("wide small-add", "forward", [8, 64], "running")],
        "ops": [("layer_norm", passes, shape, cache) for shape, cache in (([64, 64], "warm"), ([300, 300], "cold")) for passes in ("forward", "forward+backward")]}
    assert [(case["op"], case["pass"], case["shape"], case["cache"]) for case in cases] == expected[kind]
    compiled = native.machine_refusal() is None
    rules = {"rnn": "compiled walk" if compiled else "fused steps", "attention": "compiled" if compiled else "composed"}
    assert kind not in rules or (cases[0]["rule"] == rules[kind] and cases[0]["gflops"] > 0)
    if kind == "train":
        assert cases[0]["settings"] == {"source": "made", "hidden": 16, "rows": 200}
    assert expected[kind][0][0] in out and "100% is " in out and "100% is" not in err and "(1 of " in err


@pytest.mark.long
@pytest.mark.peers
def test_the_sides_of_a_language_model(capsys):
    assert main(["bench", "language-model", "--peer", "torch", *SIZES["language-model"], "--rounds", "1", "--runs", "1", "--json", "-"]) == 0
    out, err = capsys.readouterr()
    record = json.loads(out)
    check_record(record, "stdout")
    sides = ["duoln", "torch, LSTM of duoln.bridge", "torch, LN-LSTM by cells", "torch.nn.LSTM, no norm"]
    assert [case["side"] for case in record["cases"][1:]] == sides * 2 and "duoln / side" in err


def test_statistics():
    assert spread([3.0, 1.0, 2.0])["median"] == 2.0
    assert ratio([1.0, 4.0, 9.0], [2.0, 4.0, 3.0]) == 1.0  # of pairs, not of medians
    assert ratios([1.0, 4.0, 9.0], [2.0, 4.0, 3.0]) == [0.5, 1.0, 3.0]


class _Side:
    def __init__(self, figures, updates=False):
        self.name, self.facts = "peer", {"checks": figures, "is_training": updates}


def test_a_peer_that_computes_something_else_is_not_timed():
    check_agreement(_Side([1.0, 0.5]), _Side([1.0, 0.5001]))
    check_error(DuolnError, lambda: check_agreement(_Side([1.0, 0.5]), _Side([1.0, 0.52])), "figure 2 of 2", "0.52")


def test_losses_of_later_updates_may_differ_by_what_a_network_makes_of_rounding():
    check_agreement(_Side([1.0, 0.5, 0.4], updates=True), _Side([1.0, 0.5, 0.402]))
    for theirs, figure in (([1.0, 0.502, 0.4], "figure 2 of 3"), ([1.0, 0.5, 0.41], "figure 3 of 3")):
        check_error(DuolnError, lambda theirs=theirs: check_agreement(_Side([1.0, 0.5, 0.4], updates=True), _Side(theirs)), figure)


@pytest.mark.long
def test_a_side_that_stops_says_why():
    entry = Entry("duoln", {"group": "train", "peer": None, "backend": None, "row": {
        "task": "mnist", "variant": "ln", "preset": None, "settings": {"batch_size": 0}}})
    check_error(UsageError, lambda: Side(entry).prepare(entry), "duoln: [", "batch_size")


@pytest.mark.long
@pytest.mark.parametrize(("program", "kind", "words"), [
    ("import numpy as np; np.empty(1 << 50)", MemoryExhaustedError, "no memory left: Unable to allocate"),
    ("import no_such_module", DuolnError, "ours stopped: ModuleNotFoundError: No module named 'no_such_module'"),
    ("import os; os._exit(3)", DuolnError, "ours stopped: no message")])
def test_an_error_of_a_side_keeps_its_kind(program, kind, words, monkeypatch):
    program = f"from duoln.bench import timed_process; timed_process._answer = lambda: exec({program!r}); timed_process.main()"
    monkeypatch.setattr(turns.processes, "command", lambda *words: [sys.executable, "-c", program])
    with pytest.raises(DuolnError, match=re.escape(words)) as caught:
        Side(Entry("ours", {})).prepare(Entry("ours", {}))
    assert type(caught.value) is kind


@pytest.mark.long
def test_a_row_that_fails_loses_no_earlier_one(tmp_path, capsys):
    code = main(["bench", "rnn", "--shape", "5,4,8,16", "--shape", "1,1,100000000,1000000", "--rounds", "1", "--runs", "1",
                 "--backend", "numpy", "--json", str(tmp_path / "part.json")])
    assert code == MemoryExhaustedError.exit_code and "duoln was not timed" in capsys.readouterr().err
    record = load(tmp_path / "part.json")
    assert [case["shape"] for case in record["cases"][1:]] == [[5, 4, 8, 16]] and len(record["missing"]) == 1


@pytest.mark.parametrize(("words", "message"), [
    (("train", "--batch-size", "0"), "--batch-size: expected at least 1, found 0"),
    (("train", "--set", "batch_size=4"), "expected --batch-size"),
    (("rnn", "--peer", "torch"), "--peer needs PyTorch, which is not installed"),
    (("train", "--peer", "torch-fused"), "--peer needs PyTorch, which is not installed")])
def test_a_wrong_option_is_told_before_anything_is_timed(words, message, monkeypatch, capsys):
    monkeypatch.setattr("duoln.bench.in_torch.find_spec", lambda name: None)
    monkeypatch.setattr(turns, "Side", None)
    assert main(["bench", *words, "--backend", "numpy"]) == 2 and message in capsys.readouterr().err


class _Simulated:
    """A side in the place of a process, of a name that says what it does, with invented figures."""

    events: list

    def __init__(self, entry):
        self.name, self.ended, self.samples, self.device_samples = entry.name, False, [], []
        self.events.append(f"start {self.name}")

    def prepare(self, entry, seconds):
        self.checked, self.entry = entry.checked, entry
        self.facts = {"checks": entry.asked.get("checks", [1.0]), "warmups": 1}
        self.events.append(f"prepare {self.name}")
        if self.name == entry.asked.get("breaks") or entry.asked.get("row") == {"name": "exp"}:
            raise DuolnError(f"[bench] {self.name} stopped")

    def runs(self, count, seconds):
        self.events.append(f"run {self.name}")
        if self.name == self.entry.asked.get("hangs"):
            self.ended = True
            raise DuolnError(f"[bench] {self.name} gave no answer in its time")
        return [2e-3 if self.name == "duoln" else 1e-3] * count

    def close(self):
        self.events.append(f"close {self.name}")


@pytest.fixture
def simulated(monkeypatch):
    monkeypatch.setattr(turns, "Side", _Simulated)
    monkeypatch.setattr(_Simulated, "events", [], raising=False)
    return _Simulated.events


def _timed(sides, *rows):
    return [sides.time([Entry(name, row) for name in ("duoln", "peer")], 2, 1) for row in rows]


def test_sides_start_together_stay_for_other_rows_and_take_turns(simulated):
    with SidePool() as sides:
        _, (second, missing) = _timed(sides, {}, {})
    of_row = ["prepare duoln", "prepare peer", *["run duoln", "run peer"] * 2]
    assert simulated == ["start duoln", "start peer", *of_row, *of_row, "close duoln", "close peer"]
    assert [(row["side"], row["samples"], row["ratio"]) for row in second] == [("duoln", [2e-3] * 2, 1.0), ("peer", [1e-3] * 2, 2.0)] and not missing


def test_a_peer_that_cannot_run_is_missing_and_the_rest_is_timed(simulated):
    with SidePool() as sides:
        [(rows, missing)] = _timed(sides, {"breaks": "peer"})
    assert [row["side"] for row in rows] == ["duoln"] and missing == {"peer": "[bench] peer stopped"}


def test_a_peer_that_hangs_is_missing_the_others_begin_again_and_it_is_started_anew(simulated):
    with SidePool() as sides:
        (rows, missing), _ = _timed(sides, {"hangs": "peer"}, {})
    assert len(rows[0]["samples"]) == 2 and missing == {"peer": "[bench] peer gave no answer in its time"}
    assert simulated.count("start peer") == 2 and simulated.count("start duoln") == 1


@pytest.mark.parametrize(("row", "words"), [({"breaks": "duoln"}, "duoln stopped"), ({"hangs": "duoln"}, "duoln gave no answer")])
def test_without_our_side_nothing_is_timed(simulated, row, words):
    with SidePool() as sides:
        check_error(DuolnError, lambda: _timed(sides, row), words)


def test_rows_that_fail_are_told_and_the_others_are_timed(simulated, monkeypatch, capsys):
    monkeypatch.setattr("duoln.bench.in_torch.check_installed", lambda: None)
    assert main(["bench", "wide", "gelu", "exp", "losses", "--peer", "torch", "--backend", "numpy", "--json", "-"]) == 1
    out, err = capsys.readouterr()
    record = json.loads(out)
    check_record(record, "stdout")
    names = ["gelu", *groups.WIDE_NAMES["losses"]]
    assert [(case["op"], case["side"], case["ratio"]) for case in record["cases"][1:]] == [
        (f"wide {name}", side, ratio) for name in names for side, ratio in (("duoln", 1.0), ("torch", 2.0))]
    assert "duoln was not timed: [bench] duoln stopped" in err and "2.00" in err and len(record["missing"]) == 1


def test_a_row_whose_copy_cannot_be_timed_fails(simulated, monkeypatch, capsys):
    prepare = _Simulated.prepare

    def without_copy(side, entry, seconds):
        if side.name == "copy":
            raise DuolnError("[bench] no memory for it")
        prepare(side, entry, seconds)

    monkeypatch.setattr(_Simulated, "prepare", without_copy)
    assert main(["bench", "wide", "small-add", "--backend", "numpy"]) == 1
    assert "duoln was not timed: [bench] no memory for it" in capsys.readouterr().err


def test_a_copy_is_in_words(be, monkeypatch):
    words = running.copy_words(20.0, be)
    if not running.on_cpu(be):
        assert words == "a copy, 20.0 GB/s"
    elif native.machine_refusal() is None:
        assert words == "a streaming copy, 20.0 GB/s"
    monkeypatch.setattr(device_limits, "streaming_refusal", lambda: "DUOLN_NATIVE=0 is set")
    if running.on_cpu(be):
        assert running.copy_words(20.0, be).endswith("because DUOLN_NATIVE=0 is set)")


@pytest.mark.parametrize(("asked", "small"), [((), True), (("--small",), True), (("--full",), False)])
def test_a_cpu_takes_the_small_tables_by_itself(asked, small, simulated, capsys):
    assert main(["bench", "ops", "--backend", "numpy", "--rounds", "1", "--op", "rms_norm", "--forward", *asked]) == 0
    rms_norm = groups.operators()["rms_norm"]
    shapes = rms_norm.small if small else rms_norm.shapes
    lines = [line for line in capsys.readouterr().err.splitlines() if " of " in line and line.startswith("rms_norm")]
    assert [line.split()[2] for line in lines] == [f"{rows}x{width}," for rows, width in shapes]


LOADED, FACTS, SLEEPS = "print('\"imported\"', flush=True); ", "print('{}', flush=True); ", "import time; time.sleep(3600)"


@pytest.mark.parametrize(("code", "wait"), [
    (SLEEPS, lambda side: side.prepare(Entry("a compiler", {}), 0.1)),
    (LOADED + SLEEPS, lambda side: side.prepare(Entry("a compiler", {}), 5)),
    (LOADED + FACTS + SLEEPS, lambda side: (side.prepare(Entry("a compiler", {})), side.runs(1, 0.1)))], ids=["imports", "prepares", "runs"])
def test_a_side_that_takes_too_long_is_ended(code, wait, monkeypatch):
    monkeypatch.setattr(turns, "_LEAST_SECONDS", 0.1)
    monkeypatch.setattr(turns.processes, "command", lambda *words: [sys.executable, "-c", code])
    side = Side(Entry("a compiler", {}))
    check_error(DuolnError, lambda: wait(side), "a compiler gave no answer in its time")
    assert side.ended
