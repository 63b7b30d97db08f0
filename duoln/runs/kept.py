"""Keeps a run that has ended, as evidence: three small files, without checkpoints and log.

    config.json   the settings, as the run has them
    result.json   the figures; under "dataset" the data, under "starts" when, where and with which versions the run was
                  started and resumed
    curves.csv    a line for each evaluation, and one for the mean training loss of each part of the run

`duoln report` and `duoln paper` read kept runs as they read run folders.
"""

from __future__ import annotations

import csv
import inspect
import io
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from duoln.data.bounded import opened
from duoln.data.text import csv_text
from duoln.errors import CheckpointError, DataError, DataFormatError
from duoln.runs.curve import Curve, check_entry, read_dataset, read_header
from duoln.runs.folder import read_json, write_json
from duoln.runs.log import NAME as LOG
from duoln.runs.places import CONFIG, CURVES, RESULT
from duoln.system.filesystem import make_folder, remove as remove_file, write_own
from duoln.tasks.task import Task

_PARTS = 200
"""The most mean losses of a kept run."""
_MOST_BYTES = 1 << 24
_OF_START = ("time", "first_update", "duoln", "git", "python", "numpy", "platform", "backend", "identity",
             "changes")
"""The notes of each start that are kept; the command line may name folders of its author."""


def keep(run: Curve, folder: Path) -> list[Path]:
    """Write the three files of a run into a folder, which is made if it is not there; returns their paths.

    Raises:
        CheckpointError: the run has not ended, or a file cannot be written.
    """
    check_ended(run)
    result = {key: value for key, value in run.result.items() if key not in ("event", "status")}
    facts = {"dataset": run.dataset._asdict(),
             "starts": [{key: start[key] for key in _OF_START if key in start} for start in run.starts]}
    make_folder(folder)
    write_json(folder / CONFIG, {"task": run.task, "variant": run.variant, "config": dict(run.config)})
    write_json(folder / RESULT, {**result, **facts})
    write_own(folder / CURVES, _table(run).encode())
    return [folder / name for name in (CONFIG, RESULT, CURVES)]


def check_ended(run: Curve) -> None:
    """Raises CheckpointError for a run that has not ended."""
    if run.result.get("status") != "done":
        raise CheckpointError(f"{run.path}: expected a run that has ended, found one at update {run.last['update']}; "
                              "resume it (--resume auto, with --epochs for another end)")


def remove(folder: Path) -> None:
    """Remove a kept run, and its folder if nothing else is in it."""
    for name in (CONFIG, RESULT, CURVES):
        remove_file(folder / name)
    with suppress(OSError):  # the folder has a file of its user
        folder.rmdir()


def kept_folder(task: Task) -> Path:
    """The folder of a task's kept runs: `results`, beside the module of its class."""
    return Path(inspect.getfile(type(task))).resolve().parent / "results"


def is_kept(folder: Path) -> bool:
    """True for a folder that has the files of a kept run, and no run."""
    return (folder / CURVES).is_file() and (folder / RESULT).is_file() and not (folder / LOG).exists()


def read(folder: Path) -> Curve:
    """A kept run.

    Raises:
        CheckpointError: a file is missing. DataFormatError: a file is damaged.
    """
    config, content = read_header(folder / CONFIG), read_json(folder / RESULT)
    dataset = read_dataset(folder / RESULT, content.pop("dataset", None))
    starts = content.pop("starts", None)
    if not (isinstance(starts, list) and all(isinstance(start, dict) for start in starts)):
        raise DataFormatError(folder / RESULT, 0, "a list of objects as starts", f"{starts!r:.60}")
    points, losses = [], []
    for number, line in enumerate(_lines(folder / CURVES), start=2):
        where = f"{folder / CURVES}, line {number}"
        if "epoch" in line:
            entry = {"event": "evaluation", **line}
            points.append(entry)
        else:
            entry = {"event": "update", **line}
            losses.append((line.get("update", 0), line.get("loss", 0.0)))
        check_entry(where, entry)
    return Curve(folder, config["task"], config["variant"], config["config"], dataset, points, losses,
                 {"event": "end", "status": "done", **content}, starts)


def _table(run: Curve) -> str:
    metrics = list(dict.fromkeys(key for point in run.points for key in point if key not in ("event", "update")))
    lines = [(update, [update, f"{loss:.6g}", *("" for _ in metrics)]) for update, loss in _parts(run.losses)]
    lines += [(p["update"], [p["update"], "", *(p.get(key, "") for key in metrics)]) for p in run.points]
    return csv_text([["update", "loss", *metrics], *(line for _, line in sorted(lines, key=lambda line: line[0]))])


def _parts(losses: Sequence[tuple[int, float]]) -> Iterator[tuple[int, float]]:
    """The mean loss of each part of a run, at the part's last update."""
    width = -(-len(losses) // _PARTS) or 1
    for first in range(0, len(losses), width):
        part = losses[first:first + width]
        yield part[-1][0], sum(loss for _, loss in part) / len(part)


def _lines(path: Path) -> Iterator[dict[str, Any]]:
    """The filled cells of each line, as numbers."""
    try:
        with opened(path, "table of curves") as file:
            text = file.read(_MOST_BYTES + 1)
    except DataFormatError:
        raise
    except DataError as error:
        raise CheckpointError(str(error)) from error
    if len(text) > _MOST_BYTES:
        raise DataFormatError(path, 0, f"at most {_MOST_BYTES} bytes", "more")
    lines = csv.DictReader(io.StringIO(text.decode(errors="replace"), newline=""))
    try:
        for line in lines:
            yield {key: _number(value) for key, value in line.items() if value}
    except (TypeError, ValueError, AttributeError) as error:
        raise DataFormatError(path, 0, f"numbers in line {lines.line_num}", f"{line!r:.60}") from error
    except csv.Error as error:  # such as a field of more than 131,072 characters
        raise DataFormatError(path, 0, "a table of curves", error) from error


def _number(text: str) -> int | float:
    return int(text) if text.lstrip("-").isdigit() else float(text)
