"""The summary of a survey's folder, from synthetic records of a device."""

import json

import pytest

from duoln import runtime
from duoln.bench.records import make_case, make_record
from duoln.bench.survey import Folder, Outcome, summary

DEVICE = {"name": "cupy", "device": "NVIDIA H200", "library": "cupy 14"}


def _case(op, passes, shape, side, seconds, **more):
    return make_case(op=op, passes=passes, shape=shape, side=side, samples=[seconds], clock_name="wall_run",
                     cache="running", warmups=1, copy_gbps=4200.0, **more)


@pytest.fixture
def surveyed(tmp_path):
    """A folder with synthetic records of an H200."""
    folder = Folder(tmp_path / "day", "cupy")
    folder.begin([])
    forward, gradient = 37.1e-6, 140e-6
    cases = [_case("layer_norm", "forward", (4096, 4096), "duoln", forward, event_seconds=forward),
             _case("layer_norm", "forward+backward", (4096, 4096), "duoln", 1e-3, event_seconds=forward + gradient),
             _case("layer_norm", "forward+backward", (4096, 4096), "torch", 1e-3, event_seconds=(forward + gradient) / 0.3)]
    steps = [_case("mnist ln", "step", (128,), side, seconds, ratio=1e-3 / seconds)
             for side, seconds in (("duoln, eager", 1e-3), ("duoln, compiled", 4e-4), ("torch", 9e-4))]
    numpy = runtime.backend("numpy")
    compiled = {"settings": 76, "processes": 16, "seconds": 21.0, "processor seconds": 240.0, "slowest seconds": 4.1,
                "slowest": "recurrent/lstm/lstm.cu UNITS=4", "failures": []}
    rule = {"op": "layer_norm", "rule": "cuda", "cases": 9, "error": 0.2, "worst": "", "repeats": True, "failures": [], "near": []}
    tried = {"expected": 9, "left out": 0, "running": [], "failures": [], "checks": {"a product": "130 x 257 x 67"}}
    records = {"selftest": {"backend": DEVICE, "host": {"cores": 16}, "compilation": compiled, "complete": True,
                            "rules": [rule], **tried},
               "sanitizer": {"program": "/cuda/bin/compute-sanitizer", "tools": {"racecheck": {"result": "0 hazards"}}},
               "device": {"backend": DEVICE, "figures": {"copy GB/s": 4200.0, "launch of our kernel, us": "RuntimeError: no"}},
               "ops": {**make_record("ops", numpy, None, 4200.0, cases), "missing": {"layer_norm, liger": "not installed"}},
               "steps": make_record("train", numpy, None, 4200.0, steps)}
    for name, record in records.items():
        folder.record_path(name).write_text(json.dumps(record))
        folder.add(Outcome(name, f"what {name} is", "done", 12.0))
    return folder


def test_the_summary_has_what_was_measured(surveyed):
    text = summary(surveyed)
    for words in ("device: NVIDIA H200", "| sanitizer | what sanitizer is | 12 | done |", "racecheck: 0 hazards", "copy GB/s: 4200",
                  "launch of our kernel, us: RuntimeError: no", "compiled: 76 settings by 16 processes in 21 s",
                  "did not run: layer_norm, liger: not installed", "37.1 us on the device"):
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
