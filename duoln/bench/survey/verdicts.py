"""A verdict for every prediction of `kernels/predictions.py`, from the records of a survey, by RULE."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

from duoln.kernels.predictions import COPY_GBPS, SHEETS, Prediction, Reading, predictions

HOLDS, FASTER, SLOWER, UNMEASURED = "holds", "faster", "slower", "not measured"
RULE = ("Measured over predicted decides: within the prediction's factor it holds. Times of operators and walks are "
        "those of a graph on the device; other times are the host's, with Python. Times bound by memory are predicted "
        "for an H100 and scaled by the copy of this device; shares of the data sheet are of this device's; the others "
        "are compared as they are for an H100.")

Record = Mapping[str, Any]
ReadRecord = Callable[[str], Record]
"""From the name of a part to its record; an empty one if there is none."""


class Verdict(NamedTuple):
    """What became of a prediction."""

    name: str
    what: str
    unit: str
    predicted: float | None
    """For this device; None if there is no way to scale it."""
    measured: float | None
    ratio: float | None
    within: float
    verdict: str


def verdicts(record_of: ReadRecord) -> list[Verdict]:
    """All predictions against the records of one survey."""
    limits = record_of("device")
    device = str(limits.get("backend", record_of("selftest").get("backend", {})).get("device", ""))
    copied = limits.get("figures", {}).get("copy GB/s") or record_of("ops").get("copy_gbps")
    copy_gbps = copied if _is_number(copied) else None
    return [verdict(p, measured(p.reading, record_of(p.reading.part)), predicted(p, device, copy_gbps))
            for p in predictions()]


def predicted(prediction: Prediction, device: str, copy_gbps: float | None) -> float | None:
    """What is predicted for a device; None if that needs what is not known about it."""
    if not prediction.scale:
        return prediction.value
    if prediction.scale == "copy":
        return None if copy_gbps is None else prediction.value * COPY_GBPS / copy_gbps
    sheet = next((sheet for name, sheet in SHEETS.items() if name in device), None)
    return None if sheet is None else prediction.value * sheet[prediction.scale]


def measured(reading: Reading, record: Record) -> float | None:
    """The figure of a record that decides a prediction; None if it is not there."""
    if reading.part == "selftest":
        return _of_selftest(reading.figure, record)
    if reading.part == "device":
        named = (value for name, value in record.get("figures", {}).items() if name.startswith(reading.figure))
        return next((value for value in named if _is_number(value)), None)
    if reading.figure == "gradient us":
        both, forward = (_microseconds(reading._replace(passes=passes), record)
                         for passes in ("forward+backward", "forward"))
        return None if both is None or forward is None or both <= forward else both - forward
    ours = _microseconds(reading, record)
    if reading.figure in ("us", "device us") or ours is None:
        return ours
    theirs = _microseconds(reading._replace(side=reading.beside), record)
    return None if theirs is None else ours / theirs


def verdict(prediction: Prediction, actual: float | None, expected: float | None) -> Verdict:
    """The rule above."""
    ratio = actual / expected if actual is not None and expected else None
    if actual is None or expected is None:
        words = UNMEASURED
    elif ratio is None:  # none was predicted, so one is too many
        words = HOLDS if actual == 0 else SLOWER
    elif 1 / prediction.within <= ratio <= prediction.within:
        words = HOLDS
    else:
        words = FASTER if (ratio > 1) == prediction.more_is_better else SLOWER
    return Verdict(prediction.name, prediction.what, prediction.unit, expected, actual, ratio, prediction.within, words)


def table(judged: list[Verdict]) -> Iterator[str]:
    """The verdicts as lines of a Markdown table."""
    yield from ("| what | predicted here | measured | measured / predicted | within | verdict |",
                "| --- | --- | --- | --- | --- | --- |")
    for v in judged:
        figures = _figure(v.predicted, v.unit), _figure(v.measured, v.unit), _figure(v.ratio, ""), f"{v.within:g}"
        yield f"| {v.what} | {' | '.join(figures)} | {v.verdict} |"


def _figure(value: float | None, unit: str) -> str:
    return "-" if value is None else f"{value:.3g} {unit}".strip()


def _of_selftest(figure: str, record: Record) -> float | None:
    if figure == "failures":
        if not record.get("complete"):
            return None
        failed = len(record["failures"]) + sum(len(rule["failures"]) for rule in record["rules"])
        return float(failed + len(record.get("compilation", {}).get("failures", [])))
    value = record.get("compilation", {}).get(figure)
    return value if _is_number(value) else None


def _microseconds(reading: Reading, record: Record) -> float | None:
    """The time of a case; where the device's own decides, the host's does not stand for it: that is Python's time."""
    key = "event_seconds" if reading.part == "ops" or reading.figure == "device us" else "median"
    for case in record.get("cases", []):
        if (case["op"], case["pass"], tuple(case["shape"]), case["side"]) == (
                reading.op, reading.passes, reading.shape, reading.side):
            return float(1e6 * case[key] / reading.steps) if key in case else None
    return None


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
