"""Times rows of the table one after the other, each beside its peers and a copy, and keeps the record of all."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from duoln.backends.protocol import Backend
from duoln.bench import groups, in_duoln
from duoln.bench.records import make_case, make_record
from duoln.bench.row import Row
from duoln.bench.turns import KEEP_MEMORY, Entry, SidePool
from duoln.errors import DuolnError
from duoln.kernels import device_limits

COPY = "copy"


class Plan(NamedTuple):
    """A row that is timed: its group, its values, and the peers beside ours."""

    group: str
    row: Mapping[str, Any]
    peers: Sequence[str] = ()

    def entries(self, row: Row, backend: Backend) -> list[Entry]:
        """The sides. A copy takes turns with them, because the speed of a machine changes: on a CPU one of NumPy's
        arrays, whichever library computes.
        """
        asked = {"group": self.group, "row": dict(self.row), "backend": backend.name, "peer": None}
        copied = {**asked, "group": COPY, "row": {"shape": list(groups.COPIED)}}
        others = [Entry(side.name, {**asked, **side.asked}, KEEP_MEMORY if "peer" in side.asked else {}, side.checked)
                  for side in row.sides(list(dict.fromkeys(self.peers)))]
        return [Entry("duoln", asked), *others,
                Entry(COPY, {**copied, "backend": "numpy"} if on_cpu(backend) else copied, checked=False)]


class Bench:
    """The timing of some rows.

    Args:
        kind: of the record.
        backend: where duoln computes.
        say: takes lines of progress.
        label: the machine's name; None for one that is made of its facts.
        sides: of all rows.
    """

    def __init__(self, kind: str, backend: Backend, say: Callable[[str], None], label: str | None,
                 sides: SidePool) -> None:
        self._kind, self._backend, self._say, self._label, self._sides = kind, backend, say, label, sides
        self._copied: list[float] = []
        self._copy: dict[str, Any] = {}
        self.cases: list[dict[str, Any]] = []
        self.missing: dict[str, str] = {}
        self.error: DuolnError | None = None
        """That of the last row that could not be timed."""

    def time(self, plans: Sequence[Plan], rounds: int, runs: int, save: Callable[[dict[str, Any]], None]) -> None:
        """Time some rows, and save the record after each. A row that fails is told, and loses no other one."""
        for k, plan in enumerate(plans):
            row = groups.row_of(plan._asdict())
            self._say(f"{row.name} ({k + 1} of {len(plans)})")
            turns, each = (rounds, runs) if row.rounds is None else (min(rounds, row.rounds), 1)
            try:
                sides, missing = self._sides.time(plan.entries(row, self._backend), turns, each)
                self._add(row, sides, missing, each)
            except DuolnError as error:
                self.error, missing = error, {"duoln": str(error)}
            for name, why in missing.items():
                self._say(f"{row.name}: {name} was not timed: {why}")
                self.missing[f"{row.name}, {name}"] = why
            if self.cases:
                save(self.record())

    def _add(self, row: Row, sides: Sequence[dict[str, Any]], missing: Mapping[str, str], runs: int) -> None:
        if COPY in missing and not self._copied:
            raise DuolnError(missing[COPY])
        copied = [side for side in sides if side["side"] == COPY]
        for side in copied:
            self._copied += side["samples"]
            self._copy = side
        seconds = [second for side in copied for second in side["samples"]] or self._copied
        self.cases += [make_case(row, side, _copied_gbps(seconds), runs=runs) for side in sides if side["side"] != COPY]

    @property
    def gbps(self) -> float:
        """The bandwidth of all copies so far."""
        return _copied_gbps(self._copied)

    def record(self) -> dict[str, Any]:
        """The record so far."""
        side = {**self._copy, "side": "duoln", "samples": self._copied, "ratio": 1.0}
        of_copy = make_case(groups.copy(), side, self.gbps)
        made = make_record(self._kind, self._backend, self._label, self.gbps, [of_copy, *self.cases])
        return {**made, **({"missing": self.missing} if self.missing else {})}


def _copied_gbps(seconds: Sequence[float]) -> float:
    return 8 * groups.COPIED[0] * groups.COPIED[1] / statistics.median(seconds) / 1e9


def on_cpu(backend: Backend) -> bool:
    """True if a backend computes on the CPU: NumPy always, MLX where it has no GPU."""
    return backend.name == "numpy" or not getattr(backend, "on_gpu", True)


def copy_words(gbps: float, backend: Backend) -> str:
    """The bandwidth of a copy, and on a CPU who copies, where it makes a difference."""
    if not on_cpu(backend):
        return f"a copy, {gbps:.1f} GB/s"
    if in_duoln.streams():
        return f"a streaming copy, {gbps:.1f} GB/s"
    return f"NumPy's copy, {gbps:.1f} GB/s (no limit: it reads what it overwrites; nothing is compiled, because " \
           f"{device_limits.streaming_refusal()})"
