"""The curves of figure 2, read off the vector figure in which the baseline and batch norm were first published."""

from __future__ import annotations

import csv
from pathlib import Path

from duoln.tasks import ReferenceCurve

FIGURE = Path(__file__).with_name("figure2.csv")


def curves() -> list[ReferenceCurve]:
    """Validation error against updates of none, bn and bn-everywhere; layer norm's curve has no numbers."""
    points: dict[str, list[tuple[float, float]]] = {}
    with FIGURE.open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            points.setdefault(row["variant"], []).append((float(row["updates"]), float(row["valid_error"])))
    return [ReferenceCurve("valid_error", variant, line) for variant, line in points.items()]
