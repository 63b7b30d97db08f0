"""Kernels that find too little memory for what they need beside their arrays: a MemoryError, and the next call works."""

import threading

import numpy as np
import pytest

from duoln.errors import MemoryExhaustedError
from duoln.kernels import native
from duoln.kernels.launch import Launch

pytestmark = pytest.mark.skipif(native.compiler() is None, reason="there is no C++ compiler")

TEXT = """
#include "recurrent/walk.h"

// Parts whose number is `failing` find no memory.
ENTRY(parts) {
    guarded([&] {
        in_parts(count, threads, [&](index_t first, index_t last) {
            for (index_t k = first; k < last; ++k) {
                if (k == failing) throw std::bad_alloc();
                done[k] = 1;
            }
        });
    });
}

// Members of a walk meet at each time step; the one with the first unit finds no memory at the step `failing`.
ENTRY(walk) {
    guarded([&] {
        const Sizes sizes = sizes_of(steps, 64, 64, false, nullptr);
        as_team(sizes, threads, by_units != 0, [&](const Share& share, const Barrier& barrier) {
            const bool first = share.first_panel == 0 && share.first_row == 0;
            for (index_t t = 0; t < steps; ++t) {
                if (first && t == failing) throw std::bad_alloc();
                barrier.wait();
                if (first) done[t] = 1;
            }
        });
    });
}
"""


@pytest.fixture(scope="module")
def functions(tmp_path_factory):
    path = tmp_path_factory.mktemp("kernel") / "failing.cpp"
    path.write_text(TEXT)
    text = str(path.with_suffix(""))
    return (Launch(text, "parts", "done: own[count], failing: int64, threads: int32")["numpy"],
            Launch(text, "walk", "done: own[steps], failing: int64, threads: int32, by_units: int32")["numpy"])


@pytest.mark.parametrize("threads", [1, 2, 3, 8])
def test_a_part_that_fails(threads, functions):
    for failing in (0, 3, 99):
        done = np.zeros(100, np.float32)
        with pytest.raises(MemoryError, match=r"\[parts\] no memory left for what the kernel needs"):
            functions[0](done, failing, threads)
        assert not done[failing]
        functions[0](done, -1, threads)
        assert done.all()


@pytest.mark.parametrize("by_units", [0, 1])
@pytest.mark.parametrize("threads", [1, 2, 3])
def test_a_member_of_a_walk_that_fails(threads, by_units, functions):
    """The others wait for it at a barrier."""
    for failing in (0, 7, 199):
        done = np.zeros(200, np.float32)
        with pytest.raises(MemoryError, match=r"\[walk\] no memory left"):
            functions[1](done, failing, threads, by_units)
        assert not done[failing:].any()
        functions[1](done, -1, threads, by_units)
        assert done.all()


def test_the_thread_whose_call_fails_is_told(functions):
    """Another thread calls the same kernel meanwhile."""
    count, done = 3000, {}

    def call(failing):
        errors, values = 0, np.zeros(4, np.float32)
        for _ in range(count):
            try:
                functions[0](values, failing, 1)
            except MemoryError:
                errors += 1
        done[failing] = errors

    threads = [threading.Thread(target=call, args=(failing,)) for failing in (2, -1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert done == {2: count, -1: 0}


def test_a_run_is_told_of_it_as_of_other_memory(monkeypatch, capsys, tmp_path):
    """The exit code is that of too little memory, and the run can go on from its checkpoint."""
    from duoln.cli import main
    from duoln.kernels import norm

    def fail(*arguments):
        raise MemoryError("[product] no memory left for what the kernel needs beside its arrays")

    assert main(["run", "mnist", "--preset", "smoke", "--variant", "ln", "--out", str(tmp_path / "r"), "--backend", "numpy"]) == 0
    monkeypatch.setitem(norm._LAUNCHES[True][0], "numpy", fail)
    code = main(["run", "mnist", "--preset", "smoke", "--variant", "ln", "--out", str(tmp_path / "s"), "--backend", "numpy"])
    assert code == MemoryExhaustedError.exit_code and "no memory left" in capsys.readouterr().err
