"""Several comparisons, whose sides start together: a process that loads PyTorch and a device takes seconds.

Sides are timed only when all that were started together are ready or have been given up, so that nothing compiles
beside a run that is timed.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from duoln.bench.turns import Entry, Side, take_turns
from duoln.errors import DuolnError

Rows = list[dict[str, Any]]


class Comparison(NamedTuple):
    """Our side and others."""

    name: str
    entries: Sequence[Entry]
    optional: Sequence[str] = ()
    """The names of sides that may be missing: what a peer's compiler cannot do is a result."""


class Timed(NamedTuple):
    """What came of a comparison."""

    comparison: Comparison
    rows: Rows
    """As `turns.time_in_turns` gives them; none if our side or one that is not optional failed."""
    missing: dict[str, str]
    """The reason for each side that did not run, by its name."""


def time_comparisons(comparisons: Sequence[Comparison], rounds: int, runs: int, patience: float,
                     say: Callable[[str], None]) -> Iterator[Timed]:
    """Time each comparison, in turns between its sides.

    Args:
        comparisons: what to time.
        rounds: turns of each side.
        runs: runs in a turn.
        patience: seconds for which a side may prepare itself.
        say: takes lines of progress.
    """
    for group in _groups(comparisons, os.cpu_count() or 1):
        say(f"starting {', '.join(comparison.name for comparison in group)}")
        started = [(comparison, [Side(entry) for entry in comparison.entries]) for comparison in group]
        until = time.monotonic() + patience
        try:
            ready = [(comparison, *_ready(sides, until)) for comparison, sides in started]
            for comparison, sides, missing in ready:
                say(f"timing {comparison.name}")
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


def _ready(sides: Sequence[Side], until: float) -> tuple[list[Side], dict[str, str]]:
    """The sides that are ready at a time, and why others are not."""
    able, missing = [], {}
    for side in sides:
        try:
            side.ready(until - time.monotonic())
        except DuolnError as error:
            missing[side.name] = str(error)
        else:
            able.append(side)
    return able, missing


def _timed(comparison: Comparison, sides: list[Side], missing: dict[str, str], rounds: int, runs: int) -> Timed:
    if any(name not in comparison.optional for name in missing):
        return Timed(comparison, [], missing)
    try:
        return Timed(comparison, take_turns(sides, rounds, runs), missing)
    except DuolnError as error:
        return Timed(comparison, [], {**missing, comparison.name: str(error)})
