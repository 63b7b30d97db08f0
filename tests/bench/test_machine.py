"""The peak memory of one side of a comparison."""

import mmap
import sys

import numpy as np
import pytest

from duoln.bench import machine


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="/proc is Linux's")
def test_the_peak_counts_what_was_freed_and_not_what_was_there_before():
    size = 160 << 20
    machine.begin_peak()
    with mmap.mmap(-1, size) as fresh:  # the allocator could give memory that the process has already
        for _ in range(size >> 20):
            fresh.write(bytes(1 << 20))
    assert 0.9 * size < machine.peak() < 2 * size
    machine.begin_peak()
    assert machine.peak() < 0.1 * size


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="/proc is Linux's")
def test_memory_that_the_allocator_kept_counts_again(numpy_backend):
    size = 96 << 20
    kept = np.ones(size, np.uint8)
    del kept
    machine.begin_peak()
    again = np.ones(size, np.uint8)
    assert machine.peak() > 0.9 * again.nbytes


def test_no_figure_where_the_system_does_not_say(monkeypatch, tmp_path):
    monkeypatch.setattr(machine, "_CLEAR", tmp_path / "missing" / "clear_refs")
    monkeypatch.setattr(machine._State, "before", None)
    machine.begin_peak()
    assert machine.peak() is None
