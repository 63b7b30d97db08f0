"""The rows of `duoln bench` that are steps of a task, ours or a peer's, or a process's first step."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping
from contextlib import nullcontext
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from duoln import core, runtime, tree
from duoln.bench import in_torch, machine
from duoln.bench.clock import Work
from duoln.bench.row import Row
from duoln.bench.wide import FIRST
from duoln.randomness import Stream
from duoln.system import processes
from duoln.tasks import make_config
from duoln.tasks.registry import find_task
from duoln.tasks.task import Task
from duoln.tasks.values import Splits
from duoln.training.train_step import TaskDropout, make_step, start_state

CHECKED_STEPS = 5


def prepare(row: Row, asked: Mapping[str, Any]) -> Work:
    """The work of one side; the checks are the losses of the first steps."""
    if asked["group"] == "wide":
        return _start(asked)
    task, cfg, splits = of_task(asked["row"])
    step = _ours if asked["peer"] is None else _peer
    work = step(task, cfg, splits, asked)
    losses = [work.call(k)[0] for k in range(CHECKED_STEPS)]
    facts = {**work.facts, "peak_bytes": machine.peak()}
    return work._replace(checks=losses, facts=facts, first=CHECKED_STEPS, is_training=True)


def of_task(row: Mapping[str, Any]) -> tuple[Task, Any, Splits]:
    """The task, its configuration and its data."""
    task = find_task(row["task"], row.get("plugins"))
    cfg = make_config(task, row["variant"], row["preset"], row["settings"])
    return task, cfg, task.data(cfg)


def _ours(task: Task, cfg: Any, splits: Splits, asked: Mapping[str, Any]) -> Work:
    """A step without what a run does besides; compiled, if its form is not "eager"."""
    backend = runtime.choose(asked["backend"])[0]
    machine.begin_peak()
    model, optimizer = task.model(cfg), task.optimizer(cfg, splits.updates(cfg.epochs))
    step = make_step(task, model, optimizer)
    step = step if asked.get("form") == "eager" else core.compile(step)
    state, dropout = start_state(model, optimizer, cfg.seed, backend), TaskDropout(task, model, cfg.seed)

    def call(k: int) -> list[float]:
        nonlocal state
        rate = runtime.tensor(np.float32(optimizer.rate_at(k)), backend)
        state, figures = step(state, runtime.to_tensors(dropout(k, splits.train(k)), backend), rate)
        backend.wait([t.data for t in tree.leaves((state, figures))])
        return [float(figures["loss"])]

    return Work(call, [], {"backend": machine.backend_facts(backend)})


def _peer(task: Task, cfg: Any, splits: Splits, asked: Mapping[str, Any]) -> Work:
    """A peer's step, on CUDA beside CuPy; by `torch.compile` where its form is "compiled"."""
    make, of_torch = task.peer(asked["peer"]), asked["peer"].startswith("torch")
    place = in_torch.default_device(in_torch.device_for(runtime.choose(asked["backend"])[0].name)) if of_torch else \
        nullcontext()
    machine.begin_peak()
    with place:
        step, facts = make(cfg, task.model(cfg).init(Stream(cfg.seed, "init")))
    if asked.get("form") == "compiled":
        step = in_torch.compiled(step)
    return Work(lambda k: [float(step(splits.train(k)))], [], dict(facts))


def _start(asked: Mapping[str, Any]) -> Work:
    """Starts of a process that makes a first step. Ours finds no compiled kernel."""
    words = [json.dumps({**asked, "row": {"name": FIRST}})] * 2

    def call(k: int) -> list[Any]:
        with TemporaryDirectory() as folder:
            subprocess.run(processes.command("duoln.bench.timed_process", *words), stdin=subprocess.DEVNULL,
                           stdout=subprocess.DEVNULL, check=True, env=processes.environment({"DUOLN_KERNELS": folder}))
        return []

    return Work(call, [], {})
