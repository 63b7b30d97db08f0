"""One side of a comparison, in a process of its own: thread pools and allocators do not disturb each other.

    python -m duoln.bench.worker '{"task": "mnist", "variant": "ln", "settings": {...}, "peer": null}'

prints one line of facts, then for each line `N` on stdin makes N steps and prints their seconds as JSON.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np

CHECKED_STEPS = 5


def main() -> None:
    """Serve steps until stdin ends."""
    asked: dict[str, Any] = json.loads(sys.argv[1])
    step, facts = _prepare(asked)
    losses = [step(k) for k in range(CHECKED_STEPS)]
    print(json.dumps({**facts, "first_losses": losses}), flush=True)
    k = CHECKED_STEPS
    for line in sys.stdin:
        seconds = []
        for _ in range(int(line)):
            started = time.perf_counter()
            step(k)
            seconds.append(time.perf_counter() - started)
            k += 1
        print(json.dumps(seconds), flush=True)


def _prepare(asked: dict[str, Any]) -> tuple[Callable[[int], float], dict[str, Any]]:
    from duoln import runtime
    from duoln.bench.records import machine
    from duoln.randomness import Stream
    from duoln.tasks import make_config
    from duoln.tasks.registry import find_task
    from duoln.train import Trainer

    task = find_task(asked["task"])
    cfg = make_config(task, asked["variant"], asked["preset"], asked["settings"])
    splits = task.data(cfg)
    if asked["peer"] is None:
        backend = runtime.backend(asked["backend"])
        trainer = Trainer(task, asked["variant"], cfg, splits, backend)
        facts = {"side": "duoln", "backend": {"name": backend.name, **backend.info()}, **machine()}
        return lambda k: trainer.advance(), facts
    build = task.peer(asked["peer"])
    start = task.model(cfg).init(Stream(cfg.seed, "init"))
    peer_step, peer_facts = build(cfg, start)

    def step(k: int) -> float:
        batch = splits.train(k)
        return float(np.float32(peer_step(batch)))

    return step, {"side": asked["peer"], **peer_facts, **machine()}


if __name__ == "__main__":
    main()
