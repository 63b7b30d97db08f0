"""The limits of containers and jobs, as the kernel's files give them, what follows from them, and work that threads share."""

import threading

import numpy as np
import pytest

from duoln.errors import UsageError
from duoln.randomness import Stream
from duoln.system import limits

MIB = 1 << 20


@pytest.fixture
def group(tmp_path, monkeypatch):
    """A function that lays out the files of a process's groups: names below the root, and what is in each file."""
    def lay_out(of_process, files=None):
        (tmp_path / "process").write_text(of_process)
        for name, text in (files or {}).items():
            path = tmp_path / "root" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)

    monkeypatch.setattr(limits, "_OF_PROCESS", tmp_path / "process")
    monkeypatch.setattr(limits, "_ROOT", tmp_path / "root")
    return lay_out


def test_without_groups_there_is_no_limit(group):
    assert limits.processors() is None and limits.memory_of_group() is None
    group("0::/\n")
    assert limits.processors() is None and limits.memory_of_group() is None


@pytest.mark.parametrize(("quota", "count"), [("max 100000", None), ("200000 100000", 2), ("150000 100000", 2), ("10000 100000", 1),
                                              ("", None), ("nonsense", None), ("100000 0", None)])
def test_processors_of_a_container(quota, count, group):
    group("0::/\n", {"cpu.max": f"{quota}\n"})
    assert limits.processors() == count


def test_the_least_of_all_groups_around_counts(group):
    group("0::/jobs/17\n", {
        "jobs/17/cpu.max": "800000 100000\n", "jobs/cpu.max": "300000 100000\n",
        "jobs/17/memory.max": "max\n", "jobs/17/memory.current": "5\n",
        "jobs/memory.max": f"{64 * MIB}\n", "jobs/memory.current": f"{40 * MIB}\n",
        "jobs/memory.stat": f"anon 1\nfile 2\ninactive_file {8 * MIB}\n"})
    assert limits.processors() == 3 and limits.memory_of_group() == 32 * MIB


def test_the_first_version_of_the_files(group):
    group("4:memory:/job\n2:cpu,cpuacct:/job\n1:name=systemd:/job\n", {
        "cpu/job/cpu.cfs_quota_us": "250000\n", "cpu/job/cpu.cfs_period_us": "100000\n",
        "cpu/cpu.cfs_quota_us": "-1\n", "cpu/cpu.cfs_period_us": "100000\n",
        "memory/job/memory.limit_in_bytes": f"{10 * MIB}\n", "memory/job/memory.usage_in_bytes": f"{12 * MIB}\n"})
    assert limits.processors() == 3 and limits.memory_of_group() == 0


def test_threads_and_memory_follow_the_limits(group, monkeypatch, tmp_path):
    group("0::/\n", {"cpu.max": "100000 100000\n", "memory.max": f"{64 * MIB}\n", "memory.current": "0\n"})
    for name in ("DUOLN_THREADS", "OMP_NUM_THREADS"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "facts").write_text("MemAvailable: 4 kB\n")
    assert limits.workers.__wrapped__() == 1
    assert limits.free_memory() == 64 * MIB and limits.free_memory(tmp_path / "facts") == 4096


@pytest.mark.parametrize("text", ["two", " 4", "2.0", "²", "0", "-1"])
def test_a_number_of_threads_that_is_none(text, monkeypatch):
    monkeypatch.setenv("DUOLN_THREADS", text)
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    with pytest.raises(UsageError, match=f"DUOLN_THREADS: expected a whole number of threads, 1 or more, found '{text}'"):
        limits.workers.__wrapped__()


def test_a_list_of_openmp_is_no_number(group, monkeypatch):
    group("0::/\n", {"cpu.max": "100000 100000\n"})
    monkeypatch.delenv("DUOLN_THREADS", raising=False)
    monkeypatch.setenv("OMP_NUM_THREADS", "4,2")
    assert limits.workers.__wrapped__() == 1


@pytest.fixture(params=[0, 1, 2])
def few_threads(request, monkeypatch):
    """As under `ulimit -u`: so many threads begin, and no more."""
    begin, begun = threading.Thread.start, []

    def start(self):
        if len(begun) == request.param:
            raise RuntimeError("can't start new thread")
        begun.append(self)
        begin(self)

    monkeypatch.setattr(limits, "workers", lambda: 4)
    monkeypatch.setattr(threading.Thread, "start", start)
    return begun


def test_those_that_there_are_do_the_work(few_threads):
    taken = np.zeros(1000, np.int64)

    def work(first, last):
        taken[first:last] += 1

    limits.in_threads(1000, 10, work)
    assert (taken == 1).all()


def test_a_stream_draws_the_same_numbers(few_threads, monkeypatch):
    drawn = [Stream(0, "x").uniform((1 << 18,)), Stream(0, "x").gaussian((1 << 17,))]
    monkeypatch.setattr(limits, "workers", lambda: 1)
    assert drawn[0].tobytes() == Stream(0, "x").uniform((1 << 18,)).tobytes()
    assert drawn[1].tobytes() == Stream(0, "x").gaussian((1 << 17,)).tobytes()


def test_what_a_part_raises_is_raised_when_all_have_ended(few_threads):
    def work(first, last):
        if first <= 500 < last:
            raise ValueError("part of 500")

    with pytest.raises(ValueError, match="part of 500"):
        limits.in_threads(1000, 10, work)
    assert not any(thread.is_alive() for thread in few_threads)
