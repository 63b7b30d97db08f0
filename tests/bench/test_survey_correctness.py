"""The first parts of a survey: every kernel is compiled and compared, and compute-sanitizer runs where it is."""

import json
import os
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest
from test_survey import OVER_STAND_IN

from duoln.bench.survey import compilation, sanitizer
from duoln.kernels.settings import every_setting
from duoln.testing import correctness, selftest

ROOT = Path(__file__).parents[2]


def test_every_source_names_a_kernel():
    names = {file: compilation.entry_of(file) for file in {file for file, _ in every_setting()}}
    assert names["lstm/lstm.cu"] == "lstm_forward" and names["device_limits/exchange.cu"] == "exchange_by_counter"
    assert names["take/take.cu"] == "take_backward" and len(set(names.values())) == len(names)


@pytest.fixture(scope="module")
def every_case():
    return selftest.cases()


@pytest.fixture
def small(every_case, monkeypatch):
    monkeypatch.setattr(correctness.selftest, "cases", lambda: every_case)
    return correctness.small_cases()


def test_small_cases_are_of_every_operator_and_variant(every_case, small):
    def kinds(cases):
        return {(case.op, case.attrs.get("norm")) for case in cases}

    assert kinds(small) == kinds(every_case) and len(small) == len(kinds(small))
    assert all(1 < selftest.size_of(case) <= correctness.SMALL_VALUES for case in small)


@pytest.mark.skipif(sys.platform != "linux", reason="kernels run on the CPU under Linux only")
def test_processes_compile_side_by_side_and_a_failure_is_a_line(tmp_path):
    output = _compiled(tmp_path, OVER_STAND_IN, [("columns.cu", {}), ("take/take.cu", {}), ("no/such.cu", {"THREADS": 32})])
    assert (output["settings"], output["processes"]) == (3, 2) and output["processor seconds"] >= output["slowest seconds"] > 0
    [failure] = output["failures"]
    assert failure.startswith("no/such.cu THREADS=32: FileNotFoundError")


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
from duoln.bench.survey.compilation import compile_all
if __name__ == "__main__":
    print(json.dumps(compile_all(2, {settings!r})))
""")
    done = subprocess.run([sys.executable, str(program)], capture_output=True, text=True, check=False,
                          env={**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), str(ROOT)])})
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


class _Outcomes:
    """Outcomes in the place of a device's; the file is read between them."""

    def __init__(self, file, monkeypatch):
        self.seen, self._file = [], file
        monkeypatch.setattr(correctness, "_SAVE_SECONDS", -1.0)
        monkeypatch.setattr(correctness.selftest, "run", self._run)

    def _run(self, backend, chosen, repeats):
        for k, case in enumerate(chosen):
            self.seen.append(json.loads(self._file.read_text()))
            yield selftest.Outcome(case, "a rule", float(k), "output 0", True)


def test_what_was_compared_is_kept_after_every_case(tmp_path, monkeypatch, small):
    file = tmp_path / "selftest.json"
    outcomes = _Outcomes(file, monkeypatch)
    chosen = small[:3]
    assert not correctness.measure(None, chosen, 2, {"host": "here"}, file)  # the last error is above what is allowed
    assert [sum(rule["cases"] for rule in seen["rules"]) for seen in outcomes.seen] == [0, 1, 2]
    assert not any(seen["complete"] for seen in outcomes.seen)
    written = json.loads(file.read_text())
    assert written["complete"] and written["expected cases"] == 3 and written["host"] == "here"


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
    assert sanitizer.verdict(None, "")["result"].startswith("stopped after")
    assert sanitizer.verdict(0, "no summary")["clean"] is None
