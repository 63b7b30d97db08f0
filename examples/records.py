"""Records of an example's runs: their file, and the median and range over the seeds in tables and pictures."""

from __future__ import annotations

import argparse
import json
import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from inspect import signature
from pathlib import Path
from typing import Any, TypeVar

from duoln.data import read_json
from duoln.errors import DataFormatError
from duoln.extend import Backend
from duoln.pictures.drawing import can_draw
from duoln.runs.commit import commit_words, git
from duoln.system.filesystem import make_folder, write_own
from duoln.system.paths import path_argument

R = TypeVar("R")
_MOST_BYTES = 1 << 24
ADDING = "the adding problem, synthetic"


def write(record: Any, path: Path, draw: Callable[[Any, Path], Path] | None = None, **findings: Any) -> list[Path]:
    """Write a record and, with `draw` where matplotlib is installed, its picture; returns the paths.

    A record is a NamedTuple with `runs`, which get a line each. A loss that is not finite becomes null. `findings`
    of the runs make the file one that `duoln paper` reads.
    """
    make_folder(path.parent)
    if findings:
        findings = {"analysis": path.stem, "time": datetime.now(UTC).isoformat(timespec="seconds"), **findings}
    head = "".join(f'"{key}": {json.dumps(value)},\n' for key, value in {**findings, **record._asdict()}.items()
                   if key != "runs")
    runs = [{**run._asdict(), "seconds": round(run.seconds, 1),
             "losses": [loss if math.isfinite(loss) else None for loss in run.losses]} for run in record.runs]
    content = f'{{{head}"runs": [\n' + ",\n".join(map(json.dumps, runs)) + "\n]}\n"
    write_own(path, content.encode())
    return [path, draw(record, path.with_suffix(".png"))] if draw and can_draw() else [path]


def read(path: Path, record: Callable[..., R], run: Callable[..., Any]) -> R:
    """A record from its file.

    Args:
        path: the file.
        record, run: the classes of the record and of its runs.

    Raises:
        DataError: the file is missing or damaged.
    """
    content = read_json(path, _MOST_BYTES)
    try:
        runs = [run(**{**each, "losses": [math.nan if loss is None else float(loss) for loss in each["losses"]]})
                for each in content["runs"]]
        return record(**{key: content[key] for key in signature(record).parameters if key != "runs"}, runs=runs)
    except (KeyError, TypeError, ValueError) as error:
        raise DataFormatError(path, 0, "a record of runs", f"{type(error).__name__}: {error}") from error


def provenance(backend: Backend) -> str:
    """The commit of the code and the machine, which a run notes."""
    return f"commit {commit_words(git())}, {backend.device}"


def best(tried: Mapping[float, float]) -> float:
    """The rate of the lowest of some last losses, by their rates."""
    return min(tried, key=lambda rate: math.inf if math.isnan(tried[rate]) else tried[rate])


def parser(name: str, text: str | None) -> argparse.ArgumentParser:
    """The parser of an example's command, with `--seeds` and `--out`; `text` is the docstring of its module."""
    made = argparse.ArgumentParser(prog=f"python -m duoln.examples.{name}", description=text,
                                   formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--seeds", type=int, default=1, metavar="N", help="from the seeds 0 to N - 1 (default 1)")
    made.add_argument("--out", type=path_argument, default=Path(f"runs/{name}"), metavar="DIR",
                      help=f"default: runs/{name}")
    return made


def spread(values: Sequence[float], form: str) -> str:
    """The median of some values with the least and the greatest one, for a table; one value alone."""
    middle = f"{statistics.median(values):{form}}"
    return middle if len(values) == 1 else f"{middle} ({min(values):{form}}-{max(values):{form}})"


def draw_range(panel: Any, updates: Sequence[int], losses: Sequence[Sequence[float]], **line: Any) -> None:
    """Draw the median of the seeds' losses as a line, and their range as an area. `line` goes to `plot`."""
    columns = list(zip(*losses, strict=True))
    panel.plot(updates, [statistics.median(column) for column in columns], linewidth=2, **line)
    panel.fill_between(updates, [min(column) for column in columns], [max(column) for column in columns],
                       color=line["color"], alpha=0.2, linewidth=0)
    panel.spines[["top", "right"]].set_visible(False)


def add_title(figure: Any, panel: Any, text: str, seeds: int, height: float) -> None:
    """Write the title, and the legend of a panel's lines below it, above all panels of a figure of `height` inches."""
    figure.legend(*panel.get_legend_handles_labels(), loc="upper center", ncols=3, frameon=False,
                  bbox_to_anchor=(0.5, 1 - 0.25 / height))
    number = f"median and range of {seeds} seeds" if seeds > 1 else "one seed"
    figure.suptitle(f"{text}, {number}", fontsize=11).set_in_layout(False)  # `top` has left the room for it
