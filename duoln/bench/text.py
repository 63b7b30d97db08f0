"""Cases and figures as text that is short enough for a narrow terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

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


def operator_table(cases: Sequence[Mapping[str, Any]]) -> tuple[str, list[str], list[list[str]]]:
    """Title, headings and rows for the cases of one operator."""
    ours = [case for case in cases if case["rule"] is not None]
    one_rule, one_cache = not varying(ours, ["rule"]), not varying(cases, ["cache"])
    apart = [*varying(cases, ["side"]), *([] if one_rule else ["rule"])]
    common = [*([cases[0]["cache"]] if one_cache else []), *([f"rule: {ours[0]['rule']}"] if ours and one_rule else [])]
    rows = [[work(case) + ("" if one_cache else f" {case['cache']}"), *(case[key] or "-" for key in apart),
             duration(case["median"]), f"{case['mad'] / case['median']:.0%}", f"{case['gbps']:.1f}",
             share(case["fraction_of_copy"]), f"{case['max_error']:.0e}"] for case in cases]
    title = f"{cases[0]['op']} ({', '.join(common)})" if common else cases[0]["op"]
    return title, ["case", *apart, "time", "+-", "GB/s", "of copy", "error"], rows
