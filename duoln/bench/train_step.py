"""Our training step beside a peer's: same weights, same batches, turn by turn in one run.

Each side runs in a process of its own and the sides take turns, so the machine's moods meet both. Before
anything is timed, the losses of the first steps must agree.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from duoln.bench.records import ratio, spread
from duoln.errors import DuolnError

KEEP_MEMORY = {"MALLOC_MMAP_THRESHOLD_": str(1 << 30), "MALLOC_TRIM_THRESHOLD_": str(1 << 30)}
"""glibc's form of what duoln's NumPy backend asks of its allocator: a peer gets the same."""

_LOSS_TOLERANCE = 1e-3


class Side:
    """One process that makes steps when told to."""

    def __init__(self, name: str, asked: Mapping[str, Any], environment: Mapping[str, str]) -> None:
        self.name = name
        self._process = subprocess.Popen(
            [sys.executable, "-m", "duoln.bench.worker", json.dumps(asked)], text=True, stdin=subprocess.PIPE,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, env={**os.environ, **environment})
        self.samples: list[float] = []
        try:
            self.facts: dict[str, Any] = self._answer()
        except DuolnError:
            self.close()
            raise

    def steps(self, count: int) -> list[float]:
        """Seconds of each of `count` steps."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{count}\n")
        self._process.stdin.flush()
        seconds: list[float] = self._answer()
        return seconds

    def close(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.communicate()

    def _answer(self) -> Any:
        assert self._process.stdout is not None and self._process.stderr is not None
        line = self._process.stdout.readline()
        if not line:
            last = self._process.stderr.read().strip().splitlines()[-1:]
            raise DuolnError(f"[bench] {self.name} stopped: {last[0] if last else 'no message'}")
        return json.loads(line)


def compare(asked: Mapping[str, Any], peers: Sequence[str], rounds: int, steps: int) -> dict[str, Any]:
    """Time duoln and its peers; a record with every sample and the ratios.

    A peer appears twice: with the allocator settings that duoln uses, and as installed.

    Raises:
        DuolnError: a side cannot run, or its losses differ from ours.
    """
    sides: list[Side] = []
    try:
        sides.append(Side("duoln", {**asked, "peer": None}, {}))
        for peer in peers:
            for suffix, environment in (("", KEEP_MEMORY), (" as installed", {})):
                sides.append(Side(peer + suffix, {**asked, "peer": peer}, environment))
        for side in sides[1:]:
            _check_losses(sides[0], side)
        for _ in range(rounds):
            for side in sides:
                side.samples.append(spread(side.steps(steps))["median"])
    finally:
        for side in sides:
            side.close()
    rows = [{"name": s.name, "samples": s.samples, "facts": s.facts, **spread(s.samples)} for s in sides]
    for row in rows:
        row["ratio"] = ratio(rows[0], row)
    return {"kind": "train step", "asked": dict(asked), "rounds": rounds, "steps_per_round": steps, "rows": rows}


def _check_losses(ours: Side, theirs: Side) -> None:
    for k, (a, b) in enumerate(zip(ours.facts["first_losses"], theirs.facts["first_losses"], strict=True)):
        if abs(a - b) > _LOSS_TOLERANCE * abs(a):
            raise DuolnError(f"[bench] step {k + 1}: duoln's loss is {a:.6f}, {theirs.name}'s {b:.6f}; "
                             "they do not compute the same thing, so their times mean nothing")
