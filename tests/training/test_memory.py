"""The memory of an update: the estimate before it, compared with the measured memory."""

import re
import resource
import subprocess
import sys
import tracemalloc
import types

import numpy as np
import pytest
from conftest import PATIENCE
from small_runs import Line, fit_into

import duoln
from duoln import nn, ops, runtime, tree
from duoln.core.footprint import kept_bytes
from duoln.distributed.ranks import Ranks
from duoln.errors import MemoryExhaustedError
from duoln.kernels.step.arena import arena
from duoln.randomness import Stream
from duoln.runs.log import read_log
from duoln.system import limits
from duoln.tasks import make_config
from duoln.tasks.registry import find_task
from duoln.testing import check_error
from duoln.training.memory import StepMemory, format_bytes, save_bytes, state_bytes
from duoln.training.trainer import Trainer

MB = 10**6
PAGE = resource.getpagesize()


def test_what_is_kept_is_counted_once_and_without_what_was_given(be):
    w = duoln.tensor(np.ones((8, 8), np.float32), be)
    x = duoln.tensor(np.ones((16, 8), np.float32), be)
    values = 16 * 8 * 4

    def loss(p, x):
        y = ops.exp(x @ p)  # a product keeps its inputs, exp its result
        return ops.sum(y * y)  # keeps y again, twice

    assert values <= kept_bytes(loss, w, x) <= values + 64
    assert kept_bytes(lambda p, x: ops.sum(x @ p), w, x) <= 64


@pytest.mark.parametrize(("arrays", "f"), [
    (0, lambda w: -w), (0, lambda w: w + 1.0), (0, lambda w: (w - w) + w), (0, lambda w: 2.0 * w), (0, lambda w: w / 3.0),
    (0, ops.floor), (1, ops.exp), (1, ops.relu), (1, lambda w: ops.tanh(2.0 * w)), (2, lambda w: ops.sigmoid(2.0 * w)), (1, lambda w: ops.square(w + 1.0)),
    (1, lambda w: 1.0 / (w + 1.0)), (1, lambda w: w * ops.exp(w)), (3, lambda w: ops.sin(w + 1.0) * ops.cos(w))])
def test_an_elementwise_operator_keeps_what_its_slope_is_computed_from(arrays, f, be):
    w = duoln.tensor(np.ones((64, 8), np.float32), be)
    kept = kept_bytes(lambda p: ops.sum(f(p)), w)
    assert min(arrays, 1) * 2048 <= kept <= arrays * (2048 + 64) + 64  # an array may begin on a cache line


def test_a_tape_that_fails_is_closed_and_tells(numpy_backend):
    w = duoln.tensor(np.ones((2, 2), np.float32), numpy_backend)
    with pytest.raises(duoln.errors.ShapeError):
        kept_bytes(lambda p: p @ duoln.tensor(np.ones((3, 1), np.float32), numpy_backend), w)


SIZES = [
    ("mnist", "ln", {"batch_size": "512", "hidden": "400", "source": "made", "rows": "2000"}),
    ("mnist", "bn", {"batch_size": "500", "source": "made", "rows": "2000"}),
    ("draw", "ln", {"batch_size": "100", "glimpses": "8", "hidden": "64", "source": "made", "rows": "200"}),
    ("handwriting", "ln", {"batch_size": "16", "hidden": "48", "length": "40", "source": "made"}),
    ("handwriting", "none", {"batch_size": "16", "hidden": "32", "length": "30", "source": "made"})]


def trainer_of(name, variant, settings, backend, **options):
    task = find_task(name)
    cfg = make_config(task, variant, None, settings)
    return Trainer(task, variant, cfg, task.data(cfg), backend, **options)


@pytest.mark.long
@pytest.mark.parametrize(("name", "variant", "settings"), SIZES)
def test_the_estimate_is_near_the_peak_of_a_step(name, variant, settings, numpy_backend, monkeypatch):
    trainer = trainer_of(name, variant, settings, numpy_backend)
    estimated = trainer.estimate_memory()
    state_bytes = sum(t.data.nbytes for t in tree.leaves(trainer.state))
    for _ in range(2):
        trainer.advance()  # what is made once for all updates is not measured: arrays, and the program of the step
    monkeypatch.setattr(arena, "memory", np.empty(0, np.uint8))  # another step may have left a large one
    tracemalloc.start()
    trainer.advance()
    peak = tracemalloc.get_traced_memory()[1] + state_bytes
    tracemalloc.stop()
    assert estimated.batch_size == trainer.cfg.batch_size
    assert 0.7 < estimated.total / peak < 1.4, (format_bytes(estimated.total), format_bytes(peak))


@pytest.mark.long
def test_mlx_keeps_at_least_what_is_estimated():
    import mlx.core as mx

    trainer = trainer_of(*SIZES[0], runtime.backend("mlx"))
    estimated = trainer.estimate_memory().total
    trainer.advance()
    mx.reset_peak_memory()
    trainer.advance()
    # The rest depends on when MLX's own thread frees memory, and on memory that other tests have left.
    assert estimated < 1.1 * mx.get_peak_memory()


