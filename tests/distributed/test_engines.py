"""The engines connect the processes that have met, and no others."""

import ctypes
import subprocess
import sys
import types

import numpy as np
import pytest
import stand_in_cupy
from conftest import PATIENCE
from meetings import Together, close, in_threads, meet_all, rank_infos

import duoln.backends.numpy
from duoln.distributed import joining
from duoln.distributed.joining import check_members
from duoln.errors import RankError, UsageError


def test_a_library_without_an_engine_is_told():
    with pytest.raises(UsageError, match="expected a backend of mlx, cupy, found numpy"):
        joining.check_engine("numpy")


# Who is in the group ----------------------------------------------------------------------------------------

@pytest.mark.parametrize("size", [2, 3])
def test_a_group_of_those_who_have_met_passes(size):
    threads, met = Together(size), meet_all(rank_infos(size))
    assert in_threads(*(lambda m=m: check_members(threads.member(m.rank), duoln.backends.numpy.create(), m)
                        for m in met)) == [None] * size
    close(met)


def test_a_group_with_somebody_else_ends_on_every_rank():
    """The engine has connected a stranger in the place of rank 1; the stranger gives wrong numbers."""
    threads, met = Together(3), meet_all(rank_infos(3))

    def stranger(x):
        return threads.member(1).all_sum(np.arange(32, dtype=np.float32))

    engines = [threads.member(0), types.SimpleNamespace(all_sum=stranger), threads.member(2)]
    errors = in_threads(*(lambda m=m: check_members(engines[m.rank], duoln.backends.numpy.create(), m) for m in met))
    assert all(isinstance(error, RankError) and "does not know this run's token" in str(error) for error in errors)
    close(met)


def test_what_a_rank_proves_with_is_new_in_every_run():
    seen = []
    for _ in range(2):
        threads, met = Together(2), meet_all(rank_infos(2))

        def kept(x, k, threads=threads):
            seen.append(x.tobytes())
            return threads.member(k).all_sum(x)

        in_threads(*(lambda m=m, kept=kept: check_members(
            types.SimpleNamespace(all_sum=lambda x: kept(x, m.rank)), duoln.backends.numpy.create(), m) for m in met))
        close(met)
    assert len(set(seen)) == 4


def test_an_engine_that_does_not_connect_ends_the_process():
    program = "import time; from duoln.distributed.joining import time_limit\nwith time_limit(0.2, 'not connected'): time.sleep(60)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=PATIENCE)
    assert done.returncode == RankError.exit_code and done.stderr == "duoln: not connected\n"


# NCCL, over a stand-in --------------------------------------------------------------------------------------

ID = tuple(range(-64, 64))


@pytest.fixture
def nccl(monkeypatch):
    """The engine for NVIDIA over NumPy arrays and threads."""
    threads, calls, lost = Together(2), [], set()

    class Communicator:
        def __init__(self, size, identity, rank):
            calls.append((size, identity, rank))
            if "start" in lost:
                raise RuntimeError("NCCL_ERROR_SYSTEM_ERROR")
            self.member, self.rank = threads.member(rank), rank

        def allReduce(self, x, total, count, dtype, op, stream):
            assert op == "sum" and stream == 7
            if self.rank in lost:
                raise RuntimeError("NCCL_ERROR_REMOTE_ERROR")
            array(total, count, dtype)[...] = self.member.all_sum(array(x, count, dtype))

        def destroy(self):
            calls.append(("destroy", self.rank))

    def array(address, count, dtype):
        return np.frombuffer((ctypes.c_byte * (count * np.dtype(dtype).itemsize)).from_address(address), dtype)

    cupy = stand_in_cupy.make()
    cupy.cuda.get_current_stream = lambda: types.SimpleNamespace(ptr=7, synchronize=lambda: None)
    cupy.cuda.nccl = types.SimpleNamespace(
        available=True, NcclCommunicator=Communicator, get_unique_id=lambda: ID, NCCL_SUM="sum", NCCL_FLOAT32="float32",
        NCCL_FLOAT64="float64", NCCL_INT32="int32")
    for name, module in (("cupy", cupy), ("cupy.cuda", cupy.cuda), ("cupy.cuda.nccl", cupy.cuda.nccl)):
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.delitem(sys.modules, "duoln.distributed.nccl", raising=False)
    yield types.SimpleNamespace(calls=calls, lost=lost, cupy=cupy)
    sys.modules.pop("duoln.distributed.nccl", None)


def test_nccl_adds_over_those_who_have_met_and_its_id_goes_through_the_meeting(nccl):
    met = meet_all(rank_infos(2))
    members = in_threads(*(lambda m=m: joining.connect("cupy", m) for m in met))
    close(met)
    assert sorted(nccl.calls) == [(2, ID, 0), (2, ID, 1)]
    for dtype in ("float32", "int32"):
        host = np.arange(6).reshape(2, 3).astype(dtype)
        given = [nccl.cupy.array(host * host.dtype.type(k + 1)).T for k in range(2)]
        totals = in_threads(*(lambda member=member, x=x: member.all_sum(x)
                              for member, x in zip(members, given, strict=True)))
        for k, total in enumerate(totals):
            np.testing.assert_array_equal(nccl.cupy.asnumpy(total), host.T * 3)
            assert (members[k].rank, members[k].size) == (k, 2)
    nccl.lost.add(0)
    with pytest.raises(RankError, match="rank 0 lost another rank: NCCL_ERROR_REMOTE_ERROR"):
        members[0].all_sum(nccl.cupy.ones(3, np.float32))
    members[1].leave()
    assert nccl.calls[-1] == ("destroy", 1)


def test_nccl_that_cannot_start_is_told(nccl):
    met = meet_all(rank_infos(2))
    nccl.lost.add("start")
    errors = in_threads(*(lambda m=m: joining.connect("cupy", m) for m in met))
    assert all("cannot reach the others: NCCL_ERROR_SYSTEM_ERROR; NCCL wants one GPU a rank" in str(e) for e in errors)
    nccl.cupy.cuda.nccl.available = False
    with pytest.raises(RankError, match="NCCL is not installed; pip install nvidia-nccl-cu12"):
        joining.connect("cupy", met[0])
    close(met)
