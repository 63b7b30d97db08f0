"""The peak memory of one side of a comparison, and the limits of a machine."""

import sys

import numpy as np
import pytest

from duoln.bench import limits, peak


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="/proc is Linux's")
def test_the_peak_counts_what_was_freed_and_not_what_was_there_before():
    kept = np.ones(40 << 20, np.uint8)
    peak.begin()
    freed = np.ones(160 << 20, np.uint8)
    del freed
    assert 150 << 20 < peak.above() < 300 << 20 and kept.size


def test_no_figure_where_the_system_does_not_say(monkeypatch, tmp_path):
    monkeypatch.setattr(peak, "_CLEAR", tmp_path / "missing" / "clear_refs")
    monkeypatch.setattr(peak._State, "before", None)
    peak.begin()
    assert peak.above() is None


def test_limits_are_positive_and_in_words(numpy_backend, monkeypatch):
    monkeypatch.setattr(limits.operators, "measure_copy", lambda backend: {"gbps": 12.4})
    assert limits.products_gflops(numpy_backend) > 0
    assert "a copy 12 GB/s" in limits.line(numpy_backend)
