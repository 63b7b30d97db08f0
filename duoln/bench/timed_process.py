"""One side of a comparison, in a process of its own, so that it shares no threads and no allocator with the others.

    python -m duoln.bench.timed_process '{"kind": "train", "peer": null, ...}'

prints one line of facts. For each line `N` on stdin it then makes N runs and prints their seconds as JSON.
"""

from __future__ import annotations

import json
import sys
import time
from importlib import import_module
from typing import Any

from duoln.bench import machine, peak
from duoln.bench.records import Work
from duoln.bench.recurrent import prepare as prepare_recurrent

CHECKED_STEPS = 5


def main() -> None:
    """Answer requests until stdin ends."""
    asked: dict[str, Any] = json.loads(sys.argv[1])
    work = (prepare_recurrent if asked["kind"] == "rnn" else prepare_training)(asked)
    side = asked["peer"] or "duoln"
    facts = {"side": side, **work.facts, **machine.side(), "warmups": work.warmups, "checks": work.checks,
             "checked_updates": asked["kind"] == "train", "peak_bytes": peak.above()}
    print(json.dumps(facts), flush=True)
    k = work.first
    for line in sys.stdin:
        seconds = []
        for _ in range(int(line)):
            started = time.perf_counter()
            work.run(k)
            seconds.append(time.perf_counter() - started)
            k += 1
        print(json.dumps(seconds), flush=True)


def prepare_training(asked: dict[str, Any]) -> Work:
    """Training steps of a task, ours or a peer's; the checks are the losses of the first steps."""
    from duoln import runtime
    from duoln.randomness import Stream
    from duoln.tasks import make_config
    from duoln.tasks.registry import find_task
    from duoln.training.trainer import Trainer

    task = find_task(asked["task"], asked["plugins"])
    cfg = make_config(task, asked["variant"], asked["preset"], asked["settings"])
    splits = task.data(cfg)
    if asked["peer"] is None:
        backend = runtime.backend(asked["backend"])
        peak.begin()
        trainer = Trainer(task, asked["variant"], cfg, splits, backend)
        losses = [trainer.advance() for _ in range(CHECKED_STEPS)]
        return Work(lambda k: trainer.advance(), losses, {"backend": machine.backend_facts(backend)},
                    warmups=CHECKED_STEPS)
    make = task.peer(asked["peer"])
    if asked["peer"].startswith("torch"):  # its libraries are not what a step needs
        import_module("torch")
    peak.begin()
    train_step, facts = make(cfg, task.model(cfg).init(Stream(cfg.seed, "init")))
    losses = [float(train_step(splits.train(k))) for k in range(CHECKED_STEPS)]
    return Work(lambda k: train_step(splits.train(k)), losses, facts, CHECKED_STEPS, CHECKED_STEPS)


if __name__ == "__main__":
    main()
