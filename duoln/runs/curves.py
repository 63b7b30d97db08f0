"""Reads the curves of runs from their folders, or from what is kept of them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from duoln.errors import CheckpointError
from duoln.runs import kept
from duoln.runs.curve import Curve, check_entry, first_update, read_dataset, read_header
from duoln.runs.log import read_log
from duoln.runs.norm_stats import EVENT, LayerStats, read_entry
from duoln.runs.places import CONFIG, run_folders
from duoln.runs.precision import FLOAT32, read_precision
from duoln.tasks.values import Dataset


def read_curves(paths: Sequence[Path]) -> list[Curve]:
    """The runs in some folders (each a run, or a folder of runs), each of them once.

    Raises:
        CheckpointError: a folder holds no run, or one that has no log and was not kept.
        DataFormatError: a file of a run is damaged.
    """
    curves: dict[Path, Curve] = {}
    for path in paths:
        folders = run_folders(path)
        if not folders:
            raise CheckpointError(f"{path}: expected a run folder or a folder of runs, found "
                                  f"{'neither' if path.exists() else 'nothing there'}")
        for folder in folders:
            if folder.resolve() not in curves:
                curves[folder.resolve()] = kept.read(folder) if kept.is_kept(folder) else _read_run(folder)
    return list(curves.values())


def _read_run(folder: Path) -> Curve:
    config = read_header(folder / CONFIG)
    precision = read_precision(folder)
    dataset = Dataset("unknown data", "synthetic")
    points: dict[int, dict[str, Any]] = {}
    losses: dict[int, float] = {}
    result: dict[str, Any] = {}
    starts: list[dict[str, Any]] = []
    layers: dict[int, dict[str, LayerStats]] = {}
    for number, entry in enumerate(read_log(folder), start=1):
        where = f"{folder / 'log.jsonl'}, entry {number}"
        check_entry(where, entry)
        if entry.get("event") == "start":
            dataset = read_dataset(where, entry.get("dataset"))
            starts.append(entry)
            result = {}  # a resumed run has no result until it ends
            after = first_update(where, entry)
            for by_update in (points, losses, layers):  # updates that the run has made, and then gone back behind
                for update in [update for update in by_update if update > after]:
                    del by_update[update]
        elif entry.get("event") == "evaluation":
            points[entry["update"]] = entry
        elif entry.get("event") == "update":
            losses[entry["update"]] = entry["loss"]
        elif entry.get("event") == EVENT:
            update, layers_then = read_entry(where, entry)
            layers[update] = layers_then
        elif entry.get("event") == "end":
            result = entry
    settings = config["config"] if precision == FLOAT32 else {**config["config"], "precision": precision}
    return Curve(folder, config["task"], config["variant"], settings, dataset,
                 [points[update] for update in sorted(points)], sorted(losses.items()), result, starts, layers)
