"""Times several sides of a comparison in turns, each in a process of its own.

The speed of a machine changes over time; because the sides take turns, each change affects every side. Before anything
is timed, the sides must agree on what they compute.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import threading
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from duoln import errors
from duoln.bench.clock import events
from duoln.bench.records import ratio
from duoln.errors import DuolnError, MemoryExhaustedError
from duoln.system import processes

KEEP_MEMORY = {"MALLOC_MMAP_THRESHOLD_": str(1 << 30), "MALLOC_TRIM_THRESHOLD_": str(1 << 30)}
"""The allocator settings of duoln's NumPy backend, as variables of glibc, so that a peer can have the same ones."""

_LONGEST_TURN = 3600.0
"""Seconds of the runs of a turn: of the largest tasks they are updates of minutes."""
_LEAST_SECONDS = 1.0

_TOLERANCE = 1e-3
_LATER_TOLERANCE = 1e-2
"""The tolerance of a loss after two updates and more: networks multiply rounding, handwriting of 700 steps to 3e-3."""


class Entry(NamedTuple):
    """One side of a comparison: its name, the request to its process, and the variables that the process gets."""

    name: str
    asked: Mapping[str, Any]
    environment: Mapping[str, str] = {}
    checked: bool = True
    """True if its figures must agree with those of the first side."""


