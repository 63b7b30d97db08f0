"""Several comparisons, whose sides start together: a process that loads PyTorch and a device takes seconds.

Sides are timed only when all that were started together are ready or have been given up, so that nothing compiles
beside a run that is timed.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from duoln.bench.turns import Entry, Side, take_turns
from duoln.errors import DuolnError

_IMPORT_SECONDS = 60.0
"""For which all sides may load their libraries: the first time, from a disk that nobody has read, that takes long."""
_TURN_SECONDS = 20.0


class Comparison(NamedTuple):
    """Our side and others, which may be missing: what a peer's compiler cannot do is a result."""

    name: str
    entries: Sequence[Entry]
    case: Callable[[Mapping[str, Any]], dict[str, Any]]
    """What a row of `turns.time_in_turns` is in a record, beside its times."""


class Timed(NamedTuple):
    """What came of a comparison."""

    comparison: Comparison
    rows: list[dict[str, Any]]
    """As `turns.time_in_turns` gives them; none if our side failed."""
    missing: dict[str, str]
    """The reason for each side that did not run, by its name."""


def time_comparisons(comparisons: Sequence[Comparison], rounds: int, runs: int, patience: float) -> Iterator[Timed]:
    """Time each comparison, in turns between its sides.

    Args:
        comparisons: what to time.
        rounds: turns of each side.
        runs: runs in a turn.
        patience: seconds for which a side may prepare itself.
    """
    for group in _groups(comparisons, os.cpu_count() or 1):
        print(f"starting {', '.join(comparison.name for comparison in group)}", flush=True)
        started = [(comparison, [Side(entry) for entry in comparison.entries]) for comparison in group]
        missing: dict[Side, str] = {}
        try:
            for wait, seconds in ((Side.imported, _IMPORT_SECONDS), (Side.ready, patience)):
                until = time.monotonic() + seconds
                for _, sides in started:
                    missing |= _given_up([side for side in sides if side not in missing], wait, until)
            for comparison, sides in started:
                print(f"timing {comparison.name}", flush=True)
                yield _timed(comparison, sides, missing, rounds, runs)
        finally:
            for _, sides in started:
                for side in sides:
                    side.close()


def _groups(comparisons: Sequence[Comparison], cores: int) -> Iterator[list[Comparison]]:
    """Comparisons whose sides start together: at most one side for each core, and at least one comparison."""
    group: list[Comparison] = []
    for comparison in comparisons:
        if group and sum(len(c.entries) for c in [*group, comparison]) > cores:
            yield group
            group = []
        group.append(comparison)
    if group:
        yield group


def _given_up(sides: Sequence[Side], wait: Callable[[Side, float], None], until: float) -> dict[Side, str]:
    """The sides for which nobody waits any more, and why."""
    missing = {}
    for side in sides:
        try:
            wait(side, until - time.monotonic())
        except DuolnError as error:
            missing[side] = str(error)
    return missing


def _timed(comparison: Comparison, sides: Sequence[Side], missing: Mapping[Side, str], rounds: int, runs: int) -> Timed:
    """What comes of a comparison. Where a side ends while it is timed, the others begin again without it."""
    reasons = {side.name: missing[side] for side in sides if side in missing}
    able = [side for side in sides if side not in missing]
    if sides[0] in missing:
        return Timed(comparison, [], reasons)
    try:
        return Timed(comparison, take_turns(able, rounds, runs, _TURN_SECONDS), reasons)
    except DuolnError as error:
        ended = {side: str(error) for side in able if side.ended}
        if ended:
            return _timed(comparison, sides, {**missing, **ended}, rounds, runs)
        return Timed(comparison, [], {**reasons, comparison.name: str(error)})
