"""Processes that try cases and checks: what hangs or ends one is named, all else is tried, and a record is kept."""

import json
import os
import subprocess
import sys
import types
from pathlib import Path

import pytest
from bench.test_survey import OVER_STAND_IN
from conftest import GPU, PATIENCE, STAND_IN

from duoln.kernels import source
from duoln.kernels.settings import every_setting
from duoln.system.processes import WorkerLostError
from duoln.testing import prover, selftest

ROOT = Path(__file__).parents[2]


def test_every_source_names_a_kernel():
    names = {file: source.entries_in(file)[0] for file in {file for file, _ in every_setting()}}
    assert names["recurrent/lstm/lstm.cu"] == "lstm_forward" and names["device_limits/exchange.cu"] == "exchange_by_flags"
    assert names["take/take.cu"] == "take_forward" and len(set(names.values())) == len(names)


def _outcome(name, error):
    return selftest.Outcome(name.split()[0], name, "float32", "", "a rule", error, "output 0", True)


def test_what_was_tried_is_kept_after_every_case(tmp_path, monkeypatch):
    file, seen, running = tmp_path / "selftest.json", [], {"the next"}
    hung = prover.of_cases(["relu d"], 2)[0].failed("hung: no answer in 20 s")
    right, lacks = selftest.Outcome.of_check("a product", "3 x 4"), selftest.Outcome.of_check("a graph", problem="KernelError: no")
    results = [("add a", [_outcome("add a", 0.5)]), ("add b", [_outcome("add b", 1.2)]),
               ("take c", [_outcome("take c", 3.0), _outcome("take c", 0.1)]), ("relu d", [hung]), ("tanh e", None),
               ("a product", [right]), ("a graph", [lacks])]

    def read():
        for result in results:
            seen.append(json.loads(file.read_text()))
            yield result
        running.clear()

    monkeypatch.setattr(prover, "_SAVE_SECONDS", -1.0)
    report = prover.Report({"host": "here"}, len(results), file)
    assert not prover.measure(read(), running, report)
    assert [sum(rule["cases"] for rule in before["rules"]) for before in seen] == [0, 1, 2, 4, 5, 5, 5]
    assert not any(before["complete"] for before in seen) and seen[1]["running"] == ["the next"]
    record = json.loads(file.read_text())
    assert not record["complete"] and record["left out"] == 1 and record["expected"] == 7 and record["host"] == "here"
    assert record["checks"] == {"a product": "3 x 4"} and record["failures"] == ["a graph: KernelError: no"] and record["running"] == []
    [add, take, relu] = record["rules"]
    assert "add b" in add["near"][0] and add["failures"] == [] and "3 of what is allowed" in take["failures"][0]
    assert relu["failures"] == ["relu d: hung: no answer in 20 s"]
    assert prover.verdicts(report) == [
        {"op": "add", "rule": "a rule", "stored": "float32", "variant": "", "state": "proved"},
        {"op": "take", "rule": "a rule", "stored": "float32", "variant": "", "state": "set aside", "case": "take c",
         "reason": "output 0, 3 of what is allowed"}]


class _Sleeper:
    """A worker that never answers in time, by a clock of its own."""

    clock = types.SimpleNamespace(now=0.0, monotonic=lambda: _Sleeper.clock.now)

    def __init__(self, command, environment):
        pass

    def ready(self, seconds):
        pass

    def ask(self, request, seconds):
        self.clock.now += seconds
        raise WorkerLostError("hung: no answer", request["name"])

    def end(self):
        pass


def test_what_has_not_ended_when_the_time_is_over_is_left_out(monkeypatch):
    monkeypatch.setattr(prover.processes, "Worker", _Sleeper)
    monkeypatch.setattr(prover, "time", _Sleeper.clock)
    monkeypatch.setattr(_Sleeper.clock, "now", 100.0)
    wanted = [prover.ProofRequest("check", name, 1, seconds) for name, seconds in (("hangs", 0.01), ("runs", 3600), ("waits", 3600))]
    (hangs, [outcome]), *others = prover.in_workers(wanted, "numpy", 1, 101.0, set())
    assert (hangs, outcome.problem) == ("hangs", "hung: no answer, while it did: hangs") and not outcome.right
    assert others == [("runs", None), ("waits", None)]


def test_a_check_after_which_the_device_is_silent_ends_its_process(numpy_backend, monkeypatch):
    def breaks(backend):
        raise RuntimeError("cudaErrorIllegalAddress")

    monkeypatch.setitem(prover.checks.CHECKS, "breaks", breaks)
    for answering in (True, False):
        monkeypatch.setattr(prover, "device_responds", lambda backend, yes=answering: yes)
        answer = prover._check(numpy_backend, {"name": "breaks"}, lambda what: None)
        [outcome] = [selftest.Outcome(**entry) for entry in answer["outcomes"]]
        assert not outcome.right and "RuntimeError: cudaErrorIllegalAddress" in outcome.words
        assert answer["ended"] is not answering


CASES = ["layer_norm 5 x 33", "take 20 of 7 x 3", "softmax_cross_entropy 130 x 10", "adam_update (3, 5) and () and (20001,), decayed",
         "adam_rates standard, beta1 0.9, after 0", "linear 2 x 257 x 256", "rms_norm 5 x 33"]


@pytest.mark.long
@pytest.mark.skipif(GPU != STAND_IN or sys.platform != "linux", reason="kernels are broken on the CPU only")
def test_what_hangs_or_ends_its_process_is_named_and_the_others_are_tried(tmp_path, gpu):
    for case in selftest.every_device_case():  # compiled here, so that no limit is for a compiler
        if str(case) in CASES:
            assert all(o.passed for o in selftest.run(gpu, [case], 1))
    (tmp_path / "sitecustomize.py").write_text(OVER_STAND_IN)
    code = f"""
from duoln.testing import prover
prover.tries = lambda what, backend, quick: prover.of_cases({CASES!r}, 2, 10.0)
prover._START_SECONDS = {PATIENCE}
raise SystemExit(prover.main(["--backend", "cupy", "--quick", "--json", {str(tmp_path / "selftest.json")!r}]))
"""
    faults = "wrong=layer_norm_backward hang=take_backward kill=cross_entropy_forward end=adam_update"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, cwd=ROOT, env={
        **os.environ, "PYTHONPATH": str(tmp_path), "STAND_IN_FAULTS": faults, "DUOLN_CACHE": str(tmp_path / "cache")})
    assert done.returncode == 1, done.stderr
    record = json.loads((tmp_path / "selftest.json").read_text())
    failures = [line for rule in record["rules"] for line in rule["failures"]]
    assert sorted(line.partition(":")[0] for line in failures) == sorted([*CASES[:4], CASES[6]])  # an RMS norm has the same kernel
    words = "\n".join(failures)
    for expected in ("hung: no answer in 10 s, while it did: take 20 of 7 x 3 by cuda sorted rows", "signal SIGSEGV",
                     "cudaErrorIllegalAddress", "of what is allowed"):
        assert expected in words
    assert record["complete"] and sum(rule["cases"] for rule in record["rules"]) == len(CASES)
    [kept] = (tmp_path / "cache" / "proofs").glob("*.json")
    states = {(v["op"], v["state"]) for v in json.loads(kept.read_text())["verdicts"]}
    assert states == {("layer_norm", "set aside"), ("adam_update", "set aside"), ("rms_norm", "set aside"),
                      ("adam_rates", "proved"), ("linear", "proved")}
