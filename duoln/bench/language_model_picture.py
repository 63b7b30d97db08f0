"""The picture of `duoln bench language-model`: the time of an update in PyTorch, by the layer that the model has."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from duoln.bench.language_model import UPDATE, Sizes
from duoln.bench.records import spread
from duoln.pictures import style
from duoln.pictures.drawing import figure

_BARS = {"torch, LN-LSTM by cells": "LayerNorm, a loop over cells",
         "torch, LSTM of duoln.bridge": "LayerNorm, duoln.bridge", "torch.nn.LSTM, no norm": "no norm, torch.nn.LSTM"}
"""The sides that are drawn, with their words."""


def draw(cases: Sequence[Mapping[str, Any]], target: Path) -> Path:
    """A panel for each size of the model, and in it a bar for each side: the median of the timed updates.

    Raises:
        UsageError: matplotlib is not installed, or the name is no picture's.
    """
    updates = [case for case in cases if case["op"].endswith(UPDATE) and case["side"] in _BARS]
    sizes = list(dict.fromkeys(Sizes(*case["shape"]) for case in updates))
    with figure(target, 1, len(sizes), size=(style.WIDTH, 1.7)) as (_, [panels]):
        for axes, size in zip(panels, sizes, strict=True):
            own = [case for case in updates if Sizes(*case["shape"]) == size]
            medians = {case["side"]: 1e3 * spread(case["samples"])["median"] for case in own}
            rows = [(words, medians[side]) for side, words in _BARS.items()]
            bars = axes.barh([words for words, _ in rows], [ms for _, ms in rows], 0.6,
                             color=[style.look(k).colour for k in range(len(rows))])
            axes.bar_label(bars, [f"{ms:.0f} ms" for _, ms in rows], fontsize=style.SMALL, padding=2)
            axes.invert_yaxis()
            axes.margins(x=0.35)
            axes.tick_params(labelsize=style.SMALL, labelleft=axes is panels[0])
            axes.set_title(f"{size.steps} steps, batch {size.batch}, {size.width} units", fontsize=style.MIDDLE)
    return target