class Whole(Line):
    """A loss that needs its whole batch; the arrays of the batch have different numbers of examples."""

    def loss(self, model, params, batch):
        assert batch["x"].shape[0] == 16
        return super().loss(model, params, batch)


def test_a_task_whose_batches_cannot_be_taken_apart_is_looked_at_as_a_whole(numpy_backend):
    def estimate(task, batch_size=16):
        cfg = task.config(batch_size=batch_size)
        return Trainer(task, "only", cfg, task.data(cfg), numpy_backend).estimate_memory()

    parts, whole = estimate(Line()), estimate(Whole())
    assert (parts.batch_size, whole.batch_size) == (16, 1)
    assert abs(parts.total - whole.total) < 200
    few = estimate(Line(), 4)  # too few to tell what is kept whatever their number
    assert (whole.fixed, few.fixed) == (0, 0) and few.batch_size == 4 and abs(few.per_example - parts.per_example) < 50


NEEDS = StepMemory(state=30 * MB, gradients=10 * MB, batch_size=128, fixed=5 * MB, per_example=MB // 2)


@pytest.mark.parametrize(("free", "fits"), [(1000 * MB, 1910), (109 * MB, 128), (108 * MB, 126), (45 * MB, 0), (0, 0)])
def test_the_largest_batch_is_what_fits(free, fits):
    assert NEEDS.total == 109 * MB and NEEDS.largest_batch(free) == fits


@pytest.mark.parametrize(("free", "advice"), [(5 * MB, "try a smaller model"), (30 * MB, "try a batch_size of [0-9]+ at most")])
def test_a_step_that_is_too_large_is_refused_before_it_is_taken(free, advice, numpy_backend, tmp_path, monkeypatch):
    monkeypatch.setattr(type(numpy_backend), "free_memory", lambda self: free)
    trainer = trainer_of("mnist", "ln", {"batch_size": "1900", "hidden": "500", "source": "made", "rows": "2000"}, numpy_backend)
    with pytest.raises(MemoryExhaustedError, match=f"(?s)mnist ln takes about .*parameters and slots.*are free.*{advice}") as caught:
        fit_into(trainer, tmp_path / "run", numpy_backend)
    assert caught.value.exit_code == 6 and trainer.update == 0
    assert [e["event"] for e in read_log(tmp_path / "run")] == ["start", "end"]


class Wide(Line):
    """Its parameters take nearly all of the memory, however few the examples are."""

    def model(self, cfg):
        return nn.Sequential(nn.Linear(1, 10_000), ops.tanh, nn.Linear(10_000, 1))


@pytest.mark.parametrize(("batch_size", "short", "advice"), [
    (1, 1, "try a smaller model"), (2, 1, "try a batch_size of 1 at most"), (16, 1, "try a batch_size of 15 at most"),
(16, 10 * MB, "try a smaller model")])
@pytest.mark.parametrize("size", [1, 2])
def test_the_advice_is_a_batch_that_is_smaller_and_fits(batch_size, short, advice, size, numpy_backend, monkeypatch):
    """With ranks the advice is of the batch that they share out, in which each has as many examples."""
    task = Wide()
    cfg = task.config(batch_size=size * batch_size)
    ranks = None if size == 1 else Ranks(types.SimpleNamespace(rank=0, size=size), numpy_backend)
    trainer = Trainer(task, "only", cfg, task.data(cfg), numpy_backend, ranks=ranks)
    total = trainer.estimate_memory().total
    monkeypatch.setattr(type(numpy_backend), "free_memory", lambda self: total - short)
    trainer = Trainer(task, "only", cfg, task.data(cfg), numpy_backend, ranks=ranks)
    advice = re.sub("[0-9]+", lambda n: str(size * int(n[0])), advice)
    with pytest.raises(MemoryExhaustedError, match=f"; {advice}$"):
        trainer.estimate_memory()


def test_the_advice_is_never_a_smaller_batch_where_the_batch_is_not_what_takes_the_memory():
    needs = NEEDS._replace(per_example=0)
    assert (needs.largest_batch(45 * MB), needs.largest_batch(45 * MB - 1)) == (128, 0)


def test_a_run_logs_what_its_steps_take(numpy_backend, tmp_path):
    task = Line()
    cfg = task.config()
    trainer = Trainer(task, "only", cfg, task.data(cfg), numpy_backend)
    fit_into(trainer, tmp_path, numpy_backend)
    [told] = [e for e in read_log(tmp_path) if e["event"] == "memory"]
    assert told["step_bytes"] == trainer.estimate_memory().total > 0


def test_free_memory_is_a_number_of_bytes(be, tmp_path):
    assert 10 * MB < be.free_memory() < 1 << 50
    facts = tmp_path / "meminfo"
    facts.write_text("MemTotal:       100 kB\nMemAvailable:    7 kB\n")
    assert limits.free_memory(facts) == 7 * 1024
    assert limits.free_memory(tmp_path / "none") > 10 * MB


def _free_of_host(monkeypatch, *amounts):
    """The host's free memory at each look; the last one from then on."""
    left = list(amounts)
    monkeypatch.setattr(limits, "free_memory", lambda: left.pop(0) if len(left) > 1 else left[0])


def _wide_trainer(numpy_backend):
    task = Wide()
    cfg = task.config()
    return Trainer(task, "only", cfg, task.data(cfg), numpy_backend)


def test_a_save_that_is_too_large_is_refused_before_the_first_step(numpy_backend, tmp_path, monkeypatch):
    needed = save_bytes(_wide_trainer(numpy_backend).state)
    monkeypatch.setattr(type(numpy_backend), "free_memory", lambda self: 1 << 40)
    _free_of_host(monkeypatch, needed - 1)
    trainer = _wide_trainer(numpy_backend)
    with pytest.raises(MemoryExhaustedError, match=r"line only takes about .* while a checkpoint is saved.*are free") as caught:
        fit_into(trainer, tmp_path / "run", numpy_backend)
    assert caught.value.exit_code == 6 and trainer.update == 0 and not (tmp_path / "run" / "checkpoints").exists()
    _free_of_host(monkeypatch, needed)
    assert _wide_trainer(numpy_backend).estimate_memory().total > 0


def test_what_the_state_has_taken_is_not_counted_twice(numpy_backend, monkeypatch):
    """It was free before the state was made, and is not at the first step; a resumed run has taken all of it."""
    state = state_bytes(_wide_trainer(numpy_backend).state)
    needed = max(save_bytes(_wide_trainer(numpy_backend).state), _wide_trainer(numpy_backend).estimate_memory().total)
    _free_of_host(monkeypatch, needed, needed, needed - state)
    assert _wide_trainer(numpy_backend).estimate_memory().total > 0
    _free_of_host(monkeypatch, needed, needed, needed - state - 1)  # another program has taken some
    with pytest.raises(MemoryExhaustedError):
        _wide_trainer(numpy_backend).estimate_memory()


@pytest.mark.parametrize("draw", [lambda s: s.uniform((1 << 13, 1 << 13)), lambda s: s.gaussian(1 << 26), lambda s: s.integers(9, 1 << 26)])
def test_numbers_that_do_not_fit_are_not_drawn(draw, monkeypatch):
    _free_of_host(monkeypatch, 1 << 30)
    check_error(MemoryExhaustedError, lambda: draw(Stream(0, "x")), "Stream.", "1024 MiB that are free", "1280 MiB")


@pytest.mark.parametrize(("allowed", "left"), [((1 << 20, -1), (1 << 20) - 100 * PAGE), ((-1, 1 << 20), (1 << 20) - 6 * PAGE), ((PAGE, 1 << 20), 0)])
def test_the_limits_of_a_process_count(allowed, left, tmp_path, monkeypatch):
    pages = tmp_path / "statm"
    pages.write_text("100 50 9 4 0 6 0\n")
    monkeypatch.setattr(limits, "_PAGES", pages)
    of = dict(zip((resource.RLIMIT_AS, resource.RLIMIT_DATA), allowed, strict=True))
    monkeypatch.setattr(resource, "getrlimit", lambda which: (of[which], of[which]))
    assert limits.free_memory() == left
    pages.unlink()
    assert limits.free_memory() > 1 << 20  # a sandbox hides the file


_NARROW = """
import resource, sys
from pathlib import Path
import numpy as np
import duoln
from duoln.errors import CheckpointError, MemoryExhaustedError
file, values = Path(sys.argv[1]), {"w": np.ones(30_000_000, np.float32)}
duoln.save(file, values)
duoln.load_arrays(file)
taken = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (taken + 180_000_000, resource.RLIM_INFINITY))
for error, call in ((MemoryExhaustedError, lambda: duoln.save(file, values)), (CheckpointError, lambda: duoln.load_arrays(file))):
    try:
        call()
    except error as failure:
        print(failure)
"""


@pytest.mark.long
@pytest.mark.skipif(sys.platform != "linux", reason="other systems do not hold a process to its limits")
def test_a_file_that_does_not_fit_is_told_and_does_not_end_the_process(tmp_path):
    """The library that writes and reads it panics where it gets no memory."""
    done = subprocess.run([sys.executable, "-c", _NARROW, str(tmp_path / "x.safetensors")], capture_output=True, text=True,
                          check=True, timeout=PATIENCE)
    save, load = done.stdout.splitlines()
    assert "[save] no memory left" in save and "does not fit into the memory" in load
    assert list(duoln.load(tmp_path / "x.safetensors")) == ["w"]  # what was there


@pytest.mark.parametrize(("count", "text"), [(0, "0 bytes"), (999, "999 bytes"), (48_400_000, "48.4 MB"), (1500, "1.5 kB"),
                                             (3 * 10**12, "3,000 GB")])
def test_sizes_are_for_people(count, text):
    assert format_bytes(count) == text
