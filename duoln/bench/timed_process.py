"""One side of a comparison, in a process of its own, so that it shares no threads and no allocator with the others.

    python -m duoln.bench.timed_process '{"kind": "train", "peer": null, ...}'

prints a line when its libraries are loaded, and a line of facts when it can begin. For each line `N` on stdin it then
pauses, and makes runs that are not timed, so that threads and caches are as in a loop. Then it makes N runs and prints
as JSON their seconds, and the device's own seconds of a run in a graph, or null. For a line like the argument it
prepares that work, and prints its facts. If an error ends it, the last line is {"error": its class, "message": its
words}.
"""

from __future__ import annotations

import json
import sys
import time
from contextlib import AbstractContextManager, nullcontext
from importlib import import_module
from typing import Any

import numpy as np

from duoln import tree
from duoln.bench import clock, language_model, machine
from duoln.bench.attention import prepare as prepare_attention
from duoln.bench.records import Work
from duoln.bench.recurrent import prepare as prepare_recurrent
from duoln.bench.wide import prepare as prepare_wide, prepare_start
from duoln.errors import words_of
from duoln.tasks.task import Task
from duoln.tasks.values import Splits

CHECKED_STEPS = 5
_PAUSE = 0.02
"""Threads of the other side may spin for so many seconds after its last run, on cores that this one needs."""
_WARM, _LONG = 0.02, 1.0
"""Seconds of the runs that are not timed, and of a run that needs none before it."""


def main() -> None:
    """Answer requests until stdin ends, or until an error, which is told in the other process."""
    try:
        _answer()
    except Exception as error:
        print(json.dumps({"error": type(error).__name__, "message": words_of(error)}), flush=True)
        raise


def _answer() -> None:
    asked: dict[str, Any] = json.loads(sys.argv[1])
    _load_libraries(asked)
    print(json.dumps("imported"), flush=True)
    work, device_seconds = _begin(asked)
    k, seconds = work.first, list[float]()
    for line in sys.stdin:
        request = json.loads(line)
        if isinstance(request, dict):
            del work, device_seconds  # their memory
            work, device_seconds = _begin(request)
            k, seconds = work.first, []
            continue
        time.sleep(_PAUSE)
        started = time.perf_counter()
        while max(seconds, default=0.0) < _LONG and time.perf_counter() - started < _WARM:
            work.run(k)
            k += 1
        seconds = []
        for _ in range(request):
            started = time.perf_counter()
            work.run(k)
            seconds.append(time.perf_counter() - started)
            k += 1
        print(json.dumps([seconds, device_seconds and device_seconds()]), flush=True)


def _begin(asked: dict[str, Any]) -> tuple[Work, clock.DeviceSeconds | None]:
    """Prepare the work, and print its facts."""
    prepare = {"rnn": prepare_recurrent, "attention": prepare_attention, "train": prepare_training,
               "step": prepare_step, "language-model": prepare_language_model, "wide": prepare_wide,
               "start": prepare_start}[asked["kind"]]
    work = prepare(asked)
    device_seconds, no_graph = clock.captured(work.capture)
    side = asked["peer"] or "duoln"
    facts = {"side": side, "peak_bytes": machine.peak(), **work.facts, **machine.side(), "warmups": work.warmups,
             "checks": work.checks, "checked_updates": asked["kind"] not in ("rnn", "attention", "wide"),
             "no_graph": no_graph}
    print(json.dumps(facts), flush=True)
    return work, device_seconds


def prepare_language_model(asked: dict[str, Any]) -> Work:
    """The work of one side of `duoln bench language-model`."""
    if asked["peer"] is None:
        return language_model.prepare(asked)
    import_module(asked["peer"])
    from duoln.bench import language_model_torch

    return language_model_torch.prepare(asked)


