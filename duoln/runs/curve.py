"""One run as its files describe it: settings, data, evaluations, losses, result; and the checks of these files."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from duoln.errors import DataFormatError
from duoln.runs.folder import read_json
from duoln.runs.identity import read_changes
from duoln.runs.norm_stats import Layers
from duoln.tasks.values import Dataset

NO_METRICS = ("event", "update", "epoch", "wall_s")
"""The keys of an evaluation that are no metrics."""


class Curve(NamedTuple):
    """One run: its folder, its settings, and its metrics and training losses by update."""

    path: Path
    task: str
    variant: str
    config: Mapping[str, Any]
    """Its settings, and its precision unless that is float32."""
    dataset: Dataset
    points: list[dict[str, Any]]
    losses: list[tuple[int, float]]
    """By update; of a kept run, the means of its parts."""
    result: dict[str, Any]
    """The figures of a run that has ended, with the status "done"; else empty, or with another status."""
    starts: list[dict[str, Any]]
    """The notes of the run, one for each start: time, versions, machine."""
    layers: Mapping[int, Layers] = {}
    """The statistics of the layers by update, if the run watched them."""

    @property
    def last(self) -> Mapping[str, Any]:
        """The evaluation that the run's result is from: the last one, or an earlier one if patience chose that."""
        chosen = (p for p in reversed(self.points) if p["update"] == self.result.get("updates"))
        return next(chosen, self.points[-1] if self.points else {"update": 0, "epoch": 0.0, "wall_s": 0.0})

    @property
    def identity(self) -> Mapping[str, str]:
        """The facts beside its settings that decide its bits, by its last start; see `duoln.runs.identity`."""
        identity = self.starts[-1].get("identity", {}) if self.starts else {}
        good = isinstance(identity, dict) and all(isinstance(text, str) for text in identity.values())
        _check(self.path, "identity", good, "an object of texts", identity)
        noted: Mapping[str, str] = identity
        return noted

    @property
    def changes(self) -> list[str]:
        """In words, what its bits depend on that was not the same in all updates."""
        entries = self.starts[-1].get("changes") if self.starts else None
        return [str(change) for change in read_changes(self.path, entries)]

    @property
    def seconds_per_epoch(self) -> float:
        last = self.last
        return last["wall_s"] / last["epoch"] if last["epoch"] else 0.0

    @property
    def seconds_per_update(self) -> float:
        last = self.last
        return last["wall_s"] / last["update"] if last["update"] else 0.0


def read_header(path: Path) -> dict[str, Any]:
    """The task, the variant and the settings of a run, from its `config.json`.

    Raises:
        DataFormatError: one of them is missing or of another type.
    """
    config = read_json(path)
    for key, kind, words in (("task", str, "a text"), ("variant", str, "a text"), ("config", dict, "an object")):
        _check(path, key, isinstance(config.get(key), kind), words, config.get(key))
    size = config["config"].get("batch_size")
    _check(path, "batch_size", isinstance(size, int) and not isinstance(size, bool), "a whole number", size)
    return config


def read_dataset(where: object, value: Any) -> Dataset:
    """The dataset that a file of a run names.

    Args:
        where: the file and the entry, for errors.
        value: the JSON value under the key `dataset`.

    Raises:
        DataFormatError: the value is not an object of the two texts.
    """
    if not isinstance(value, dict) or value.keys() != set(Dataset._fields) or not all(
            isinstance(text, str) for text in value.values()):
        raise DataFormatError(where, 0, f"an object of the texts {', '.join(Dataset._fields)} as dataset",
                              f"{value!r:.60}")
    return Dataset(**value)


def check_entry(where: str, entry: Mapping[str, Any]) -> None:
    """Raises DataFormatError if an entry of a log lacks a value that curves need."""
    event, update = entry.get("event"), entry.get("update", entry)
    if event in ("update", "evaluation"):
        _check(where, "update", isinstance(update, int) and not isinstance(update, bool), "a whole number", update)
        for key in ("loss",) if event == "update" else (*({"epoch", "wall_s"} - entry.keys()), *entry):
            value = entry.get(key)
            _check(where, key, key == "event" or (isinstance(value, int | float) and not isinstance(value, bool)),
                   "a number", value)


def first_update(where: str, entry: Mapping[str, Any]) -> int:
    """The update after which a run starts or goes on, by the entry of its log.

    Raises:
        DataFormatError: it is no number.
    """
    update = entry.get("first_update", 0)
    _check(where, "first_update", isinstance(update, int) and not isinstance(update, bool), "a whole number", update)
    return int(update)


def _check(file: object, key: str, holds: bool, expected: str, value: object) -> None:
    if not holds:
        raise DataFormatError(file, 0, f"{expected} as {key}", f"{value!r:.60}")
