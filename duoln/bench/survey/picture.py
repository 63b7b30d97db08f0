"""The picture of a survey: what each side took, for every operator, layer and training step, on one axis of times."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from duoln.bench import text
from duoln.bench.survey.folder import PICTURE, Folder
from duoln.pictures import style
from duoln.pictures.drawing import figure

_PARTS = {"ops": "Operators", "rnn": "Recurrent layers", "steps": "Training steps"}
_BAR_INCHES, _PANEL_INCHES, _LEGEND_INCHES = 0.17, 0.6, 0.25
_OURS = style.COLOURS[0]

Groups = dict[str, list[Mapping[str, Any]]]


def draw(folder: Folder) -> bool:
    """Draw what there is into the folder; whether there was anything."""
    panels = {title: _groups(folder.record(part)) for part, title in _PARTS.items()}
    panels = {title: groups for title, groups in panels.items() if groups}
    if not panels:
        return False
    heights = [_PANEL_INCHES + _BAR_INCHES * sum(len(cases) + 1 for cases in groups.values())
               for groups in panels.values()]
    with figure(folder.path / PICTURE, len(panels), size=(style.WIDTH, sum(heights) + _LEGEND_INCHES),
                gridspec_kw={"height_ratios": heights}) as (_, grid):
        for (axes,), (title, groups) in zip(grid, panels.items(), strict=True):
            _panel(axes, title, groups)
    return True


def _groups(record: Mapping[str, Any]) -> Groups:
    """The cases of a record that are the same work."""
    groups: Groups = {}
    for case in record.get("cases", []):
        groups.setdefault(f"{case['op']} {text.work({**case, 'settings': {}})}", []).append(case)
    return groups


def _panel(axes: Any, title: str, groups: Groups) -> None:
    """A bar for each side, from the shortest time of the panel on; ours in colour, others in grey."""
    place, ticks, least = 0, [], min(case["median"] for cases in groups.values() for case in cases)
    for name, cases in groups.items():
        for case in cases:
            ours = case["side"].startswith("duoln")
            axes.barh(place, case["median"], 0.8, color=_OURS if ours else "0.7")
            axes.text(case["median"], place, f" {case['side']}, {text.duration(case['median'])}", va="center",
                      fontsize=style.SMALL)
            place += 1
        ticks.append((place - (len(cases) + 1) / 2, name))
        place += 1
    axes.set_xscale("log")
    longest = max(case["median"] for cases in groups.values() for case in cases)
    axes.set_xlim(least / 2, longest * (longest / least) ** 0.6 * 2)  # room for the names right of the bars
    axes.set_yticks([tick for tick, _ in ticks], [name for _, name in ticks], fontsize=style.SMALL)
    axes.tick_params(which="both", labelsize=style.SMALL)
    axes.invert_yaxis()
    axes.set_title(title, fontsize=style.MIDDLE, loc="left")
    axes.set_xlabel("seconds, median", fontsize=style.SMALL)