class Side:
    """One process, which makes runs when it is asked to. It starts at once; `prepare` waits until it can."""

    def __init__(self, entry: Entry) -> None:
        self.name, self.checked = entry.name, entry.checked
        self.facts: dict[str, Any] = {}
        library = json.dumps({key: entry.asked.get(key) for key in ("peer", "backend")})
        self._process = subprocess.Popen(
            processes.command("duoln.bench.timed_process", library), text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            env=processes.environment(entry.environment))
        self.samples: list[float] = []
        self.device_samples: list[float] = []
        self._imported = False
        self._asked: Mapping[str, Any] | None = None

    def prepare(self, entry: Entry, seconds: float | None = None) -> None:
        """Let the process prepare this work, and take what it says about itself.

        Args:
            entry: the work, of the same name and environment.
            seconds: how long to wait for it, and for the libraries before it; None for as long as it takes.

        Raises:
            DuolnError: the process has stopped, or takes longer. It has been ended then.
        """
        if not self._imported:
            self._answer(seconds)
            self._imported = True
        self.checked = entry.checked
        if self._asked != entry.asked:  # it may have prepared the same, such as a copy
            self._send(dict(entry.asked))
            self.facts = self._answer(seconds)
            self._asked = entry.asked

    def runs(self, count: int, seconds: float) -> list[float]:
        """The seconds of a call of each of `count` runs, which together may take `seconds`; errors as of `prepare`."""
        self._send(count)
        taken: list[float]
        taken, device_seconds = self._answer(seconds)
        if device_seconds is not None:
            self.device_samples.append(device_seconds)
        return taken

    @property
    def ended(self) -> bool:
        """True if the process has ended."""
        return self._process.poll() is not None

    def close(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.communicate()

    def _send(self, request: dict[str, Any] | int) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{json.dumps(request)}\n")
        self._process.stdin.flush()

    def _answer(self, seconds: float | None) -> Any:
        """The next line of the process. At least one second is left to a process that has said it already."""
        assert self._process.stdout is not None and self._process.stderr is not None
        late = threading.Event()

        def give_up() -> None:
            late.set()
            self._process.kill()

        timer = threading.Timer(max(seconds or 0.0, _LEAST_SECONDS), give_up)
        if seconds is not None:
            timer.start()
        try:
            line = self._process.stdout.readline()
        finally:
            timer.cancel()
        if late.is_set():
            self.close()
            raise DuolnError(f"[bench] {self.name} gave no answer in its time")
        if not line:
            last = self._process.stderr.read().strip().splitlines()[-1:]
            self.close()
            raise DuolnError(f"[bench] {self.name} stopped: {last[0] if last else 'no message'}")
        answer = json.loads(line)
        if isinstance(answer, dict) and "error" in answer:
            self.close()
            raise self._error(answer["error"], answer["message"])
        return answer

    def _error(self, name: str, message: str) -> DuolnError:
        """The error of the other process: duoln's own as it is, another with the name of its class."""
        own = getattr(errors, name, None)
        if name.endswith("MemoryError"):
            return MemoryExhaustedError(f"[bench] {self.name}: no memory left: {message}")
        if isinstance(own, type) and issubclass(own, DuolnError):
            made = own.__new__(own)
            Exception.__init__(made, f"{self.name}: {message}")
            return made
        return DuolnError(f"[bench] {self.name} stopped: {name}: {message}")


class SidePool(dict[str, Side]):
    """Sides by their names. Their processes stay for the next comparison, because it takes seconds to start one.

    Args:
        patience: seconds for which a side may prepare itself, or load its libraries; None for as long as it takes.
        longest: seconds of the runs of a turn.
    """

    def __init__(self, patience: float | None = None, longest: float = _LONGEST_TURN) -> None:
        super().__init__()
        self._patience, self._longest = patience, longest

    def __enter__(self) -> SidePool:
        return self

    def __exit__(self, *error: object) -> None:
        for side in self.values():
            side.close()

    def time(self, entries: Sequence[Entry], rounds: int, runs: int) -> tuple[list[dict[str, Any]], dict[str, str]]:
        """Time the entries in turns. Each gives a row with every sample, and the ratio of the first row's time to its
        own. The second result are the reasons why sides beside the first cannot be timed, by their names.

        All libraries are loaded side by side; nothing prepares itself beside a run that is timed.

        Raises:
            DuolnError: the first side cannot run, or another does not agree with it.
        """
        missing: dict[str, str] = {}
        for entry in entries:
            if entry.name not in self or self[entry.name].ended:
                self[entry.name] = Side(entry)
        for entry in entries:
            try:
                self[entry.name].prepare(entry, self._patience)
            except DuolnError as error:
                if entry is entries[0]:
                    raise
                missing[entry.name] = str(error)
        able = [self[entry.name] for entry in entries if entry.name not in missing]
        while True:
            try:
                return self._take_turns(able, rounds, runs), missing
            except DuolnError as error:
                ended = {side.name: str(error) for side in able if side.ended}
                if not ended or able[0].ended:
                    raise
                missing |= ended  # the others begin again without it
                able = [side for side in able if not side.ended]

    def _take_turns(self, sides: Sequence[Side], rounds: int, runs: int) -> list[dict[str, Any]]:
        for side in sides:
            side.samples, side.device_samples = [], []
        for side in sides[1:]:
            if side.checked:
                check_agreement(sides[0], side)
        for _ in range(rounds):
            for side in sides:
                side.samples.append(statistics.median(side.runs(runs, self._longest)))
        return [{"side": s.name, "samples": s.samples, "facts": s.facts, "ratio": ratio(sides[0].samples, s.samples),
                 **events(s.device_samples, s.facts.get("no_graph"))} for s in sides]


def check_agreement(ours: Any, theirs: Any) -> None:
    """Raises DuolnError unless two sides computed the same figures; those of a training are losses of its updates."""
    pairs = list(zip(ours.facts["checks"], theirs.facts["checks"], strict=True))
    updates = ours.facts.get("is_training", False)
    for k, (a, b) in enumerate(pairs):
        tolerance = _LATER_TOLERANCE if updates and k >= 2 else _TOLERANCE
        if not abs(a - b) <= tolerance * max(abs(a), 1e-3):
            raise DuolnError(f"[bench] figure {k + 1} of {len(pairs)}: duoln has {a:.6g}, {theirs.name} {b:.6g}; "
                             "they do not compute the same thing, so their times mean nothing")