def _load_libraries(asked: dict[str, Any]) -> None:
    """Load what takes seconds, PyTorch for its sides and the arrays' library with its device for ours."""
    from duoln import runtime

    library = (asked["peer"] or "").partition("-")[0]
    if library in ("torch", "jax"):
        import_module(library)
    else:
        runtime.choose(asked["backend"])


def prepare_training(asked: dict[str, Any]) -> Work:
    """Training steps of a task, ours or a peer's; the checks are the losses of the first steps."""
    from duoln import runtime
    from duoln.training.trainer import Trainer

    if asked["peer"] is not None:
        return prepare_peer(asked)
    task, cfg, splits = of_task(asked)
    backend = runtime.backend(asked["backend"])
    machine.begin_peak()
    trainer = Trainer(task, asked["variant"], cfg, splits, backend)
    losses = [trainer.advance() for _ in range(CHECKED_STEPS)]
    return Work(lambda k: trainer.advance(), losses, {"backend": machine.backend_facts(backend)}, warmups=CHECKED_STEPS)


def prepare_step(asked: dict[str, Any]) -> Work:
    """Training steps of a task alone, without what a run does besides: ours as `form` says, "eager" or "compiled"; or
    a peer's.
    """
    from duoln import core, runtime
    from duoln.training.dropout import TaskDropout
    from duoln.training.train_step import make_step, start_state

    if asked["peer"] is not None:
        return prepare_peer(asked)
    task, cfg, splits = of_task(asked)
    backend = runtime.backend(asked["backend"])
    machine.begin_peak()
    model, optimizer = task.model(cfg), task.optimizer(cfg, splits.updates(cfg.epochs))
    step = make_step(task, model, optimizer)
    step = core.compile(step) if asked["form"] == "compiled" else step
    state, dropout = start_state(model, optimizer, cfg.seed, backend), TaskDropout(task, model, cfg.seed)

    def advance(k: int) -> float:
        nonlocal state
        rate = runtime.tensor(np.float32(optimizer.rate_at(k)), backend)
        state, figures = step(state, runtime.to_tensors(dropout(k, splits.train(k)), backend), rate)
        backend.wait([t.data for t in tree.leaves((state, figures))])
        return float(figures["loss"])

    losses = [advance(k) for k in range(CHECKED_STEPS)]
    return Work(advance, losses, {"backend": machine.backend_facts(backend)}, CHECKED_STEPS, CHECKED_STEPS)


def prepare_peer(asked: dict[str, Any]) -> Work:
    """Training steps of a peer, on CUDA beside CuPy; by `torch.compile` where `form` is "compiled"."""
    from duoln import runtime
    from duoln.bench import operators_torch
    from duoln.randomness import Stream

    task, cfg, splits = of_task(asked)
    make = task.peer(asked["peer"])
    of_torch = asked["peer"].startswith("torch")
    place: AbstractContextManager[Any] = nullcontext()
    if of_torch:  # its libraries are not what a step needs
        ours = asked["backend"] or runtime.choose(None)[0].name
        place = operators_torch.default_device(operators_torch.device_for(ours))
    machine.begin_peak()
    with place:
        train_step, facts = make(cfg, task.model(cfg).init(Stream(cfg.seed, "init")))
    if of_torch and asked.get("form") == "compiled":
        train_step = operators_torch.compiled(train_step)
    losses = [float(train_step(splits.train(k))) for k in range(CHECKED_STEPS)]
    return Work(lambda k: train_step(splits.train(k)), losses, facts, CHECKED_STEPS, CHECKED_STEPS)


def of_task(asked: dict[str, Any]) -> tuple[Task, Any, Splits]:
    """The task, its configuration and its data."""
    from duoln.tasks import make_config
    from duoln.tasks.registry import find_task
    from duoln.tasks.settings import check_config

    task = find_task(asked["task"], asked["plugins"])
    cfg = make_config(task, asked["variant"], asked["preset"], asked["settings"])
    check_config(task, asked["variant"], cfg)
    return task, cfg, task.data(cfg)


if __name__ == "__main__":
    main()
