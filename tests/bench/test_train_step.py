"""The benchmark of a training step: its record, its check of the peer, and its errors. Nothing here is timed."""

import json
import os
import subprocess
import sys

import pytest

from duoln.bench import train_step
from duoln.bench.records import ratio, spread
from duoln.errors import DuolnError
from duoln.testing import check_error

SMALL = ["--set", "source=made", "--set", "hidden=16", "--set", "rows=200", "--batch-size", "32"]


def _bench(*args, cwd):
    return subprocess.run([sys.executable, "-m", "duoln", "bench", "train", *SMALL, *args], cwd=cwd, text=True,
                          capture_output=True, check=False, timeout=120, env={**os.environ, "COLUMNS": "100"})


def test_a_record_holds_samples_and_what_they_depend_on(tmp_path):
    out = _bench("--rounds", "2", "--steps", "3", "--json", cwd=tmp_path)
    assert out.returncode == 0, out.stderr
    result = json.loads(out.stdout)
    record = result["records"][0]
    assert result["schema"] == "duoln-bench/1" and record["rounds"] == 2
    row = record["rows"][0]
    assert len(row["samples"]) == 2 and row["p10"] <= row["median"] <= row["p90"] and row["ratio"] == 1.0
    assert {"duoln", "numpy", "cores", "blas_core", "flags", "backend"} <= row["facts"].keys()
    assert "duoln" in out.stderr and "ms (median)" in out.stderr


def test_statistics():
    assert spread([3.0, 1.0, 2.0])["median"] == 2.0
    assert ratio({"samples": [1.0, 4.0, 9.0]}, {"samples": [2.0, 4.0, 3.0]}) == 1.0  # of pairs, not of medians


class _Side:
    def __init__(self, losses):
        self.name, self.facts = "peer", {"first_losses": losses}


def test_a_peer_that_computes_something_else_is_not_timed():
    train_step._check_losses(_Side([1.0, 0.5]), _Side([1.0, 0.5001]))
    check_error(DuolnError, lambda: train_step._check_losses(_Side([1.0, 0.5]), _Side([1.0, 0.52])), "step 2", "0.52")


def test_a_side_that_stops_says_why():
    check_error(DuolnError, lambda: train_step.Side("duoln", {
        "task": "mnist", "variant": "ln", "preset": None, "settings": {"batch_size": 0}, "backend": None, "peer": None},
        {}), "duoln stopped", "batch_size")


@pytest.mark.parametrize("peer", ["torch", "torch-fused"])
def test_the_peer_agrees_where_it_is_installed(peer, tmp_path):
    pytest.importorskip("torch")
    for variant in ("none", "bn", "ln"):
        out = _bench("--rounds", "1", "--steps", "2", "--peer", peer, "--variant", variant, cwd=tmp_path)
        assert out.returncode == 0, out.stderr
