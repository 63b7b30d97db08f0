"""Cases and figures as text that is short enough for a narrow terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from duoln.bench.records import quantiles, ratios

CLOCKS = {"wall_slope": "wall time a launch", "wall_run": "wall time a run"}
"""The meaning of each clock of a record."""
_SHORT = {"forward": "fwd", "forward+backward": "fwd+bwd", "step": "step"}


def duration(seconds: float) -> str:
    """Three digits and a unit."""
    for unit, scale in (("s", 1.0), ("ms", 1e-3), ("us", 1e-6)):
        if seconds >= scale:
            value = seconds / scale
            return f"{value:.3g} {unit}" if value < 999.5 else f"{value:.0f} {unit}"
    return f"{seconds * 1e9:.3g} ns"


def share(fraction: float | None) -> str:
    """A fraction in percent."""
    return "-" if fraction is None else f"{fraction:.0%}"


def work(case: Mapping[str, Any]) -> str:
    """Pass, shape and settings."""
    settings = "".join(f", {key}={value}" for key, value in case["settings"].items())
    return f"{_SHORT[case['pass']]} {'x'.join(str(n) for n in case['shape'])}{settings}"


def whole(case: Mapping[str, Any]) -> str:
    """All keys that identify a case, as text."""
    return f"{case['op']} {work(case)}, {case['side']}, {case['dtype']}, {case['cache']}, {CLOCKS[case['clock']]}"


def varying(cases: Sequence[Mapping[str, Any]], keys: Sequence[str]) -> list[str]:
    """The keys in which the cases differ. Each has a column; the others are in the title."""
    return [key for key in keys if len({case[key] for case in cases}) > 1]


def table(cases: Sequence[Mapping[str, Any]]) -> tuple[list[str], list[list[str]]]:
    """Headings and rows of cases, those of one work below each other. A column that says nothing, or the
    same of all where there is one side, is left out.
    """
    lines = [{
        "work": f"{case['op']} {work(case)}", "side": case["side"], "time": duration(case["median"]),
        "+-": f"{case['mad'] / case['median']:.0%}",
        "duoln / side": f"{case['ratio']:.2f}" if case.get("ratio", 1.0) != 1.0 else "",
        "quartiles": _quartiles(cases, case), "rule": case["rule"] or "",
        "GB/s": f"{case['gbps']:.1f}" if case["gbps"] else "", "of copy": share(case["fraction_of_copy"]).strip("-"),
        "on device": duration(case["event_seconds"]) if "event_seconds" in case else "",
        "peak MiB": f"{case['facts']['peak_bytes'] / 2 ** 20:.0f}" if _has_peak(case) else ""} for case in cases]
    alone = len({case["side"] for case in cases}) == 1
    headings = [name for name in (lines[0] if lines else ()) if any(line[name] for line in lines)
                and not (alone and name in ("side", "rule") and len({line[name] for line in lines}) == 1)]
    for before, line in zip(reversed(lines[:-1]), reversed(lines[1:]), strict=True):
        if line["work"] == before["work"]:
            line["work"] = ""
    return headings, [[line[name] for name in headings] for line in lines]


def _quartiles(cases: Sequence[Mapping[str, Any]], case: Mapping[str, Any]) -> str:
    """The quartiles of the ratios of ours to a side, over turns."""
    keys = ("op", "pass", "shape", "settings", "cache")
    ours = next((each for each in cases if all(each[key] == case[key] for key in keys)), case)
    if ours is case or len(ours["samples"]) != len(case["samples"]):
        return ""
    low, high = quantiles(ratios(ours["samples"], case["samples"]), 0.25, 0.75)
    return f"{low:.2f} - {high:.2f}"


def _has_peak(case: Mapping[str, Any]) -> bool:
    return case["cache"] == "running" and case.get("facts", {}).get("peak_bytes") is not None
