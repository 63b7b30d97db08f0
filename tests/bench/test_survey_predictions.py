"""The predictions are data: a survey has the figure that decides each, and a verdict follows."""

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from duoln.bench.survey import cells, operators, parts, steps, verdicts
from duoln.kernels import predictions
from duoln.kernels.predictions import Prediction, Reading

ROOT = Path(__file__).parents[2]
TIME = Prediction("t", "a time", 50.0, "us", "", Reading("ops", "us", "layer_norm", "forward", (4, 8)), 1.5, "copy")
RATE = Prediction("r", "a rate", 0.9, "GB/s", "", Reading("device", "copy GB/s"), 1.1, "GB/s", True)


def test_each_prediction_has_a_name_and_is_printed():
    every, printed = predictions.predictions(), predictions.table()
    assert len({p.name for p in every}) == len(every) and all(p.within >= 1 for p in every)
    assert [p.name for p in every if f"| {p.what} | {p.value:g} " not in printed] == []


@pytest.mark.long
def test_what_is_counted_is_what_is_kept():
    """Launches and products; the time of our Python depends on the machine."""
    code = "import json, count_launches as c; print(json.dumps(c.count(['MNIST, an update', 'LN-LSTM, a time step forward'])))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, cwd=ROOT / "tests" / "tools")
    assert done.returncode == 0, done.stderr
    kept = predictions.counts()
    for name, entry in json.loads(done.stdout).items():
        counted = predictions.Counts(**entry)
        assert counted._replace(python_us=0) == kept[name]._replace(python_us=0), \
            "run: python tests/tools/count_launches.py --write"


def test_the_time_of_counting_is_not_booked_as_ours(monkeypatch):
    monkeypatch.setattr(sys, "path", list(sys.path))
    import count_launches

    spent = [0.0]
    monkeypatch.setattr(count_launches.time, "thread_time", lambda: spent[0])
    counting = object.__new__(count_launches.Counting)
    counting.asked, counting.outside, counting._inside = Counter(), 0.0, False

    def takes(seconds, result):
        spent[0] += seconds
        return result

    counted = counting._counted(lambda: takes(5.0, "library"), lambda: takes(1.0, "a result"))
    assert counted() == "a result" and counting.asked == {"library": 1} and counting.outside == spent[0] == 6.0


def test_the_survey_measures_what_decides_each_prediction(tmp_path):
    """A prediction whose case no part measures would stay without a verdict for ever."""
    plans = {(plan.subject.name, operators.operators.passes(plan.backward), plan.shape)
             for plan in operators.plans("cupy", quick=False)}
    layers = {(f"{cell} layer", operators.operators.passes(backward), tuple(shape)) for cell, shape, backward in cells.WANTED}
    updates = {(step.name, "step", (step.batch,)) for step in steps.WANTED}
    known = {part.name for part in parts.parts("cupy", tmp_path, False, 16)}
    for p in predictions.predictions():
        at = p.reading
        assert at.part in known, p
        passes = ["forward", "forward+backward"] if at.figure == "gradient us" else [at.passes]
        measured = {"ops": plans, "rnn": layers, "steps": updates}.get(at.part)
        assert measured is None or {(at.op, each, at.shape) for each in passes} <= measured, p
        if at.part == "rnn":
            shape = cells.Shape(*at.shape)
            sides = [e.name for e in cells.comparison("lstm", shape, at.passes != "forward", "cupy", ["torch"]).entries]
            assert {at.side, at.beside or at.side} <= set(sides)
        if at.part == "steps":
            [step] = [s for s in steps.WANTED if s.name == at.op]
            assert at.side in [e.name for e in steps.comparison(step, "cupy", []).entries]


@pytest.mark.parametrize("ratio, words", [(1.0, "holds"), (1.49, "holds"), (0.67, "holds"), (1.51, "slower"), (0.66, "faster")])
def test_a_time_holds_within_its_factor(ratio, words):
    judged = verdicts.verdict(TIME, 50 * ratio, 50.0)
    assert judged.verdict == words and judged.ratio == pytest.approx(ratio)


