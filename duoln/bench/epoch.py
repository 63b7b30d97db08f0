"""One epoch of a task without a run folder: how long it takes and where the loss ends.

    python -m duoln.bench.epoch --task mnist --variant ln --backend cupy --set source=made

prints one JSON object, or writes it to the file that `--json` names. No run folder is written, so it needs no package
for checkpoints or downloads.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from typing import Any

from duoln import runtime
from duoln.backends.protocol import Backend
from duoln.data import strictjson
from duoln.system.filesystem import write_atomically
from duoln.system.paths import path_argument
from duoln.tasks import make_config, parse_settings
from duoln.tasks.registry import find_task
from duoln.training.trainer import Trainer


def measure(name: str, variant: str, preset: str | None, settings: Sequence[str], backend: Backend) -> dict[str, Any]:
    """Train a task for one epoch; its time, its losses and its evaluation."""
    task = find_task(name)
    cfg = make_config(task, variant, preset, parse_settings(settings))
    splits = task.data(cfg)
    trainer = Trainer(task, variant, cfg, splits, backend)
    first = trainer.advance()  # compiles kernels
    started = time.perf_counter()
    losses = [trainer.advance() for _ in range(splits.steps_per_epoch - 1)]
    seconds = time.perf_counter() - started
    return {
        "task": task.name, "variant": variant, "backend": backend.name, "device": backend.device,
        "data": f"{splits.dataset.name} ({splits.dataset.provenance})", "steps": splits.steps_per_epoch,
        "seconds": seconds,
        "us a step": 1e6 * seconds / max(len(losses), 1), "first loss": first, "last loss": ([first, *losses])[-1],
        **trainer.evaluate()}


def main(argv: Sequence[str] | None = None) -> int:
    """Train for one epoch, then print its time and losses."""
    parser = argparse.ArgumentParser(prog="python -m duoln.bench.epoch", description="One epoch of a task, timed.")
    parser.add_argument("--task", required=True)
    parser.add_argument("--variant", required=True)
    parser.add_argument("--preset", metavar="NAME")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", dest="settings")
    parser.add_argument("--quick", action="store_const", const="smoke", dest="preset", help="the preset smoke")
    parser.add_argument("--backend", choices=runtime.CHOICES)
    parser.add_argument("--json", type=path_argument, metavar="FILE")
    args = parser.parse_args(argv)
    backend = runtime.backend(args.backend)
    text = strictjson.dumps(measure(args.task, args.variant, args.preset, args.settings, backend))
    if args.json is None:
        print(text)
    else:
        write_atomically(args.json, f"{text}\n".encode())
    return 0


if __name__ == "__main__":
    sys.exit(main())
