"""A range test of learning rates as a table and as a picture."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from duoln.data.csv_text import csv_text
from duoln.pictures import style
from duoln.pictures.drawing import figure
from duoln.system.filesystem import write_own
from duoln.training.rate_test import RateTest

_HEIGHT = 3.6
_ABOVE = 0.5
"""The height of the picture above the first losses, as a share of the loss's fall; a diverging loss has no end."""


def write_table(test: RateTest, target: Path) -> Path:
    """Write a line for each update: rate, loss, smoothed loss.

    Raises:
        CheckpointError: the file cannot be written.
    """
    rows = zip(test.rates.tolist(), test.losses.tolist(), test.smoothed.tolist(), strict=True)
    write_own(target, csv_text([("rate", "loss", "smoothed"), *rows]).encode())
    return target


def draw(title: str, test: RateTest, own: float, target: Path) -> Path:
    """Draw the losses, the smoothed loss, the rates that are suggested and the rate that the task has itself.

    Raises:
        UsageError, CheckpointError: as `figure`.
    """
    marks = {"falls fastest": test.steepest, "a tenth of the least loss's rate": test.tenth_of_minimum,
             "the task's own rate": own}
    with figure(target, size=(style.WIDTH, _HEIGHT)) as (_, [[axes]]):
        axes.plot(test.rates, test.losses, ".", color="0.6", markersize=4, label="loss")
        axes.plot(test.rates, test.smoothed, label="smoothed", **style.look(0).line())
        axes.set_xscale("log")
        for k, (label, rate) in enumerate(marks.items(), 1):
            if rate is not None and test.rates[0] <= rate <= test.rates[-1]:
                axes.axvline(rate, label=f"{label}: {rate:.2g}", **style.look(k).line())
        first, least = float(test.smoothed[0]), float(min(test.smoothed.min(), test.losses.min()))
        top = first + _ABOVE * (first - least)
        if test.losses.max() > top > first:
            axes.set_ylim(least - 0.1 * (top - least), max(top, float(np.median(test.losses))))
        axes.set_title(style.wrapped(title, style.WIDTH), fontsize=style.MIDDLE, loc="left")
        axes.set_xlabel("learning rate, which grows with every update")
        axes.set_ylabel("training loss", fontsize=style.MIDDLE)
        axes.tick_params(labelsize=style.SMALL)
        axes.grid(alpha=0.3)
        axes.legend(fontsize=style.SMALL)
    return target
