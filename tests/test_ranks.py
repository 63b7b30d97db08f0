"""Several processes, one model: as one process trains it, and one end for all of them."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
import types

import numpy as np
import pytest
from conftest import NAMES

import duoln
import duoln.backends.numpy
from duoln import checkpoint, nn, ops, optim
from duoln.backends import group
from duoln.errors import RankError, UsageError
from duoln.ranks import Ranks, from_environment, make_ranked_step
from duoln.runlog import read_log
from duoln.step import make_step, start_state
from duoln.tasks import Task

needs_ring = pytest.mark.skipif(sys.platform == "win32", reason="MLX's ring runs under Linux and macOS")


# What one process does with the others: a group of threads ------------------------------------------------

class Together:
    """A group of threads of one process, as an engine would give each of them. On NumPy: MLX keeps a stream a thread."""

    def __init__(self, size):
        self.size, self.parts, self.gate = size, [None] * size, threading.Barrier(size, timeout=20)

    def member(self, rank):
        def all_sum(x):
            self.parts[rank] = x
            self.gate.wait()
            total = sum(self.parts[1:], self.parts[0])
            self.gate.wait()
            return total

        return types.SimpleNamespace(rank=rank, size=self.size, all_sum=all_sum, leave=lambda: None)


def together(size, work):
    """`work(group, backend)` in `size` threads, each with a NumPy backend of its own; their results by rank."""
    meeting, results = Together(size), [None] * size

    def run(rank):
        try:
            results[rank] = work(meeting.member(rank), duoln.backends.numpy.create())
        except Exception as error:
            results[rank] = error

    threads = [threading.Thread(target=run, args=(k,)) for k in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results


@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_shares_are_the_batch_in_order_along_each_axis(size, rng):
    batch = {"x": rng.standard_normal((12, 5)), "steps": rng.standard_normal((7, 12, 2)), "table": np.arange(5)}
    parts = together(size, lambda g, be: Ranks(g, be).share(batch, {"steps": 1, "table": None}))
    np.testing.assert_array_equal(np.concatenate([p["x"] for p in parts], 0), batch["x"])
    np.testing.assert_array_equal(np.concatenate([p["steps"] for p in parts], 1), batch["steps"])
    assert all((p["table"] == batch["table"]).all() and p["steps"].flags.c_contiguous for p in parts)


@pytest.mark.parametrize("examples", [1, 5, 0])
def test_examples_that_cannot_be_shared_out_are_an_error(examples):
    [error, _] = together(2, lambda g, be: Ranks(g, be).share({"x": np.zeros((examples, 3))}, {}))
    assert isinstance(error, UsageError) and f"found {examples} examples" in str(error)


def test_means_and_the_state_of_the_first_keep_their_form():
    def work(g, be):
        own = {"a": [duoln.tensor(np.full((2, 3), g.rank + 1, np.float32), be)],
               "step": duoln.tensor(np.array(g.rank + 7, np.int32), be), "empty": duoln.tensor(np.zeros((0, 4), np.float32), be)}
        ranks = Ranks(g, be)
        return ranks.of_first(own), ranks.mean({"a": own["a"]}), ranks.any(g.rank == 1), ranks.any(False)

    for first, mean, some, none in together(2, work):
        assert int(first["step"].numpy()) == 7 and first["step"].dtype == "int32" and first["empty"].shape == (0, 4)
        np.testing.assert_array_equal(first["a"][0].numpy(), np.ones((2, 3), np.float32))
        np.testing.assert_array_equal(mean["a"][0].numpy(), np.full((2, 3), 1.5, np.float32))
        assert (some, none) == (True, False)


class Regression(Task):
    name = "regression"

    def loss(self, model, params, batch):
        return ops.mean(ops.square(model(params, batch["x"]) - batch["y"]))


class Pairs(Regression):
    name = "pairs"

    def loss(self, model, params, batch):
        y = model(params, batch["x"])
        return ops.mean(ops.square(y - ops.permute_dims(y, axes=(1, 0))))


MODEL = nn.Sequential(nn.Linear(3, 8), nn.LayerNorm(8), ops.tanh, nn.Linear(8, 1))


@pytest.mark.parametrize("size", [2, 3])
def test_ranked_steps_are_the_steps_of_one_process(size, numpy_backend, rng):
    optimizer = optim.Adam(learning_rate=1e-2, clip=optim.clip_global_norm(0.1), donate=True)
    batches = [{"x": rng.standard_normal((12, 3)).astype(np.float32), "y": rng.standard_normal((12, 1)).astype(np.float32)}
               for _ in range(5)]

    def walk(be, step, share):
        rate = duoln.tensor(np.float32(1e-2), be)
        state, losses = start_state(MODEL, optimizer, 0, be), []
        for batch in batches:
            state, figures = step(state, duoln.to_tensors(share(batch), be), rate)
            losses.append((float(figures["loss"]), float(figures["gradient_norm"])))
        return losses, [p.numpy() for p in duoln.tree.leaves(state)]

    def ranked(g, be):
        ranks = Ranks(g, be)
        return walk(be, make_ranked_step(Regression(), MODEL, optimizer, ranks), lambda b: ranks.share(b, {}))

    losses, state = walk(numpy_backend, make_step(Regression(), MODEL, optimizer), lambda b: b)
    for found_losses, found_state in (results := together(size, ranked)):
        np.testing.assert_allclose(found_losses, losses, rtol=1e-5)
        for mine, alone, first in zip(found_state, state, results[0][1], strict=True):
            np.testing.assert_allclose(mine, alone, rtol=2e-3, atol=2e-5)
            np.testing.assert_array_equal(mine, first)


def test_a_loss_that_is_no_mean_over_examples_is_refused(rng):
    batch = {"x": rng.standard_normal((8, 3)).astype(np.float32), "y": rng.standard_normal((8, 1)).astype(np.float32)}

    def check(task):
        return together(2, lambda g, be: Ranks(g, be).check_splits(
            task, MODEL, start_state(MODEL, optim.SGD(0.1), 0, be)["params"], batch))

    assert check(Regression()) == [None, None]
    for error in check(Pairs()):
        assert isinstance(error, UsageError) and "pairs of examples" in str(error) and str(error).startswith("[pairs]")


# The engines ------------------------------------------------------------------------------------------------

def test_a_library_without_an_engine_is_told():
    with pytest.raises(UsageError, match="expected a backend of mlx, cupy, found 'numpy'"):
        group.join("numpy", 0, ["127.0.0.1:1"])


@pytest.mark.parametrize("place", ["2", "-1", "x", ""])
def test_a_place_that_is_none_is_told(place, numpy_backend):
    with pytest.raises(UsageError, match="expected DUOLN_RANK between 0 and 1"):
        from_environment(numpy_backend, {"DUOLN_RANK_ADDRESSES": "a:1,b:2", "DUOLN_RANK": place})


@pytest.fixture
def nccl(monkeypatch):
    """The engine for NVIDIA over NumPy arrays and threads."""
    meeting, calls = Together(2), []

    class Communicator:
        def __init__(self, rank):
            self.member, self.rank = meeting.member(rank), rank

        def all_reduce(self, x, total, op):
            assert op == "sum" and x.flags.c_contiguous
            if self.rank in lost:
                raise RuntimeError("NCCL_ERROR_REMOTE_ERROR")
            total[...] = self.member.all_sum(x)

        def stop(self):
            calls.append(("stop", self.rank))

    def init_process_group(size, rank, *, backend, host, port):
        calls.append((size, rank, backend, host, port))
        if host == "nowhere":
            raise ConnectionRefusedError("refused")
        return Communicator(rank)

    lost = set()
    stream = types.SimpleNamespace(synchronize=lambda: None)
    cupy = types.ModuleType("cupy")
    cupy.ascontiguousarray, cupy.empty_like = np.ascontiguousarray, np.empty_like
    cupy.cuda = types.SimpleNamespace(get_current_stream=lambda: stream)
    monkeypatch.setitem(sys.modules, "cupy", cupy)
    monkeypatch.setitem(sys.modules, "cupyx", types.ModuleType("cupyx"))
    monkeypatch.setitem(sys.modules, "cupyx.distributed",
                        types.SimpleNamespace(init_process_group=init_process_group))
    monkeypatch.delitem(sys.modules, "duoln.backends.nccl", raising=False)
    yield types.SimpleNamespace(calls=calls, lost=lost)
    sys.modules.pop("duoln.backends.nccl", None)


def test_nccl_speaks_the_same_three_functions(nccl):
    addresses = ["127.0.0.1:4000", "127.0.0.1:4001"]
    members = [group.join("cupy", k, addresses) for k in range(2)]
    assert nccl.calls == [(2, 0, "nccl", "127.0.0.1", 4000), (2, 1, "nccl", "127.0.0.1", 4000)]
    totals = [None, None]

    def add(k):
        totals[k] = members[k].all_sum(np.arange(6.0).reshape(2, 3).T * (k + 1))

    threads = [threading.Thread(target=add, args=(k,)) for k in range(2)]
    [t.start() for t in threads]
    [t.join() for t in threads]
    for k, total in enumerate(totals):
        np.testing.assert_array_equal(total, np.arange(6.0).reshape(2, 3).T * 3)
        assert (members[k].rank, members[k].size) == (k, 2)
    nccl.lost.add(0)
    with pytest.raises(RankError, match="rank 0 lost another rank: NCCL_ERROR_REMOTE_ERROR"):
        members[0].all_sum(np.ones(3))
    members[1].leave()
    assert nccl.calls[-1] == ("stop", 1)
    with pytest.raises(RankError, match=r"rank 1 of 2 cannot reach the others through nowhere:1"):
        group.join("cupy", 1, ["nowhere:1", "nowhere:2"])


# `duoln run --ranks`, over MLX's ring -------------------------------------------------------------------------

def command(*words, backend="mlx"):
    return [sys.executable, "-m", "duoln", "run", *words, "--preset", "smoke", "--backend", backend]


def run(*words, check=0, backend="mlx"):
    done = subprocess.run(command(*words, backend=backend), capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == check, done.stderr
    return done


def losses(folder):
    return [e["loss"] for e in read_log(folder) if e["event"] == "step"]


def states(folder):
    saved, refused = checkpoint.newest(folder / "checkpoints")
    assert not refused
    return saved


@needs_ring
@pytest.mark.parametrize(("task", "variant", "settings", "ranks"), [
    ("mnist", "ln", ("--batch-size", "100"), 2), ("handwriting", "ln", ("--set", "lines=24"), 2),
    ("mnist", "none", ("--batch-size", "150"), 3)])
def test_ranks_train_as_one_process_does(task, variant, settings, ranks, tmp_path, backend="mlx"):
    words = (task, "--variant", variant, *settings)
    told = run(*words, "--ranks", str(ranks), "--out", str(tmp_path / "more"), "--json", backend=backend)
    run(*words, "--out", str(tmp_path / "one"), backend=backend)
    more, one = (losses(tmp_path / name / variant) for name in ("more", "one"))
    assert len(more) == len(one) > 2
    np.testing.assert_allclose(more, one, rtol=1e-5)
    assert json.loads(told.stdout)["backend"] == backend  # one answer, not one a rank
    assert f"{ranks} on {backend}, each with 1/{ranks} of every batch" in told.stderr


def test_ranks_on_gpus_train_as_one_process_does(tmp_path):
    if "cupy" not in NAMES:
        pytest.skip("needs NVIDIA GPUs: DUOLN_TEST_BACKENDS=cupy")
    import cupy

    if cupy.cuda.runtime.getDeviceCount() < 2:
        pytest.skip("needs two NVIDIA GPUs")
    test_ranks_train_as_one_process_does("mnist", "ln", ("--batch-size", "100"), 2, tmp_path, "cupy")


@needs_ring
@pytest.mark.parametrize(("words", "message"), [
    (("--variant", "bn"), "2 ranks cannot share this variant's batches"),
    (("--variant", "ln", "--batch-size", "125"), "found 125 examples")])
def test_a_variant_that_cannot_be_shared_ends_every_rank(words, message, tmp_path):
    done = run("mnist", *words, "--ranks", "2", "--out", str(tmp_path / "run"), check=2)
    assert done.stderr.count(message) == 1


@pytest.mark.parametrize(("words", "message"), [
    (("--ranks", "0"), "expected --ranks between 1 and 64, found 0"),
    (("--ranks", "2", "--debug-nans"), "--debug-nans wants one process"),
    (("--ranks", "2", "--backend", "numpy"), "found numpy: it has no engine")])
def test_ranks_that_cannot_be_are_usage_errors(words, message, tmp_path, capsys):
    from duoln.cli import main

    assert main(["run", "mnist", "--preset", "smoke", "--out", str(tmp_path), "--backend", "mlx", *words]) == 2
    assert message in capsys.readouterr().err


class Started:
    """A run of two ranks that is under way."""

    def __init__(self, out, *words):
        self.log = out / "ln" / "log.jsonl"
        self.process = subprocess.Popen(command("mnist", "--variant", "ln", "--ranks", "2", "--out", str(out), *words),
                                        stderr=subprocess.PIPE, text=True, start_new_session=True)

    def wait_for_step(self, step):
        until = time.monotonic() + 120
        while time.monotonic() < until and self.process.poll() is None:
            if self.log.exists() and f'"step": {step},' in self.log.read_text():
                return
            time.sleep(0.02)
        pytest.fail(f"no step {step}: {self.process.communicate()[1]}")

    def ranks(self):
        """The processes of the ranks, rank 0 first."""
        found = subprocess.run(["ps", "-o", "pid=", "--ppid", str(self.process.pid)], capture_output=True, text=True,
                               check=False)
        return sorted(int(pid) for pid in found.stdout.split())


LONG = ("--epochs", "400")


@needs_ring
def test_a_rank_that_dies_ends_the_others_and_the_run_goes_on_from_its_checkpoint(tmp_path):
    started = Started(tmp_path, *LONG)
    started.wait_for_step(20)
    first, second = started.ranks()
    os.kill(second, signal.SIGKILL)
    said = started.process.communicate(timeout=60)[1]
    assert started.process.returncode == 1
    assert "rank 1 was killed by SIGKILL; the other ranks were ended" in said and "--resume auto" in said
    with pytest.raises(ProcessLookupError):
        os.kill(first, 0)
    step = states(tmp_path / "ln").step
    assert step >= 15
    run("mnist", "--variant", "ln", "--ranks", "2", "--out", str(tmp_path), "--resume", "auto", "--epochs", str(step // 15 + 1))
    assert states(tmp_path / "ln").step == (step // 15 + 1) * 15


@needs_ring
def test_ctrl_c_stops_every_rank_at_one_step_and_going_on_equals_not_stopping(tmp_path):
    started = Started(tmp_path / "stopped", *LONG)
    started.wait_for_step(17)
    started.process.send_signal(signal.SIGINT)
    said = started.process.communicate(timeout=60)[1]
    assert started.process.returncode == 130 and "go on with --resume auto" in said, said
    stopped = states(tmp_path / "stopped" / "ln").step
    epochs = str(stopped // 15 + 1)
    for folder in ("stopped", "whole"):
        run("mnist", "--variant", "ln", "--ranks", "2", "--out", str(tmp_path / folder), "--epochs", epochs,
            *(["--resume", "auto"] if folder == "stopped" else []))
    mine, whole = (states(tmp_path / folder / "ln") for folder in ("stopped", "whole"))
    assert mine.step == whole.step > stopped - 15
    for name, array in whole.arrays.items():
        np.testing.assert_array_equal(mine.arrays[name], array, err_msg=name)


@needs_ring
@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), pytest.param(signal.SIGHUP, 129, marks=pytest.mark.long)])
def test_what_a_scheduler_sends_reaches_the_ranks(number, code, tmp_path):
    started = Started(tmp_path, *LONG)
    started.wait_for_step(3)
    started.process.send_signal(number)
    said = started.process.communicate(timeout=60)[1]
    assert started.process.returncode == code and "go on with --resume auto" in said, said
    assert states(tmp_path / "ln").step >= 3


@needs_ring
def test_ranks_that_a_signal_ends_before_they_train_have_its_exit_code(tmp_path):
    started = Started(tmp_path, *LONG)
    until = time.monotonic() + 120
    while len(started.ranks()) < 2 and time.monotonic() < until:
        time.sleep(0.01)
    started.process.send_signal(signal.SIGTERM)
    said = started.process.communicate(timeout=60)[1]
    assert started.process.returncode == 143 and "Traceback" not in said, said


@needs_ring
def test_no_rank_outlives_the_command_that_started_it(tmp_path):
    started = Started(tmp_path, *LONG)
    started.wait_for_step(3)
    ranks = started.ranks()
    started.process.kill()
    started.process.communicate(timeout=30)
    until = time.monotonic() + 10
    while time.monotonic() < until and any(_alive(pid) for pid in ranks):
        time.sleep(0.05)
    assert not any(_alive(pid) for pid in ranks)


def _alive(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    with open(f"/proc/{pid}/stat") as stat:
        return stat.read().rpartition(")")[2].split()[0] != "Z"