@pytest.mark.parametrize("ratio, words", [(1.09, "holds"), (1.11, "faster"), (0.9, "slower")])
def test_more_is_better_for_a_rate(ratio, words):
    assert verdicts.verdict(RATE, 3000 * ratio, 3000.0).verdict == words


def test_what_was_not_measured_has_no_verdict():
    for actual, expected in ((None, 50.0), (50.0, None)):
        judged = verdicts.verdict(TIME, actual, expected)
        assert (judged.verdict, judged.ratio) == ("not measured", None)


def test_none_is_predicted_and_one_is_too_many():
    failures = Prediction("f", "cases that fail", 0, "cases", "", Reading("selftest", "failures"), 1.0)
    assert [verdicts.verdict(failures, actual, 0).verdict for actual in (0.0, 1.0)] == ["holds", "slower"]


def test_a_time_of_memory_is_scaled_by_the_copy_and_a_share_by_the_data_sheet():
    assert verdicts.predicted(TIME, "NVIDIA H200", 6000.0) == 25.0
    assert verdicts.predicted(TIME, "NVIDIA H200", None) is None
    assert verdicts.predicted(RATE, "NVIDIA H200", None) == pytest.approx(0.9 * 4800)
    assert verdicts.predicted(RATE, "NVIDIA H100 80GB HBM3", None) == pytest.approx(0.9 * 3350)
    assert verdicts.predicted(RATE, "another device", 3000.0) is None
    assert verdicts.predicted(TIME._replace(scale=""), "another device", None) == 50.0


def _case(passes, seconds, side="duoln", **more):
    return {"op": "layer_norm", "pass": passes, "shape": [4, 8], "side": side, "median": seconds, **more}


def test_figures_are_found_in_records():
    record = {"cases": [_case("forward", 9e-5, event_seconds=5e-5), _case("forward+backward", 9e-5, event_seconds=14e-5),
                        _case("forward+backward", 9e-5, "torch", event_seconds=28e-5),
                        _case("forward+backward", 9e-5, "liger", no_event_seconds="RuntimeError: a wait")]}
    at = TIME.reading
    assert verdicts.measured(at, record) == pytest.approx(50)  # by the device's own clock
    assert verdicts.measured(at._replace(steps=10), record) == pytest.approx(5)
    assert verdicts.measured(at._replace(part="rnn"), record) == pytest.approx(90)
    assert verdicts.measured(at._replace(part="rnn", figure="device us"), record) == pytest.approx(50)
    assert verdicts.measured(at._replace(figure="gradient us", passes=""), record) == pytest.approx(90)
    both = at._replace(figure="ratio", passes="forward+backward")
    assert verdicts.measured(both._replace(beside="torch"), record) == pytest.approx(0.5)
    assert verdicts.measured(both._replace(beside="liger"), record) is None  # its time by the host's clock decides nothing
    assert verdicts.measured(at._replace(figure="gradient us", side="liger"), record) is None
    assert verdicts.measured(at._replace(shape=(8, 8)), record) is None and verdicts.measured(at, {}) is None
    limits = {"figures": {"copy GB/s": 3000.0, "exchange of 128 blocks by flags, us": "RuntimeError: no"}}
    assert verdicts.measured(RATE.reading, limits) == 3000.0
    assert verdicts.measured(Reading("device", "exchange of 128 blocks by flags"), limits) is None


def test_failures_count_only_when_all_cases_ran():
    at, rules = Reading("selftest", "failures"), [{"failures": ["a", "b"]}, {"failures": []}]
    assert verdicts.measured(at, {"complete": False, "rules": rules, "failures": []}) is None
    assert verdicts.measured(at, {"complete": True, "rules": rules, "failures": ["d"], "compilation": {"failures": ["c"]}}) == 4.0
    assert verdicts.measured(Reading("selftest", "processor seconds"), {"compilation": {"processor seconds": 200.0}}) == 200.0


def test_a_survey_without_records_judges_nothing():
    judged = verdicts.verdicts(lambda part: {})
    assert {v.verdict for v in judged} == {"not measured"} and len(judged) == len(predictions.predictions())
