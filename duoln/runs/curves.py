"""The curves of runs: what their folders say of settings, data, metrics and training losses."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from duoln.errors import CheckpointError, DataFormatError
from duoln.runs.dataset import read_dataset
from duoln.runs.folder import read_json, run_folders
from duoln.runs.log import read_log
from duoln.tasks.values import Dataset


class Curve(NamedTuple):
    """One run: its folder, its settings, and its metrics and training losses by update."""

    path: Path
    task: str
    variant: str
    config: Mapping[str, Any]
    dataset: Dataset
    points: list[dict[str, Any]]
    losses: list[tuple[int, float]]
    result: dict[str, Any]

    @property
    def last(self) -> Mapping[str, Any]:
        """The evaluation that the run's result is from: the last one, or an earlier one if patience chose that."""
        chosen = (p for p in reversed(self.points) if p["step"] == self.result.get("steps"))
        return next(chosen, self.points[-1] if self.points else {"step": 0, "epoch": 0.0, "wall_s": 0.0})

    @property
    def seconds_per_epoch(self) -> float:
        last = self.last
        return last["wall_s"] / last["epoch"] if last["epoch"] else 0.0


def read_curves(paths: Sequence[Path]) -> list[Curve]:
    """The runs in some folders (each a run, or a folder of runs), each of them once.

    Raises:
        CheckpointError: a folder holds no run, or one without a log.
        DataFormatError: a file of a run is damaged.
    """
    curves: dict[Path, Curve] = {}
    for path in paths:
        folders = run_folders(path)
        if not folders:
            raise CheckpointError(f"{path}: expected a run folder or a folder of runs, found "
                                  f"{'neither' if path.exists() else 'nothing there'}")
        for folder in folders:
            if folder.resolve() in curves:
                continue
            config = _read_config(folder / "config.json")
            dataset = Dataset("unknown data", "synthetic")
            points: dict[int, dict[str, Any]] = {}
            losses: dict[int, float] = {}
            result: dict[str, Any] = {}
            for number, entry in enumerate(read_log(folder), start=1):
                where = f"{folder / 'log.jsonl'}, entry {number}"
                _check_entry(where, entry)
                if entry.get("event") == "start":
                    dataset = read_dataset(where, entry.get("dataset"))
                    result = {}  # a resumed run has no result until it ends
                elif entry.get("event") == "evaluation":
                    points[entry["step"]] = entry  # a resumed run repeats updates: the last value counts
                elif entry.get("event") == "step":
                    losses[entry["step"]] = entry["loss"]
                elif entry.get("event") == "end":
                    result = entry
            curves[folder.resolve()] = Curve(
                folder, config["task"], config["variant"], config["config"], dataset,
                [points[step] for step in sorted(points)], sorted(losses.items()), result)
    return list(curves.values())


def _read_config(path: Path) -> dict[str, Any]:
    config = read_json(path)
    for key, kind, words in (("task", str, "a text"), ("variant", str, "a text"), ("config", dict, "an object")):
        _check(path, key, isinstance(config.get(key), kind), words, config.get(key))
    size = config["config"].get("batch_size")
    _check(path, "batch_size", isinstance(size, int) and not isinstance(size, bool), "a whole number", size)
    return config


def _check_entry(where: str, entry: Mapping[str, Any]) -> None:
    """Raises DataFormatError if an entry of a log lacks a value that curves need."""
    event, step = entry.get("event"), entry.get("step")
    if event in ("step", "evaluation"):
        _check(where, "step", isinstance(step, int) and not isinstance(step, bool), "a whole number", step)
        for key in ("loss",) if event == "step" else (*({"epoch", "wall_s"} - entry.keys()), *entry):
            value = entry.get(key)
            _check(where, key, key == "event" or (isinstance(value, int | float) and not isinstance(value, bool)),
                   "a number", value)


def _check(file: object, key: str, holds: bool, expected: str, value: object) -> None:
    if not holds:
        raise DataFormatError(file, 0, f"{expected} as {key}", f"{value!r:.60}")
