"""The first parts of a survey: every kernel is compiled and compared, and compute-sanitizer runs where it is."""

import json
import os
import subprocess
import sys
import types
from itertools import pairwise
from pathlib import Path

import pytest
from conftest import GPU, PATIENCE, STAND_IN
from h100 import use_h100
from test_survey import OVER_STAND_IN

from duoln.bench.survey import sanitizer
from duoln.kernels import source
from duoln.kernels.settings import every_setting
from duoln.system.worker import WorkerLostError
from duoln.testing import correctness, prover, selftest

ROOT = Path(__file__).parents[2]


def test_every_source_names_a_kernel():
    names = {file: source.entries(file)[0] for file in {file for file, _ in every_setting()}}
    assert names["lstm/lstm.cu"] == "lstm_forward" and names["device_limits/exchange.cu"] == "exchange_by_counter"
    assert names["take/take.cu"] == "take_backward" and len(set(names.values())) == len(names)


@pytest.fixture(scope="module")
def every_case():
    return selftest.cases()


@pytest.mark.long
@pytest.mark.skipif(sys.platform != "linux", reason="kernels run on the CPU under Linux only")
def test_small_cases_are_of_every_operator_variant_and_rule(every_case, gpu, monkeypatch):
    def kinds(cases):
        return {(case.op, case.attrs.get("norm"), rule.name) for case in cases for rule in selftest.rules(case, gpu)}

    use_h100(monkeypatch)  # so that there are walks
    monkeypatch.setattr(correctness.selftest, "cases", lambda: every_case)
    small = correctness.small_cases(gpu)
    assert ("lstm", "layer", "cuda walk") in kinds(small) == kinds(every_case) and len(small) <= len(kinds(small))
    assert all(1 < selftest.size_of(case) <= correctness.SMALL_VALUES for case in small)


@pytest.mark.long
@pytest.mark.skipif(sys.platform != "linux", reason="kernels run on the CPU under Linux only")
def test_processes_compile_side_by_side_and_a_failure_is_a_line(tmp_path):
    output = _compiled(tmp_path, OVER_STAND_IN, [("columns.cu", {}), ("take/take.cu", {}), ("no/such.cu", {"THREADS": 32})])
    assert (output["settings"], output["processes"]) == (3, 2) and output["processor seconds"] >= output["slowest seconds"] > 0
    [failure] = output["failures"]
    assert failure.startswith("no/such.cu THREADS=32: FileNotFoundError")


@pytest.mark.long
@pytest.mark.skipif(sys.platform != "linux", reason="kernels run on the CPU under Linux only")
def test_a_compiler_that_ends_its_process_is_a_failure(tmp_path):
    breaks = f"{OVER_STAND_IN}import os\nstand_in_cupy.RawModule.get_function = lambda *given: os._exit(1)\n"
    output = _compiled(tmp_path, breaks, [("columns.cu", {})])
    [failure] = output["failures"]
    assert failure.startswith("columns.cu: BrokenProcessPool") and output["settings"] == 1


def _compiled(tmp_path, at_start, settings):
    """What `compile_all` says in a process of its own."""
    (tmp_path / "sitecustomize.py").write_text(at_start)
    program = tmp_path / "program.py"
    program.write_text(f"""
import json
from duoln.testing.compilation import compile_all
if __name__ == "__main__":
    print(json.dumps(compile_all(2, {settings!r})))
""")
    done = subprocess.run([sys.executable, str(program)], capture_output=True, text=True, check=False,
                          env={**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), str(ROOT)])})
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def _answers(results, monkeypatch, file):
    """What is tried is answered without a process; the file is read between the answers."""
    seen = []

    def in_workers(wanted, backend, count, until, running):
        running.add("the next")
        for one, result in zip(wanted, results, strict=True):
            seen.append(json.loads(file.read_text()))
            yield result._replace(of=one)
        running.clear()

    monkeypatch.setattr(correctness, "_SAVE_SECONDS", -1.0)
    monkeypatch.setattr(correctness, "in_workers", in_workers)
    return seen


