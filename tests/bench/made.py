"""Valid records for tests; their figures are invented."""

import copy

CASE = {
    "op": "layer_norm", "pass": "forward", "shape": [8, 16], "settings": {}, "dtype": "float32", "side": "duoln",
    "rule": "composed", "clock": "wall_slope", "cache": "cold", "warmups": 3, "samples": [2e-3, 1.9e-3, 2.1e-3],
    "median": 2e-3, "p10": 1.9e-3, "p90": 2.1e-3, "mad": 1e-4, "bytes": 1024, "gbps": 5.12e-4, "fraction_of_copy": 5.12e-5,
    "flops": 896, "gflops": 4.48e-4,
}
RECORD = {
    "schema": "duoln-bench/1", "kind": "ops", "label": "made up", "duoln": "0.1.0", "git": {"sha": "0" * 40, "dirty": False},
    "time": "2026-01-01T00:00:00+00:00", "backend": {"name": "numpy", "library": "numpy 2", "device": "a CPU"},
    "host": {"cpu": "a CPU", "cores": 2, "ram": None, "os": "an OS", "python": "3.11"}, "flags": {}, "copy_gbps": 10.0,
    "cases": [CASE],
}


def record(*cases, **header):
    """A record with these cases, and these keys in its header. Each case is CASE with some keys replaced."""
    made = copy.deepcopy(RECORD)
    made["cases"] = [{**copy.deepcopy(CASE), **case} for case in cases or [{}]]
    return {**made, **header}
