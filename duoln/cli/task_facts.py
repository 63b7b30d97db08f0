"""Facts about a task for `duoln list`: whether its data are there, and how long a preset takes."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from duoln.errors import UsageError

if TYPE_CHECKING:
    from duoln.tasks.task import Task

PRESET = "small"


def states_of_data(task: Task) -> dict[str, str]:
    """For each corpus of a task "here", "not here", or "incomplete" where some of its files are missing."""
    return {name: _state(corpus) for name, corpus in task.corpora.items()}


def _state(corpus: Sequence[Sequence[str]]) -> str:
    from duoln.data import locate
    from duoln.errors import DataError

    state = "not here"
    for files in corpus:
        try:
            if locate(files) is not None:
                return "here"
        except DataError:
            state = "incomplete"
    return state


def seconds_of_small(task: Task) -> tuple[float | None, set[str]]:
    """The median training time of one variant by the preset "small", of the runs that are kept, and on which devices.

    It is None where no run of these settings is kept.
    """
    results = list(_results_of_small(task))
    devices = {start["backend"]["device"] for result in results for start in result["starts"]}
    times = [result["epochs"] * result["seconds_per_epoch"] for result in results]
    return (statistics.median(times) if times else None), devices


def _results_of_small(task: Task) -> Iterator[dict[str, Any]]:
    from duoln.runs import kept
    from duoln.runs.folder import read_json
    from duoln.runs.places import CONFIG, RESULT
    from duoln.tasks import make_config
    from duoln.tasks.settings import through_json

    if PRESET not in task.presets:
        return
    try:
        wanted = {name: through_json(make_config(task, name, PRESET, {"seed": 0})) for name in task.variants}
    except UsageError:  # `duoln run` tells what is wrong with the preset
        return
    for path in sorted(kept.home(task).glob(f"*/*/{CONFIG}")):
        run = read_json(path)
        settings = wanted.get(run["variant"], {})  # a kept run may have settings that are constants today
        if settings and all({**run["config"], "seed": 0}.get(key) == value for key, value in settings.items()):
            yield read_json(path.parent / RESULT)