def _outcome(name, error, **more):
    return {**selftest.Outcome(name.split()[0], name, "float32", "", "a rule", error, "output 0", True)._asdict(), "ended": False, **more}


def test_what_was_tried_is_kept_after_every_case(tmp_path, monkeypatch):
    file = tmp_path / "selftest.json"
    names = ["add a", "add b", "take c", "relu d", "tanh e"]
    results = [correctness.Result(None, answer) for answer in (
        [_outcome("add a", 0.5)], [_outcome("add b", 1.2)], [_outcome("take c", 3.0), _outcome("take c", 0.1)])]
    results += [correctness.Result(None, lost="hung: no answer in 20 s"), correctness.Result(None, left_out=True)]
    seen = _answers(results, monkeypatch, file)
    wanted = correctness._of_cases(names, 2)
    report = correctness.Report({"host": "here"}, len(wanted), file)
    assert not correctness.measure(wanted, "numpy", 1, 0.0, report)
    assert [sum(rule["cases"] for rule in before["rules"]) for before in seen] == [0, 1, 2, 4, 4]
    assert not any(before["complete"] for before in seen) and seen[1]["running"] == ["the next"]
    record = json.loads(file.read_text())
    assert not record["complete"] and record["left out"] == 1 and record["expected"] == 5 and record["host"] == "here"
    assert record["failures"] == ["relu d: hung: no answer in 20 s"] and record["running"] == []
    [add, take] = record["rules"]
    assert "add b" in add["near"][0] and add["failures"] == [] and "3 of what is allowed" in take["failures"][0]
    assert correctness.verdicts(report) == [
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
    monkeypatch.setattr(correctness, "Worker", _Sleeper)
    monkeypatch.setattr(correctness, "time", _Sleeper.clock)
    monkeypatch.setattr(_Sleeper.clock, "now", 100.0)
    wanted = [correctness.Try(name, {"name": name}, seconds) for name, seconds in (("hangs", 0.01), ("runs", 3600), ("waits", 3600))]
    results = list(correctness.in_workers(wanted, "numpy", 1, 101.0, set()))
    assert [(r.of.name, r.left_out) for r in results] == [("hangs", False), ("runs", True), ("waits", True)]
    assert results[0].lost == "hung: no answer, while it did: hangs"


def test_a_check_after_which_the_device_is_silent_ends_its_process(numpy_backend, monkeypatch):
    def breaks(backend):
        raise RuntimeError("cudaErrorIllegalAddress")

    monkeypatch.setitem(prover.ladder.LADDER, "breaks", breaks)
    for answering in (True, False):
        monkeypatch.setattr(prover, "answers", lambda backend, yes=answering: yes)
        answer = prover._ladder(numpy_backend, {"name": "breaks"}, lambda what: None)
        assert answer["words"] == "" and "RuntimeError: cudaErrorIllegalAddress" in answer["wrong"]
        assert correctness.has_ended(answer) is not answering


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
from duoln.testing import correctness
correctness.tries = lambda what, backend, quick: correctness._of_cases({CASES!r}, 2, 10.0)
correctness._START_SECONDS = {PATIENCE}
raise SystemExit(correctness.main(["--backend", "cupy", "--quick", "--json", {str(tmp_path / "selftest.json")!r}]))
"""
    faults = "wrong=layer_norm_backward hang=take_backward kill=cross_entropy_forward end=adam_update"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, cwd=ROOT, env={
        **os.environ, "PYTHONPATH": str(tmp_path), "STAND_IN_FAULTS": faults, "DUOLN_CACHE": str(tmp_path / "cache")})
    assert done.returncode == 1, done.stderr
    record = json.loads((tmp_path / "selftest.json").read_text())
    failures = [*record["failures"], *(line for rule in record["rules"] for line in rule["failures"])]
    assert sorted(line.partition(":")[0] for line in failures) == sorted([*CASES[:4], CASES[6]])  # an RMS norm has the same kernel
    words = "\n".join(failures)
    for expected in ("hung: no answer in 10 s, while it did: take 20 of 7 x 3 by cuda sorted rows", "signal SIGSEGV",
                     "cudaErrorIllegalAddress", "of what is allowed"):
        assert expected in words
    assert record["complete"] and sum(rule["cases"] for rule in record["rules"]) == 5
    [kept] = (tmp_path / "cache" / "proofs").glob("*.json")
    states = {(v["op"], v["state"]) for v in json.loads(kept.read_text())["verdicts"]}
    assert states == {("layer_norm", "set aside"), ("adam_update", "set aside"), ("rms_norm", "set aside"),
                      ("adam_rates", "proved"), ("linear", "proved")}


def test_where_the_sanitizer_is_looked_for(tmp_path):
    def place(folder):
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "compute-sanitizer").write_text("")
        (folder / "compute-sanitizer").chmod(0o755)
        return str(folder / "compute-sanitizer")

    assert sanitizer.program({"PATH": str(tmp_path / "none")}) is None
    home = place(tmp_path / "cuda" / "bin")
    assert sanitizer.program({"PATH": str(tmp_path / "none"), "CUDA_HOME": str(tmp_path / "cuda")}) == home
    beside = place(tmp_path / "other" / "compute-sanitizer")
    assert sanitizer.program({"PATH": "", "CUDA_PATH": str(tmp_path / "other")}) == beside
    first = place(tmp_path / "path")
    assert sanitizer.program({"PATH": str(tmp_path / "path"), "CUDA_HOME": str(tmp_path / "cuda")}) == first


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
    every, shared = (set(sanitizer.kernels(tool)) for tool in ("memcheck", "racecheck"))
    assert {"layer_norm_backward", "lstm_walk_forward", "glimpse_forward", "sum_columns"} < shared < every
    assert every - shared == {"take_backward", "latent_forward", "latent_backward"}  # each thread works alone
    in_texts = sum(path.read_text().count("__global__") for folder in ("kernels", "plugins") for path in (ROOT / folder).rglob("*.cu")
                   if path.parent.name != "device_limits")
    assert len(every) == in_texts
    words = sanitizer.command("compute-sanitizer", "racecheck", "cupy", Path("record.json"))
    assert {word for before, word in pairwise(words) if before == "--kernel-regex"} == {f"kns={name}" for name in shared}


def test_what_the_sanitizer_finds_fails_the_part(tmp_path, monkeypatch):
    (tmp_path / "compute-sanitizer").write_text(FAKE.format(python=sys.executable))
    (tmp_path / "compute-sanitizer").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert sanitizer.main(["--backend", "cupy", "--json", str(tmp_path / "sanitizer.json")]) == 1
    tools = json.loads((tmp_path / "sanitizer.json").read_text())["tools"]
    assert {tool: result["clean"] for tool, result in tools.items()} == {"memcheck": True, "racecheck": False, "synccheck": None}
    assert tools["memcheck"]["result"] == "ERROR SUMMARY: 0 errors" and "1 hazard" in tools["racecheck"]["result"]
    assert any("race in lstm_forward" in line for line in tools["racecheck"]["output"])
    assert tools["synccheck"]["result"] == "did not run: exit code 1"
    assert any("Device not supported" in line for line in tools["synccheck"]["output"])


def test_cases_that_fail_without_an_error_of_the_sanitizer_are_said():
    output = sanitizer.verdict(1, "========= ERROR SUMMARY: 0 errors")
    assert output["clean"] is None and output["result"] == "ERROR SUMMARY: 0 errors, but the cases ended with exit code 1"
    assert sanitizer.verdict(None, "")["result"].startswith("stopped at")
    assert sanitizer.verdict(0, "no summary")["clean"] is None
